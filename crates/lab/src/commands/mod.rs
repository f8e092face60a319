//! The commands of `striate-lab`: experiments in virtual time, and comparisons with real processes.

mod busy_loops;
mod caching;
mod contest;
mod directing;
mod experiments;
mod faults;
mod packed_batches;
mod packed_reality;
mod processors;
mod racks;
mod reality;
mod repair;
mod site;
mod site_processes;
mod wide;
mod wide_codes;
mod wide_encode;
mod wide_repair;
mod wide_update;

use std::path::Path;
use std::time::Duration;

use striate_runtime::Runtime;

use crate::args::{Command, SpeedArgs};
use crate::directing::tables as directing_tables;
use crate::experiment::cells::write_atomically;
use crate::failure::{Failure, Outcome};
use crate::{costs, speed};

/// Runs a command of the lab.
///
/// # Errors
/// If an experiment cannot be loaded or fails, or its results cannot be written.
pub async fn run(runtime: Runtime, command: Command) -> Outcome {
    // A world has its own executor, which cannot run inside this one.
    let clock = runtime.clone();
    match command {
        Command::List => experiments::list(),
        Command::Run(args) => runtime.run_blocking(move || experiments::run(&clock, &args)).await,
        Command::Figure(args) => runtime.run_blocking(move || experiments::figure(&clock, &args)).await,
        Command::Results(args) => runtime.run_blocking(move || experiments::results(&clock, &args)).await,
        Command::Costs => runtime.run_blocking(move || measure_costs(&clock)).await,
        Command::Reality(args) => reality::run(&runtime, &args).await,
        Command::PackedReality(args) => packed_reality::run(&runtime, &args).await,
        Command::Speed(args) => runtime.run_blocking(move || measure_speed(&clock, &args)).await,
        Command::Repair(args) => runtime.run_blocking(move || repair::run(&args)).await,
        Command::Directing(args) => runtime.run_blocking(move || directing::run(&clock, &args)).await,
        Command::PackedBatches(args) => runtime.run_blocking(move || packed_batches::run(&args)).await,
        Command::Caching(args) => runtime.run_blocking(move || caching::run(&args)).await,
        Command::Wide(args) => runtime.run_blocking(move || wide::run(&args)).await,
        Command::WideCodes(args) => runtime.run_blocking(move || wide_codes::run(&args)).await,
        Command::Faults(args) => runtime.run_blocking(move || faults::run(&clock, &args)).await,
        Command::WideRepair(args) => wide_repair::run(&runtime, args).await,
        Command::WideEncode(args) => wide_encode::run(&runtime, &args).await,
        Command::WideUpdate(args) => wide_update::run(&runtime, &args).await,
        Command::EncodeNode(args) => wide_encode::encode_node(&runtime, &args).await,
        Command::Site(args) => site::run(&runtime, args).await,
    }
}

/// Writes a file atomically, creating its folder, and prints its path.
fn write_file(path: &Path, text: &str) -> Outcome {
    let fail = |error: std::io::Error| Failure::failed(format!("cannot write {}: {error}", path.display()));
    write_atomically(path, text.as_bytes()).map_err(fail)?;
    println!("written: {}", path.display());
    Ok(())
}

fn measure_costs(clock: &Runtime) -> Outcome {
    let costs = costs::measure(clock);
    println!(
        "RS(2,2), blocks of 100 KB, the fastest of many rounds on one core:\n\
         encode {:.1} GB/s with all chunks' checksums, decode {:.1} GB/s with the block's checksum, plan {:.0} ns for \
         each chunk asked for, {:.0} ns by the cost model; evaluate candidate moves in {:.0} ns as published, {:.0} ns \
         improved",
        costs.encode_bytes_per_s / 1e9,
        costs.decode_bytes_per_s / 1e9,
        costs.plan_ns_per_chunk,
        costs.optimise_ns_per_chunk,
        costs.published_move_ns,
        costs.improved_move_ns,
    );
    println!("load direction tables of 90 nodes and 2,004 partitions:");
    for table in directing_tables::measure(|| clock.uptime()) {
        println!("{}: {:.1} ms, proved to within {:.0e} of the optimum", table.name, table.ms, table.gap);
    }
    Ok(())
}

fn measure_speed(clock: &Runtime, args: &SpeedArgs) -> Outcome {
    for sites in [32, args.sites] {
        let length = Duration::from_secs_f64(args.length);
        let speed = speed::measure(sites, args.blocks, length, args.seed, clock).map_err(Failure::refused)?;
        let memory =
            speed.peak_memory_bytes.map_or("unknown".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
        println!(
            "{sites} sites, {} blocks: {:.2} million chunk reads a minute of real time ({} in {:.1} s, {:.1} s of \
             virtual time), built in {:.1} s, peak memory {memory}",
            speed.blocks,
            speed.chunk_reads_per_minute() / 1e6,
            speed.chunk_reads,
            speed.real_s,
            speed.virtual_s,
            speed.build_s,
        );
    }
    Ok(())
}

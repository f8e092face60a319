//! `striate lab`: experiments in virtual time.

use std::path::Path;
use std::time::Duration;

use striate_lab::experiment::{self, BUILT_IN, Experiment, Results, report};
use striate_lab::speed;
use striate_runtime::Runtime;

use crate::args::{LabCommand, LabRunArgs, LabSpeedArgs};
use crate::failure::{Failure, Outcome};

/// Runs a command of the lab.
///
/// # Errors
/// When an experiment cannot be had or fails, or its results cannot be written.
pub async fn run(runtime: Runtime, command: LabCommand) -> Outcome {
    match command {
        LabCommand::List => list(),
        // A world has an executor of its own, which cannot run inside this one's.
        LabCommand::Run(args) => {
            let clock = runtime.clone();
            runtime.run_blocking(move || run_experiment(&clock, &args)).await
        }
        LabCommand::Speed(args) => {
            let clock = runtime.clone();
            runtime.run_blocking(move || measure_speed(&clock, &args)).await
        }
    }
}

fn list() -> Outcome {
    for (name, text) in BUILT_IN {
        let experiment = Experiment::parse(name, text).map_err(Failure::failed)?;
        println!("{name:<20} {}", experiment.title);
    }
    Ok(())
}

fn run_experiment(clock: &Runtime, args: &LabRunArgs) -> Outcome {
    let mut experiment = Experiment::load(&args.experiment).map_err(Failure::refused)?;
    experiment.seeds = args.seeds.unwrap_or(experiment.seeds);
    experiment.scale = args.scale.unwrap_or(experiment.scale);
    experiment.check().map_err(Failure::refused)?;
    let total = experiment.policies.len() * experiment.seeds as usize;
    let mut done = 0;
    let results = experiment::run(&experiment, args.seed, clock, |policy, run| {
        done += 1;
        eprintln!(
            "[{done}/{total}] {policy}, seed {}: mean {:.2} ms, p99 {:.1} ms of virtual time; {:.1} s of real time",
            run.seed,
            run.response.mean_ms,
            run.response.percentile(99.0),
            run.real_s
        );
    });
    let results = results.map_err(Failure::failed)?;
    print_comparisons(&results);
    write_results(&results, &args.out)
}

fn print_comparisons(results: &Results) {
    println!("{}; virtual time, scale 1/{}, commit {}", results.title, results.scale, results.commit);
    for row in &results.comparisons {
        println!("{}: paper {}, lab {}", row.what, row.paper, row.ours);
    }
}

fn write_results(results: &Results, directory: &Path) -> Outcome {
    let json = serde_json::to_string_pretty(results).map_err(Failure::failed)?;
    let write = |ending: &str, text: String| {
        let path = directory.join(format!("{}.{ending}", results.experiment));
        std::fs::write(&path, text)
            .map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))?;
        println!("written: {}", path.display());
        Ok(())
    };
    std::fs::create_dir_all(directory)
        .map_err(|error| Failure::failed(format!("cannot make {}: {error}", directory.display())))?;
    write("json", json)?;
    write("html", report::html(results))
}

fn measure_speed(clock: &Runtime, args: &LabSpeedArgs) -> Outcome {
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

//! `striate-lab wide-repair`: repairs a chunk of a wide stripe on real processes in racks.

use serde::Serialize;
use striate_control::repair::pace::RepairChoice;
use striate_runtime::Runtime;

use super::racks::{Meter, Metered, first_racks, print, start};
use super::site_processes::SiteProcesses;
use crate::args::{RackHost, WideRepairArgs};
use crate::failure::{Failure, Outcome};
use crate::rack_repair::apart::Sums;
use crate::rack_repair::node::NodeRepair;
use crate::rack_repair::{RackRepair, layout};

/// Index of the lost chunk: a data chunk of the first local group.
const LOST: usize = 0;

/// Results of the command.
#[derive(Debug, Serialize)]
struct RepairReport {
    code: String,
    racks: usize,
    sites: usize,
    chunk_bytes: u64,
    repetitions: Vec<Metered>,
    /// With --apart, the measurements beside each repetition.
    apart: Vec<RepairParts>,
}

/// The unavoidable parts of a repair, measured separately.
#[derive(Debug, Serialize)]
struct RepairParts {
    /// Its bytes, moved by the same sites.
    moved: Metered,
    /// Processor seconds of its sums, in memory.
    added_s: f64,
}

/// Results of repairing a whole node.
#[derive(Debug, Serialize)]
struct NodeReport {
    code: String,
    racks: usize,
    sites: usize,
    chunk_bytes: u64,
    stripes: usize,
    /// Chunks that each site of the lost site's rack made, for those that made any.
    made: Vec<u64>,
    /// Processor seconds of each site, in the order of their numbers.
    site_s: Vec<f64>,
    #[serde(flatten)]
    repetition: Metered,
}

/// Runs all repetitions and prints them as JSON.
///
/// # Errors
/// If there are too few racks, a process does not start, or a repair fails.
pub(super) async fn run(runtime: &Runtime, args: WideRepairArgs) -> Outcome {
    match args.stripes {
        None => repair_chunk(runtime, &args).await,
        Some(stripes) => repair_node(runtime, &args, stripes).await,
    }
}

async fn repair_chunk(runtime: &Runtime, args: &WideRepairArgs) -> Outcome {
    let mut rack_of = layout::racks_of(args.code.code, args.scheme).map_err(Failure::refused)?;
    // The spare site.
    rack_of.push(rack_of[LOST]);
    let hosts = first_racks(&args.racks, 1 + rack_of.iter().max().expect("a stripe has chunks"))?;
    let processes = start(runtime, &args.racks, hosts, &rack_of).await?;
    let sites = processes.connect_as_control(runtime)?;
    let chunk_len = args.chunk_kib << 10;
    let prepared = RackRepair::prepare(runtime, args.code, sites, LOST, chunk_len).await;
    let mut trial = prepared.map_err(Failure::failed)?;
    let (mut repetitions, mut apart) = (Vec::new(), Vec::new());
    let mut sums = args.apart.then(|| trial.sums()).transpose().map_err(Failure::failed)?;
    for repetition in 0..args.repetitions {
        let Some(sums) = &mut sums else {
            let meter = Meter::start(hosts, &processes)?;
            let took = trial.repeat().await.map_err(Failure::failed)?;
            repetitions.push(meter.stop(took)?);
            continue;
        };
        // Each goes first equally often.
        if repetition % 2 == 0 {
            repetitions.push(repair_only(&mut trial, hosts, &processes).await?);
            apart.push(measure_apart(&trial, sums, hosts, &processes).await?);
        } else {
            apart.push(measure_apart(&trial, sums, hosts, &processes).await?);
            repetitions.push(repair_only(&mut trial, hosts, &processes).await?);
        }
    }
    print(&RepairReport {
        code: args.code.to_string(),
        racks: hosts.len(),
        sites: rack_of.len(),
        chunk_bytes: chunk_len.into(),
        repetitions,
        apart,
    })
}

/// Loses the chunk and has it repaired. Neither the loss nor the check of the result is measured.
async fn repair_only(
    trial: &mut RackRepair,
    hosts: &[RackHost],
    processes: &SiteProcesses,
) -> Outcome<Metered> {
    trial.lose().await.map_err(Failure::failed)?;
    let meter = Meter::start(hosts, processes)?;
    let took = trial.repair().await.map_err(Failure::failed)?;
    let metered = meter.stop(took)?;
    trial.verify().await.map_err(Failure::failed)?;
    Ok(metered)
}

async fn measure_apart(
    trial: &RackRepair,
    sums: &mut Sums,
    hosts: &[RackHost],
    processes: &SiteProcesses,
) -> Outcome<RepairParts> {
    let meter = Meter::start(hosts, processes)?;
    let took = trial.move_apart().await.map_err(Failure::failed)?;
    let moved = meter.stop(took)?;
    trial.delete_moved().await.map_err(Failure::failed)?;
    let added_s = sums.add_apart().map_err(Failure::failed)?.as_secs_f64();
    Ok(RepairParts { moved, added_s })
}

/// Repairs a whole node, on one rack more than a stripe needs, with `rack_sites` sites in each.
async fn repair_node(runtime: &Runtime, args: &WideRepairArgs, stripes: usize) -> Outcome {
    let of_stripe = layout::racks_of(args.code.code, args.scheme).map_err(Failure::refused)?;
    let hosts = first_racks(&args.racks, 2 + of_stripe.iter().max().expect("a stripe has chunks"))?;
    let rack_of: Vec<usize> = (0..hosts.len() * args.rack_sites).map(|site| site / args.rack_sites).collect();
    let processes = start(runtime, &args.racks, hosts, &rack_of).await?;
    let sites = processes.connect_as_control(runtime)?;
    let chunk_len = args.chunk_kib << 10;
    let prepared = NodeRepair::prepare(runtime, args.code, sites, stripes, chunk_len, args.seed).await;
    let trial = prepared.map_err(Failure::failed)?;
    let choice = if args.any { RepairChoice::Any } else { RepairChoice::LeastRecent };
    let before = processes.processor_s()?;
    let meter = Meter::start(hosts, &processes)?;
    let repaired = trial.repair(choice).await.map_err(Failure::failed)?;
    let repetition = meter.stop(repaired.took)?;
    let site_s = processes.processor_s()?.into_iter().zip(before).map(|(now, then)| now - then).collect();
    print(&NodeReport {
        code: args.code.to_string(),
        racks: hosts.len(),
        sites: rack_of.len(),
        chunk_bytes: chunk_len.into(),
        stripes,
        made: repaired.made.into_values().collect(),
        site_s,
        repetition,
    })
}

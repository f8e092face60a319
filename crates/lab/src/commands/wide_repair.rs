//! `striate-lab wide-repair`: a chunk of a wide stripe is repaired on real processes in racks.

use std::fs;
use std::time::Duration;

use serde::Serialize;
use striate_control::repair_pace::RepairChoice;
use striate_runtime::Runtime;

use super::processors::Usage;
use super::site_processes::{Host, SiteProcesses};
use crate::args::{RackHost, WideRepairArgs};
use crate::failure::{Failure, Outcome};
use crate::rack_repair::node::NodeRepair;
use crate::rack_repair::{RackRepair, layout};

/// The chunk that is lost: a data chunk of the first local group.
const LOST: usize = 0;

/// What was seen.
#[derive(Debug, Serialize)]
struct Seen {
    code: String,
    racks: usize,
    sites: usize,
    chunk_bytes: u64,
    repetitions: Vec<Repetition>,
}

#[derive(Debug, Serialize)]
struct Repetition {
    seconds: f64,
    /// Bytes that have left each rack, and come to it.
    sent: Vec<u64>,
    received: Vec<u64>,
    /// Processor seconds of all sites and this process.
    processor_s: f64,
    /// The share of all processors that other programs took.
    others: f64,
}

/// What was seen of a whole node's repair.
#[derive(Debug, Serialize)]
struct NodeSeen {
    code: String,
    racks: usize,
    sites: usize,
    chunk_bytes: u64,
    stripes: usize,
    /// Chunks that each site of the lost one's rack made, as far as it made any.
    made: Vec<u64>,
    /// Processor seconds of each site, in the order of their numbers.
    site_s: Vec<f64>,
    #[serde(flatten)]
    repetition: Repetition,
}

/// Runs all repetitions and prints them as JSON.
///
/// # Errors
/// When racks are too few, a process does not start, or a repair fails.
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
    let hosts = racks(args, 1 + rack_of.iter().max().expect("a stripe has chunks"))?;
    let processes = start(runtime, args, hosts, &rack_of).await?;
    let sites = processes.connect_as_control(runtime)?;
    let chunk_len = args.chunk_mib << 20;
    let prepared = RackRepair::prepare(runtime, args.code, sites, LOST, chunk_len).await;
    let mut trial = prepared.map_err(Failure::failed)?;
    let mut repetitions = Vec::new();
    for _ in 0..args.repetitions {
        let meter = Meter::start(hosts, &processes)?;
        let took = trial.repeat().await.map_err(Failure::failed)?;
        repetitions.push(meter.stop(took)?);
    }
    print(&Seen {
        code: args.code.to_string(),
        racks: hosts.len(),
        sites: rack_of.len(),
        chunk_bytes: chunk_len.into(),
        repetitions,
    })
}

/// A rack more than a stripe takes, and so many sites in each.
async fn repair_node(runtime: &Runtime, args: &WideRepairArgs, stripes: usize) -> Outcome {
    let of_stripe = layout::racks_of(args.code.code, args.scheme).map_err(Failure::refused)?;
    let hosts = racks(args, 2 + of_stripe.iter().max().expect("a stripe has chunks"))?;
    let rack_of: Vec<usize> = (0..hosts.len() * args.rack_sites).map(|site| site / args.rack_sites).collect();
    let processes = start(runtime, args, hosts, &rack_of).await?;
    let sites = processes.connect_as_control(runtime)?;
    let chunk_len = args.chunk_mib << 20;
    let prepared = NodeRepair::prepare(runtime, args.code, sites, stripes, chunk_len, args.seed).await;
    let trial = prepared.map_err(Failure::failed)?;
    let choice = if args.any { RepairChoice::Any } else { RepairChoice::LeastRecent };
    let before = processes.processor_s()?;
    let meter = Meter::start(hosts, &processes)?;
    let repaired = trial.repair(choice).await.map_err(Failure::failed)?;
    let repetition = meter.stop(repaired.took)?;
    let site_s = processes.processor_s()?.into_iter().zip(before).map(|(now, then)| now - then).collect();
    print(&NodeSeen {
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

fn print(seen: &impl Serialize) -> Outcome {
    println!("{}", serde_json::to_string(seen).map_err(Failure::failed)?);
    Ok(())
}

/// The first racks of those that were given.
fn racks(args: &WideRepairArgs, count: usize) -> Outcome<&[RackHost]> {
    let too_few = || Failure::refused(format!("{count} racks are needed: give as many --host"));
    args.hosts.get(..count).ok_or_else(too_few)
}

/// A site in each of these racks.
async fn start(
    runtime: &Runtime,
    args: &WideRepairArgs,
    hosts: &[RackHost],
    rack_of: &[usize],
) -> Outcome<SiteProcesses> {
    let host = |&rack: &usize| Host::Space(hosts[rack].space.clone(), hosts[rack].address.clone());
    let on: Vec<Host> = rack_of.iter().map(host).collect();
    SiteProcesses::start_on(runtime, &on, None, args.dir.as_deref()).await
}

/// Counts what links carry and processors do.
struct Meter<'a> {
    hosts: &'a [RackHost],
    processes: &'a SiteProcesses,
    links: Vec<(u64, u64)>,
    usage: Usage,
}

impl<'a> Meter<'a> {
    fn start(hosts: &'a [RackHost], processes: &'a SiteProcesses) -> Outcome<Self> {
        let usage = Usage::read(&processes.pids(), &[])?;
        Ok(Self { hosts, processes, links: count(hosts)?, usage })
    }

    /// What there was during a repair that took so long.
    fn stop(self, took: Duration) -> Outcome<Repetition> {
        let links = count(self.hosts)?.into_iter().zip(self.links);
        let (sent, received) = links.map(|(now, then)| (now.0 - then.0, now.1 - then.1)).unzip();
        let usage = Usage::read(&self.processes.pids(), &[])? - self.usage;
        Ok(Repetition {
            seconds: took.as_secs_f64(),
            sent,
            received,
            processor_s: usage.own_s,
            others: usage.other_share(),
        })
    }
}

/// Bytes that have left each rack so far, and come to it: the outer end of a link receives what leaves.
fn count(hosts: &[RackHost]) -> Outcome<Vec<(u64, u64)>> {
    let read = |host: &RackHost, counter: &str| {
        let path = format!("/sys/class/net/{}/statistics/{counter}", host.link);
        let text = fs::read_to_string(&path).map_err(|error| Failure::failed(format!("{path}: {error}")))?;
        text.trim().parse::<u64>().map_err(|error| Failure::failed(format!("{path}: {error}")))
    };
    hosts.iter().map(|host| Ok((read(host, "rx_bytes")?, read(host, "tx_bytes")?))).collect()
}

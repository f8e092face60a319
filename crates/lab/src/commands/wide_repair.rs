//! `striate-lab wide-repair`: a chunk of a wide stripe is repaired on real processes in racks.

use std::fs;

use serde::Serialize;
use striate_runtime::Runtime;

use super::processors::Usage;
use super::site_processes::{Host, SiteProcesses};
use crate::args::{RackHost, WideRepairArgs};
use crate::failure::{Failure, Outcome};
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
}

/// Runs all repetitions and prints them as JSON.
///
/// # Errors
/// When racks are too few, a process does not start, or a repair fails.
pub(super) async fn run(runtime: &Runtime, args: WideRepairArgs) -> Outcome {
    let mut rack_of = layout::racks_of(args.code.code, args.scheme).map_err(Failure::refused)?;
    // The spare site.
    rack_of.push(rack_of[LOST]);
    let racks = 1 + rack_of.iter().max().expect("a stripe has chunks");
    let hosts = args
        .hosts
        .get(..racks)
        .ok_or_else(|| Failure::refused(format!("{racks} racks are needed: give as many --host")))?;
    let host = |&rack: &usize| Host::Space(hosts[rack].space.clone(), hosts[rack].address.clone());
    let on: Vec<Host> = rack_of.iter().map(host).collect();
    let processes = SiteProcesses::start_on(runtime, &on, None, args.dir.as_deref()).await?;
    let sites = processes.connect_as_control(runtime)?;
    let chunk_len = args.chunk_mib << 20;
    let prepared = RackRepair::prepare(runtime, args.code, sites, LOST, chunk_len).await;
    let mut trial = prepared.map_err(Failure::failed)?;
    let mut repetitions = Vec::new();
    for _ in 0..args.repetitions {
        let (links, usage) = (count(hosts)?, Usage::read(&processes.pids(), &[])?);
        let took = trial.repeat().await.map_err(Failure::failed)?;
        let usage = Usage::read(&processes.pids(), &[])? - usage;
        let (sent, received) = (count(hosts)?.into_iter().zip(links))
            .map(|(now, then)| (now.0 - then.0, now.1 - then.1))
            .unzip();
        repetitions.push(Repetition {
            seconds: took.as_secs_f64(),
            sent,
            received,
            processor_s: usage.own_s,
        });
    }
    let seen = Seen {
        code: args.code.to_string(),
        racks,
        sites: on.len(),
        chunk_bytes: chunk_len.into(),
        repetitions,
    };
    println!("{}", serde_json::to_string(&seen).map_err(Failure::failed)?);
    Ok(())
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

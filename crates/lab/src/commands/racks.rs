//! Racks as network namespaces: the sites in them, and the traffic of their links.

use std::fs;
use std::time::Duration;

use serde::Serialize;
use striate_runtime::Runtime;

use super::processors::Usage;
use super::site_processes::{Host, Media, SiteProcesses};
use crate::args::{RackHost, RacksArgs};
use crate::failure::{Failure, Outcome};

/// Measurements of one repetition.
#[derive(Debug, Serialize)]
pub(super) struct Metered {
    pub(super) seconds: f64,
    /// Bytes that left each rack, and bytes that arrived.
    sent: Vec<u64>,
    received: Vec<u64>,
    /// Processor seconds of all sites and this process.
    pub(super) processor_s: f64,
    /// Share of all processors that other programs took.
    others: f64,
}

/// Prints results as JSON.
pub(super) fn print(report: &impl Serialize) -> Outcome {
    println!("{}", serde_json::to_string(report).map_err(Failure::failed)?);
    Ok(())
}

/// Returns the first `count` of the given racks.
pub(super) fn first_racks(args: &RacksArgs, count: usize) -> Outcome<&[RackHost]> {
    let too_few = || Failure::refused(format!("{count} racks are needed: give as many --host"));
    args.hosts.get(..count).ok_or_else(too_few)
}

/// Starts a site in each of these racks.
pub(super) async fn start(
    runtime: &Runtime,
    args: &RacksArgs,
    hosts: &[RackHost],
    rack_of: &[usize],
) -> Outcome<SiteProcesses> {
    let on: Vec<Host> = rack_of.iter().map(|&rack| host(&hosts[rack])).collect();
    let media = if args.memory { Media::Memory } else { Media::Directories };
    SiteProcesses::start_on(runtime, &on, media, args.dir.as_deref()).await
}

/// Returns the host for the namespace of a rack.
pub(super) fn host(rack: &RackHost) -> Host {
    Host::Space(rack.space.clone(), rack.address.clone())
}

/// Measures the traffic of links and the time of processors.
pub(super) struct Meter<'a> {
    hosts: &'a [RackHost],
    processes: &'a SiteProcesses,
    links: Vec<(u64, u64)>,
    usage: Usage,
}

impl<'a> Meter<'a> {
    pub(super) fn start(hosts: &'a [RackHost], processes: &'a SiteProcesses) -> Outcome<Self> {
        let usage = Usage::read(&processes.pids(), &[])?;
        Ok(Self { hosts, processes, links: count(hosts)?, usage })
    }

    /// Returns the measurements of something that took `took`.
    pub(super) fn stop(self, took: Duration) -> Outcome<Metered> {
        let links = count(self.hosts)?.into_iter().zip(self.links);
        let (sent, received) = links.map(|(now, then)| (now.0 - then.0, now.1 - then.1)).unzip();
        let usage = Usage::read(&self.processes.pids(), &[])? - self.usage;
        Ok(Metered {
            seconds: took.as_secs_f64(),
            sent,
            received,
            processor_s: usage.own_s,
            others: usage.other_share(),
        })
    }
}

/// Returns the bytes that have left each rack so far, and those that arrived. The outer end of a link receives what
/// leaves the rack.
fn count(hosts: &[RackHost]) -> Outcome<Vec<(u64, u64)>> {
    let read = |host: &RackHost, counter: &str| {
        let path = format!("/sys/class/net/{}/statistics/{counter}", host.link);
        let text = fs::read_to_string(&path).map_err(|error| Failure::failed(format!("{path}: {error}")))?;
        text.trim().parse::<u64>().map_err(|error| Failure::failed(format!("{path}: {error}")))
    };
    hosts.iter().map(|host| Ok((read(host, "rx_bytes")?, read(host, "tx_bytes")?))).collect()
}

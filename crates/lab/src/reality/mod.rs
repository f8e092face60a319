//! Compares the lab with reality: one small workload in virtual time and on real sites with modelled media.
//!
//! Both sides have the same blocks in the same places, the same closed-loop clients, and sites whose media follow one
//! [`SiteModel`](crate::calibration::SiteModel). Everything else differs: on the real side, the processes, sockets,
//! the site protocol, the disks' files, the processors and the schedulers are real. The lab's conclusions from its
//! models are right to the extent that the two sides agree.
//!
//! - [`path_cost`]: the cost of the path between processes, which the lab's network then has too.
//! - [`run_lab`]: a run in virtual time.
//! - [`prepare`], [`run_real`]: the same run against given sites, wherever they are.
//! - [`packed`]: packed objects, read from real sites by one policy after the other.
//! - [`outcome`]: both sides compared, and whether they agree.
//!
//! This module does not start processes.

pub mod outcome;
pub mod packed;
pub mod path_cost;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::Serialize;
use striate_client::{Client, ClientError, ClientOptions};
use striate_core::{ChunkId, ChunkRange, Generation, Profile, SiteId, StripeId};
use striate_meta::MemoryStore;
use striate_plan::ReadPolicy;
use striate_runtime::{Runtime, run_in_virtual_time};
use striate_site::{Priority, Site, WriteRequest};
use striate_stripe::StripeOptions;

use crate::calibration::Calibration;
use crate::contents::{GeneratedStripes, WRITER};
use crate::drive::{DriveOptions, drive};
use crate::latency::Latencies;
use crate::workload::{EcStoreScans, Objects, Operation, Workload};
use crate::world::{World, WorldOptions, load_metadata};
use path_cost::PathCost;

/// Maximum number of blocks in a scan: a quarter of the paper's, so that the machine's processors, which serve all
/// sites and clients at once, do not dominate the result.
pub const MAX_SCAN: u64 = 5;

/// Maximum number of concurrent chunk writes before a real run.
const WRITES_IN_FLIGHT: usize = 64;

/// Parameters of the runs on both sides.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Media, and the clients' own work.
    pub calibration: Calibration,
    /// Path between sites and clients, in the lab. The calibration's own round trip is that of another network.
    pub way: PathCost,
    /// Code of the blocks.
    pub profile: Profile,
    /// Policy that chooses the chunks to read.
    pub policy: ReadPolicy,
    /// Number of sites, each a process or a machine of the lab.
    pub sites: u32,
    /// Number of closed-loop clients, all of one client service.
    pub clients: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// Length of a block in bytes.
    pub block_len: u32,
    /// Length of the uniform warm-up.
    pub warm_up: Duration,
    /// Length of the measured phase, with Zipf(1) starts.
    pub length: Duration,
}

/// The compared policies and calibrations: (name, calibration, profile, policy).
pub const CASES: [(&str, &str, &str, &str); 5] = [
    ("R", "P", "replica(3)", "random"),
    ("EC", "P", "rs(2,2)", "random"),
    ("EC+LB", "P", "rs(2,2)", "late-binding(1)"),
    ("EC", "D", "rs(2,2)", "random"),
    ("default", "P", "rs(2,2)", "adaptive"),
];

/// Reasons why a real run ended early.
#[derive(Debug, thiserror::Error)]
pub enum RealityError {
    /// A chunk could not be written before the run.
    #[error("site {site} does not take a chunk: {reason}")]
    Write {
        /// The site.
        site: SiteId,
        /// Error of the site.
        reason: String,
    },
    /// The cost of the path to a site could not be measured.
    #[error("the way to site {site}: {reason}")]
    Way {
        /// The site.
        site: SiteId,
        /// Error of the site.
        reason: String,
    },
    /// The client service failed.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Response times of a run, in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Responses {
    /// Number of operations.
    pub count: u64,
    /// Mean response time.
    pub mean_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// (response time, share of operations at or below it).
    pub cdf: Vec<(f64, f64)>,
}

impl Responses {
    /// Summarises response times.
    pub fn of(latencies: &Latencies) -> Self {
        let summary = latencies.summary();
        Self {
            count: summary.count,
            mean_ms: summary.mean_ms,
            p50_ms: summary.percentile(50.0),
            p95_ms: summary.percentile(95.0),
            p99_ms: summary.percentile(99.0),
            cdf: latencies.cdf(),
        }
    }
}

impl Setting {
    fn world(&self) -> WorldOptions {
        let calibration = Calibration { round_trip_ms: self.way.round_trip_ms, ..self.calibration };
        WorldOptions {
            sites: self.sites,
            clients: 1,
            block_len: self.block_len,
            card_bytes_per_s: Some(self.way.card_bytes_per_s),
            ..WorldOptions::ec_store(calibration, self.profile, self.blocks, self.policy.clone())
        }
    }

    fn client_work(&self) -> Duration {
        Duration::from_secs_f64(self.calibration.client_work_ms / 1e3)
    }

    fn phases(&self) -> [(Duration, ShortScans); 2] {
        let blocks = u64::from(self.blocks);
        let measured = EcStoreScans::measured(blocks, 1.0);
        [(self.warm_up, ShortScans(EcStoreScans::warm_up(blocks))), (self.length, ShortScans(measured))]
    }
}

/// The paper's scans, with 1 to [`MAX_SCAN`] blocks.
#[derive(Clone, Copy, Debug)]
struct ShortScans(EcStoreScans);

impl Workload for ShortScans {
    fn objects(&self) -> u64 {
        self.0.objects()
    }

    fn size(&self, object: u64) -> u64 {
        self.0.size(object)
    }

    fn next(&mut self, rng: &mut SmallRng) -> Operation {
        match self.0.next(rng) {
            // The number of long lengths is a multiple of the number of short ones, so the short lengths are equally
            // likely.
            Operation::Read(Objects::Run { first, count }) => {
                Operation::read_run(first, (count - 1) % MAX_SCAN + 1)
            }
            other => other,
        }
    }
}

/// Runs the workload in virtual time.
///
/// # Errors
/// If the world cannot be built.
pub fn run_lab(setting: &Setting, seed: u64) -> Result<Latencies, ClientError> {
    let setting = setting.clone();
    run_in_virtual_time(seed, Duration::ZERO, move |runtime| async move {
        let world = Arc::new(World::build(runtime, &setting.world()).await?);
        let mut latencies = Latencies::default();
        for (length, scans) in setting.phases() {
            let options = DriveOptions {
                clients: setting.clients,
                rate_per_s: None,
                length,
                operations: None,
                interval: length,
                client_work: setting.client_work(),
            };
            latencies = drive(&world, options, scans).await.latencies;
        }
        Ok(latencies)
    })
}

/// Returns the blocks and places of [`run_lab`] with this seed. Must not be called inside an executor.
///
/// # Errors
/// If the world cannot be built.
pub fn stripes_of(setting: &Setting, seed: u64) -> Result<Arc<GeneratedStripes>, ClientError> {
    let options = setting.world();
    run_in_virtual_time(seed, Duration::ZERO, move |runtime| async move {
        Ok(Arc::clone(&World::build(runtime, &options).await?.stripes))
    })
}

/// The written blocks of a real run.
pub struct WrittenBlocks {
    client: Client,
    stripes: Arc<GeneratedStripes>,
}

/// Writes the blocks of [`run_lab`] with this seed to real sites, which must be empty and numbered from 1.
///
/// # Errors
/// On the first write that fails.
pub async fn prepare(
    runtime: &Runtime,
    setting: &Setting,
    seed: u64,
    sites: Vec<Arc<dyn Site>>,
) -> Result<WrittenBlocks, RealityError> {
    let of_task = setting.clone();
    let stripes = runtime.run_blocking(move || stripes_of(&of_task, seed)).await?;
    write_chunks(&sites, &stripes).await?;
    let engine = Arc::new(MemoryStore::new(runtime.clone()));
    load_metadata(runtime, &engine, &stripes).await?;
    let options = ClientOptions {
        profile: setting.profile,
        block_len: setting.block_len,
        stripes: StripeOptions { read_policy: setting.policy.clone(), ..StripeOptions::default() },
        ..ClientOptions::default()
    };
    let client = Client::open(runtime.clone(), engine, sites, options).await?;
    Ok(WrittenBlocks { client, stripes })
}

/// Runs the phases of [`run_lab`] on real sites.
///
/// # Errors
/// On the first read that fails.
pub async fn run_real(
    runtime: &Runtime,
    setting: &Setting,
    seed: u64,
    prepared: &WrittenBlocks,
) -> Result<Latencies, RealityError> {
    let mut latencies = Latencies::default();
    for (phase, (length, scans)) in setting.phases().into_iter().enumerate() {
        latencies = Latencies::default();
        let began = runtime.now();
        let loops = (0..setting.clients).map(|number| {
            let of_loop = ClosedLoop {
                client: prepared.client.clone(),
                stripes: Arc::clone(&prepared.stripes),
                scans,
                rng: SmallRng::seed_from_u64(seed << 16 | (phase as u64) << 8 | u64::from(number)),
                ends: began + length,
                work: setting.client_work(),
            };
            runtime.spawn(of_loop.run())
        });
        for task in loops.collect::<Vec<_>>() {
            latencies.merge(&task.await.expect("a client does not panic")?);
        }
    }
    Ok(latencies)
}

async fn write_chunks(sites: &[Arc<dyn Site>], stripes: &GeneratedStripes) -> Result<(), RealityError> {
    let chunks = (0..stripes.len()).flat_map(|sequence| {
        let record = stripes.record(sequence);
        record.locations.into_iter().enumerate().map(move |(index, location)| {
            let stripe = StripeId::new(WRITER, sequence as u64);
            let chunk = ChunkId { stripe, index: index as u8, generation: Generation(location.generation) };
            (SiteId(location.site), chunk)
        })
    });
    let writes = chunks.map(async |(site, chunk)| {
        let failed = |error: &dyn std::fmt::Display| RealityError::Write { site, reason: error.to_string() };
        let len = stripes.chunk_len(chunk.stripe).ok_or_else(|| failed(&"it is not among the stripes"))?;
        let range = ChunkRange { chunk, offset: 0, len };
        let payload = stripes.read(site, range).map_err(|error| failed(&error))?;
        let target = sites.iter().find(|other| other.id() == site);
        let target = target.ok_or_else(|| failed(&"it is not among the sites given"))?;
        let request = WriteRequest { chunk, payload, granule_crcs: None, priority: Priority::Foreground };
        target.write(request).await.map(drop).map_err(|error| failed(&error))
    });
    let mut written = futures::stream::iter(writes).buffer_unordered(WRITES_IN_FLIGHT);
    while let Some(result) = written.next().await {
        result?;
    }
    Ok(())
}

/// A client that sends its next scan when the last one is answered.
struct ClosedLoop {
    client: Client,
    stripes: Arc<GeneratedStripes>,
    scans: ShortScans,
    rng: SmallRng,
    ends: striate_runtime::Instant,
    work: Duration,
}

impl ClosedLoop {
    async fn run(mut self) -> Result<Latencies, ClientError> {
        let mut latencies = Latencies::default();
        let runtime = self.client.runtime().clone();
        loop {
            let began = runtime.now();
            if began >= self.ends {
                return Ok(latencies);
            }
            let Operation::Read(keys) = self.scans.next(&mut self.rng) else { continue };
            let blocks: Vec<_> = keys.iter().map(|key| self.stripes.block(key as usize)).collect();
            self.client.read_blocks(&blocks).await?;
            runtime.sleep_until_exactly(runtime.now() + self.work).await;
            latencies.record(runtime.now() - began);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_names_a_profile_and_a_policy() {
        for (name, _, profile, policy) in CASES {
            assert!(profile.parse::<Profile>().is_ok(), "{name}: {profile}");
            assert!(striate_baselines::read_policy(policy).is_ok(), "{name}: {policy}");
        }
    }
}

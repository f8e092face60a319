//! One of many sites dies, and the repair service rebuilds its chunks while clients read.
//!
//! The real service runs on its own machine and may use a share of each network card. The sites that receive the
//! chunks make them, from what the sources' sites send ([`striate_control::repair`]). The trial reports how much of
//! the share was used, how evenly the load was spread over sources and targets, and the effect on clients.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use striate_client::{Client, ClientError};
use striate_control::repair::pace::RepairLimits;
use striate_control::{RepairOptions, RepairService};
use striate_core::{Profile, RackId, SiteId, StripeId};
use striate_meta::store::limits;
use striate_meta::{ScanRange, Transaction, TxId, keys, records};
use striate_plan::{Adaptive, ReadPolicy};
use striate_runtime::run_in_virtual_time;
use striate_stripe::holders;
use striate_virtual_network::Machine;

use crate::calibration::Calibration;
use crate::contents::WRITER;
use crate::drive::{DriveOptions, RunMeasurements, drive};
use crate::workload::EcStoreScans;
use crate::world::{World, WorldOptions};

/// Duration of the reads before the site dies.
const BEFORE: Duration = Duration::from_secs(10);
/// Length of the intervals in which reads are measured during the repair.
const PIECE: Duration = Duration::from_secs(1);
/// Silence after which the site counts as lost.
const WAIT: Duration = Duration::from_secs(5);
/// Timeout of a repair.
const AT_MOST: Duration = Duration::from_secs(3_600);
/// Interval between checks whether the repair has begun or ended.
const LOOK: Duration = Duration::from_millis(50);

/// Parameters of a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RepairTrial {
    /// Number of sites, each with its own card.
    pub sites: u32,
    /// Code of the blocks.
    pub profile: Profile,
    /// Number of blocks.
    pub blocks: u32,
    /// Bytes per block.
    pub block_len: u32,
    /// Bandwidth of each card in each direction, in bytes per second.
    pub card_bytes_per_s: f64,
    /// Share of each card that repair may use, sent and received together.
    pub share: f64,
    /// Client requests per second, by the default policy: EC-Store's scans.
    pub reads_per_s: f64,
    /// Seed of the trial.
    pub seed: u64,
}

/// Results of a trial, in virtual time.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialResult {
    /// Number of chunks rebuilt.
    pub chunks: u64,
    /// Time from the first chunk to the last, in seconds.
    pub took_s: f64,
    /// Bytes sent and received for the repair, over those allowed at the remaining sites.
    pub used: f64,
    /// Bytes that each remaining site sent for the repair.
    pub sent: Vec<u64>,
    /// Bytes of rebuilt chunks on each remaining site.
    pub stored: Vec<u64>,
    /// Mean response times in ms, before and during the repair.
    pub mean_ms: [f64; 2],
    /// 99th percentiles of response times in ms, before and during the repair.
    pub p99_ms: [f64; 2],
    /// Number of reads that failed.
    pub failed: u64,
}

/// Returns the coefficient of variation: the standard deviation over the mean.
pub fn variation(values: &[u64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<u64>() as f64 / count;
    let squares: f64 = values.iter().map(|&value| (value as f64 - mean).powi(2)).sum();
    (squares / count).sqrt() / mean
}

/// Runs a trial.
///
/// # Errors
/// If the world cannot be built or the repair does not end.
pub fn run(trial: RepairTrial) -> Result<TrialResult, ClientError> {
    run_in_virtual_time(trial.seed, Duration::ZERO, move |runtime| async move {
        let options = WorldOptions {
            sites: trial.sites,
            // The last machine dies; no client runs on it.
            clients: trial.sites - 1,
            block_len: trial.block_len,
            card_bytes_per_s: Some(trial.card_bytes_per_s),
            ..WorldOptions::ec_store(
                Calibration::P,
                trial.profile,
                trial.blocks,
                ReadPolicy::new(Adaptive::default()),
            )
        };
        let world = Arc::new(World::build(runtime, &options).await?);
        register_sites(&world).await?;
        let before = read_for(&world, &trial, BEFORE).await;
        let (service, client) = start_service(&world, &options, &trial).await?;
        fail_last_site(&world, here(&trial));
        wait(&world, || service.progress().left > 0).await?;
        let (began, sent) = (world.runtime.now(), world.sent_between_sites());
        let beside = read_until_whole(&world, &trial, &service).await?;
        let took = world.runtime.now() - began;
        let sent: Vec<u64> =
            world.sent_between_sites().iter().zip(sent).map(|(now, then)| now - then).collect();
        let stored = stored(&world, &client).await?;
        let moved = 2 * sent.iter().sum::<u64>();
        let allowed = trial.card_bytes_per_s * trial.share * f64::from(trial.sites - 1) * took.as_secs_f64();
        Ok(TrialResult {
            chunks: service.progress().chunks,
            took_s: took.as_secs_f64(),
            used: moved as f64 / allowed,
            sent: sent[..sent.len() - 1].to_vec(),
            stored: stored[..stored.len() - 1].to_vec(),
            mean_ms: [&before, &beside].map(|measured| measured.latencies.summary().mean_ms),
            p99_ms: [&before, &beside].map(|measured| measured.latencies.at_percentile_ms(99.0)),
            failed: before.failed + beside.failed,
        })
    })
}

/// Writes the sites' rows, as their admission would.
async fn register_sites(world: &World) -> Result<(), ClientError> {
    use striate_meta::MetaStore;
    use striate_site::Site;
    let mut tx = Transaction::new(TxId(u128::from(world.runtime.random_u64())));
    for machine in &world.machines {
        let id = machine.site.id();
        let RackId(rack) = machine.site.rack();
        let record = records::Site { id: id.0, rack, ..records::Site::default() };
        tx.put(keys::site(id), records::encode(&record));
    }
    world.engine.commit(tx).await?;
    Ok(())
}

/// Writes the rows that lead from a site to its chunks, as the blocks' writers would.
async fn write_reverse_index(world: &World, client: &Client) -> Result<(), ClientError> {
    let stripes: Vec<usize> = (0..world.stripes.len()).collect();
    for batch in stripes.chunks(limits::MAX_OPERATIONS) {
        let mut tx = client.stripes().transaction();
        for &sequence in batch {
            let placement =
                client.stripes().ensure_placement(&holders(&world.stripes.record(sequence))).await?;
            tx.put(keys::reverse(placement, StripeId::new(WRITER, sequence as u64)), Bytes::new());
        }
        client.meta().commit(tx).await?;
    }
    Ok(())
}

/// Returns the machine of the service.
fn here(trial: &RepairTrial) -> Machine {
    Machine { number: trial.sites + 1, rack: 0 }
}

/// Cuts the last site off from all other machines.
fn fail_last_site(world: &World, service: Machine) {
    let Some((last, others)) = world.machines.split_last() else { return };
    let mut others: Vec<Machine> = others.iter().map(|other| other.machine).collect();
    others.push(service);
    world.network.partition(&[last.machine], &others);
}

async fn start_service(
    world: &World,
    options: &WorldOptions,
    trial: &RepairTrial,
) -> Result<(RepairService, Client), ClientError> {
    let client = world.client(here(trial), options.client_options()).await?;
    let rate = (trial.card_bytes_per_s * trial.share) as u64;
    write_reverse_index(world, &client).await?;
    let limits = RepairLimits { rate_bytes_per_s: rate, ..RepairLimits::default() };
    let service = RepairService::new(RepairOptions { after: WAIT, limits: Some(limits) });
    world.runtime.spawn(service.clone().run(client.stripes().clone()));
    Ok((service, client))
}

/// Reads in open loop for this long.
async fn read_for(world: &Arc<World>, trial: &RepairTrial, length: Duration) -> RunMeasurements {
    let options = DriveOptions {
        clients: 0,
        rate_per_s: Some(trial.reads_per_s),
        length,
        operations: None,
        interval: length,
        client_work: Duration::from_secs_f64(Calibration::P.client_work_ms / 1e3),
    };
    drive(world, options, EcStoreScans::measured(u64::from(trial.blocks), 1.0)).await
}

/// Reads until the service has nothing left to do.
async fn read_until_whole(
    world: &Arc<World>,
    trial: &RepairTrial,
    service: &RepairService,
) -> Result<RunMeasurements, ClientError> {
    let mut all = RunMeasurements::default();
    let whole = Box::pin(wait(world, || service.progress().left == 0));
    let mut whole = whole;
    loop {
        let piece = Box::pin(read_for(world, trial, PIECE));
        match select(whole, piece).await {
            Either::Left((ended, _)) => return ended.map(|()| all),
            Either::Right((piece, rest)) => {
                all.latencies.merge(&piece.latencies);
                all.failed += piece.failed;
                whole = rest;
            }
        }
    }
}

/// Waits until a condition holds.
async fn wait(world: &World, mut is_so: impl FnMut() -> bool) -> Result<(), ClientError> {
    let deadline = world.runtime.now() + AT_MOST;
    while !is_so() {
        if world.runtime.now() > deadline {
            let (what, reason) = ("the repair".to_owned(), format!("it takes longer than {AT_MOST:?}"));
            return Err(ClientError::Inconsistent { what, reason });
        }
        world.runtime.sleep(LOOK).await;
    }
    Ok(())
}

/// Returns the bytes of rebuilt chunks on each site, according to the stripes' records.
async fn stored(world: &World, client: &Client) -> Result<Vec<u64>, ClientError> {
    let mut bytes = vec![0; world.machines.len()];
    for row in client.meta().scan(ScanRange::prefix(keys::STRIPES), usize::MAX).await? {
        let record: records::Stripe = row.record()?;
        for location in record.locations.iter().filter(|location| location.generation > 1) {
            bytes[(SiteId(location.site).0 - 1) as usize] += u64::from(record.chunk_len);
        }
    }
    Ok(bytes)
}

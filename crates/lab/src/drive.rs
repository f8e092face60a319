//! Clients that run a workload against a world and measure it.
//!
//! *Closed loop*: each client sends its next operation when the last one is answered, with zero think time. *Open
//! loop*: operations are due at the times of a Poisson process, whether or not earlier ones were answered. Operations
//! of a workload with its own times, such as a trace, are due at those.
//!
//! A response time is what a user of the client service sees: metadata, planning, retrieval, decoding, and the
//! client's own work. Planning, encoding and decoding run for real, which takes no virtual time; their cost is
//! charged from [`ProcessorCost`].
//!
//! Written data stays in memory until the world ends, including replaced versions: nothing collects garbage.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::SmallRng;
use striate_client::{Client, ClientError};
use striate_runtime::Instant;
use striate_stripe::ReadStats;
use striate_virtual_network::Event;

use crate::calibration::ProcessorCost;
use crate::latency::Latencies;
use crate::workload::{Due, Kind, Operation, Workload};
use crate::world::World;

/// How a workload is run, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DriveOptions {
    /// Closed loop: number of clients, spread over the client services. Open loop: ignored.
    pub clients: u32,
    /// Open loop: operations per second, all clients together. `None`: closed loop, unless the workload has its own
    /// times.
    pub rate_per_s: Option<f64>,
    /// Duration for which operations are sent, in virtual time.
    pub length: Duration,
    /// Maximum number of operations sent.
    pub operations: Option<u64>,
    /// Width of the intervals for mean response times over time.
    pub interval: Duration,
    /// A client's own work per operation.
    pub client_work: Duration,
}

/// Results of a run.
#[derive(Clone, Debug, Default)]
pub struct RunMeasurements {
    /// Response times of the operations sent within the duration.
    pub latencies: Latencies,
    /// Response times by kind of operation.
    pub by_kind: BTreeMap<Kind, Latencies>,
    /// Response times by time of the answer: sum in seconds and count for each interval.
    pub over_time: Vec<(f64, u64)>,
    /// Where the time went, summed over all operations.
    pub breakdown: Breakdown,
    /// Bytes that each site read from its disk.
    pub site_bytes: Vec<u64>,
    /// Bytes that each site read in the last quarter of the run; empty if the operations ended before.
    pub last_site_bytes: Vec<u64>,
    /// Bytes of requested blocks.
    pub block_bytes: u64,
    /// Chunks requested from sites.
    pub chunks: u64,
    /// Chunks requested at once beyond a sufficient set (δ).
    pub extra_chunks: u64,
    /// Chunks requested because others were late.
    pub hedged_chunks: u64,
    /// Operations served by a cached plan.
    pub cached_plans: u64,
    /// Requests to sites, over all operations.
    pub site_reads: u64,
    /// Blocks that were planned again after a failure.
    pub planned_again: u64,
    /// Number of operations that failed.
    pub failed: u64,
    /// Reason of the first failure.
    pub first_failure: Option<String>,
}

/// Where the time of operations went, as sums.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Breakdown {
    /// Time to look up stripes.
    pub metadata: Duration,
    /// Time to plan.
    pub plan: Duration,
    /// Time from the plan to the last chunk needed.
    pub retrieve: Duration,
    /// Time to decode.
    pub decode: Duration,
    /// Time of writes and deletions, encoding included.
    pub write: Duration,
    /// Time of the client's own work.
    pub client_work: Duration,
}

/// State of a run.
struct Run {
    options: DriveOptions,
    /// One workload for all clients, so that no two insert the same object.
    workload: Mutex<Box<dyn Workload>>,
    started: Instant,
    /// Number of operations sent.
    sent: AtomicU64,
    measured: Mutex<RunMeasurements>,
}

/// Runs a workload until every operation that was sent is answered.
pub async fn drive(
    world: &Arc<World>,
    options: DriveOptions,
    workload: impl Workload + 'static,
) -> RunMeasurements {
    let before = site_bytes(world);
    let is_open = options.rate_per_s.is_some() || workload.due() != Due::Whenever;
    let run = Arc::new(Run {
        options,
        workload: Mutex::new(Box::new(workload)),
        started: world.runtime.now(),
        sent: AtomicU64::new(0),
        measured: Mutex::new(RunMeasurements::default()),
    });
    if is_open {
        open_loop(world, &run).await;
    } else {
        let client = |number| world.runtime.spawn(closed_loop(Arc::clone(world), Arc::clone(&run), number));
        for task in (0..options.clients).map(client).collect::<Vec<_>>() {
            task.await.expect("a client does not panic");
        }
    }
    let mut measured = std::mem::take(&mut *run.measured.lock());
    let after = site_bytes(world);
    let since = |before: &[u64]| after.iter().zip(before).map(|(after, before)| after - before).collect();
    (measured.site_bytes, measured.last_site_bytes) = (since(&before), since(&measured.last_site_bytes));
    measured
}

/// Returns the bytes that each site has read from its disk so far.
fn site_bytes(world: &World) -> Vec<u64> {
    world.machines.iter().map(|machine| machine.store.read_bytes()).collect()
}

async fn closed_loop(world: Arc<World>, run: Arc<Run>, number: u32) {
    let client = &world.clients[number as usize % world.clients.len()];
    let mut rng = world.runtime.rng();
    loop {
        let due = world.runtime.now();
        if run.is_over(due) {
            return;
        }
        let operation = run.workload.lock().next(&mut rng);
        run.operate(&world, client, number, operation, due).await;
    }
}

async fn open_loop(world: &Arc<World>, run: &Arc<Run>) {
    let mut rng: SmallRng = world.runtime.rng();
    let mut due = run.started;
    let mut tasks = Vec::new();
    for number in 0u32.. {
        let next = run.workload.lock().due();
        match (next, run.options.rate_per_s) {
            (Due::Never, _) | (Due::Whenever, None) => break,
            (Due::After(time), _) => due = run.started + time,
            (Due::Whenever, Some(rate_per_s)) => {
                due += Duration::from_secs_f64(-(1.0 - rng.random::<f64>()).ln() / rate_per_s);
            }
        }
        if run.is_over(due) {
            break;
        }
        world.runtime.sleep_until(due).await;
        let operation = run.workload.lock().next(&mut rng);
        let (task_world, run) = (Arc::clone(world), Arc::clone(run));
        tasks.push(world.runtime.spawn(async move {
            let client = &task_world.clients[number as usize % task_world.clients.len()];
            run.operate(&task_world, client, number, operation, due).await;
        }));
    }
    for task in tasks {
        task.await.expect("an operation does not panic");
    }
}

/// Cost of one operation, without the client's own work.
#[derive(Default)]
struct Cost {
    read: ReadStats,
    block_bytes: u64,
    plan: Duration,
    decode: Duration,
    write: Duration,
}

impl Run {
    /// Returns true if no more operations are sent; otherwise counts the operation that the caller is about to send.
    fn is_over(&self, due: Instant) -> bool {
        due - self.started >= self.options.length
            || self.options.operations.is_some_and(|most| self.sent.fetch_add(1, Ordering::Relaxed) >= most)
    }

    /// Runs one operation that was due at `due`.
    async fn operate(&self, world: &World, client: &Client, number: u32, operation: Operation, due: Instant) {
        let kind = operation.kind();
        let done = self.execute(world, client, operation).await;
        world.runtime.sleep(self.options.client_work).await;
        let took = world.runtime.now() - due;
        world.trace.record(Event::Answered, u64::from(number), took.as_nanos() as u64);
        let mut measured = self.measured.lock();
        if measured.last_site_bytes.is_empty()
            && world.runtime.now() - self.started >= self.options.length * 3 / 4
        {
            measured.last_site_bytes = site_bytes(world);
        }
        match done {
            Ok(cost) => {
                measured.add(&cost, self.options.client_work);
                measured.by_kind.entry(kind).or_default().record(took);
                measured.add_time(took, world.runtime.now() - self.started, self.options.interval);
            }
            Err(error) => {
                measured.failed += 1;
                measured.first_failure.get_or_insert_with(|| error.to_string());
            }
        }
    }

    async fn execute(
        &self,
        world: &World,
        client: &Client,
        operation: Operation,
    ) -> Result<Cost, ClientError> {
        let mut cost = Cost::default();
        match operation {
            Operation::Read(objects) => {
                let objects: Vec<u64> = objects.iter().collect();
                cost.read(world, client, &objects).await?;
            }
            Operation::Update(object) => self.write(world, client, object, &mut cost).await?,
            Operation::Insert(object) => {
                let written = self.write(world, client, object, &mut cost).await;
                self.workload.lock().inserted(object, written.is_ok());
                written?;
            }
            Operation::ReadModifyWrite(object) => {
                cost.read(world, client, &[object]).await?;
                self.write(world, client, object, &mut cost).await?;
            }
            Operation::Delete(object) => {
                let began = world.runtime.now();
                world.delete_object(client, object).await?;
                cost.write = world.runtime.now() - began;
            }
        }
        Ok(cost)
    }

    async fn write(
        &self,
        world: &World,
        client: &Client,
        object: u64,
        cost: &mut Cost,
    ) -> Result<(), ClientError> {
        let (key, len) = {
            let workload = self.workload.lock();
            (workload.key(object), workload.size(object))
        };
        let began = world.runtime.now();
        world.runtime.sleep(ProcessorCost::MEASURED.encode(len)).await;
        world.write_object(client, object, key, len).await?;
        cost.write = world.runtime.now() - began;
        Ok(())
    }
}

impl Cost {
    /// Reads, and charges the time of planning and decoding.
    async fn read(&mut self, world: &World, client: &Client, objects: &[u64]) -> Result<(), ClientError> {
        (self.read, self.block_bytes) = world.read_objects(client, objects).await?;
        let costs = ProcessorCost::MEASURED;
        (self.plan, self.decode) =
            (costs.plan(&world.policy, self.read.chunks), costs.decode(self.read.decoded_bytes));
        world.runtime.sleep(self.plan + self.decode).await;
        Ok(())
    }
}

impl RunMeasurements {
    fn add(&mut self, cost: &Cost, client_work: Duration) {
        let Breakdown { metadata, plan, retrieve, decode, write, client_work: own } = &mut self.breakdown;
        *metadata += cost.read.metadata;
        *plan += cost.plan;
        *retrieve += cost.read.retrieve;
        *decode += cost.decode;
        *write += cost.write;
        *own += client_work;
        self.block_bytes += cost.block_bytes;
        self.chunks += cost.read.chunks as u64;
        self.extra_chunks += cost.read.extra_chunks as u64;
        self.hedged_chunks += cost.read.hedged_chunks as u64;
        self.cached_plans += u64::from(cost.read.cached_plan);
        self.site_reads += cost.read.sites as u64;
        self.planned_again += cost.read.planned_again as u64;
    }

    fn add_time(&mut self, took: Duration, at: Duration, interval: Duration) {
        self.latencies.record(took);
        let slot = (at.as_secs_f64() / interval.as_secs_f64()) as usize;
        if self.over_time.len() <= slot {
            self.over_time.resize(slot + 1, (0.0, 0));
        }
        self.over_time[slot].0 += took.as_secs_f64();
        self.over_time[slot].1 += 1;
    }

    /// Returns λ over the actual mean load (EC-Store, Table II), in percent.
    pub fn imbalance_over_mean(&self) -> f64 {
        imbalance(&self.site_bytes, mean(&self.site_bytes))
    }

    /// Returns λ over the actual mean load in the last quarter of the run, when earlier changes have settled. `None`:
    /// there was no last quarter.
    pub fn last_imbalance(&self) -> Option<f64> {
        let bytes = &self.last_site_bytes;
        bytes.iter().any(|bytes| *bytes > 0).then(|| imbalance(bytes, mean(bytes)))
    }

    /// Returns λ over the mean load of an oracle that reads every block's bytes once, in percent: extra reads count
    /// as load (EC-Cache, §7).
    pub fn imbalance_over_oracle(&self) -> f64 {
        imbalance(&self.site_bytes, self.block_bytes as f64 / self.site_bytes.len() as f64)
    }
}

/// Returns the load imbalance λ in percent: how far the most loaded site lies above `mean_bytes`.
fn imbalance(site_bytes: &[u64], mean_bytes: f64) -> f64 {
    let most = site_bytes.iter().copied().max().unwrap_or(0);
    100.0 * (most as f64 - mean_bytes) / mean_bytes
}

fn mean(site_bytes: &[u64]) -> f64 {
    site_bytes.iter().sum::<u64>() as f64 / site_bytes.len() as f64
}

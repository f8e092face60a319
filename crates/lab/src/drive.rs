//! Clients that run a workload against a world and measure it.
//!
//! *Closed loop*: each client sends its next operation when the last one is answered, with zero think time.
//! *Open loop*: operations are due at the times of a Poisson process, whether or not the earlier ones were
//! answered; those of a workload that has times of its own, such as a trace, at these.
//!
//! A response time is what a user of the client service sees: metadata, planning, retrieval, decoding, and the
//! client's own work. Planning and decoding run for real, which takes no virtual time; their cost is charged
//! from [`ProcessorCost`].
//!
//! What it does not do yet: run the writes of a workload. It refuses them.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::SmallRng;
use striate_client::{Client, ClientError, ReadStats};
use striate_runtime::Instant;

use crate::calibration::ProcessorCost;
use crate::latency::Latencies;
use crate::trace::Event;
use crate::workload::{Due, Operation, Workload};
use crate::world::World;

/// Who runs a workload, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DriveOptions {
    /// Closed loop: how many clients, spread over the client services. Open loop: ignored.
    pub clients: u32,
    /// Open loop: operations per second, all clients together. `None`: closed loop, unless the workload has times
    /// of its own.
    pub rate_per_s: Option<f64>,
    /// How long operations are sent, in virtual time.
    pub length: Duration,
    /// Width of the intervals in which mean response times over time are reported.
    pub interval: Duration,
    /// A client's own work for each operation.
    pub client_work: Duration,
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Response times of the operations sent in the time.
    pub latencies: Latencies,
    /// The same in the order in which they were answered: sum in seconds and count for each interval.
    pub over_time: Vec<(f64, u64)>,
    /// Sums over all operations.
    pub breakdown: Breakdown,
    /// Bytes that each site read from its disk.
    pub site_bytes: Vec<u64>,
    /// Bytes of blocks that were asked for.
    pub block_bytes: u64,
    /// Chunks that were asked of sites.
    pub chunks: u64,
    /// Sites that were asked, over all operations.
    pub site_reads: u64,
    /// Blocks that had to be read by themselves.
    pub read_alone: u64,
    /// Operations that failed, with the first reason.
    pub failed: u64,
    /// The first failure.
    pub first_failure: Option<String>,
}

/// Where the time of operations went, as sums.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Breakdown {
    /// Looking up stripes.
    pub metadata: Duration,
    /// Planning.
    pub plan: Duration,
    /// From the plan to the last chunk that was needed.
    pub retrieve: Duration,
    /// Decoding.
    pub decode: Duration,
    /// The client's own work.
    pub client_work: Duration,
}

/// One run under way.
struct Run {
    options: DriveOptions,
    started: Instant,
    measured: Mutex<Measured>,
}

/// Runs a workload to its end: until every operation that was sent is answered. `workload` makes one source
/// of operations for each closed-loop client, or one for all in an open loop.
pub async fn drive<W: Workload + 'static>(
    world: &Arc<World>,
    options: DriveOptions,
    mut workload: impl FnMut() -> W,
) -> Measured {
    let before: Vec<u64> = world.machines.iter().map(|machine| machine.store.read_bytes()).collect();
    let run =
        Arc::new(Run { options, started: world.runtime.now(), measured: Mutex::new(Measured::default()) });
    let first = workload();
    if options.rate_per_s.is_some() || first.due() != Due::Whenever {
        open_loop(world, &run, first).await;
    } else {
        let more = std::iter::repeat_with(workload);
        let workloads = std::iter::once(first).chain(more).take(options.clients as usize);
        let clients = (0..).zip(workloads).map(|(number, workload)| {
            world.runtime.spawn(closed_loop(Arc::clone(world), Arc::clone(&run), number, workload))
        });
        for task in clients.collect::<Vec<_>>() {
            task.await.expect("a client does not panic");
        }
    }
    let mut measured = std::mem::take(&mut *run.measured.lock());
    let after = world.machines.iter().map(|machine| machine.store.read_bytes());
    measured.site_bytes = after.zip(before).map(|(after, before)| after - before).collect();
    measured
}

async fn closed_loop(world: Arc<World>, run: Arc<Run>, number: u32, mut workload: impl Workload) {
    let client = &world.clients[number as usize % world.clients.len()];
    let mut rng = world.runtime.rng();
    loop {
        let due = world.runtime.now();
        if due - run.started >= run.options.length {
            return;
        }
        run.operate(&world, client, number, workload.next(&mut rng), due).await;
    }
}

async fn open_loop(world: &Arc<World>, run: &Arc<Run>, mut workload: impl Workload) {
    let mut rng: SmallRng = world.runtime.rng();
    let mut due = run.started;
    let mut tasks = Vec::new();
    for number in 0u32.. {
        match (workload.due(), run.options.rate_per_s) {
            (Due::Never, _) | (Due::Whenever, None) => break,
            (Due::After(time), _) => due = run.started + time,
            (Due::Whenever, Some(rate_per_s)) => {
                due += Duration::from_secs_f64(-(1.0 - rng.random::<f64>()).ln() / rate_per_s);
            }
        }
        if due - run.started >= run.options.length {
            break;
        }
        world.runtime.sleep_until(due).await;
        let operation = workload.next(&mut rng);
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

impl Run {
    /// One operation that was due at `due`.
    async fn operate(&self, world: &World, client: &Client, number: u32, operation: Operation, due: Instant) {
        let read = read(world, client, operation).await;
        let costs = ProcessorCost::MEASURED;
        let (plan, decode) = match &read {
            Ok((stats, _)) => (costs.plan(stats.chunks), costs.decode(stats.decoded_bytes)),
            Err(_) => Default::default(),
        };
        let work = plan + decode + self.options.client_work;
        if work > Duration::ZERO {
            world.runtime.sleep(work).await;
        }
        let took = world.runtime.now() - due;
        world.trace.record(Event::Answered, u64::from(number), took.as_nanos() as u64);
        let mut measured = self.measured.lock();
        match read {
            Ok((stats, bytes)) => {
                let breakdown = &mut measured.breakdown;
                breakdown.metadata += stats.metadata;
                breakdown.plan += plan;
                breakdown.retrieve += stats.retrieve;
                breakdown.decode += decode;
                breakdown.client_work += self.options.client_work;
                measured.block_bytes += bytes;
                measured.chunks += stats.chunks as u64;
                measured.site_reads += stats.sites as u64;
                measured.read_alone += stats.read_alone as u64;
                measured.add_time(took, world.runtime.now() - self.started, self.options.interval);
            }
            Err(error) => {
                measured.failed += 1;
                measured.first_failure.get_or_insert_with(|| error.to_string());
            }
        }
    }
}

impl Measured {
    fn add_time(&mut self, took: Duration, at: Duration, interval: Duration) {
        self.latencies.record(took);
        let slot = (at.as_secs_f64() / interval.as_secs_f64()) as usize;
        if self.over_time.len() <= slot {
            self.over_time.resize(slot + 1, (0.0, 0));
        }
        self.over_time[slot].0 += took.as_secs_f64();
        self.over_time[slot].1 += 1;
    }

    /// Load imbalance λ in percent: how far the most loaded site lies above `mean_bytes`.
    fn imbalance(&self, mean_bytes: f64) -> f64 {
        let most = self.site_bytes.iter().copied().max().unwrap_or(0);
        100.0 * (most as f64 - mean_bytes) / mean_bytes
    }

    /// λ over the actual mean load (EC-Store, Table II).
    pub fn imbalance_over_mean(&self) -> f64 {
        let total: u64 = self.site_bytes.iter().sum();
        self.imbalance(total as f64 / self.site_bytes.len() as f64)
    }

    /// λ over the mean load of an oracle that reads every block's bytes once: extra reads count as load
    /// (EC-Cache, §7).
    pub fn imbalance_over_oracle(&self) -> f64 {
        self.imbalance(self.block_bytes as f64 / self.site_bytes.len() as f64)
    }
}

async fn read(world: &World, client: &Client, operation: Operation) -> Result<(ReadStats, u64), ClientError> {
    let Operation::Read(objects) = operation else {
        return Err(ClientError::InvalidArgument("the lab does not run the writes of workloads".to_owned()));
    };
    let blocks: Vec<_> = objects.iter().flat_map(|object| world.blocks_of(object)).collect();
    let read = client.read_blocks(&blocks).await?;
    let bytes = read.blocks.iter().flatten().map(|piece| piece.len() as u64).sum();
    Ok((read.stats, bytes))
}

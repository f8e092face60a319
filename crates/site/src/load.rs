//! Load reports: what a site says of itself on every reply.
//!
//! Queue counts are exact at the moment of the report: fresh queue state is what lowers latency most. The
//! slower figures (processor, disk, store) are sampled through the runtime's clock at most every
//! [`SAMPLE_INTERVAL`], so a report costs a clock reading and a short lock.
//!
//! The processor share is that of this process over all its processors; sites of one process all report it.
//! In virtual time it is zero: the machine's processor is not the modelled one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use striate_core::LoadReport;
use striate_runtime::{Instant, Runtime};

use crate::queue::Counts;
use crate::store::ChunkStore;

/// Least time between two samples of the slower figures.
pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);

/// Makes the load reports of one site.
pub struct LoadMeter {
    runtime: Runtime,
    counts: Arc<Counts>,
    store: Arc<dyn ChunkStore>,
    processors: u32,
    sequence: AtomicU64,
    sample: Mutex<Sample>,
    busy: Mutex<BusyTime>,
}

/// The slower figures and what their next sample needs.
struct Sample {
    at: Instant,
    cpu_time: Duration,
    busy_time: Duration,
    report: LoadReport,
}

/// Time in which at least one operation was in the store.
struct BusyTime {
    active: u32,
    since: Instant,
    total: Duration,
}

impl BusyTime {
    fn total_at(&self, now: Instant) -> Duration {
        if self.active == 0 { self.total } else { self.total + (now - self.since) }
    }
}

/// One operation in the store, until dropped.
pub struct StoreOperation<'a>(&'a LoadMeter);

impl Drop for StoreOperation<'_> {
    fn drop(&mut self) {
        let mut busy = self.0.busy.lock();
        busy.active -= 1;
        if busy.active == 0 {
            let worked = self.0.runtime.now() - busy.since;
            busy.total += worked;
        }
    }
}

impl LoadMeter {
    /// A meter over the counts of a queue that `workers` serve, and a store.
    pub fn new(runtime: Runtime, counts: Arc<Counts>, workers: u32, store: Arc<dyn ChunkStore>) -> Self {
        let now = runtime.now();
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let mut sample = Sample {
            at: now,
            cpu_time: cpu_time(&runtime),
            busy_time: Duration::ZERO,
            report: LoadReport { workers, ..LoadReport::default() },
        };
        sample.read_store(store.as_ref());
        Self {
            counts,
            store,
            processors,
            sequence: AtomicU64::new(0),
            sample: Mutex::new(sample),
            busy: Mutex::new(BusyTime { active: 0, since: now, total: Duration::ZERO }),
            runtime,
        }
    }

    /// Marks the beginning of an operation that may wait for the disk.
    pub fn begin_store_operation(&self) -> StoreOperation<'_> {
        let mut busy = self.busy.lock();
        if busy.active == 0 {
            busy.since = self.runtime.now();
        }
        busy.active += 1;
        drop(busy);
        StoreOperation(self)
    }

    /// A report with the next sequence number.
    pub fn report(&self) -> LoadReport {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        LoadReport { sequence, ..self.peek() }
    }

    /// The load now, under the number of the last report.
    pub fn peek(&self) -> LoadReport {
        let now = self.runtime.now();
        let mut sample = self.sample.lock();
        if now - sample.at >= SAMPLE_INTERVAL {
            self.renew(&mut sample, now);
        }
        LoadReport {
            sequence: self.sequence.load(Ordering::Relaxed),
            queue_requests: self.counts.requests(),
            queue_bytes: self.counts.bytes(),
            ..sample.report
        }
    }

    fn renew(&self, sample: &mut Sample, now: Instant) {
        let elapsed = now - sample.at;
        let cpu_time = cpu_time(&self.runtime);
        let busy_time = self.busy.lock().total_at(now);
        let cpu_share = cpu_time.saturating_sub(sample.cpu_time) / self.processors;
        sample.report.cpu_permille = permille(cpu_share, elapsed);
        sample.report.io_permille = permille(busy_time.saturating_sub(sample.busy_time), elapsed);
        sample.read_store(self.store.as_ref());
        (sample.at, sample.cpu_time, sample.busy_time) = (now, cpu_time, busy_time);
    }
}

impl Sample {
    fn read_store(&mut self, store: &dyn ChunkStore) {
        let status = store.status();
        self.report.chunks = status.chunks;
        self.report.used_bytes = status.payload_bytes;
        self.report.free_bytes = status.free_bytes;
    }
}

fn permille(part: Duration, whole: Duration) -> u16 {
    let share = part.as_nanos() * 1000 / whole.as_nanos().max(1);
    share.min(1000) as u16
}

/// Processor time of this process.
fn cpu_time(runtime: &Runtime) -> Duration {
    if runtime.is_deterministic() {
        return Duration::ZERO;
    }
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl fmt::Debug for LoadMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadMeter").field("counts", &self.counts).finish_non_exhaustive()
    }
}

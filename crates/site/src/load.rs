//! Load reports: what a site reports about itself with every reply, and to its watchers.
//!
//! Queue counts are exact at the moment of the report: fresh queue state lowers latency most. The slower figures
//! (processor, disk, store) are sampled with the runtime's clock at most every [`SAMPLE_INTERVAL`], so a report costs a
//! clock reading and a short lock.
//!
//! Both shares, and the rate of bytes read, are means that fade over [`MEMORY`], so a caller that asks every few
//! seconds sees the recent past and not whatever one sample happened to hit. The disk's share is the share of the
//! workers' time spent in the store. With one worker, this is how long the disk was busy; with several, a disk that
//! serves many requests at once counts as busy only as far as it is used.
//!
//! The processor share is that of this process over all its processors; all sites of one process report the same.
//! In virtual time it is zero, because the machine's processor is not the modelled one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use striate_core::LoadReport;
use striate_runtime::{Instant, Runtime};

use crate::queue::Counts;
use crate::store::ChunkStore;

/// Minimum interval between two samples of the slower figures.
pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
/// Time constant of the means: after this time a sample's weight has fallen to 1/e.
pub const MEMORY: Duration = Duration::from_secs(1);

/// Makes the load reports of one site.
pub struct LoadMeter {
    runtime: Runtime,
    counts: Arc<Counts>,
    store: Arc<dyn ChunkStore>,
    processors: u32,
    workers: u32,
    sequence: AtomicU64,
    sample: Mutex<Sample>,
    store_time: Mutex<StoreTime>,
    read_bytes: AtomicU64,
}

/// The slower figures, and the state that the next sample needs.
struct Sample {
    at: Instant,
    cpu_time: Duration,
    store_time: Duration,
    read_bytes: u64,
    /// Fading mean, as a share from 0 to 1; so is `io`.
    cpu: f64,
    io: f64,
    /// Fading mean, in bytes per second.
    read_rate: f64,
    report: LoadReport,
}

/// Total time that operations have spent in the store.
struct StoreTime {
    active: u32,
    since: Instant,
    total: Duration,
}

impl StoreTime {
    fn total_at(&self, now: Instant) -> Duration {
        self.total + (now - self.since) * self.active
    }

    /// Sets the number of active operations.
    fn set_active(&mut self, active: u32, now: Instant) {
        *self = Self { active, since: now, total: self.total_at(now) };
    }
}

/// One operation in the store; it ends when this is dropped.
pub struct StoreOperation<'a>(&'a LoadMeter);

impl Drop for StoreOperation<'_> {
    fn drop(&mut self) {
        let mut store_time = self.0.store_time.lock();
        let active = store_time.active - 1;
        store_time.set_active(active, self.0.runtime.now());
    }
}

impl LoadMeter {
    /// Creates a meter over a store and the counts of a queue that `workers` serve.
    pub fn new(runtime: Runtime, counts: Arc<Counts>, workers: u32, store: Arc<dyn ChunkStore>) -> Self {
        let now = runtime.now();
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let mut sample = Sample {
            at: now,
            cpu_time: cpu_time(&runtime),
            store_time: Duration::ZERO,
            read_bytes: 0,
            cpu: 0.0,
            io: 0.0,
            read_rate: 0.0,
            report: LoadReport { workers, ..LoadReport::default() },
        };
        sample.read_store(store.as_ref());
        Self {
            counts,
            store,
            processors,
            workers: workers.max(1),
            sequence: AtomicU64::new(0),
            sample: Mutex::new(sample),
            store_time: Mutex::new(StoreTime { active: 0, since: now, total: Duration::ZERO }),
            read_bytes: AtomicU64::new(0),
            runtime,
        }
    }

    /// Marks the beginning of an operation that may wait for the disk.
    pub(crate) fn begin_store_operation(&self) -> StoreOperation<'_> {
        let mut store_time = self.store_time.lock();
        let active = store_time.active + 1;
        store_time.set_active(active, self.runtime.now());
        drop(store_time);
        StoreOperation(self)
    }

    /// Counts bytes that a read took from the store.
    pub(crate) fn has_read(&self, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the rate at which reads take bytes from the store.
    pub fn read_bytes_per_s(&self) -> u64 {
        self.peek();
        self.sample.lock().read_rate.round() as u64
    }

    /// Returns the counts of the queue.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns a report with the next sequence number.
    pub fn report(&self) -> LoadReport {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        LoadReport { sequence, ..self.peek() }
    }

    /// Returns the current load with the sequence number of the last report.
    pub fn peek(&self) -> LoadReport {
        let now = self.runtime.now();
        let mut sample = self.sample.lock();
        if now - sample.at >= SAMPLE_INTERVAL {
            self.renew(&mut sample, now);
        }
        let length = self.counts.length();
        LoadReport {
            sequence: self.sequence.load(Ordering::Relaxed),
            queue_requests: length.requests,
            queue_bytes: length.bytes,
            ..sample.report
        }
    }

    fn renew(&self, sample: &mut Sample, now: Instant) {
        let elapsed = now - sample.at;
        let cpu_time = cpu_time(&self.runtime);
        let store_time = self.store_time.lock().total_at(now);
        let weight = 1.0 - (-elapsed.as_secs_f64() / MEMORY.as_secs_f64()).exp();
        let cpu = share(cpu_time.saturating_sub(sample.cpu_time) / self.processors, elapsed);
        let io = share(store_time.saturating_sub(sample.store_time) / self.workers, elapsed);
        sample.cpu += (cpu - sample.cpu) * weight;
        sample.io += (io - sample.io) * weight;
        let read_bytes = self.read_bytes.load(Ordering::Relaxed);
        let read_rate = (read_bytes - sample.read_bytes) as f64 / elapsed.as_secs_f64();
        sample.read_rate += (read_rate - sample.read_rate) * weight;
        (sample.report.cpu_permille, sample.report.io_permille) = (permille(sample.cpu), permille(sample.io));
        sample.read_store(self.store.as_ref());
        (sample.at, sample.cpu_time, sample.store_time) = (now, cpu_time, store_time);
        sample.read_bytes = read_bytes;
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

/// Returns at most 1: writes are served beside the workers, so their time can exceed the workers'.
fn share(part: Duration, whole: Duration) -> f64 {
    (part.as_secs_f64() / whole.as_secs_f64().max(f64::MIN_POSITIVE)).min(1.0)
}

fn permille(share: f64) -> u16 {
    (share * 1000.0).round() as u16
}

/// Returns the processor time of this process; zero in virtual time.
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

#[cfg(test)]
mod tests {
    use striate_runtime::run_in_virtual_time;

    use super::*;
    use crate::memory::MemoryStore;

    fn meter(runtime: &Runtime, workers: u32) -> LoadMeter {
        LoadMeter::new(runtime.clone(), Arc::default(), workers, Arc::new(MemoryStore::default()))
    }

    /// Makes one report after each interval, and returns the disk share of the last.
    async fn after(meter: &LoadMeter, intervals: u32) -> u16 {
        for _ in 0..intervals {
            meter.runtime.sleep(SAMPLE_INTERVAL).await;
            meter.report();
        }
        meter.peek().io_permille
    }

    #[test]
    fn the_disks_share_is_that_of_the_workers_time() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            for (workers, operations, share) in [(1, 1, 1000), (4, 1, 250), (4, 3, 750), (1, 2, 1000)] {
                let meter = meter(&runtime, workers);
                let under_way: Vec<_> = (0..operations).map(|_| meter.begin_store_operation()).collect();
                assert_eq!(after(&meter, 400).await, share, "{operations} of {workers}");
                drop(under_way);
            }
        });
    }

    #[test]
    fn bytes_that_are_read_make_a_rate_that_fades() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let meter = meter(&runtime, 4);
            for _ in 0..400 {
                meter.has_read(5_000);
                after(&meter, 1).await;
            }
            assert!((99_900..=100_000).contains(&meter.read_bytes_per_s()), "{}", meter.read_bytes_per_s());
            after(&meter, 20).await;
            assert!((36_000..38_000).contains(&meter.read_bytes_per_s()), "1/e after a second");
        });
    }

    #[test]
    fn one_loud_sample_counts_little_and_load_that_lasts_counts_whole() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let meter = meter(&runtime, 1);
            let loud = meter.begin_store_operation();
            assert!((40..60).contains(&after(&meter, 1).await));
            assert!((600..650).contains(&after(&meter, 19).await), "1 - 1/e after a second");
            drop(loud);
            assert!(after(&meter, 100).await < 10);
        });
    }
}

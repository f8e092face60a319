//! Memory that the process uses besides the pages of a cache.
//!
//! The allocator and the buffer pool keep memory that a burst has left behind, for the next one. Evicting cached blocks
//! for it would be permanent, since nothing else makes them release it. So when a sample finds growth, the process
//! first releases its free memory.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Sampling interval of the process's memory, in bytes written or read.
const LOOK_EVERY: u64 = 1 << 20;
/// A peak decays by one part in this many per sample, so that memory that comes and goes does not evict each time.
const DECAY_DIVISOR: u64 = 64;

/// The memory of the process that hosts a cache.
pub trait ProcessMemory: Send + Sync + Debug {
    /// Returns the resident bytes; `None` if the system does not report them.
    fn resident_bytes(&self) -> Option<u64>;

    /// Returns the process's free memory to the system. Returns false if it did not, because it has just done so.
    fn give_back(&self) -> bool;
}

/// How much the process has grown since the cache was made, besides the cache's pages: request buffers, what the
/// allocator keeps, the index.
#[derive(Debug)]
pub(super) struct ProcessGrowth {
    /// `None` if its memory cannot be measured.
    process: Option<Arc<dyn ProcessMemory>>,
    /// Resident bytes before the cache held anything.
    initial_bytes: u64,
    /// Bytes written or read since the last sample.
    moved: AtomicU64,
    grown: AtomicU64,
}

impl ProcessGrowth {
    /// Measures `process` from now on, if it reports its memory.
    pub(super) fn new(process: Option<Arc<dyn ProcessMemory>>) -> Self {
        let initial_bytes = process.as_ref().and_then(|process| process.resident_bytes());
        let (process, initial_bytes) = (initial_bytes.and(process), initial_bytes.unwrap_or(0));
        Self { process, initial_bytes, moved: AtomicU64::new(0), grown: AtomicU64::new(0) }
    }

    /// Records that `bytes` were written or read, and takes a sample if one is due; returns whether it did. `in_pages`
    /// returns the bytes in pages of the cache. Growth beyond `spare` bytes would evict cached blocks, so the process
    /// first releases memory that it does not use.
    pub(super) fn moved(&self, bytes: u64, spare: u64, in_pages: impl Fn() -> u64) -> bool {
        let Some(process) = &self.process else { return false };
        if self.moved.fetch_add(bytes, Ordering::Relaxed) + bytes < LOOK_EVERY {
            return false;
        }
        self.moved.store(0, Ordering::Relaxed);
        let look = || Some(process.resident_bytes()?.saturating_sub(self.initial_bytes + in_pages()));
        let Some(mut growth) = look() else { return false };
        if growth > spare && process.give_back() {
            growth = look().unwrap_or(growth);
        }
        let last = self.grown_bytes();
        self.grown.store(growth.max(last - last / DECAY_DIVISOR), Ordering::Relaxed);
        true
    }

    /// Returns the number of bytes by which the process has grown, besides the pages.
    pub(super) fn grown_bytes(&self) -> u64 {
        self.grown.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A process with `resident` bytes, of which it can release `free`.
    #[derive(Debug, Default)]
    struct Process {
        resident: AtomicU64,
        free: AtomicU64,
        given_back: AtomicU64,
    }

    impl ProcessMemory for Process {
        fn resident_bytes(&self) -> Option<u64> {
            Some(self.resident.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
        }

        fn give_back(&self) -> bool {
            self.resident.fetch_sub(self.free.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            self.given_back.fetch_add(1, Ordering::Relaxed);
            true
        }
    }

    fn grown_process(resident: u64) -> (Arc<Process>, ProcessGrowth) {
        let process = Arc::new(Process { resident: resident.into(), ..Process::default() });
        (process.clone(), ProcessGrowth::new(Some(process)))
    }

    #[test]
    fn growth_is_seen_at_once_and_forgotten_slowly() {
        let (process, process_growth) = grown_process(100 * MIB);
        process.resident.store(180 * MIB, Ordering::Relaxed);
        process_growth.moved(LOOK_EVERY - 1, 0, || 16 * MIB);
        assert_eq!(process_growth.grown_bytes(), 0, "too little has moved for a look");
        process_growth.moved(1, 0, || 16 * MIB);
        assert_eq!(process_growth.grown_bytes(), 64 * MIB);
        process.resident.store(110 * MIB, Ordering::Relaxed);
        process_growth.moved(LOOK_EVERY, 0, || 16 * MIB);
        assert_eq!(process_growth.grown_bytes(), 63 * MIB);
        for _ in 0..1_000 {
            process_growth.moved(LOOK_EVERY, 0, || 16 * MIB);
        }
        assert!(process_growth.grown_bytes() < MIB);
    }

    #[test]
    fn what_is_free_is_given_back_before_growth_counts() {
        let (process, process_growth) = grown_process(100 * MIB);
        let look = |resident, free| {
            process.resident.store(resident * MIB, Ordering::Relaxed);
            process.free.store(free * MIB, Ordering::Relaxed);
            process_growth.moved(LOOK_EVERY, 32 * MIB, || 16 * MIB);
            (process_growth.grown_bytes() / MIB, process.given_back.load(Ordering::Relaxed))
        };
        assert_eq!(look(148, 20), (32, 0), "no more than there is room for");
        assert_eq!(look(216, 90), (31, 1), "all but ten MiB of the hundred were free");
        assert_eq!(look(216, 0), (100, 2), "all of it is in use");
    }

    #[test]
    fn where_nothing_is_known_nothing_has_grown() {
        for process_growth in [ProcessGrowth::new(None), grown_process(0).1] {
            process_growth.moved(LOOK_EVERY, 0, || 0);
            assert_eq!(process_growth.grown_bytes(), 0);
        }
    }
}

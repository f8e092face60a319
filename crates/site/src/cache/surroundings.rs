//! What the process takes beside the pages of a cache.
//!
//! The allocator and the pool of buffers keep what a burst has left behind, for the next one. To evict cached blocks for that would be
//! for good, since nothing else makes them give it up. So a look that finds growth first has the process give back what is free.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are written or read between two looks at what the process takes.
const LOOK_EVERY: u64 = 1 << 20;
/// A peak decays by one part in so many at each look, so that memory that comes and goes does not evict each time.
const DECAY_DIVISOR: u64 = 64;

/// The memory of the process that a cache is in.
pub trait ProcessMemory: Send + Sync + Debug {
    /// Resident bytes; `None` where the system does not say.
    fn resident_bytes(&self) -> Option<u64>;

    /// Gives free memory that the process keeps back to the system. False if it did not, because it has done so just now.
    fn give_back(&self) -> bool;
}

/// How much the process has grown beside the pages of a cache, since that was made: buffers of requests, what the allocator keeps,
/// the index.
#[derive(Debug)]
pub(super) struct Surroundings {
    /// `None` where nothing is known of it.
    process: Option<Arc<dyn ProcessMemory>>,
    /// What the process took before the cache held anything.
    before: u64,
    /// Bytes since the last look.
    moved: AtomicU64,
    grown: AtomicU64,
}

impl Surroundings {
    /// Asks `process` from now on, if there is anything to ask.
    pub(super) fn new(process: Option<Arc<dyn ProcessMemory>>) -> Self {
        let before = process.as_ref().and_then(|process| process.resident_bytes());
        let (process, before) = (before.and(process), before.unwrap_or(0));
        Self { process, before, moved: AtomicU64::new(0), grown: AtomicU64::new(0) }
    }

    /// Takes note that so many bytes came in or were read, and looks if it is time: whether it did. `in_pages` tells what the process takes
    /// for pages of the cache. Growth beyond `spare` bytes would cost cached blocks, so the process first gives back what it does not use.
    pub(super) fn moved(&self, bytes: u64, spare: u64, in_pages: impl Fn() -> u64) -> bool {
        let Some(process) = &self.process else { return false };
        if self.moved.fetch_add(bytes, Ordering::Relaxed) + bytes < LOOK_EVERY {
            return false;
        }
        self.moved.store(0, Ordering::Relaxed);
        let look = || Some(process.resident_bytes()?.saturating_sub(self.before + in_pages()));
        let Some(mut now) = look() else { return false };
        if now > spare && process.give_back() {
            now = look().unwrap_or(now);
        }
        let last = self.grown_bytes();
        self.grown.store(now.max(last - last / DECAY_DIVISOR), Ordering::Relaxed);
        true
    }

    /// Bytes by which the process has grown beside the pages.
    pub(super) fn grown_bytes(&self) -> u64 {
        self.grown.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A process that takes `resident` bytes, of which it can give back `free`.
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

    fn of(resident: u64) -> (Arc<Process>, Surroundings) {
        let process = Arc::new(Process { resident: resident.into(), ..Process::default() });
        (process.clone(), Surroundings::new(Some(process)))
    }

    #[test]
    fn growth_is_seen_at_once_and_forgotten_slowly() {
        let (process, surroundings) = of(100 * MIB);
        process.resident.store(180 * MIB, Ordering::Relaxed);
        surroundings.moved(LOOK_EVERY - 1, 0, || 16 * MIB);
        assert_eq!(surroundings.grown_bytes(), 0, "too little has moved for a look");
        surroundings.moved(1, 0, || 16 * MIB);
        assert_eq!(surroundings.grown_bytes(), 64 * MIB);
        process.resident.store(110 * MIB, Ordering::Relaxed);
        surroundings.moved(LOOK_EVERY, 0, || 16 * MIB);
        assert_eq!(surroundings.grown_bytes(), 63 * MIB);
        for _ in 0..1_000 {
            surroundings.moved(LOOK_EVERY, 0, || 16 * MIB);
        }
        assert!(surroundings.grown_bytes() < MIB);
    }

    #[test]
    fn what_is_free_is_given_back_before_growth_counts() {
        let (process, surroundings) = of(100 * MIB);
        let look = |resident, free| {
            process.resident.store(resident * MIB, Ordering::Relaxed);
            process.free.store(free * MIB, Ordering::Relaxed);
            surroundings.moved(LOOK_EVERY, 32 * MIB, || 16 * MIB);
            (surroundings.grown_bytes() / MIB, process.given_back.load(Ordering::Relaxed))
        };
        assert_eq!(look(148, 20), (32, 0), "no more than there is room for");
        assert_eq!(look(216, 90), (31, 1), "all but ten MiB of the hundred were free");
        assert_eq!(look(216, 0), (100, 2), "all of it is in use");
    }

    #[test]
    fn where_nothing_is_known_nothing_has_grown() {
        for surroundings in [Surroundings::new(None), of(0).1] {
            surroundings.moved(LOOK_EVERY, 0, || 0);
            assert_eq!(surroundings.grown_bytes(), 0);
        }
    }
}

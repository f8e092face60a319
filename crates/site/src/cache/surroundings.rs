//! What the process takes beside the pages of a cache.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are written or read between two looks at what the process takes.
const LOOK_EVERY: u64 = 1 << 20;
/// A peak decays by one part in so many at each look, so that memory that comes and goes does not evict each time.
const DECAY_DIVISOR: u64 = 64;

/// How much the process has grown beside the pages of a cache, since that was made: buffers of requests, what the allocator keeps,
/// the index.
#[derive(Debug)]
pub(super) struct Surroundings {
    /// Resident bytes of the process; `None` where that is not known.
    resident_bytes: Option<fn() -> Option<u64>>,
    /// What the process took before the cache held anything.
    before: u64,
    /// Bytes since the last look.
    moved: AtomicU64,
    grown: AtomicU64,
}

impl Surroundings {
    /// Asks `resident_bytes` from now on, if there is anything to ask.
    pub(super) fn new(resident_bytes: Option<fn() -> Option<u64>>) -> Self {
        let before = resident_bytes.and_then(|resident_bytes| resident_bytes());
        let (resident_bytes, before) = (before.and(resident_bytes), before.unwrap_or(0));
        Self { resident_bytes, before, moved: AtomicU64::new(0), grown: AtomicU64::new(0) }
    }

    /// Takes note that so many bytes came in or were read, and looks if it is time: whether it did. `in_pages` tells what the process takes
    /// for pages of the cache.
    pub(super) fn moved(&self, bytes: u64, in_pages: impl FnOnce() -> u64) -> bool {
        let Some(resident_bytes) = self.resident_bytes else { return false };
        if self.moved.fetch_add(bytes, Ordering::Relaxed) + bytes < LOOK_EVERY {
            return false;
        }
        self.moved.store(0, Ordering::Relaxed);
        let Some(resident) = resident_bytes() else { return false };
        let (now, last) = (resident.saturating_sub(self.before + in_pages()), self.grown_bytes());
        let grown = now.max(last - last / DECAY_DIVISOR);
        self.grown.store(grown, Ordering::Relaxed);
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

    #[test]
    fn growth_is_seen_at_once_and_forgotten_slowly() {
        static RESIDENT: AtomicU64 = AtomicU64::new(100 * MIB);
        let surroundings = Surroundings::new(Some(|| Some(RESIDENT.load(Ordering::Relaxed))));
        RESIDENT.store(180 * MIB, Ordering::Relaxed);
        surroundings.moved(LOOK_EVERY - 1, || 16 * MIB);
        assert_eq!(surroundings.grown_bytes(), 0, "too little has moved for a look");
        surroundings.moved(1, || 16 * MIB);
        assert_eq!(surroundings.grown_bytes(), 64 * MIB);
        RESIDENT.store(110 * MIB, Ordering::Relaxed);
        surroundings.moved(LOOK_EVERY, || 16 * MIB);
        assert_eq!(surroundings.grown_bytes(), 63 * MIB);
        for _ in 0..1_000 {
            surroundings.moved(LOOK_EVERY, || 16 * MIB);
        }
        assert!(surroundings.grown_bytes() < MIB);
    }

    #[test]
    fn where_nothing_is_known_nothing_has_grown() {
        for resident_bytes in [None, Some((|| None) as fn() -> Option<u64>)] {
            let surroundings = Surroundings::new(resident_bytes);
            surroundings.moved(LOOK_EVERY, || 0);
            assert_eq!(surroundings.grown_bytes(), 0);
        }
    }
}

//! Counters of the tier's work for reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// How a read of a block or of a part of one was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// Wholly from memory.
    Hit,
    /// Partly from memory: splits were missing.
    Partial,
    /// From where the block is stored, because it was not in memory.
    Miss,
    /// From where the block is stored, because no memory site answers.
    Bypass,
    /// Failed: neither memory nor the place where the block is stored had it. Counts the bytes that were requested.
    Error,
}

impl ReadOutcome {
    /// All outcomes.
    pub const ALL: [Self; 5] = [Self::Hit, Self::Partial, Self::Miss, Self::Bypass, Self::Error];

    /// The name of the outcome in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Partial => "partial",
            Self::Miss => "miss",
            Self::Bypass => "bypass",
            Self::Error => "error",
        }
    }
}

/// Counters of one gateway. They never decrease.
#[derive(Debug, Default)]
pub struct CacheCounts {
    reads: [AtomicU64; ReadOutcome::ALL.len()],
    bytes: [AtomicU64; ReadOutcome::ALL.len()],
    /// Bytes of reads that came from memory.
    pub cached_bytes: AtomicU64,
    /// Blocks that this gateway filled.
    pub fills: AtomicU64,
    /// Bytes of the blocks that this gateway filled.
    pub filled_bytes: AtomicU64,
    /// Fills granted to this gateway that failed, for lack of memory or because memory sites failed.
    pub given_up: AtomicU64,
    /// Parities that this gateway added to cached blocks.
    pub parities: AtomicU64,
    /// Requests to homes that were not answered in time.
    pub unanswered: AtomicU64,
    /// Memory-only blocks whose object was deleted.
    pub deleted: AtomicU64,
    /// Memory-only blocks whose object was overwritten.
    pub overwritten: AtomicU64,
}

impl CacheCounts {
    pub(crate) fn count(&self, outcome: ReadOutcome, bytes: u64, cached: u64) {
        self.reads[outcome as usize].fetch_add(1, Ordering::Relaxed);
        self.bytes[outcome as usize].fetch_add(bytes, Ordering::Relaxed);
        self.cached_bytes.fetch_add(cached, Ordering::Relaxed);
    }

    /// Returns the number of reads with this outcome, and their bytes.
    pub fn reads(&self, outcome: ReadOutcome) -> (u64, u64) {
        let count_of = |counts: &[AtomicU64]| counts[outcome as usize].load(Ordering::Relaxed);
        (count_of(&self.reads), count_of(&self.bytes))
    }
}

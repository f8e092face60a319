//! What the tier did for reads, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// How a read of a block, or of a part of one, was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// All of it from memory.
    Hit,
    /// Some of it: splits were missing.
    Partial,
    /// From where it is kept, because it was not in memory.
    Miss,
    /// From where it is kept, because no memory site answers.
    Bypass,
    /// Not at all: it could be had neither from memory nor from where it is kept. Its bytes are those that were asked for.
    Error,
}

impl ReadOutcome {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Hit, Self::Partial, Self::Miss, Self::Bypass, Self::Error];

    /// Its name in metrics.
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

/// Counters of one gateway. They only grow.
#[derive(Debug, Default)]
pub struct CacheCounts {
    reads: [AtomicU64; ReadOutcome::ALL.len()],
    bytes: [AtomicU64; ReadOutcome::ALL.len()],
    /// Bytes of reads that came from memory.
    pub cached_bytes: AtomicU64,
    /// Blocks that this gateway has filled.
    pub fills: AtomicU64,
    /// Bytes of these.
    pub filled_bytes: AtomicU64,
    /// Blocks that it was to fill and has not: no memory for it, or memory sites failed.
    pub given_up: AtomicU64,
    /// Parities that it has added to blocks that were there.
    pub parities: AtomicU64,
    /// Questions to homes of blocks that were not answered in time.
    pub unanswered: AtomicU64,
    /// Blocks in memory only whose object was deleted.
    pub deleted: AtomicU64,
    /// Blocks in memory only whose object was overwritten.
    pub overwritten: AtomicU64,
}

impl CacheCounts {
    pub(crate) fn count(&self, outcome: ReadOutcome, bytes: u64, cached: u64) {
        self.reads[outcome as usize].fetch_add(1, Ordering::Relaxed);
        self.bytes[outcome as usize].fetch_add(bytes, Ordering::Relaxed);
        self.cached_bytes.fetch_add(cached, Ordering::Relaxed);
    }

    /// Reads with this outcome, and their bytes.
    pub fn reads(&self, outcome: ReadOutcome) -> (u64, u64) {
        let of = |counts: &[AtomicU64]| counts[outcome as usize].load(Ordering::Relaxed);
        (of(&self.reads), of(&self.bytes))
    }
}

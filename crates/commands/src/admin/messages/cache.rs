//! What is cached in memory, and what reads found there.

use serde::{Deserialize, Serialize};

/// The memory tier, as the process sees it that answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheState {
    /// The sites of the tier, in the order of their numbers.
    pub sites: Vec<MemorySiteState>,
    /// How the reads of this process were served since it began.
    pub reads: Vec<ServedState>,
    /// Bytes of them that came from memory.
    pub cached_bytes: u64,
    /// Blocks that this process has written to the tier.
    pub fills: u64,
    /// Their bytes.
    pub filled_bytes: u64,
    /// Blocks that it was to write and has not: too much was on its way, memory was full, or sites failed.
    pub given_up: u64,
    /// Parities that it has added to popular blocks.
    pub parities: u64,
    /// Questions to the homes of blocks that were not answered in time.
    pub unanswered: u64,
}

/// A site of the memory tier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySiteState {
    /// Its number; none of the one in a server's own process.
    pub site: Option<u32>,
    /// Its failure domain.
    pub rack: String,
    /// Where it listens.
    pub address: String,
    /// `ok` or `missing`.
    pub state: String,
    /// Bytes of memory that it may take.
    pub bound_bytes: u64,
    /// Bytes that it takes.
    pub charged_bytes: u64,
    /// Splits of cached blocks.
    pub splits: u64,
}

/// Reads of blocks, and of parts of them, that were served in one way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedState {
    /// `hit`: from memory; `partial`: some of it; `miss`: it was not there; `bypass`: no memory site answers.
    pub how: String,
    /// How many.
    pub reads: u64,
    /// Bytes of them.
    pub bytes: u64,
}

impl CacheState {
    /// What part of the bytes that were read came from memory; none where nothing was read.
    pub fn hit_ratio(&self) -> Option<f64> {
        let bytes: u64 = self.reads.iter().map(|served| served.bytes).sum();
        (bytes > 0).then(|| self.cached_bytes as f64 / bytes as f64)
    }
}

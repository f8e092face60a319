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
    /// Blocks of volatile buckets that this process has taken out of memory, because their object was deleted.
    #[serde(default)]
    pub deleted: u64,
    /// The same, because their object was overwritten.
    #[serde(default)]
    pub overwritten: u64,
    /// The first of the buckets whose objects are in memory only, by name. None where names are not to be told.
    #[serde(default)]
    pub volatile_buckets: Vec<String>,
}

/// What the process that answers has asked of other S3 stores since it began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginState {
    /// Requests, repeated ones included.
    pub requests: u64,
    /// Of these, those that failed.
    pub failures: u64,
    /// Bytes of objects that came.
    pub bytes: u64,
    /// Questions whether what was known of an object still holds.
    pub revalidations: u64,
    /// Of these, those after which it did not.
    pub changes: u64,
    /// Objects of which what was known does not hold any more, because somebody wrote them through Striate.
    #[serde(default)]
    pub fenced: u64,
    /// Reads that passed by the cache.
    pub passed_by: u64,
    /// Writes that were put into memory too.
    #[serde(default)]
    pub cached_writes: u64,
    /// Writes that were to be and were not: there was no memory to hold them on their way.
    #[serde(default)]
    pub uncached_writes: u64,
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
    /// Bytes of its data splits.
    #[serde(default)]
    pub data_bytes: u64,
    /// Bytes of its parities.
    pub parity_bytes: u64,
    /// Of the bytes that it takes, those that are for nothing cached: its index, blocks on their way, other memory of its process.
    #[serde(default)]
    pub other_bytes: u64,
    /// How many of the blocks whose home it is have no parity, one, two, and so on.
    #[serde(default)]
    pub blocks_by_parities: Vec<u64>,
    /// Reads of splits that found them, since it began.
    pub hits: u64,
    /// Bytes that these have read.
    pub read_bytes: u64,
    /// Reads of splits that did not find them.
    pub misses: u64,
    /// Data splits that went to make room.
    pub evicted_data: u64,
    /// Parities that went to make room.
    pub evicted_parities: u64,
    /// Splits that were deleted, because their object was.
    #[serde(default)]
    pub deleted: u64,
    /// Splits for which there was no room, because all was being read.
    pub refused: u64,
    /// Reads that found bytes changed in memory.
    pub damaged: u64,
}

/// Reads of blocks, and of parts of them, that were served in one way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedState {
    /// `hit`: from memory; `partial`: some of it; `miss`: it was not there; `bypass`: no memory site answers; `error`: it could not be had.
    pub how: String,
    /// How many.
    pub reads: u64,
    /// Bytes of them.
    pub bytes: u64,
}

impl CacheState {
    /// λ of the sites that answer, in percent: what the most loaded one has sent, each for its memory, over the mean. None where there
    /// is one site, or nothing was read.
    pub fn imbalance(&self) -> Option<f64> {
        let loads = || {
            let up = self.sites.iter().filter(|site| site.state == "ok");
            up.map(|site| site.read_bytes as f64 / site.bound_bytes.max(1) as f64)
        };
        let (count, sum) = loads().fold((0, 0.0), |(count, sum), load| (count + 1, sum + load));
        let most = loads().fold(0.0, f64::max);
        (count > 1 && sum > 0.0).then(|| 100.0 * (most * f64::from(count) / sum - 1.0))
    }

    /// How many blocks have no parity, one, two, and so on, up to the most that one has.
    pub fn blocks_by_parities(&self) -> Vec<u64> {
        let of = |site: &MemorySiteState| site.blocks_by_parities.iter().rposition(|blocks| *blocks > 0);
        let kinds = self.sites.iter().filter_map(of).max().map_or(0, |most| most + 1);
        let blocks = |site: &MemorySiteState, parities: usize| site.blocks_by_parities.get(parities).copied();
        let sum = |parities| self.sites.iter().filter_map(|site| blocks(site, parities)).sum();
        (0..kinds).map(sum).collect()
    }

    /// What part of the bytes that were read came from memory; none where nothing was read.
    pub fn hit_ratio(&self) -> Option<f64> {
        let read = self.reads.iter().filter(|served| served.how != "error");
        let bytes: u64 = read.map(|served| served.bytes).sum();
        (bytes > 0).then(|| self.cached_bytes as f64 / bytes as f64)
    }
}

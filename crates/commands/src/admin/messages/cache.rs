//! The state of the memory tier, and the results of reads from it.

use serde::{Deserialize, Serialize};

/// The memory tier, as the replying process sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheState {
    /// Sites of the tier, in the order of their numbers.
    pub sites: Vec<MemorySiteState>,
    /// Reads of this process since it started, by how they were served.
    pub reads: Vec<ServedState>,
    /// Bytes of these reads that came from memory.
    pub cached_bytes: u64,
    /// Blocks that this process has written to the tier.
    pub fills: u64,
    /// Bytes of the blocks written.
    pub filled_bytes: u64,
    /// Fills skipped, because too much was in flight, memory was full, or sites failed.
    pub given_up: u64,
    /// Parities that this process has added to popular blocks.
    pub parities: u64,
    /// Queries to blocks' homes that timed out.
    pub unanswered: u64,
    /// Blocks of volatile buckets that this process has removed from memory because their object was deleted.
    #[serde(default)]
    pub deleted: u64,
    /// Blocks of volatile buckets that this process has removed from memory because their object was overwritten.
    #[serde(default)]
    pub overwritten: u64,
    /// Names of the first buckets whose objects are in memory only. Empty if names must not be shown.
    #[serde(default)]
    pub volatile_buckets: Vec<String>,
}

/// Requests of the replying process to other S3 stores since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginState {
    /// Number of requests, repeated ones included.
    pub requests: u64,
    /// Number of failed requests.
    pub failures: u64,
    /// Bytes of objects received.
    pub bytes: u64,
    /// Number of revalidations of cached facts about objects.
    pub revalidations: u64,
    /// Number of revalidations that found a changed object.
    pub changes: u64,
    /// Objects whose cached facts were invalidated by a write through Striate.
    #[serde(default)]
    pub fenced: u64,
    /// Reads that bypassed the cache.
    pub passed_by: u64,
    /// Writes that were cached too.
    #[serde(default)]
    pub cached_writes: u64,
    /// Writes that were not cached because memory for bodies was short.
    #[serde(default)]
    pub uncached_writes: u64,
    /// Buckets whose origins do not answer now.
    #[serde(default)]
    pub failing: Vec<FailingOriginState>,
}

/// A bucket whose origin does not answer, as the last requests of the replying process found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailingOriginState {
    /// Name of the bucket. Empty if names must not be shown.
    pub bucket: String,
    /// Endpoint of the origin.
    pub endpoint: String,
    /// Requests that failed since the origin last answered.
    pub requests: u64,
    /// Seconds since the first of them failed.
    pub since_s: u64,
    /// Seconds since the last of them failed.
    pub last_s_ago: u64,
    /// Why the last of them failed, as text.
    pub reason: String,
}

/// A site of the memory tier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySiteState {
    /// Number of the site; `None` for the one in a server's own process.
    pub site: Option<u32>,
    /// Failure domain of the site.
    pub rack: String,
    /// Address of the site.
    pub address: String,
    /// `ok` or `missing`.
    pub state: String,
    /// Memory limit in bytes.
    pub bound_bytes: u64,
    /// Memory in use in bytes.
    pub charged_bytes: u64,
    /// Number of splits of cached blocks.
    pub splits: u64,
    /// Bytes of data splits.
    #[serde(default)]
    pub data_bytes: u64,
    /// Bytes of parities.
    pub parity_bytes: u64,
    /// Memory in use for anything but cached data, in bytes: index, blocks in transit, other memory of its process.
    #[serde(default)]
    pub other_bytes: u64,
    /// Number of blocks with no parity, one, two, and so on, of those whose home is this site.
    #[serde(default)]
    pub blocks_by_parities: Vec<u64>,
    /// Reads of splits that found them, since the site started.
    pub hits: u64,
    /// Bytes read from splits.
    pub read_bytes: u64,
    /// Reads of splits that missed.
    pub misses: u64,
    /// Data splits evicted.
    pub evicted_data: u64,
    /// Parities evicted.
    pub evicted_parities: u64,
    /// Splits deleted because their object was.
    #[serde(default)]
    pub deleted: u64,
    /// Splits refused because everything that could be evicted was being read.
    pub refused: u64,
    /// Reads that found corrupted memory.
    pub damaged: u64,
}

/// Reads of whole or partial blocks that were served in one way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedState {
    /// Way of serving. `hit`: from memory; `partial`: partly from memory; `miss`: not in memory; `bypass`: no memory
    /// site answers; `error`: the read failed.
    pub how: String,
    /// Number of reads.
    pub reads: u64,
    /// Bytes read.
    pub bytes: u64,
}

impl CacheState {
    /// Returns the load imbalance λ of the sites that answer, in percent: the load of the most loaded one above the
    /// mean, where the load is bytes read per byte of memory. `None` if there is only one site, or nothing was read.
    pub fn imbalance(&self) -> Option<f64> {
        let loads = || {
            let up = self.sites.iter().filter(|site| site.state == "ok");
            up.map(|site| site.read_bytes as f64 / site.bound_bytes.max(1) as f64)
        };
        let (count, sum) = loads().fold((0, 0.0), |(count, sum), load| (count + 1, sum + load));
        let most = loads().fold(0.0, f64::max);
        (count > 1 && sum > 0.0).then(|| 100.0 * (most * f64::from(count) / sum - 1.0))
    }

    /// Returns the number of blocks with no parity, one, two, and so on, up to the most that a block has.
    pub fn blocks_by_parities(&self) -> Vec<u64> {
        let most_parities =
            |site: &MemorySiteState| site.blocks_by_parities.iter().rposition(|blocks| *blocks > 0);
        let kinds = self.sites.iter().filter_map(most_parities).max().map_or(0, |most| most + 1);
        let blocks = |site: &MemorySiteState, parities: usize| site.blocks_by_parities.get(parities).copied();
        let sum = |parities| self.sites.iter().filter_map(|site| blocks(site, parities)).sum();
        (0..kinds).map(sum).collect()
    }

    /// Returns the fraction of the bytes read that came from memory; `None` if nothing was read.
    pub fn hit_ratio(&self) -> Option<f64> {
        let read = self.reads.iter().filter(|served| served.how != "error");
        let bytes: u64 = read.map(|served| served.bytes).sum();
        (bytes > 0).then(|| self.cached_bytes as f64 / bytes as f64)
    }
}

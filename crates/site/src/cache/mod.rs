//! A chunk store in memory that evicts: a site of the memory tier.
//!
//! Whatever it holds may be evicted at any time. Its bound covers everything that a chunk takes: the pages of its
//! bytes, from when they are copied in until the last reader has dropped them ([`arena`]); the index; and whatever else
//! the process has grown by since the cache was made, up to half of the bound ([`process_growth`]). A chunk is within
//! the bound or not in the store: when no entry can be evicted because all are being read, a write is refused.
//!
//! Entries are spread over *shards*, each behind a lock of its own; checksums are computed outside the locks. Each shard
//! orders its entries ([`Eviction`]). Of the entries that are next in their shards, the one that was used longest ago is
//! evicted, so all shards together evict nearly in the order that one would.

mod arena;
mod nodes;
mod order;
mod process_growth;
mod runs;
mod shard;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use striate_core::{ChunkId, ChunkRange, FencingEpoch, GRANULE_LEN};

use self::arena::{Arena, PAGE_LEN, Payload, pages_of};
use self::nodes::Node;
pub use self::order::Eviction;
use self::process_growth::ProcessGrowth;
pub use self::process_growth::ProcessMemory;
use self::shard::{Entry, Shard};
use crate::api::{ChunkPage, SiteError};
use crate::granule;
use crate::store::{ChunkInfo, ChunkStore, StoreStatus, fence};

/// Minimum bound in bytes: a smaller cache would hold only a few large chunks.
pub const LEAST_CACHE_BYTES: u64 = 16 << 20;
/// Addresses reserved per byte of the bound, so that scattered runs do not matter.
const ADDRESSES: u64 = 4;
/// Approximate number of bytes of the bound per shard.
const SHARD_BYTES: u64 = 64 << 20;
const MOST_SHARDS: u64 = 64;
/// Maximum number of parities of a cached block.
pub const MOST_PARITIES: usize = 10;

/// Options of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// Maximum memory in bytes that the cache uses in total.
    pub bound_bytes: u64,
    /// Part of the bound, in bytes, set aside for incoming chunks and for what the allocator keeps of them. Code that
    /// receives or makes chunks uses at most half of it.
    pub on_the_way_bytes: u64,
    /// Order in which data are evicted.
    pub eviction: Eviction,
    /// Share of memory, in percent, that parities may keep while data are evicted (EC-Cache §6.1: 15).
    pub parity_percent: u8,
}

impl CacheOptions {
    /// Creates options with this bound and the defaults of EC-Cache. An eighth, at most 32 MiB, is set aside for
    /// incoming chunks.
    pub fn with_bound(bound_bytes: u64) -> Self {
        let on_the_way_bytes = (bound_bytes / 8).min(32 << 20);
        Self { bound_bytes, on_the_way_bytes, eviction: Eviction::default(), parity_percent: 15 }
    }
}

/// Contents of a cache, and its counters since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheView {
    /// Maximum number of bytes that the cache may use.
    pub bound_bytes: u64,
    /// Bytes that the cache uses: pages that are cached, being read or kept for the next chunk, plus the larger of two
    /// figures: the index with what is set aside for incoming chunks, or the growth of the process.
    pub charged_bytes: u64,
    /// Bytes that the cache uses other than its pages.
    pub other_bytes: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Number of chunks.
    pub chunks: u64,
    /// Payload bytes of all chunks.
    pub payload_bytes: u64,
    /// Bytes in pages of data splits.
    pub data_bytes: u64,
    /// Bytes in pages of parities.
    pub parity_bytes: u64,
    /// Reads that found their chunk.
    pub hits: u64,
    /// Bytes read by hits.
    pub read_bytes: u64,
    /// Reads that did not find their chunk.
    pub misses: u64,
    /// Chunks that were added.
    pub added: u64,
    /// Data splits evicted to make room.
    pub evicted_data: u64,
    /// Parities evicted to make room.
    pub evicted_parities: u64,
    /// Chunks that were deleted.
    pub deleted: u64,
    /// Reads that found bytes changed in memory.
    pub damaged: u64,
    /// Writes refused for lack of room, because all entries were being read.
    pub refused: u64,
    /// Number of blocks by their number of parities, from none up, for the blocks whose home this site is. Only a
    /// [`crate::BlockKeeper`] fills it in.
    pub blocks_by_parities: [u64; MOST_PARITIES + 1],
}

#[derive(Debug, Default)]
struct Counts {
    hits: AtomicU64,
    read_bytes: AtomicU64,
    misses: AtomicU64,
    added: AtomicU64,
    evicted_data: AtomicU64,
    evicted_parities: AtomicU64,
    deleted: AtomicU64,
    damaged: AtomicU64,
    refused: AtomicU64,
}

/// A chunk store in memory that evicts, within a bound on its memory.
#[derive(Debug)]
pub struct CacheStore {
    options: CacheOptions,
    arena: Arc<Arena>,
    shards: Vec<Mutex<Shard>>,
    process_growth: ProcessGrowth,
    /// Bytes of the indexes of all shards.
    index_bytes: AtomicU64,
    /// Ticks with each use of an entry.
    clock: AtomicU64,
    epoch: Mutex<FencingEpoch>,
    counts: Counts,
}

impl CacheStore {
    /// Creates an empty cache. It reserves addresses for several times its bound, but no memory.
    ///
    /// # Errors
    /// When the bound is below [`LEAST_CACHE_BYTES`], or the system refuses the addresses.
    pub fn new(options: CacheOptions) -> io::Result<Self> {
        Self::with_growth(options, ProcessGrowth::new(None))
    }

    /// Creates an empty cache that shrinks as its process grows: `process` is asked now, and
    /// after each MiB written or read.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn within_process(options: CacheOptions, process: Arc<dyn ProcessMemory>) -> io::Result<Self> {
        Self::with_growth(options, ProcessGrowth::new(Some(process)))
    }

    fn with_growth(options: CacheOptions, process_growth: ProcessGrowth) -> io::Result<Self> {
        if options.bound_bytes < LEAST_CACHE_BYTES {
            let reason = format!("a cache has at least {} MiB", LEAST_CACHE_BYTES >> 20);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let addresses = options.bound_bytes.saturating_mul(ADDRESSES);
        let arena = Arena::new(usize::try_from(addresses).unwrap_or(usize::MAX))?;
        let count = (options.bound_bytes / SHARD_BYTES).clamp(1, MOST_SHARDS).next_power_of_two();
        let shards = (0..count).map(|_| Mutex::new(Shard::new(options.eviction))).collect();
        let store = Self {
            options,
            arena: Arc::new(arena),
            shards,
            process_growth,
            index_bytes: AtomicU64::new(0),
            clock: AtomicU64::new(0),
            epoch: Mutex::default(),
            counts: Counts::default(),
        };
        let index_bytes = store.shards.iter().map(|shard| shard.lock().index_bytes()).sum();
        store.index_bytes.store(index_bytes, Ordering::Relaxed);
        Ok(store)
    }

    /// Returns the contents and counters.
    pub fn view(&self) -> CacheView {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts {
            hits,
            read_bytes,
            misses,
            added,
            evicted_data,
            evicted_parities,
            deleted,
            damaged,
            refused,
        } = &self.counts;
        let (index_bytes, other_bytes) = (count(&self.index_bytes), self.beside_pages());
        let mut view = CacheView {
            bound_bytes: self.options.bound_bytes,
            charged_bytes: self.arena.resident_bytes() + other_bytes,
            other_bytes,
            index_bytes,
            hits: count(hits),
            read_bytes: count(read_bytes),
            misses: count(misses),
            added: count(added),
            evicted_data: count(evicted_data),
            evicted_parities: count(evicted_parities),
            deleted: count(deleted),
            damaged: count(damaged),
            refused: count(refused),
            ..CacheView::default()
        };
        for shard in &self.shards {
            let shard = shard.lock();
            let (data, parities) = shard.bytes();
            view.chunks += shard.len() as u64;
            view.payload_bytes += shard.payload_bytes();
            view.data_bytes += data;
            view.parity_bytes += parities;
        }
        view
    }

    /// Returns whether a chunk is cached and not known to be damaged, without counting it as read.
    pub fn has(&self, chunk: ChunkId) -> bool {
        self.shard(chunk).lock().has(chunk)
    }

    fn number_of(&self, chunk: ChunkId) -> usize {
        // The name is already a hash.
        let name = chunk.stripe.0 >> 64 ^ u128::from(chunk.index) << 8;
        (name ^ name >> 32) as usize & (self.shards.len() - 1)
    }

    fn shard(&self, chunk: ChunkId) -> &Mutex<Shard> {
        &self.shards[self.number_of(chunk)]
    }

    /// Changes a shard, and updates the count of its index bytes.
    fn change<T>(&self, shard: &Mutex<Shard>, change: impl FnOnce(&mut Shard) -> T) -> T {
        let mut shard = shard.lock();
        let before = shard.index_bytes();
        let result = change(&mut shard);
        let after = shard.index_bytes();
        // Wraps if the index shrank.
        self.index_bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        result
    }

    /// Returns the bytes of the bound that are not for pages. The growth of the process includes
    /// the index and incoming chunks.
    fn beside_pages(&self) -> u64 {
        self.known_beside_pages().max(self.process_growth.grown_bytes().min(self.options.bound_bytes / 2))
    }

    /// Returns the bytes set aside for incoming chunks and the index, however much the process grows.
    fn known_beside_pages(&self) -> u64 {
        self.options.on_the_way_bytes + self.index_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of pages that may be resident beside everything else that counts.
    fn most_pages(&self) -> u32 {
        let bytes = self.options.bound_bytes.saturating_sub(self.beside_pages());
        (bytes / PAGE_LEN as u64).min(u32::MAX.into()) as u32
    }

    /// Returns the next tick of the clock.
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    /// Records that `bytes` of a chunk were written or read.
    fn moved(&self, bytes: usize) {
        let in_pages = || self.arena.resident_bytes();
        if self.process_growth.moved(bytes as u64, self.known_beside_pages(), in_pages) {
            self.settle();
        }
    }

    /// Evicts entries until the growth of the index and the process fits in the bound.
    fn settle(&self) {
        while !self.arena.trim(self.most_pages()) && self.evict() {}
    }

    /// Copies a payload within the bound, evicting other entries for it.
    fn copy(&self, payload: &[u8]) -> Option<Payload> {
        loop {
            let most_pages = self.most_pages();
            if let Some(copy) = self.arena.copy(payload, most_pages) {
                return Some(copy);
            }
            if pages_of(payload.len()) > most_pages || !self.evict() {
                return None;
            }
        }
    }

    /// Evicts the entry that was used longest ago of those that are next in their shards. If its shard has none that is
    /// not being read, evicts from the first of the others that has.
    fn evict(&self) -> bool {
        let percent = u64::from(self.options.parity_percent);
        let next_used_at = |shard: &&Mutex<Shard>| shard.lock().next_used_at(percent).unwrap_or(u64::MAX);
        let oldest = self.shards.iter().min_by_key(next_used_at);
        let evict = |shard| self.change(shard, |shard: &mut Shard| shard.evict(percent));
        let mut shards = oldest.into_iter().chain(&self.shards);
        let Some(evicted) = shards.find_map(evict) else { return false };
        let counted =
            if evicted.is_parity { &self.counts.evicted_parities } else { &self.counts.evicted_data };
        counted.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn remove(&self, chunk: ChunkId) -> bool {
        self.change(self.shard(chunk), |shard| shard.remove(chunk)).is_some()
    }

    fn lookup(&self, range: &ChunkRange) -> Result<Bytes, SiteError> {
        let Some(entry) = self.shard(range.chunk).lock().read(range.chunk, self.tick()) else {
            self.counts.misses.fetch_add(1, Ordering::Relaxed);
            return Err(SiteError::Missing(range.chunk));
        };
        let read = self.read_verified(range, &entry);
        match &read {
            Ok(bytes) => {
                self.counts.hits.fetch_add(1, Ordering::Relaxed);
                self.counts.read_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                self.moved(bytes.len());
            }
            Err(_) => drop(self.counts.misses.fetch_add(1, Ordering::Relaxed)),
        }
        read
    }

    /// Reads the range from an entry. An entry whose bytes have changed in memory is replaced when it is written again.
    fn read_verified(&self, range: &ChunkRange, entry: &Entry) -> Result<Bytes, SiteError> {
        let read = entry.read(range);
        if let Err(SiteError::Corrupt { .. }) = read {
            self.counts.damaged.fetch_add(1, Ordering::Relaxed);
            self.shard(range.chunk).lock().mark_damaged(range.chunk);
        }
        read
    }
}

impl Entry {
    fn info(&self, chunk: ChunkId) -> ChunkInfo {
        ChunkInfo { chunk, len: self.payload.len() as u32, crc32c: self.crc32c }
    }

    fn read(&self, range: &ChunkRange) -> Result<Bytes, SiteError> {
        granule::verify_range(self.payload.as_ref(), &self.granules, range)?;
        let start = range.offset as usize;
        Ok(self.payload.bytes().slice(start..start + range.len as usize))
    }
}

#[async_trait]
impl ChunkStore for CacheStore {
    async fn write(
        &self,
        chunk: ChunkId,
        payload: Bytes,
        granule_crcs: Option<Arc<[u32]>>,
    ) -> Result<(), SiteError> {
        let granules = granule::check_write(&payload, granule_crcs, GRANULE_LEN)?;
        let len = payload.len() as u32;
        let crc32c = granule::payload_crc(&granules, len, GRANULE_LEN);
        let as_it_is = |shard: &Shard| {
            let entry = shard.peek(chunk)?;
            Some(granule::check_rewrite(chunk, (entry.payload.len() as u32, entry.crc32c), (len, crc32c)))
        };
        let is_damaged = self.shard(chunk).lock().is_damaged(chunk);
        if is_damaged {
            self.remove(chunk);
        } else if let Some(outcome) = as_it_is(&self.shard(chunk).lock()) {
            return outcome;
        }
        let Some(copy) = self.copy(&payload) else {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
            return Err(SiteError::NoSpace);
        };
        let node = Node::new(chunk, copy, granules, crc32c);
        let written = self.change(self.shard(chunk), |shard| {
            // Another writer may have been first.
            as_it_is(shard).unwrap_or_else(|| {
                shard.insert(node, self.tick());
                self.counts.added.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
        });
        self.settle();
        self.moved(payload.len());
        written
    }

    async fn read(&self, range: ChunkRange) -> Result<Bytes, SiteError> {
        self.lookup(&range)
    }

    fn try_read(&self, range: ChunkRange) -> Option<Result<Bytes, SiteError>> {
        Some(self.lookup(&range))
    }

    async fn delete(&self, chunks: &[ChunkId], epoch: FencingEpoch) -> Result<(), SiteError> {
        fence(&mut self.epoch.lock(), epoch)?;
        let deleted = chunks.iter().filter(|chunk| self.remove(**chunk)).count();
        self.counts.deleted.fetch_add(deleted as u64, Ordering::Relaxed);
        Ok(())
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        let mut chunks = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let nodes = shard.nodes().filter(|node| from.is_none_or(|from| node.chunk >= from));
            chunks.extend(nodes.map(|node| Entry::from(node).info(node.chunk)));
        }
        chunks.sort_unstable_by_key(|info| info.chunk);
        let next = chunks.get(limit.max(1)).map(|info| info.chunk);
        chunks.truncate(limit.max(1));
        Ok(ChunkPage { chunks, next })
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        let entry = self.shard(chunk).lock().peek(chunk).ok_or(SiteError::Missing(chunk))?;
        let len = entry.payload.len() as u32;
        self.read_verified(&ChunkRange { chunk, offset: 0, len }, &entry)?;
        Ok(entry.info(chunk))
    }

    fn status(&self) -> StoreStatus {
        let view = self.view();
        StoreStatus {
            chunks: view.chunks,
            payload_bytes: view.payload_bytes,
            disk_bytes: view.charged_bytes,
            capacity_bytes: view.bound_bytes,
            free_bytes: view.bound_bytes.saturating_sub(view.charged_bytes),
            medium: 0,
            ..StoreStatus::default()
        }
    }
}

#[cfg(test)]
mod tests;

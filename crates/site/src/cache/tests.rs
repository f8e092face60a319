use std::collections::BTreeMap;
use std::sync::OnceLock;

use futures::FutureExt;
use proptest::prelude::*;
use striate_core::{Generation, cached};

use super::*;
use crate::conformance::{self, StoreUnderTest, payload};

const MIB: u64 = 1 << 20;

fn cache(eviction: Eviction) -> CacheStore {
    let options =
        CacheOptions { eviction, on_the_way_bytes: 0, ..CacheOptions::with_bound(LEAST_CACHE_BYTES) };
    CacheStore::new(options).unwrap()
}

/// Returns a split of the `number`-th block, which has four.
fn split(number: u64, index: u8) -> ChunkId {
    ChunkId { stripe: cached::name(u128::from(number) << 70, 4), index, generation: Generation(0) }
}

struct Conforming(Arc<CacheStore>);

#[async_trait]
impl StoreUnderTest for Conforming {
    async fn open(&mut self) -> Arc<dyn ChunkStore> {
        self.0.clone()
    }

    /// Damages the checksum instead, since the bytes cannot be reached.
    async fn damage(&mut self, chunk: ChunkId) {
        let mut node = self.0.change(self.0.shard(chunk), |shard| shard.remove(chunk)).unwrap();
        let mut granules = node.granules.to_vec();
        granules[0] ^= 1;
        node.granules = granules.into();
        self.0.change(self.0.shard(chunk), |shard| shard.insert(node, self.0.tick()));
    }
}

#[tokio::test]
async fn the_cache_conforms_until_it_is_full() {
    conformance::run(|| Box::new(Conforming(Arc::new(cache(Eviction::Lru))))).await;
}

#[tokio::test]
async fn a_damaged_chunk_is_never_served_and_can_be_written_again() {
    let cache = Arc::new(cache(Eviction::Lru));
    let chunk = split(1, 0);
    cache.write(chunk, payload(1, 100_000), None).await.unwrap();
    Conforming(cache.clone()).damage(chunk).await;
    let range = ChunkRange { chunk, offset: 0, len: 1 };
    assert!(matches!(cache.read(range).await, Err(SiteError::Corrupt { .. })));
    cache.write(chunk, payload(1, 100_000), None).await.unwrap();
    assert_eq!(cache.read(range).await, Ok(payload(1, 1)));
    assert_eq!((cache.view().damaged, cache.view().chunks), (1, 1));
}

#[tokio::test]
async fn lru_keeps_what_is_read_and_s3_fifo_what_is_read_twice() {
    let (lru, s3_fifo) = (Eviction::Lru, Eviction::S3Fifo);
    for (eviction, reads, survives) in
        [(lru, 0, false), (lru, 1, true), (s3_fifo, 1, false), (s3_fifo, 2, true)]
    {
        let cache = cache(eviction);
        for number in 0..15 {
            cache.write(split(number, 0), payload(number, MIB as usize), None).await.unwrap();
        }
        for _ in 0..reads {
            cache.try_read(ChunkRange { chunk: split(0, 0), offset: 0, len: 1 }).unwrap().unwrap();
        }
        cache.write(split(15, 0), payload(15, MIB as usize), None).await.unwrap();
        assert_eq!(cache.has(split(0, 0)), survives, "{eviction}, read {reads} times");
        let kept = (0..16).filter(|number| cache.has(split(*number, 0))).count();
        assert_eq!(kept, 15, "{eviction}: 16 MiB less the index");
    }
}

#[tokio::test]
async fn entries_that_were_all_read_make_room_once_nothing_is_being_read() {
    for eviction in [Eviction::Lru, Eviction::S3Fifo] {
        let cache = cache(eviction);
        for number in 0..5_000 {
            let chunk = split(number, 0);
            cache.write(chunk, payload(number, PAGE_LEN), None).await.unwrap();
            for _ in 0..2 {
                cache.try_read(ChunkRange { chunk, offset: 0, len: 1 }).unwrap().unwrap();
            }
        }
        let view = cache.view();
        assert!(view.evicted_data > 500 && view.refused == 0, "{eviction}: {view:?}");
    }
}

/// Names fall unevenly on the shards, but what was used last stays, whichever shard it is in.
#[tokio::test]
async fn all_shards_together_evict_what_was_used_longest_ago() {
    const WRITTEN: u64 = 400;
    let options = CacheOptions { on_the_way_bytes: 0, ..CacheOptions::with_bound(256 << 20) };
    let cache = CacheStore::new(options).unwrap();
    let shards = cache.shards.len();
    let spread = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8;
    let bytes = Bytes::from(vec![7; MIB as usize]);
    let is_read = |number: u64| number.is_multiple_of(40);
    for number in 0..WRITTEN {
        cache.write(split(spread(number), 0), bytes.clone(), None).await.unwrap();
        for popular in (0..=number).filter(|number| is_read(*number)) {
            cache
                .try_read(ChunkRange { chunk: split(spread(popular), 0), offset: 0, len: 1 })
                .unwrap()
                .unwrap();
        }
    }
    assert!(shards > 1 && cache.shards.iter().all(|shard| shard.lock().len() > 20), "chunks in each shard");
    let kept: Vec<u64> = (0..WRITTEN).filter(|number| cache.has(split(spread(*number), 0))).collect();
    let unread: Vec<u64> = kept.iter().copied().filter(|number| !is_read(*number)).collect();
    assert_eq!(kept.len() - unread.len(), 10, "what is read again and again");
    assert!(kept.len() > 250, "{}", kept.len());
    let newest: Vec<u64> = (0..WRITTEN).rev().filter(|number| !is_read(*number)).take(unread.len()).collect();
    assert!(unread.iter().rev().eq(&newest), "the newest of the others: {unread:?}");
}

#[tokio::test]
async fn a_scan_passes_by_what_is_popular_under_s3_fifo_and_not_under_lru() {
    for (eviction, survives) in [(Eviction::Lru, false), (Eviction::S3Fifo, true)] {
        let cache = cache(eviction);
        let popular = split(0, 0);
        cache.write(popular, payload(0, MIB as usize), None).await.unwrap();
        for _ in 0..3 {
            cache.try_read(ChunkRange { chunk: popular, offset: 0, len: 1 }).unwrap().unwrap();
        }
        for number in 1..60 {
            cache.write(split(number, 0), payload(number, MIB as usize), None).await.unwrap();
        }
        assert_eq!(cache.has(popular), survives, "{eviction}");
    }
}

#[tokio::test]
async fn parities_beyond_their_share_go_before_data_and_others_stay() {
    let cache = cache(Eviction::Lru);
    // Eight of fifteen pages are parities: more than their share.
    for number in 0..8 {
        cache.write(split(number, 4), payload(number, MIB as usize), None).await.unwrap();
    }
    for number in 0..30 {
        cache.write(split(number, 0), payload(number, MIB as usize), None).await.unwrap();
    }
    let parities: Vec<u64> = (0..8).filter(|number| cache.has(split(*number, 4))).collect();
    assert_eq!(parities, [6, 7], "15% of 15 pages of 1 MiB, the newest");
    let view = cache.view();
    assert_eq!((view.evicted_parities, view.parity_bytes), (6, 2 * MIB));
    assert_eq!(view.evicted_data, 30 - view.data_bytes / MIB);
}

#[tokio::test]
async fn what_is_being_read_stays_within_the_bound_until_it_was_read() {
    let cache = cache(Eviction::Lru);
    let mut readers = Vec::new();
    for number in 0..15 {
        let chunk = split(number, 0);
        cache.write(chunk, payload(number, MIB as usize), None).await.unwrap();
        readers.push(cache.read(ChunkRange { chunk, offset: 5, len: 10 }).await.unwrap());
    }
    let refused = cache.write(split(15, 0), payload(15, MIB as usize), None).await;
    assert_eq!(refused, Err(SiteError::NoSpace), "nothing may go");
    assert_eq!(cache.view().refused, 1);
    // A deleted entry keeps its pages as long as it is being read.
    cache.delete(&[split(0, 0)], FencingEpoch::NONE).await.unwrap();
    assert_eq!(cache.write(split(15, 0), payload(15, MIB as usize), None).await, Err(SiteError::NoSpace));
    assert_eq!(readers[0], payload(0, MIB as usize).slice(5..15));
    readers.clear();
    cache.write(split(15, 0), payload(15, MIB as usize), None).await.unwrap();
    assert!(cache.view().charged_bytes <= LEAST_CACHE_BYTES);
}

#[test]
fn a_bound_that_is_too_small_is_refused_with_the_least_one() {
    let error = CacheStore::new(CacheOptions::with_bound(MIB)).unwrap_err();
    assert!(error.to_string().contains("16 MiB"), "{error}");
}

/// Draws requests for one page each by Zipf's law, with a scan of as many objects that are never
/// requested again in the middle.
fn requests(objects: u64, count: usize, scanned: u64) -> Vec<u64> {
    let weights = (1..=objects).map(|rank| 1.0 / (rank as f64).powf(0.9));
    let sums: Vec<f64> = weights
        .scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        })
        .collect();
    let (mut state, most) = (7u64, sums[sums.len() - 1]);
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (state >> 11) as f64 / (1u64 << 53) as f64 * most;
        sums.partition_point(|sum| *sum < at) as u64
    };
    let mut drawn: Vec<u64> = (0..count).map(|_| draw()).collect();
    drawn.splice(count / 2..count / 2, objects..objects + scanned);
    drawn
}

/// Returns the hit ratio of a cache of `entries` entries of one page.
fn hit_ratio(eviction: Eviction, entries: u64, requests: &[u64]) -> (f64, u64) {
    let index = 160 * entries;
    let bytes = entries * PAGE_LEN as u64 + index;
    let on_the_way_bytes = LEAST_CACHE_BYTES - bytes;
    let options = CacheOptions { eviction, on_the_way_bytes, ..CacheOptions::with_bound(LEAST_CACHE_BYTES) };
    let cache = CacheStore::new(options).unwrap();
    let mut hits = 0;
    for &number in requests {
        let chunk = split(number, 0);
        match cache.try_read(ChunkRange { chunk, offset: 0, len: 1 }).unwrap() {
            Ok(_) => hits += 1,
            Err(_) => cache.write(chunk, Bytes::from_static(b"x"), None).now_or_never().unwrap().unwrap(),
        }
    }
    (hits as f64 / requests.len() as f64, cache.view().chunks)
}

/// Returns the hit ratio of another implementation: `get` returns whether an entry was cached, and adds it if not.
fn hit_ratio_of(requests: &[u64], mut get: impl FnMut(u64) -> bool) -> f64 {
    requests.iter().filter(|&&number| get(number)).count() as f64 / requests.len() as f64
}

#[test]
fn hit_ratios_are_those_of_other_implementations() {
    let (objects, entries) = (20_000, 2_000);
    for (scanned, s3_fifo_is_better_by) in [(0, 0.02), (20_000, 0.02)] {
        let requests = requests(objects, 100_000, scanned);
        let (lru, held) = hit_ratio(Eviction::Lru, entries, &requests);
        let (mut known, mut order, mut now) = (BTreeMap::new(), BTreeMap::new(), 0u64);
        let exact = hit_ratio_of(&requests, |number| {
            now += 1;
            let before = known.insert(number, now);
            before.map(|before| order.remove(&before));
            order.insert(now, number);
            if order.len() as u64 > held {
                let oldest = order.pop_first().unwrap().1;
                known.remove(&oldest);
            }
            before.is_some()
        });
        assert!((lru - exact).abs() < 0.01, "LRU {lru}, of a map of {held} {exact}");
        let (s3_fifo, held) = hit_ratio(Eviction::S3Fifo, entries, &requests);
        let mut other = quick_cache::unsync::Cache::new(held as usize);
        let quick = hit_ratio_of(&requests, |number| {
            let was_there = other.get(&number).is_some();
            if !was_there {
                other.insert(number, ());
            }
            was_there
        });
        assert!((s3_fifo - quick).abs() < 0.02, "S3-FIFO {s3_fifo}, quick_cache {quick}, {scanned} scanned");
        assert!(s3_fifo > lru + s3_fifo_is_better_by, "S3-FIFO {s3_fifo}, LRU {lru}, {scanned} scanned");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever is written, read, held and deleted, reads return the bytes that were written or miss, and the charged
    /// bytes stay within the bound.
    #[test]
    fn reads_answer_what_was_written_or_miss_within_the_bound(
        steps in prop::collection::vec((0u8..5, 0u64..60, 1usize..600_000), 1..300),
        eviction in prop::sample::select(vec![Eviction::Lru, Eviction::S3Fifo]),
    ) {
        let cache = cache(eviction);
        let (mut written, mut held) = (BTreeMap::new(), Vec::new());
        for (step, number, len) in steps {
            let chunk = split(number, (number % 6) as u8);
            match step {
                0 => {
                    let bytes = payload(number, *written.entry(number).or_insert(len));
                    let outcome = cache.write(chunk, bytes, None).now_or_never().expect("it waits for nothing");
                    prop_assert!(matches!(outcome, Ok(()) | Err(SiteError::NoSpace)), "{outcome:?}");
                }
                1 => cache.delete(&[chunk], FencingEpoch::NONE).now_or_never().expect("it waits for nothing").unwrap(),
                2 => drop((!held.is_empty()).then(|| held.swap_remove(len % held.len()))),
                _ => {
                    let Some(&full) = written.get(&number) else { continue };
                    let offset = len % full;
                    let range = ChunkRange { chunk, offset: offset as u32, len: (full - offset) as u32 };
                    match cache.try_read(range).unwrap() {
                        Ok(bytes) => {
                            prop_assert_eq!(&bytes, &payload(number, full).slice(offset..));
                            held.push(bytes);
                        }
                        Err(error) => prop_assert_eq!(error, SiteError::Missing(chunk)),
                    }
                }
            }
            let view = cache.view();
            prop_assert!(view.charged_bytes <= LEAST_CACHE_BYTES, "{view:?}");
            let index: u64 = cache.shards.iter().map(|shard| shard.lock().index_bytes()).sum();
            prop_assert_eq!(view.index_bytes, index);
        }
    }
}

/// A process that uses `grown` bytes besides the pages of a cache, of which it can release `free`.
#[derive(Debug, Default)]
struct Process {
    arena: OnceLock<Arc<Arena>>,
    grown: AtomicU64,
    free: AtomicU64,
}

impl ProcessMemory for Process {
    fn resident_bytes(&self) -> Option<u64> {
        let pages = self.arena.get().map_or(0, |arena| arena.resident_bytes());
        Some(pages + self.grown.load(Ordering::Relaxed))
    }

    fn give_back(&self) -> bool {
        self.grown.fetch_sub(self.free.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        true
    }
}

/// Creates a cache of 16 MiB in such a process, with nothing set aside for incoming chunks.
fn cache_in_process() -> (CacheStore, Arc<Process>) {
    let process = Arc::new(Process::default());
    let options = CacheOptions { on_the_way_bytes: 0, ..CacheOptions::with_bound(LEAST_CACHE_BYTES) };
    let cache = CacheStore::within_process(options, process.clone()).unwrap();
    process.arena.set(cache.arena.clone()).unwrap();
    (cache, process)
}

async fn write_mibs(cache: &CacheStore, numbers: std::ops::Range<u64>) -> CacheView {
    for number in numbers {
        cache.write(split(number, 0), payload(number, MIB as usize), None).await.unwrap();
    }
    cache.view()
}

#[tokio::test]
async fn what_the_process_takes_besides_is_taken_off_what_the_cache_may_keep() {
    let (cache, process) = cache_in_process();
    let grow = |mib: u64| process.grown.store(mib * MIB, Ordering::Relaxed);
    assert_eq!(write_mibs(&cache, 0..40).await.chunks, 15, "16 MiB less the index");
    grow(5);
    let view = write_mibs(&cache, 40..41).await;
    assert!(view.chunks == 11 && view.charged_bytes <= LEAST_CACHE_BYTES, "{view:?}");
    assert_eq!(view.other_bytes, 5 * MIB);
    grow(14);
    let read = cache.try_read(ChunkRange { chunk: split(40, 0), offset: 0, len: MIB as u32 }).unwrap();
    assert_eq!(read.map(|bytes| bytes.len() as u64), Ok(MIB));
    assert_eq!(
        cache.view().chunks,
        8,
        "a read finds out as well, and half of the bound is the cache's in any case"
    );
}

#[tokio::test]
async fn memory_that_the_process_can_give_back_costs_no_chunk() {
    let (cache, process) = cache_in_process();
    assert_eq!(write_mibs(&cache, 0..40).await.chunks, 15);
    process.grown.store(14 * MIB, Ordering::Relaxed);
    process.free.store(14 * MIB, Ordering::Relaxed);
    let view = write_mibs(&cache, 40..41).await;
    assert_eq!((view.chunks, view.other_bytes), (15, view.index_bytes), "{view:?}");
}

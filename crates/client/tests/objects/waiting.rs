//! Reads from slow media. Times are virtual.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use striate_client::ClientOptions;
use striate_core::{ChunkId, ChunkRange, FencingEpoch};
use striate_runtime::Runtime;
use striate_site::{ChunkInfo, ChunkPage, ChunkStore, MemoryStore, SiteError, StoreStatus};

use crate::cluster::{BLOCK_LEN, Cluster, in_virtual_time, noise, options, with_policy};

const QUICK: Duration = Duration::from_millis(1);

/// A store with a configurable read time.
#[derive(Debug)]
struct TimedStore {
    inner: MemoryStore,
    runtime: Runtime,
    read_time: Mutex<Duration>,
    reads: AtomicU64,
}

#[async_trait::async_trait]
impl ChunkStore for TimedStore {
    async fn write(
        &self,
        chunk: ChunkId,
        payload: Bytes,
        granule_crcs: Option<Arc<[u32]>>,
    ) -> Result<(), SiteError> {
        self.inner.write(chunk, payload, granule_crcs).await
    }

    async fn read(&self, range: ChunkRange) -> Result<Bytes, SiteError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let time = *self.read_time.lock();
        self.runtime.sleep(time).await;
        self.inner.read(range).await
    }

    fn try_read(&self, _: ChunkRange) -> Option<Result<Bytes, SiteError>> {
        None
    }

    async fn delete(&self, chunks: &[ChunkId], epoch: FencingEpoch) -> Result<(), SiteError> {
        self.inner.delete(chunks, epoch).await
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        self.inner.list(from, limit).await
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        self.inner.verify(chunk).await
    }

    fn status(&self) -> StoreStatus {
        self.inner.status()
    }
}

/// Runs a test with six sites, one object of `blocks` blocks, and its bytes.
fn with_object(blocks: usize, test: impl AsyncFnOnce(Runtime, Cluster, Vec<Arc<TimedStore>>, Vec<u8>)) {
    with_object_of(options(), blocks, test);
}

fn with_object_of(
    options: ClientOptions,
    blocks: usize,
    test: impl AsyncFnOnce(Runtime, Cluster, Vec<Arc<TimedStore>>, Vec<u8>),
) {
    in_virtual_time(1, |runtime| async move {
        let store = |_| TimedStore {
            inner: MemoryStore::new(1 << 40),
            runtime: runtime.clone(),
            read_time: Mutex::new(QUICK),
            reads: AtomicU64::new(0),
        };
        let stores: Vec<Arc<TimedStore>> = (0..6).map(|site| Arc::new(store(site))).collect();
        let meta = Arc::new(striate_meta::MemoryStore::new(runtime.clone()));
        let sites = stores.iter().map(|store| store.clone() as Arc<dyn ChunkStore>).collect();
        let cluster = Cluster::open_on(runtime.clone(), meta, options, sites).await;
        let bytes = noise(blocks * BLOCK_LEN as usize, 1);
        cluster.put("object", &bytes).await.unwrap();
        test(runtime, cluster, stores, bytes).await;
    });
}

fn set(stores: &[Arc<TimedStore>], time: Duration) {
    stores.iter().for_each(|store| *store.read_time.lock() = time);
}

fn reads(stores: &[Arc<TimedStore>]) -> u64 {
    stores.iter().map(|store| store.reads.swap(0, Ordering::Relaxed)).sum()
}

#[test]
fn a_late_chunk_that_arrives_first_is_taken() {
    with_object(1, async |runtime, cluster, stores, bytes| {
        set(&stores, Duration::from_millis(300));
        let began = runtime.now();
        assert_eq!(cluster.read("object").await.unwrap(), bytes);
        let took = runtime.now() - began;
        assert!(took < Duration::from_millis(310), "it was late at 250 ms and came at 300: {took:?}");
        assert_eq!(reads(&stores), 4, "no chunk was asked for twice, nor others when all are late");
    });
}

#[test]
fn media_that_are_all_busy_are_not_asked_for_more() {
    with_object(40, async |_, cluster, stores, bytes| {
        set(&stores, Duration::from_millis(400));
        assert_eq!(cluster.read("object").await.unwrap(), bytes);
        reads(&stores);
        assert_eq!(cluster.read("object").await.unwrap(), bytes);
        assert_eq!(reads(&stores), 40 * 4, "k chunks of each block");
    });
}

#[test]
fn a_silent_site_is_read_around_after_the_least_time() {
    with_object(20, async |runtime, cluster, stores, bytes| {
        assert_eq!(cluster.read("object").await.unwrap(), bytes);
        set(&stores[..1], Duration::from_secs(3_600));
        let began = runtime.now();
        assert_eq!(cluster.read("object").await.unwrap(), bytes);
        let took = runtime.now() - began;
        assert!(took < Duration::from_millis(20 * 260), "no block waited for longer: {took:?}");
    });
}

/// Two chunks are found missing just after another one was given up as late: the late one counts again, beside the
/// last chunk not yet requested.
#[test]
fn a_late_chunk_counts_again_where_the_others_are_too_few() {
    with_object(1, async |runtime, cluster, stores, bytes| {
        assert_eq!(cluster.read("object").await.unwrap(), bytes);
        for store in &stores {
            let chunk = store.inner.list(None, 1).await.unwrap().chunks[0].chunk;
            let time = match chunk.index {
                0 | 1 => 300,
                2 => 600,
                _ => 1,
            };
            *store.read_time.lock() = Duration::from_millis(time);
            if chunk.index < 2 {
                assert!(store.inner.lose(chunk));
            }
        }
        let began = runtime.now();
        assert_eq!(cluster.read("object").await.unwrap(), bytes);
        let took = runtime.now() - began;
        assert!(took < Duration::from_millis(620), "it waits for the late one and no longer: {took:?}");
    });
}

/// Runs a test with six slow sites, a client that reads by the adaptive policy and has measured them, and an object
/// of six blocks.
fn with_known_sites(
    test: impl AsyncFnOnce(Runtime, Cluster, Vec<Arc<TimedStore>>, Vec<striate_stripe::StoredBytes>),
) {
    let options = with_policy("adaptive");
    with_object_of(options, 6, async |runtime, cluster, stores, _| {
        set(&stores, QUICK * 10);
        let blocks = cluster.client.blocks_of("bucket", "object").await.unwrap();
        for _ in 0..50 {
            let read = cluster.client.read_blocks(&blocks).await.unwrap();
            assert_eq!(read.stats.hedged_chunks, 0, "every site takes what it always takes");
        }
        test(runtime, cluster, stores, blocks).await;
    });
}

#[test]
fn a_site_that_takes_longer_than_its_queue_tells_is_read_around() {
    with_known_sites(async |runtime, cluster, stores, blocks| {
        // For a single slow site, the extra chunk would suffice.
        set(&stores[2..4], QUICK * 3_000);
        let (mut hedged, mut cancelled) = (0, 0);
        for _ in 0..10 {
            let began = runtime.now();
            let read = cluster.client.read_blocks(&blocks).await.unwrap();
            let took = runtime.now() - began;
            assert!(
                took < QUICK * 200,
                "late after tens of milliseconds, not after the hedge time: {took:?}"
            );
            assert_eq!(read.stats.planned_again, 0);
            (hedged, cancelled) = (hedged + read.stats.hedged_chunks, cancelled + read.stats.cancelled);
        }
        assert!(hedged > 0 && cancelled > 0, "{hedged} chunks hedged, {cancelled} reads taken back");
    });
}

#[test]
fn when_all_sites_become_slow_the_hedges_stay_within_their_budget() {
    with_known_sites(async |_, cluster, stores, blocks| {
        set(&stores, QUICK * 60);
        let (mut asked, mut hedged) = (0, 0);
        for _ in 0..40 {
            let stats = cluster.client.read_blocks(&blocks).await.unwrap().stats;
            (asked, hedged) = (asked + stats.chunks, hedged + stats.hedged_chunks);
        }
        // A tenth of the requested chunks, plus those saved up before.
        assert!(hedged <= asked / 10 + 64, "{hedged} of {asked} chunks");
    });
}

#[test]
fn an_extra_chunk_is_asked_for_only_while_nobody_waits() {
    with_known_sites(async |runtime, cluster, stores, blocks| {
        let read = cluster.client.read_blocks(&blocks).await.unwrap();
        assert_eq!(read.stats.extra_chunks, blocks.len());
        drop(read);
        set(&stores, QUICK * 50);
        let client = &cluster.client;
        // Each of these asks every site, so that the queues exceed the sites' workers.
        let many = futures::future::join_all((0..40).map(|_| async {
            runtime.sleep(QUICK).await;
            client.read_blocks(&blocks[..1]).await.map(|read| read.stats)
        }));
        let stats: Vec<_> = many.await.into_iter().map(Result::unwrap).collect();
        assert!(stats.iter().any(|stats| stats.extra_chunks == 0), "all 40 asked for an extra chunk");
    });
}

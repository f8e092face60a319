//! The tier under a real client: what is read again comes from memory, and nothing that happens to memory fails a read.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use striate_cache::{Cache, CacheSettings, Keeper, Looked, ReadOutcome};
use striate_client::{
    Client, ClientError, ClientOptions, CompleteUpload, CompletedPart, CreateBucket, CreateUpload,
    ExpectedDigests, GetRequest, ObjectAttributes, ObjectInfo, PutBody, PutRequest, ReadOrder, ReadRange,
    UploadPartRequest, WriteCondition,
};
use striate_core::{ChunkId, ClusterId, FencingEpoch, Formats, InForce, RackId, SiteId};
use striate_meta::{MemoryStore as MemoryMeta, MetaStore};
use striate_runtime::Runtime;
use striate_site::{
    CacheOptions, CacheStore, ChunkStore, LocalSite, MemoryStore, QueueLimits, Site, SiteIdentity,
};
use striate_stripe::{BlockCache, MemoryBlock, Span, Stored, StripeOptions};

const MIB: usize = 1 << 20;
const BUCKET: &str = "bucket";

/// Sites of both tiers.
struct Sites {
    runtime: Runtime,
    meta: Arc<dyn MetaStore>,
    disks: Vec<Arc<MemoryStore>>,
    durable: Vec<Arc<dyn Site>>,
    caches: Vec<Arc<CacheStore>>,
    memory: Vec<Arc<dyn Site>>,
}

/// A gateway over them.
struct Gateway {
    client: Client,
    cache: Cache,
}

impl Sites {
    fn new(runtime: &Runtime, memory_sites: u32, mib: u64) -> Self {
        let site = |number: u32, store: Arc<dyn ChunkStore>| {
            let rack = RackId(format!("rack-{number}"));
            let identity = SiteIdentity { cluster: ClusterId(1), site: SiteId(number), rack };
            LocalSite::new(runtime.clone(), identity, store, QueueLimits::default())
        };
        let disks: Vec<_> = (0..6).map(|_| Arc::new(MemoryStore::new(1 << 40))).collect();
        let durable =
            (1..).zip(&disks).map(|(number, disk)| Arc::new(site(number, disk.clone())) as Arc<dyn Site>);
        let options = CacheOptions::with_bound(mib << 20);
        let caches: Vec<_> = (0..memory_sites).map(|_| Arc::new(CacheStore::new(options).unwrap())).collect();
        let memory = (101..).zip(&caches).map(|(number, cache)| {
            let site = site(number, cache.clone());
            site.set_keeper(Arc::new(Keeper::new(cache.clone())));
            Arc::new(site) as Arc<dyn Site>
        });
        Self {
            runtime: runtime.clone(),
            meta: Arc::new(MemoryMeta::new(runtime.clone())),
            durable: durable.collect(),
            memory: memory.collect(),
            disks,
            caches,
        }
    }

    async fn gateway(&self) -> Gateway {
        self.gateway_with(CacheSettings::default()).await
    }

    async fn gateway_with(&self, settings: CacheSettings) -> Gateway {
        let stripes = StripeOptions { formats: InForce::new(Formats::NEWEST), ..StripeOptions::default() };
        let profile = "rs(4,2)".parse().unwrap();
        let options = ClientOptions { profile, stripes, ..ClientOptions::default() };
        let client =
            Client::open(self.runtime.clone(), self.meta.clone(), self.durable.clone(), options).await;
        let client = client.unwrap();
        let bucket = CreateBucket { name: BUCKET.to_owned(), ..CreateBucket::default() };
        let _ = client.create_bucket(bucket).await;
        let cache = Cache::new(client.stripes(), settings);
        let gateway = Gateway { client, cache };
        gateway.use_memory(&self.memory);
        gateway
    }

    /// Nothing durable is left: what is read comes from memory, or not at all.
    fn wipe_disks(&self) {
        self.disks.iter().for_each(|disk| disk.wipe());
    }

    async fn cached_splits(&self) -> Vec<(usize, ChunkId)> {
        let mut all = Vec::new();
        for (site, cache) in self.caches.iter().enumerate() {
            let page = cache.list(None, 1_000).await.unwrap();
            all.extend(page.chunks.into_iter().map(|info| (site, info.chunk)));
        }
        all
    }

    async fn remove(&self, (site, split): (usize, ChunkId)) {
        self.caches[site].delete(&[split], FencingEpoch::NONE).await.unwrap();
    }

    /// Until what is done in the background is done.
    async fn settle(&self) {
        self.runtime.sleep(Duration::from_millis(100)).await;
    }
}

impl Gateway {
    fn use_memory(&self, sites: &[Arc<dyn Site>]) {
        self.cache.set_sites(sites.iter().map(|site| (site.clone(), 1 << 30)).collect());
    }

    async fn put(&self, key: &str, bytes: &[u8]) {
        self.put_in(BUCKET, key, bytes).await.unwrap();
    }

    async fn put_in(&self, bucket: &str, key: &str, bytes: &[u8]) -> Result<ObjectInfo, ClientError> {
        self.client.put(put_request(bucket, key, bytes, WriteCondition::default())).await
    }

    async fn get(&self, key: &str, range: ReadRange) -> Vec<u8> {
        self.get_in(BUCKET, key, range).await.unwrap()
    }

    async fn get_in(&self, bucket: &str, key: &str, range: ReadRange) -> Result<Vec<u8>, ClientError> {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let mut body =
            self.client.get(GetRequest { bucket, key, range, ..GetRequest::default() }).await?.body;
        let mut bytes = Vec::new();
        while let Some(piece) = body.next().await {
            bytes.extend_from_slice(&piece?);
        }
        Ok(bytes)
    }

    async fn whole(&self, key: &str) -> Vec<u8> {
        self.get(key, ReadRange::Whole).await
    }

    fn reads(&self) -> [u64; 5] {
        ReadOutcome::ALL.map(|outcome| self.cache.counts().reads(outcome).0)
    }

    fn fills(&self) -> u64 {
        self.cache.counts().fills.load(Ordering::Relaxed)
    }
}

fn put_request(bucket: &str, key: &str, bytes: &[u8], condition: WriteCondition) -> PutRequest {
    PutRequest {
        bucket: bucket.to_owned(),
        key: key.to_owned(),
        attributes: ObjectAttributes::default(),
        condition,
        profile: None,
        content_len: Some(bytes.len() as u64),
        digests: ExpectedDigests::default(),
        body: Box::new(Body(Some(Bytes::copy_from_slice(bytes)))),
    }
}

struct Body(Option<Bytes>);

#[async_trait]
impl PutBody for Body {
    async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        self.0.take().map(Ok)
    }
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    striate_site::conformance::payload(seed, len).to_vec()
}

fn from(first: usize, len: usize) -> ReadRange {
    ReadRange::Bytes { first: first as u64, last: Some((first + len - 1) as u64) }
}

fn in_virtual_time<F: Future>(seed: u64, test: impl FnOnce(Runtime) -> F) -> F::Output {
    let executor =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    executor.block_on(async { test(Runtime::deterministic(seed, Duration::from_secs(1_700_000_000))).await })
}

const LENS: [usize; 5] = [2_000, 100_000, MIB, 4 * MIB - 7, 9 * MIB];

#[test]
fn what_was_read_once_comes_from_memory() {
    in_virtual_time(1, async |runtime| {
        for memory_sites in [1, 2, 6, 12] {
            let sites = Sites::new(&runtime, memory_sites, 64);
            let gateway = sites.gateway().await;
            for (number, len) in LENS.into_iter().enumerate() {
                gateway.put(&format!("{number}"), &noise(len, number as u64)).await;
                assert_eq!(gateway.whole(&format!("{number}")).await, noise(len, number as u64));
            }
            sites.settle().await;
            let (misses, fills) = (gateway.reads()[2], gateway.fills());
            assert!(misses == 7 && fills == misses, "{misses} misses, {fills} fills");
            sites.wipe_disks();
            for (number, len) in LENS.into_iter().enumerate() {
                let (key, whole) = (format!("{number}"), noise(len, number as u64));
                assert_eq!(gateway.whole(&key).await, whole);
                assert_eq!(
                    gateway.get(&key, from(len / 3, len / 2)).await,
                    whole[len / 3..len / 3 + len / 2]
                );
            }
            assert_eq!(gateway.reads()[1..], [0, misses, 0, 0], "{memory_sites} sites: only hits since");
        }
    });
}

#[test]
fn a_range_of_a_block_that_is_not_cached_is_read_alone_and_fills_the_block() {
    in_virtual_time(2, async |runtime| {
        let sites = Sites::new(&runtime, 6, 64);
        let gateway = sites.gateway().await;
        gateway.put("object", &noise(4 * MIB, 1)).await;
        assert_eq!(gateway.get("object", from(5, 10)).await, noise(4 * MIB, 1)[5..15]);
        sites.settle().await;
        assert_eq!((gateway.reads(), gateway.fills()), ([0, 0, 1, 0, 0], 1));
        sites.wipe_disks();
        assert_eq!(gateway.whole("object").await, noise(4 * MIB, 1));
    });
}

#[test]
fn what_is_missing_comes_from_parities_or_from_where_it_is_kept_and_is_there_again_afterwards() {
    in_virtual_time(3, async |runtime| {
        let sites = Sites::new(&runtime, 8, 64);
        let settings = CacheSettings { refill_bytes_per_s: 0, ..CacheSettings::default() };
        let gateway = sites.gateway_with(settings).await;
        let whole = noise(4 * MIB, 1);
        gateway.put("object", &whole).await;
        gateway.whole("object").await;
        sites.settle().await;
        let splits = sites.cached_splits().await;
        assert_eq!(
            splits.iter().map(|(_, split)| split.index).collect::<std::collections::BTreeSet<_>>().len(),
            5
        );
        let of = |index: u8| *splits.iter().find(|(_, split)| split.index == index).unwrap();
        // One split: the parity stands in for it.
        sites.remove(of(1)).await;
        assert_eq!(gateway.whole("object").await, whole);
        assert_eq!(gateway.reads(), [1, 0, 1, 0, 0]);
        // Two: one has to come from the disks, and only one.
        sites.remove(of(2)).await;
        assert_eq!(gateway.whole("object").await, whole);
        assert_eq!(gateway.reads(), [1, 1, 1, 0, 0]);
        let cached = gateway.cache.counts().cached_bytes.load(Ordering::Relaxed);
        assert_eq!(cached as usize, 4 * MIB + 2 * MIB, "two data splits were there");
        sites.settle().await;
        let again = sites.cached_splits().await;
        assert!((0..5).all(|index| again.iter().any(|(_, split)| split.index == index)), "{again:?}");
        sites.wipe_disks();
        assert_eq!(gateway.whole("object").await, whole);
    });
}

/// Objects of four splits and a parity, all of them cached; then the disks are gone, and a memory site comes back empty.
async fn restart_a_memory_site(sites: &Sites, gateways: &[&Gateway], objects: u64) {
    for number in 0..objects {
        gateways[0].put(&number.to_string(), &noise(4 * MIB, number)).await;
        for gateway in gateways {
            gateway.whole(&number.to_string()).await;
            sites.settle().await;
        }
    }
    sites.wipe_disks();
    for split in sites.cached_splits().await.into_iter().filter(|(site, _)| *site == 3) {
        sites.remove(split).await;
    }
}

async fn data_splits(sites: &Sites) -> usize {
    sites.cached_splits().await.iter().filter(|(_, split)| split.index < 4).count()
}

#[test]
fn a_memory_site_that_comes_back_empty_gets_what_is_read_from_its_peers() {
    // Whether or not homes are to be told of reads meanwhile, and of whole objects or parts.
    for (pause, len) in [(0, 4 * MIB), (6, 4 * MIB), (0, 100)] {
        in_virtual_time(30, async |runtime| {
            let sites = Sites::new(&runtime, 8, 256);
            let (one, other) = (sites.gateway().await, sites.gateway().await);
            restart_a_memory_site(&sites, &[&one, &other], 10).await;
            let lost = 10 * 4 - data_splits(&sites).await;
            assert!(lost > 2, "{lost} splits were on it");
            runtime.sleep(Duration::from_secs(pause)).await;
            for gateway in [&one, &other, &one] {
                for number in 0..10u64 {
                    let whole = noise(4 * MIB, number);
                    // A part of each split in turn: only who asks for one that is missing learns that it is.
                    for first in (0..4 * MIB).step_by(MIB.max(len)) {
                        let (start, end) = (first as u64, (first + len) as u64);
                        let range = ReadRange::Bytes { first: start, last: Some(end - 1) };
                        let read = gateway.get(&number.to_string(), range).await;
                        assert!(read == whole[first..first + len]);
                    }
                    runtime.sleep(Duration::from_millis(500)).await;
                }
            }
            assert_eq!(data_splits(&sites).await, 10 * 4);
        });
    }
}

#[test]
fn lost_splits_are_written_again_within_a_bound() {
    in_virtual_time(31, async |runtime| {
        let sites = Sites::new(&runtime, 8, 256);
        let settings = CacheSettings { refill_bytes_per_s: 4 << 20, ..CacheSettings::default() };
        let gateway = sites.gateway_with(settings).await;
        restart_a_memory_site(&sites, &[&gateway], 10).await;
        let mut left = data_splits(&sites).await;
        for number in 0..10u64 {
            assert!(gateway.whole(&number.to_string()).await == noise(4 * MIB, number));
        }
        sites.settle().await;
        let more = data_splits(&sites).await - left;
        assert!((1..=2).contains(&more), "a block a second, and one second ahead: {more}");
        left += more;
        for _ in 0..3 {
            runtime.sleep(Duration::from_secs(1)).await;
            for number in 0..10u64 {
                assert!(gateway.whole(&number.to_string()).await == noise(4 * MIB, number));
            }
            sites.settle().await;
        }
        assert!((2..=4).contains(&(data_splits(&sites).await - left)));
    });
}

/// It is asked now and then, and says that the block is not there. Its peers have it all the same.
#[test]
fn a_home_that_has_forgotten_a_block_gets_its_split_from_peers() {
    in_virtual_time(32, async |runtime| {
        let sites = Sites::new(&runtime, 8, 64);
        let gateway = sites.gateway().await;
        let whole = noise(4 * MIB, 1);
        gateway.put("object", &whole).await;
        gateway.whole("object").await;
        sites.settle().await;
        let first = sites.cached_splits().await.into_iter().find(|(_, split)| split.index == 0).unwrap();
        sites.remove(first).await;
        sites.wipe_disks();
        runtime.sleep(Duration::from_secs(6)).await;
        // Not of the split that is missing.
        let range = ReadRange::Bytes { first: 2 * MIB as u64, last: Some(2 * MIB as u64 + 9) };
        assert_eq!(gateway.get("object", range).await, whole[2 * MIB..2 * MIB + 10]);
        sites.settle().await;
        assert!(sites.cached_splits().await.contains(&first));
        assert_eq!(gateway.whole("object").await, whole);
    });
}

#[test]
fn what_was_evicted_is_filled_again_when_it_is_read() {
    in_virtual_time(16, async |runtime| {
        for (memory_sites, len) in [(1, 300_000), (1, 4 * MIB), (6, 300_000), (6, 4 * MIB)] {
            let sites = Sites::new(&runtime, memory_sites, 64);
            let gateway = sites.gateway().await;
            let whole = noise(len, 1);
            gateway.put("object", &whole).await;
            gateway.whole("object").await;
            sites.settle().await;
            for (range, wanted) in
                [(ReadRange::Whole, &whole[..]), (from(len / 2, 10), &whole[len / 2..][..10])]
            {
                let (before, fills) = (gateway.reads(), gateway.fills());
                for split in sites.cached_splits().await {
                    sites.remove(split).await;
                }
                let read = join_all((0..8).map(|_| gateway.get("object", range))).await;
                assert!(read.iter().all(|bytes| bytes == wanted));
                sites.settle().await;
                let [hits, partial, misses, ..] = gateway.reads();
                assert!(misses > before[2] && partial == before[1]);
                assert_eq!(gateway.fills(), fills + 1, "one of the eight fills it again");
                assert_eq!(gateway.whole("object").await, whole);
                assert_eq!(gateway.reads()[0], hits + 1, "{len} bytes on {memory_sites} sites");
            }
        }
    });
}

#[test]
fn an_overwrite_is_seen_at_once_through_every_gateway() {
    in_virtual_time(4, async |runtime| {
        let sites = Sites::new(&runtime, 4, 64);
        let (one, other) = (sites.gateway().await, sites.gateway().await);
        for version in 0..5 {
            let bytes = noise(2 * MIB, version);
            one.put("object", &bytes).await;
            for gateway in [&other, &one, &other] {
                assert_eq!(gateway.whole("object").await, bytes);
                sites.settle().await;
            }
        }
        assert_eq!(one.fills() + other.fills(), 5, "one for each version");
        assert_eq!(one.reads()[2] + other.reads()[2], 5);
    });
}

#[test]
fn many_readers_of_a_cold_block_fill_it_once() {
    in_virtual_time(5, async |runtime| {
        let sites = Sites::new(&runtime, 6, 64);
        let gateways = [sites.gateway().await, sites.gateway().await];
        let whole = noise(3 * MIB, 9);
        gateways[0].put("object", &whole).await;
        let reads = (0..64).map(|number| gateways[number % 2].whole("object"));
        assert!(join_all(reads).await.into_iter().all(|read| read == whole));
        sites.settle().await;
        assert_eq!(gateways.iter().map(Gateway::fills).sum::<u64>(), 1);
        let misses: u64 = gateways.iter().map(|gateway| gateway.reads()[2]).sum();
        assert_eq!(misses, 1, "the others have waited for it");
    });
}

#[test]
fn memory_sites_may_vanish_come_back_empty_and_change() {
    in_virtual_time(6, async |runtime| {
        let sites = Sites::new(&runtime, 7, 64);
        let gateway = sites.gateway().await;
        let whole = |number: u64| noise(4 * MIB, number);
        for number in 0..6 {
            gateway.put(&format!("{number}"), &whole(number)).await;
        }
        for round in 0..12 {
            for number in 0..6 {
                assert_eq!(gateway.whole(&format!("{number}")).await, whole(number), "round {round}");
            }
            sites.settle().await;
            let live: Vec<_> = sites.memory.iter().skip(round % 5).step_by(1 + round % 2).cloned().collect();
            gateway.use_memory(&live);
            let page = sites.caches[round % 7].list(None, 1_000).await.unwrap();
            for info in page.chunks {
                sites.remove((round % 7, info.chunk)).await;
            }
        }
        gateway.use_memory(&[]);
        let before = gateway.reads()[3];
        assert_eq!(gateway.whole("0").await, whole(0));
        assert_eq!(gateway.reads()[3], before + 1, "passed by");
    });
}

#[test]
fn a_full_tier_keeps_serving() {
    in_virtual_time(7, async |runtime| {
        let sites = Sites::new(&runtime, 3, 16);
        let gateway = sites.gateway().await;
        let whole = |number: u64| noise(3 * MIB, number);
        for number in 0..40 {
            gateway.put(&format!("{number}"), &whole(number)).await;
        }
        for round in 0..3 {
            for number in 0..40 {
                assert_eq!(gateway.whole(&format!("{number}")).await, whole(number), "round {round}");
            }
        }
        sites.settle().await;
        for cache in &sites.caches {
            let view = cache.view();
            assert!(view.charged_bytes <= view.bound_bytes && view.evicted_data > 0, "{view:?}");
        }
    });
}

#[test]
fn batches_read_from_memory_and_from_disks_in_one_query() {
    in_virtual_time(8, async |runtime| {
        let sites = Sites::new(&runtime, 6, 64);
        let gateway = sites.gateway().await;
        let whole = |number: usize| noise(70_000 + number, number as u64);
        for number in 0..20 {
            gateway.put(&format!("{number}"), &whole(number)).await;
        }
        for number in (0..20).step_by(2) {
            gateway.whole(&format!("{number}")).await;
        }
        sites.settle().await;
        let before = gateway.reads();
        let request = |number: usize| GetRequest {
            bucket: BUCKET.to_owned(),
            key: format!("{number}"),
            ..GetRequest::default()
        };
        let parts = gateway.client.read_many((0..20).map(request).collect(), ReadOrder::Requests);
        let parts: Vec<_> = parts.collect().await;
        for (number, (position, part)) in parts.into_iter().enumerate() {
            assert_eq!((position, part.unwrap().pieces.concat()), (number, whole(number)));
        }
        let after = gateway.reads();
        assert_eq!((after[0] - before[0], after[2] - before[2]), (10, 10));
    });
}

#[test]
fn an_explanation_says_what_is_in_memory() {
    in_virtual_time(9, async |runtime| {
        let sites = Sites::new(&runtime, 6, 64);
        let gateway = sites.gateway().await;
        gateway.put("object", &noise(4 * MIB, 1)).await;
        let stripes = gateway.client.stripes();
        let blocks = gateway.client.blocks_of(BUCKET, "object").await.unwrap();
        let spans: Vec<Span> = blocks.into_iter().map(Span::whole).collect();
        let explain = async || {
            let explained = stripes.explain(&spans, &stripes.options().read_policy).await.unwrap();
            explained.blocks[0].cached.clone().unwrap()
        };
        let before = explain().await;
        gateway.whole("object").await;
        sites.settle().await;
        let mut splits = sites.cached_splits().await;
        splits.sort_unstable_by_key(|(_, split)| split.index);
        let at: Vec<String> = splits.iter().map(|(site, _)| (101 + site).to_string()).collect();
        assert_eq!(
            before,
            format!(
                "not in memory, as far as this gateway knows, which has not read it of late; its home is memory site {}",
                at[0]
            )
        );
        assert_eq!(
            explain().await,
            format!("in memory: 4 data splits and 1 parity, on memory sites {}", at.join(", "))
        );
        sites.remove(splits[1]).await;
        assert_eq!(
            explain().await,
            format!(
                "in memory: 4 data splits and 1 parity, on memory sites {}; 4 of 5 are still there",
                at.join(", ")
            )
        );
        for split in splits {
            sites.remove(split).await;
        }
        assert_eq!(explain().await, "not in memory any more: evicted, or lost with a memory site");
        gateway.use_memory(&[]);
        assert_eq!(explain().await, "not in memory: no memory site answers");
    });
}

#[test]
fn an_explanation_says_why_a_block_was_not_cached() {
    in_virtual_time(9, async |runtime| {
        let sites = Sites::new(&runtime, 1, 64);
        let gateway = sites.gateway().await;
        let block = [MemoryBlock { content: 7 << 64, len: MIB as u32, crc32c: None, placed: None }];
        let spans = block.clone().map(|block| Span::whole(Stored::Memory(block)));
        let Looked::Granted(fill) = gateway.cache.look(&block, true).await.remove(0) else {
            panic!("nobody fills it")
        };
        drop(fill);
        sites.settle().await;
        let given_up = "not in memory: given up, since it was not read to its end";
        assert_eq!(gateway.cache.explain(&spans).await, [given_up]);
    });
}

#[test]
fn a_read_that_fails_is_an_error_of_the_bytes_that_were_asked_for() {
    in_virtual_time(9, async |runtime| {
        let sites = Sites::new(&runtime, 1, 64);
        let gateway = sites.gateway().await;
        gateway.put("object", &noise(MIB, 1)).await;
        sites.wipe_disks();
        assert!(gateway.get_in(BUCKET, "object", from(5, 10)).await.is_err());
        assert_eq!(gateway.reads(), [0, 0, 0, 0, 1]);
        assert_eq!(gateway.cache.counts().reads(ReadOutcome::Error), (1, 10));
    });
}

#[test]
fn what_is_written_comes_from_memory_where_writes_are_cached() {
    in_virtual_time(10, async |runtime| {
        for (fills_writes, fills) in [(true, 4), (false, 0)] {
            let sites = Sites::new(&runtime, 6, 64);
            let gateway =
                sites.gateway_with(CacheSettings { fills_writes, ..CacheSettings::default() }).await;
            gateway.put("small", &noise(100_000, 1)).await;
            gateway.put("large", &noise(9 * MIB, 2)).await;
            sites.settle().await;
            assert_eq!(gateway.fills(), fills);
            if fills_writes {
                sites.wipe_disks();
                assert_eq!(gateway.whole("small").await, noise(100_000, 1));
                assert_eq!(gateway.whole("large").await, noise(9 * MIB, 2));
                assert_eq!(gateway.reads()[1..], [0; 4]);
            }
        }
    });
}

#[test]
fn services_read_past_the_cache_and_leave_no_trace_in_it() {
    in_virtual_time(11, async |runtime| {
        let sites = Sites::new(&runtime, 6, 64);
        let gateway = sites.gateway().await;
        gateway.put("object", &noise(2 * MIB, 1)).await;
        let blocks = gateway.client.blocks_of(BUCKET, "object").await.unwrap();
        let spans: Vec<Span> = blocks.into_iter().map(Span::whole).collect();
        let service = gateway.client.stripes().past_cache();
        assert_eq!(service.read_spans(&spans).await.unwrap().blocks.concat().concat(), noise(2 * MIB, 1));
        sites.settle().await;
        assert_eq!((gateway.reads(), gateway.fills()), ([0; 5], 0));
        gateway.whole("object").await;
        sites.settle().await;
        sites.wipe_disks();
        assert!(service.read_spans(&spans).await.is_err(), "it is on no disk any more");
        assert_eq!(gateway.whole("object").await, noise(2 * MIB, 1));
    });
}

const VOLATILE: &str = "volatile";

impl Gateway {
    async fn make_volatile_bucket(&self, profile: &str) {
        let profile = Some(profile.parse().unwrap());
        let bucket = CreateBucket { name: VOLATILE.to_owned(), profile, ..CreateBucket::default() };
        self.client.create_bucket(bucket).await.unwrap();
    }
}

#[test]
fn a_volatile_bucket_is_in_memory_alone_and_bears_as_many_losses_as_it_has_parities() {
    in_virtual_time(14, async |runtime| {
        let sites = Sites::new(&runtime, 8, 64);
        let gateway = sites.gateway().await;
        gateway.make_volatile_bucket("cache rs(10,1)").await;
        for (number, len) in [0, 1, 5_000, 3 * MIB, 9 * MIB + 1].into_iter().enumerate() {
            let (key, whole) = (number.to_string(), noise(len, number as u64));
            gateway.put_in(VOLATILE, &key, &whole).await.unwrap();
            for disk in &sites.disks {
                assert!(disk.list(None, 1).await.unwrap().chunks.is_empty());
            }
            assert_eq!(gateway.get_in(VOLATILE, &key, ReadRange::Whole).await.unwrap(), whole);
            if len > 3 {
                let part = gateway.get_in(VOLATILE, &key, from(len / 3, len / 2)).await.unwrap();
                assert_eq!(part, whole[len / 3..len / 3 + len / 2]);
            }
        }
        // Sites come and go: rows say where things are.
        gateway.use_memory(&sites.memory[1..]);
        assert_eq!(gateway.get_in(VOLATILE, "3", ReadRange::Whole).await.unwrap(), noise(3 * MIB, 3));
        gateway.use_memory(&sites.memory);
        gateway.put_in(VOLATILE, "1", b"again").await.unwrap();
        assert_eq!(gateway.get_in(VOLATILE, "1", ReadRange::Whole).await.unwrap(), b"again");
        gateway.client.delete(VOLATILE, "1", WriteCondition::default()).await.unwrap();
        let gone = gateway.get_in(VOLATILE, "1", ReadRange::Whole).await.unwrap_err();
        assert!(matches!(gone, ClientError::NoSuchKey(_)), "{gone}");
    });
}

/// Otherwise the block is filled by nobody, and everybody waits for it.
#[test]
fn who_waits_for_a_process_that_has_died_fetches_in_its_place() {
    in_virtual_time(29, async |runtime| {
        let sites = Sites::new(&runtime, 6, 64);
        let (dead, one, other) = (sites.gateway().await, sites.gateway().await, sites.gateway().await);
        let block = [MemoryBlock { content: 7 << 64, len: MIB as u32, crc32c: None, placed: None }];
        let granted = dead.cache.look(&block, true).await.pop();
        assert!(matches!(granted, Some(Looked::Granted(_))));
        // It never says that it gave up.
        std::mem::forget(granted);
        runtime.sleep(Duration::from_secs(1)).await;
        let Some(Looked::Granted(fill)) = one.cache.look(&block, true).await.pop() else {
            panic!("the right passes on")
        };
        let bytes = noise(MIB, 1);
        let share = one.client.stripes().budget().acquire(MIB).await.unwrap();
        fill.fill(vec![bytes.clone().into()], share);
        assert!(matches!(other.cache.look(&block, true).await[..], [Looked::There]));
        let read = other.cache.read(&block[0], 0..MIB as u32).await.unwrap();
        assert_eq!(read.blocks[0].concat(), bytes);
    });
}

/// Otherwise nobody fills the block for ten seconds, and each read through another gateway waits for half a second.
#[test]
fn a_read_that_comes_to_nothing_makes_way_for_another_to_fill() {
    in_virtual_time(34, async |runtime| {
        let mut sites = Sites::new(&runtime, 6, 64);
        let other = sites.gateway().await;
        other.put("object", &noise(4 * MIB, 1)).await;
        // It reaches no disk.
        let durable = std::mem::take(&mut sites.durable);
        let one = sites.gateway().await;
        sites.durable = durable;
        one.get_in(BUCKET, "object", ReadRange::Whole).await.unwrap_err();
        sites.settle().await;
        let began = runtime.now();
        assert!(other.whole("object").await == noise(4 * MIB, 1));
        let took = runtime.now() - began;
        assert!(took < Duration::from_millis(100), "{took:?}");
        sites.settle().await;
        assert_eq!((one.cache.filling(), one.fills(), other.fills()), (0, 0, 1));
    });
}

#[test]
fn what_is_gone_from_memory_counts_as_absent() {
    in_virtual_time(33, async |runtime| {
        let sites = Sites::new(&runtime, 8, 64);
        let gateway = sites.gateway().await;
        gateway.make_volatile_bucket("cache rs(10,1)").await;
        let keys = ["a", "b", "c", "d", "e"].map(str::to_owned);
        for key in &keys {
            let before = sites.cached_splits().await;
            gateway.put_in(VOLATILE, key, &noise(20_000, 1)).await.unwrap();
            let evicted = sites.cached_splits().await.into_iter().filter(|split| !before.contains(split));
            for split in evicted.filter(|_| !["a", "c"].contains(&&**key)) {
                sites.remove(split).await;
            }
        }
        let sizes = async |until_gap| gateway.client.sizes_of(VOLATILE, &keys, until_gap).await.unwrap();
        let there = Some(20_000);
        assert_eq!(sizes(false).await, [there, None, there, None, None]);
        assert_eq!(sizes(true).await, [there]);

        let absent = || WriteCondition { if_absent: true, ..WriteCondition::default() };
        let create = |key: &str| put_request(VOLATILE, key, &noise(5_000, 2), absent());
        let is_refused =
            |put: &Result<ObjectInfo, ClientError>| matches!(put, Err(ClientError::PreconditionFailed(_)));
        assert!(is_refused(&gateway.client.put(create("a")).await));
        gateway.client.put(create("b")).await.unwrap();
        let many = gateway.client.put_many(vec![create("c"), create("d")]).await;
        assert!(is_refused(&many[0]) && many[1].is_ok(), "{many:?}");
        assert_eq!(sizes(false).await, [there, Some(5_000), there, Some(5_000), None]);
        assert_eq!(gateway.get_in(VOLATILE, "d", ReadRange::Whole).await.unwrap(), noise(5_000, 2));

        let any = WriteCondition { if_match: Some(vec!["*".to_owned()]), ..WriteCondition::default() };
        let error = gateway.client.put(put_request(VOLATILE, "e", b"bytes", any)).await.unwrap_err();
        assert!(matches!(error, ClientError::NoSuchKey(_)), "{error}");
        let head = async |key: &str| {
            let (bucket, key) = (VOLATILE.to_owned(), key.to_owned());
            gateway.client.head(GetRequest { bucket, key, ..GetRequest::default() }).await
        };
        assert_eq!(head("d").await.unwrap().0.size, 5_000);
        assert!(matches!(head("e").await.unwrap_err(), ClientError::Evicted(_)));
        sites.settle().await;
        assert!(matches!(head("e").await.unwrap_err(), ClientError::NoSuchKey(_)), "its row is gone too");
    });
}

#[test]
fn an_object_of_parts_that_is_gone_from_memory_counts_as_absent() {
    in_virtual_time(35, async |runtime| {
        let sites = Sites::new(&runtime, 8, 64);
        let gateway = sites.gateway().await;
        gateway.make_volatile_bucket("cache rs(10,0)").await;
        let upload =
            CreateUpload { bucket: VOLATILE.to_owned(), key: "a".to_owned(), ..CreateUpload::default() };
        let upload = gateway.client.create_upload(upload).await.unwrap().id;
        let part = UploadPartRequest {
            bucket: VOLATILE.to_owned(),
            key: "a".to_owned(),
            upload: upload.clone(),
            number: 1,
            content_len: Some(MIB as u64),
            digests: ExpectedDigests::default(),
            body: Box::new(Body(Some(noise(MIB, 1).into()))),
        };
        let etag = gateway.client.upload_part(part).await.unwrap().etag;
        let complete = CompleteUpload {
            bucket: VOLATILE.to_owned(),
            key: "a".to_owned(),
            upload,
            parts: vec![CompletedPart { number: 1, etag, checksums: Vec::new() }],
            ..CompleteUpload::default()
        };
        gateway.client.complete_upload(complete).await.unwrap();
        let keys = ["a".to_owned()];
        let sizes = async || gateway.client.sizes_of(VOLATILE, &keys, false).await.unwrap();
        assert_eq!(sizes().await, [Some(MIB as u64)]);
        for split in sites.cached_splits().await {
            sites.remove(split).await;
        }
        assert_eq!(sizes().await, [None]);
    });
}

#[test]
fn an_evicted_volatile_object_answers_not_found() {
    in_virtual_time(15, async |runtime| {
        let sites = Sites::new(&runtime, 8, 64);
        let gateway = sites.gateway().await;
        gateway.make_volatile_bucket("cache rs(10,1)").await;
        gateway.put_in(VOLATILE, "object", &noise(4 * MIB, 1)).await.unwrap();
        let mut splits = sites.cached_splits().await;
        splits.truncate(2);
        sites.remove(splits[0]).await;
        assert_eq!(gateway.get_in(VOLATILE, "object", ReadRange::Whole).await.unwrap(), noise(4 * MIB, 1));
        sites.remove(splits[1]).await;
        let error = gateway.get_in(VOLATILE, "object", ReadRange::Whole).await.unwrap_err();
        assert!(matches!(error, ClientError::Evicted(_)), "{error}");
        assert_eq!(gateway.reads(), [1, 0, 1, 0, 0], "what was evicted is a miss");
        sites.settle().await;
        let error = gateway.get_in(VOLATILE, "object", ReadRange::Whole).await.unwrap_err();
        assert!(matches!(error, ClientError::NoSuchKey(_)), "its row is gone too: {error}");
    });
}

#[test]
fn without_memory_sites_a_volatile_bucket_takes_nothing() {
    in_virtual_time(16, async |runtime| {
        let sites = Sites::new(&runtime, 1, 64);
        let gateway = sites.gateway().await;
        gateway.make_volatile_bucket("cache rs(10,2)").await;
        gateway.put_in(VOLATILE, "object", &noise(MIB, 1)).await.unwrap();
        gateway.use_memory(&[]);
        let error = gateway.put_in(VOLATILE, "other", b"bytes").await.unwrap_err();
        assert!(matches!(error, ClientError::TooFewSites { .. }), "{error}");
        let error = gateway.get_in(VOLATILE, "object", ReadRange::Whole).await.unwrap_err();
        assert!(matches!(error, ClientError::Evicted(_)), "its site is no member any more: {error}");
    });
}

#[test]
fn a_volatile_object_on_silent_members_answers_unavailable() {
    in_virtual_time(17, async |runtime| {
        let sites = Sites::new(&runtime, 4, 64);
        let gateway = sites.gateway().await;
        gateway.make_volatile_bucket("cache rs(10,0)").await;
        gateway.put_in(VOLATILE, "object", &noise(4 * MIB, 1)).await.unwrap();
        for number in 101..=104 {
            let mut tx = gateway.client.stripes().transaction();
            tx.put(striate_meta::keys::memory_site(SiteId(number)), Bytes::new());
            gateway.client.meta().commit(tx).await.unwrap();
        }
        for reachable in [&sites.memory[1..], &[]] {
            gateway.use_memory(reachable);
            let error = gateway.get_in(VOLATILE, "object", ReadRange::Whole).await.unwrap_err();
            let is_unavailable =
                matches!(error, ClientError::Unreadable { .. } | ClientError::TooFewSites { .. });
            assert!(is_unavailable, "{error:?}");
            sites.settle().await;
        }
        gateway.use_memory(&sites.memory);
        assert_eq!(gateway.get_in(VOLATILE, "object", ReadRange::Whole).await.unwrap(), noise(4 * MIB, 1));
    });
}

#[test]
fn the_memory_of_a_volatile_object_is_free_when_it_is_replaced_or_deleted() {
    in_virtual_time(18, async |runtime| {
        let sites = Sites::new(&runtime, 6, 64);
        let gateway = sites.gateway().await;
        gateway.make_volatile_bucket("cache rs(10,1)").await;
        gateway.put_in(VOLATILE, "kept", &noise(4 * MIB, 1)).await.unwrap();
        let of_one = sites.cached_splits().await.len();
        gateway.put_in(VOLATILE, "replaced", &noise(4 * MIB, 2)).await.unwrap();
        gateway.put_in(VOLATILE, "replaced", &noise(4 * MIB, 3)).await.unwrap();
        gateway.put_in(VOLATILE, "deleted", &noise(4 * MIB, 4)).await.unwrap();
        gateway.client.delete(VOLATILE, "deleted", WriteCondition::default()).await.unwrap();
        assert_eq!(sites.cached_splits().await.len(), 4 * of_one, "reads that have begun may need them");
        runtime.sleep(Duration::from_secs(11)).await;
        assert_eq!(sites.cached_splits().await.len(), 2 * of_one);
        let counts = gateway.cache.counts();
        let [deleted, overwritten] =
            [&counts.deleted, &counts.overwritten].map(|counted| counted.load(Ordering::Relaxed));
        assert_eq!((deleted, overwritten), (1, 1));
        for (key, seed) in [("kept", 1), ("replaced", 3)] {
            assert_eq!(gateway.get_in(VOLATILE, key, ReadRange::Whole).await.unwrap(), noise(4 * MIB, seed));
        }
    });
}

#[test]
fn a_full_memory_keeps_the_parities_of_what_is_in_memory_only() {
    in_virtual_time(19, async |runtime| {
        let sites = Sites::new(&runtime, 6, 32);
        let gateway = sites.gateway().await;
        gateway.make_volatile_bucket("cache rs(10,1)").await;
        // Twice as much as memory holds.
        for number in 0..80 {
            gateway.put_in(VOLATILE, &number.to_string(), &noise(4 * MIB, number)).await.unwrap();
        }
        let mut readable = Vec::new();
        for number in 0..80 {
            if gateway.get_in(VOLATILE, &number.to_string(), ReadRange::Whole).await.is_ok() {
                readable.push(number);
            }
        }
        assert!((20..60).contains(&readable.len()), "{} are left", readable.len());
        gateway.use_memory(&sites.memory[1..]);
        let mut lost = 0;
        for &number in &readable {
            let read = gateway.get_in(VOLATILE, &number.to_string(), ReadRange::Whole).await;
            assert!(read.as_ref().is_ok_and(|read| *read == noise(4 * MIB, number)) || read.is_err());
            lost += usize::from(read.is_err());
        }
        // Where evictions have begun on an object a split may be gone already.
        assert!(lost * 10 <= readable.len(), "{lost} of {} are gone with one site", readable.len());
    });
}

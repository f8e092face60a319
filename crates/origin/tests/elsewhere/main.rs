//! Gateways in front of another S3 store, which counts requests and injects faults.

mod batches;
mod counts;
mod explaining;
mod introducing;
mod metadata;
mod pace;
mod replaced;
mod short_of_memory;
mod slow_origin;
mod store;
mod writes;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use s3s::Body;
use striate_cache::{Cache, CacheSettings, Keeper, ReadOutcome};
use striate_client::{Client, ClientError, ClientOptions, CreateBucket};
use striate_core::{ChunkId, ClusterId, FencingEpoch, Formats, FormatsInForce, RackId, SiteId};
use striate_meta::records::Origin;
use striate_meta::{MemoryStore as MemoryMeta, MetaStore, keys};
use striate_origin::Origins;
use striate_runtime::Runtime;
use striate_s3::{KeyStore, RemoteBody, RemoteBuckets, RemoteRequest, SealingKey};
use striate_site::{CacheOptions, CacheStore, ChunkStore, LocalSite, QueueLimits, Site, SiteIdentity};
use striate_stripe::StripeOptions;

use store::{Faults, Store};

const MIB: usize = 1 << 20;
const BUCKET: &str = "ours";

/// State that the gateways share.
struct World {
    runtime: Runtime,
    meta: Arc<dyn MetaStore>,
    caches: Vec<Arc<CacheStore>>,
    memory: Vec<Arc<dyn Site>>,
    store: Store,
    block_len: usize,
    /// Memory for bodies per gateway in bytes; `None` for the default.
    in_flight_bytes: Option<usize>,
    fills_writes: bool,
}

struct Gateway {
    origins: Origins,
    client: Client,
    cache: Cache,
}

impl World {
    async fn new(memory_sites: u32) -> Self {
        Self::with_keepers(memory_sites, |_| true).await
    }

    /// For the blocks of a memory site without a keeper, no site says whether they are cached, and no gateway is to
    /// fill them.
    async fn with_keepers(memory_sites: u32, has_keeper: impl Fn(u32) -> bool) -> Self {
        let runtime = Runtime::real();
        let options = CacheOptions::with_bound(64 << 20);
        let caches: Vec<_> = (0..memory_sites).map(|_| Arc::new(CacheStore::new(options).unwrap())).collect();
        let memory = (101..).zip(&caches).map(|(number, cache)| {
            let identity =
                SiteIdentity { cluster: ClusterId(1), site: SiteId(number), rack: RackId("rack".to_owned()) };
            let site = LocalSite::new(runtime.clone(), identity, cache.clone(), QueueLimits::default());
            if has_keeper(number) {
                site.set_keeper(Arc::new(Keeper::new(cache.clone())));
            }
            Arc::new(site) as Arc<dyn Site>
        });
        Self {
            meta: Arc::new(MemoryMeta::new(runtime.clone())),
            memory: memory.collect(),
            store: Store::start(&runtime).await,
            block_len: MIB,
            in_flight_bytes: None,
            fills_writes: false,
            caches,
            runtime,
        }
    }

    /// Starts a gateway. The first one creates the bucket.
    async fn gateway(&self, ttl: Duration) -> Gateway {
        let mut stripes =
            StripeOptions { formats: FormatsInForce::new(Formats::NEWEST), ..StripeOptions::default() };
        stripes.in_flight_bytes = self.in_flight_bytes.unwrap_or(stripes.in_flight_bytes);
        let options = ClientOptions { stripes, ..ClientOptions::default() };
        let client =
            Client::open(self.runtime.clone(), self.meta.clone(), Vec::new(), options).await.unwrap();
        let settings = CacheSettings { fills_writes: self.fills_writes, ..CacheSettings::default() };
        let cache = Cache::new(client.stripes(), settings);
        let key_store =
            KeyStore::new(self.runtime.clone(), self.meta.clone(), SealingKey::new(&[7; 32]), None);
        let origins =
            Origins::new(client.clone(), cache.clone(), Arc::new(key_store.unwrap()), None).unwrap();
        let origin = Some(origins.introduce(self.origin(ttl), "the secret").await.unwrap());
        let bucket = CreateBucket { name: BUCKET.to_owned(), origin, ..CreateBucket::default() };
        let _ = client.create_bucket(bucket).await;
        let gateway = Gateway { origins, client, cache };
        gateway.use_memory(&self.memory);
        gateway
    }

    fn origin(&self, ttl: Duration) -> Origin {
        Origin {
            endpoint: self.store.endpoint.clone(),
            bucket: "theirs".to_owned(),
            region: "us-east-1".to_owned(),
            access_key: "key".to_owned(),
            ttl_ms: ttl.as_millis() as u64,
            block_len: self.block_len as u32,
            ..Origin::default()
        }
    }

    /// Waits until background work is done.
    async fn settle(&self) {
        self.runtime.sleep(Duration::from_millis(200)).await;
    }
}

impl Gateway {
    fn use_memory(&self, sites: &[Arc<dyn Site>]) {
        self.cache.set_sites(sites.iter().map(|site| (site.clone(), 1 << 30)).collect());
    }

    async fn ask(
        &self,
        method: Method,
        key: &str,
        headers: &[(&'static str, &str)],
        body: RemoteBody,
    ) -> Result<Response<Body>, ClientError> {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::try_from(*value).unwrap()))
            .collect();
        let (bucket, key) = (BUCKET.to_owned(), key.to_owned());
        let request = RemoteRequest { bucket, key, method, query: String::new(), headers, body };
        self.origins.answer(request).await
    }

    async fn open(&self, key: &str) -> Response<Body> {
        self.ask(Method::GET, key, &[], none()).await.unwrap()
    }

    async fn get(&self, key: &str) -> Vec<u8> {
        bytes_of(self.open(key).await).await
    }

    async fn get_range(&self, key: &str, range: std::ops::Range<usize>) -> Vec<u8> {
        let text = format!("bytes={}-{}", range.start, range.end - 1);
        let answer = self.ask(Method::GET, key, &[("range", &text)], none()).await.unwrap();
        assert_eq!(answer.status(), StatusCode::PARTIAL_CONTENT);
        bytes_of(answer).await
    }

    async fn put(&self, key: &str, bytes: &[u8]) {
        let body = RemoteBody::Held(Bytes::copy_from_slice(bytes));
        assert_eq!(self.ask(Method::PUT, key, &[], body).await.unwrap().status(), StatusCode::OK);
    }

    fn was_hit(answer: &Response<Body>) -> bool {
        answer.headers()["x-striate-cache"] == "hit"
    }
}

fn none() -> RemoteBody {
    RemoteBody::Held(Bytes::new())
}

async fn try_bytes_of(answer: Response<Body>) -> Result<Vec<u8>, s3s::StdError> {
    let mut body = answer.into_body();
    let mut bytes = Vec::new();
    while let Some(piece) = body.next().await {
        bytes.extend_from_slice(&piece?);
    }
    Ok(bytes)
}

async fn bytes_of(answer: Response<Body>) -> Vec<u8> {
    try_bytes_of(answer).await.unwrap()
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    striate_site::conformance::payload(seed, len).to_vec()
}

const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn what_was_read_once_comes_from_memory_whole_and_in_parts() {
    for memory_sites in [1, 6] {
        let world = World::new(memory_sites).await;
        let gateway = world.gateway(LONG).await;
        for (number, len) in [0, 1, 100_000, MIB, 5 * MIB + 3].into_iter().enumerate() {
            let (key, whole) = (number.to_string(), noise(len, number as u64));
            world.store.put(&key, whole.clone());
            let cold = gateway.open(&key).await;
            assert_eq!(
                (cold.headers()["x-amz-meta-a"].as_bytes(), cold.status()),
                (&b"b"[..], StatusCode::OK)
            );
            assert_eq!(bytes_of(cold).await, whole);
            world.settle().await;
            let (sent, asked) = (world.store.sent(), world.store.asked());
            let warm = gateway.open(&key).await;
            assert_eq!(Gateway::was_hit(&warm), len > 0);
            assert_eq!(bytes_of(warm).await, whole);
            if len > 10 {
                assert_eq!(gateway.get_range(&key, len / 3..len / 2).await, whole[len / 3..len / 2]);
            }
            assert_eq!((world.store.sent(), world.store.asked()), (sent, asked), "the origin is not asked");
        }
    }
}

#[tokio::test]
async fn a_range_of_a_cold_object_fetches_its_blocks_and_no_more() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    let whole = noise(20 * MIB, 1);
    world.store.put("k", whole.clone());
    assert_eq!(gateway.get_range("k", 5 * MIB + 7..5 * MIB + 107).await, whole[5 * MIB + 7..5 * MIB + 107]);
    assert_eq!(gateway.get_range("k", 9 * MIB - 5..9 * MIB + 5).await, whole[9 * MIB - 5..9 * MIB + 5]);
    world.settle().await;
    assert_eq!(world.store.sent(), 3 * MIB as u64);
    assert_eq!(gateway.get_range("k", 5 * MIB..6 * MIB).await, whole[5 * MIB..6 * MIB]);
    assert_eq!(world.store.sent(), 3 * MIB as u64, "now it is in memory");
    let outside = gateway.ask(Method::GET, "k", &[("range", "bytes=99999999-")], none()).await.unwrap_err();
    assert!(matches!(outside, ClientError::InvalidRange { size } if size == 20 * MIB as u64));
}

#[tokio::test]
async fn sixty_four_clients_at_once_fetch_a_cold_block_once() {
    let world = World::new(6).await;
    let gateways = [world.gateway(LONG).await, world.gateway(LONG).await];
    let whole = noise(MIB, 1);
    world.store.put("k", whole.clone());
    world.store.set_faults(Faults { pause: Duration::from_millis(50), ..Faults::default() });
    let read = |number: usize| gateways[number % 2].get("k");
    for bytes in join_all((0..64).map(read)).await {
        assert_eq!(bytes, whole);
    }
    let (gets, heads) = world.store.asked();
    assert!(gets + heads <= 2, "one question a gateway: {gets} GETs, {heads} HEADs");
    assert!(world.store.sent() < (MIB + MIB / 2) as u64, "one fetch: {} bytes", world.store.sent());
}

#[tokio::test]
async fn what_others_write_at_the_origin_is_seen_within_the_ttl() {
    let world = World::new(6).await;
    let ttl = Duration::from_millis(400);
    let gateway = world.gateway(ttl).await;
    world.store.put("k", "old");
    assert_eq!(gateway.get("k").await, b"old");
    world.store.put("k", "new");
    world.runtime.sleep(ttl).await;
    assert_eq!(gateway.get("k").await, b"new");
    // An unchanged object is revalidated, not fetched.
    let (sent, (gets, heads)) = (world.store.sent(), world.store.asked());
    world.runtime.sleep(ttl).await;
    world.settle().await;
    assert_eq!(gateway.get("k").await, b"new");
    assert_eq!((world.store.sent(), world.store.asked()), (sent, (gets, heads + 1)));
}

#[tokio::test]
async fn with_a_ttl_of_zero_the_origin_is_asked_for_every_read() {
    let world = World::new(6).await;
    let gateway = world.gateway(Duration::ZERO).await;
    for text in ["a", "b", "c"] {
        world.store.put("k", text);
        assert_eq!(gateway.get("k").await, text.as_bytes());
    }
}

#[tokio::test]
async fn writes_are_seen_at_once_through_every_gateway() {
    let world = World::new(6).await;
    let (one, other) = (world.gateway(LONG).await, world.gateway(LONG).await);
    for round in 0..20u8 {
        one.put("k", &[round; 100]).await;
        assert_eq!(other.get("k").await, [round; 100]);
        assert_eq!(one.get("k").await, [round; 100]);
    }
    one.ask(Method::DELETE, "k", &[], none()).await.unwrap();
    assert_eq!(other.open("k").await.status(), StatusCode::NOT_FOUND);
    world.store.put("k", "back");
    assert_eq!(other.get("k").await, b"back", "that there is none is not remembered");
}

#[tokio::test]
async fn while_an_object_is_written_nothing_of_it_is_used_or_learnt() {
    let world = World::new(6).await;
    let (one, other) = (world.gateway(LONG).await, world.gateway(LONG).await);
    world.store.put("k", "old");
    assert_eq!((other.get("k").await, other.get("k").await), (b"old".to_vec(), b"old".to_vec()));
    world.store.set_faults(Faults { slow_write: Duration::from_millis(400), ..Faults::default() });
    let reads = async {
        world.settle().await;
        let during = other.open("k").await;
        assert_eq!(during.headers()["x-striate-cache"], "bypass");
        assert_eq!(bytes_of(during).await, b"old");
    };
    futures::future::join(one.put("k", b"new"), reads).await;
    assert_eq!(other.get("k").await, b"new");
}

/// A gateway that dies while it writes leaves a fence. Reads bypass the cache until the sweep drops it.
#[tokio::test]
async fn a_fence_that_nobody_removes_costs_no_right_answer() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    world.store.put("k", "old");
    assert_eq!(gateway.get("k").await, b"old");
    let write = striate_meta::records::FencedWrite { id: 1, lease: 99 };
    let fence = striate_meta::records::Fence { epoch: 5, writes: vec![write], keep_ms: 0 };
    let tx = striate_meta::Transaction {
        id: striate_meta::TxId(1),
        preconditions: Vec::new(),
        writes: vec![striate_meta::Write::Put(
            keys::fence(BUCKET, "k"),
            striate_meta::records::encode(&fence),
        )],
    };
    world.meta.commit(tx).await.unwrap();
    world.store.put("k", "new");
    assert_eq!(gateway.get("k").await, b"new");
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_taken_up_where_it_broke() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    let whole = noise(5 * MIB, 1);
    world.store.put("k", whole.clone());
    world.store.set_faults(Faults { break_after: Some(2 * MIB + 500), ..Faults::default() });
    assert!(gateway.get("k").await == whole);
    world.settle().await;
    let sent = world.store.sent();
    assert!(sent < (5 * MIB + MIB) as u64, "{sent}");
    assert!(gateway.get("k").await == whole);
    assert_eq!(world.store.sent(), sent, "and all of it is in memory");
}

#[tokio::test]
async fn an_answer_that_breaks_off_again_and_again_arrives_as_long_as_it_goes_on() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    let whole = noise(5 * MIB, 1);
    world.store.put("k", whole.clone());
    world.store.set_faults(Faults { break_every: Some(MIB / 2), ..Faults::default() });
    assert!(gateway.get("k").await == whole);
}

#[tokio::test]
async fn an_origin_that_fails_for_a_moment_is_asked_again_and_one_that_is_gone_is_named() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    world.store.put("k", "bytes");
    world.store.set_faults(Faults { unavailable: 2, ..Faults::default() });
    assert_eq!(gateway.get("k").await, b"bytes");
    world.settle().await;
    world.store.set_faults(Faults { unavailable: 1_000, ..Faults::default() });
    assert_eq!(gateway.get("k").await, b"bytes", "within the ttl memory answers");
    let error = gateway.ask(Method::GET, "other", &[], none()).await.unwrap_err();
    assert!(error.to_string().contains(&world.store.endpoint), "{error}");
}

/// An archived object, for example, has a head and no bytes.
#[tokio::test]
async fn bytes_that_an_origin_denies_are_denied_though_the_object_is_known() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    world.store.put("k", "bytes");
    assert_eq!(gateway.ask(Method::HEAD, "k", &[], none()).await.unwrap().status(), StatusCode::OK);
    world.store.set_faults(Faults { denied: Some("k"), ..Faults::default() });
    let error = gateway.ask(Method::GET, "k", &[], none()).await.unwrap_err();
    assert!(matches!(error, ClientError::OriginDenied { .. }), "{error}");
}

#[tokio::test]
async fn an_origin_fails_from_the_third_failure_in_a_row_until_it_answers() {
    let world = World::new(0).await;
    let gateway = world.gateway(LONG).await;
    let ask = async |method: Method, key: &'static str| gateway.ask(method, key, &[], none()).await;
    world.store.set_faults(Faults { unavailable: 1_000, ..Faults::default() });
    for _ in 0..2 {
        assert!(gateway.origins.failing().is_empty());
        assert_eq!(ask(Method::DELETE, "k").await.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    ask(Method::GET, "other").await.unwrap_err();
    let failing = gateway.origins.failing();
    let [origin] = failing.as_slice() else { panic!("{failing:?}") };
    assert_eq!((origin.bucket.as_str(), origin.endpoint == world.store.endpoint), (BUCKET, true));
    assert_eq!((origin.requests, origin.since > origin.last), (5, true));
    assert!(origin.reason.contains("503"), "{}", origin.reason);
    assert_eq!(gateway.origins.counts().failures.load(Ordering::Relaxed), 5);
    world.store.set_faults(Faults::default());
    assert_eq!(ask(Method::GET, "absent").await.unwrap().status(), StatusCode::NOT_FOUND);
    assert!(gateway.origins.failing().is_empty());
}

#[tokio::test]
async fn a_listing_is_asked_for_again_when_its_origin_fails_or_is_silent() {
    let world = World::new(0).await;
    let gateway = world.gateway(LONG).await;
    world.store.set_faults(Faults { unavailable: 2, ..Faults::default() });
    assert_eq!(gateway.ask(Method::GET, "", &[], none()).await.unwrap().status(), StatusCode::OK);
    world.store.set_faults(Faults { slow: Duration::from_secs(3_600), ..Faults::default() });
    tokio::time::pause();
    let error = gateway.ask(Method::GET, "", &[], none()).await.unwrap_err();
    assert!(error.to_string().contains("has not answered within 30 s"), "{error}");
}

/// Removes all splits for which `is_lost` holds.
async fn lose(world: &World, is_lost: impl Fn(ChunkId) -> bool) {
    for cache in &world.caches {
        for info in cache.list(None, 1_000).await.unwrap().chunks {
            if is_lost(info.chunk) {
                cache.delete(&[info.chunk], FencingEpoch::NONE).await.unwrap();
            }
        }
    }
}

/// Reads an object of one block of 4 MiB, in four splits.
async fn with_one_block() -> (World, Gateway, Vec<u8>) {
    let world = World { block_len: 4 * MIB, ..World::new(6).await };
    let gateway = world.gateway(LONG).await;
    let whole = noise(4 * MIB, 1);
    world.store.put("k", whole.clone());
    assert!(gateway.get("k").await == whole);
    (world, gateway, whole)
}

#[tokio::test]
async fn of_a_block_that_is_half_there_only_the_other_half_is_fetched() {
    let (world, gateway, whole) = with_one_block().await;
    world.settle().await;
    lose(&world, |split| split.index == 2 || split.index >= 4).await;
    assert!(gateway.get_range("k", MIB..4 * MIB).await == whole[MIB..]);
    assert_eq!(world.store.sent(), 5 * MIB as u64, "one split more");
    world.settle().await;
    assert!(gateway.get("k").await == whole);
    assert_eq!(world.store.sent(), 5 * MIB as u64, "and it is there again");
}

#[tokio::test]
async fn an_answer_with_the_other_half_that_breaks_off_is_taken_up_where_it_broke() {
    let (world, gateway, whole) = with_one_block().await;
    world.settle().await;
    lose(&world, |split| split.index == 2 || split.index >= 4).await;
    world.store.set_faults(Faults { break_after: Some(MIB / 2), ..Faults::default() });
    let (gets, heads) = world.store.asked();
    assert!(gateway.get("k").await == whole);
    assert_eq!(world.store.asked(), (gets + 2, heads), "the rest is asked for");
    assert!(world.store.sent() < 6 * MIB as u64);
}

#[tokio::test]
async fn of_an_object_that_is_half_there_only_the_other_half_is_fetched() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    let whole = noise(5 * MIB, 1);
    world.store.put("k", whole.clone());
    assert!(gateway.get("k").await == whole);
    world.settle().await;
    let mut names = std::collections::BTreeSet::new();
    for cache in &world.caches {
        names.extend(cache.list(None, 1_000).await.unwrap().chunks.iter().map(|info| info.chunk.stripe));
    }
    let lost = *names.first().unwrap();
    lose(&world, |split| split.stripe == lost).await;
    assert!(gateway.get("k").await == whole);
    assert_eq!(world.store.sent(), 6 * MIB as u64, "one block more");
}

#[tokio::test]
async fn memory_sites_that_are_gone_cost_no_answer() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    let whole = noise(3 * MIB, 1);
    world.store.put("k", whole.clone());
    assert!(gateway.get("k").await == whole);
    world.settle().await;
    for (sites, outcome) in
        [(&world.memory[..], "hit"), (&[], "bypass"), (&[], "bypass"), (&world.memory, "hit")]
    {
        gateway.use_memory(sites);
        let answer = gateway.open("k").await;
        assert_eq!(answer.headers()["x-striate-cache"], outcome);
        assert!(bytes_of(answer).await == whole);
    }
    let reads = |outcome| gateway.cache.counts().reads(outcome);
    assert_eq!(reads(ReadOutcome::Miss), (3, 3 * MIB as u64));
    assert_eq!(reads(ReadOutcome::Bypass), (6, 6 * MIB as u64));
}

#[tokio::test]
async fn of_an_object_without_a_strong_etag_each_read_is_one_request() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    let whole = noise(3 * MIB, 1);
    world.store.put("k", whole.clone());
    world.store.set_faults(Faults { etag_of_reads: Some("W/\"weak\""), ..Faults::default() });
    for gets in 1..4 {
        let answer = gateway.open("k").await;
        assert_eq!(answer.headers()["x-striate-cache"], "bypass");
        assert!(bytes_of(answer).await == whole);
        assert_eq!(world.store.asked(), (gets, 0));
    }
    assert_eq!(gateway.get_range("k", 5..10).await, whole[5..10]);
    assert_eq!(world.store.asked(), (4, 0), "it is remembered");
    let explained = gateway.origins.explain(BUCKET, "k").await.unwrap();
    assert_eq!(explained.would, "passes by the cache: the origin sends no strong ETag");
    world.store.set_faults(Faults::default());
    gateway.put("k", b"has one").await;
    assert_eq!(gateway.get("k").await, b"has one");
    world.settle().await;
    assert!(Gateway::was_hit(&gateway.open("k").await));
}

#[tokio::test]
async fn conditions_are_judged_here() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    world.store.put("k", "bytes");
    let etag = gateway.open("k").await.headers()["etag"].to_str().unwrap().to_owned();
    let not_modified = gateway.ask(Method::GET, "k", &[("if-none-match", &etag)], none()).await.unwrap_err();
    assert!(matches!(not_modified, ClientError::NotModified(_)));
    let failed = gateway.ask(Method::GET, "k", &[("if-match", "\"other\"")], none()).await.unwrap_err();
    assert!(matches!(failed, ClientError::PreconditionFailed(_)));
    assert_eq!(gateway.ask(Method::HEAD, "k", &[("if-match", &etag)], none()).await.unwrap().status(), 200);
}

#[tokio::test]
async fn an_object_of_which_a_part_was_read_has_its_checksums() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    world.store.put("k", noise(3 * MIB, 1));
    gateway.get_range("k", 0..10).await;
    world.settle().await;
    let wants = [("x-amz-checksum-mode", "ENABLED")];
    for (method, asked) in [(Method::HEAD, (1, 1)), (Method::HEAD, (1, 1)), (Method::GET, (2, 1))] {
        let answer = gateway.ask(method, "k", &wants, none()).await.unwrap();
        assert_eq!(answer.headers()["x-amz-checksum-crc32"], "AAAAAA==");
        drop(bytes_of(answer).await);
        assert_eq!(world.store.asked(), asked, "once more, and then for bytes only");
    }
}

#[tokio::test]
async fn a_download_that_is_resumed_gets_the_rest_of_its_object_or_the_whole_of_another() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    world.store.put("k", "old bytes");
    let etag = gateway.open("k").await.headers()["etag"].to_str().unwrap().to_owned();
    let resume = [("range", "bytes=4-"), ("if-range", etag.as_str())];
    let rest = gateway.ask(Method::GET, "k", &resume, none()).await.unwrap();
    assert_eq!((rest.status(), bytes_of(rest).await), (StatusCode::PARTIAL_CONTENT, b"bytes".to_vec()));
    gateway.put("k", b"new bytes").await;
    let whole = gateway.ask(Method::GET, "k", &resume, none()).await.unwrap();
    assert_eq!((whole.status(), bytes_of(whole).await), (StatusCode::OK, b"new bytes".to_vec()));
}

#[tokio::test]
async fn every_block_gets_its_own_bytes_whichever_of_them_are_filled() {
    let world = World::with_keepers(6, |number| number % 2 == 0).await;
    let gateway = world.gateway(LONG).await;
    let (mut in_memory, mut saved) = (0, 0);
    for round in 0..6u64 {
        let (key, whole) = (round.to_string(), noise(9 * MIB + 5, round));
        world.store.put(&key, whole.clone());
        // Returns how many bytes of a range the origin had to send.
        let fetched = async |range: std::ops::Range<usize>| {
            let before = world.store.sent();
            assert!(gateway.get_range(&key, range.clone()).await == whole[range]);
            world.settle().await;
            (world.store.sent() - before) as usize
        };
        assert_eq!(fetched(0..whole.len()).await, whole.len());
        for start in (0..whole.len()).step_by(MIB) {
            in_memory += usize::from(fetched(start..start + 1).await == 0);
        }
        // Which blocks are filled varies, because a busy home is not waited for.
        for range in [MIB..4 * MIB, MIB / 2..9 * MIB, 0..whole.len()] {
            let (sent, asked) = (fetched(range.clone()).await, range.len());
            assert!(sent <= asked, "{sent} of {range:?}");
            saved += asked - sent;
        }
    }
    assert!(saved > 0, "what is in memory is not asked for");
    assert!((1..6 * 10).contains(&in_memory), "some of it came from memory: {in_memory} blocks");
}

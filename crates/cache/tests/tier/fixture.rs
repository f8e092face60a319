//! Memory sites and gateways over in-memory disks, and the objects that tests store in them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use striate_cache::{Cache, CacheSettings, Keeper, ReadOutcome};
use striate_client::{
    Client, ClientError, ClientOptions, CreateBucket, ExpectedDigests, GetRequest, ObjectAttributes,
    ObjectInfo, PutBody, PutRequest, ReadRange, WriteCondition,
};
use striate_core::{ChunkId, ClusterId, FencingEpoch, Formats, FormatsInForce, RackId, SiteId};
use striate_meta::{MemoryStore as MemoryMeta, MetaStore};
use striate_runtime::Runtime;
use striate_site::{
    CacheOptions, CacheStore, ChunkStore, LocalSite, MemoryStore, QueueLimits, Site, SiteIdentity,
};
use striate_stripe::StripeOptions;

pub(crate) const MIB: usize = 1 << 20;
pub(crate) const BUCKET: &str = "bucket";

/// Sites of both tiers.
pub(crate) struct Sites {
    pub(crate) runtime: Runtime,
    pub(crate) meta: Arc<dyn MetaStore>,
    pub(crate) disks: Vec<Arc<MemoryStore>>,
    pub(crate) durable: Vec<Arc<dyn Site>>,
    pub(crate) caches: Vec<Arc<CacheStore>>,
    pub(crate) memory: Vec<Arc<dyn Site>>,
}

/// A gateway over the sites.
pub(crate) struct Gateway {
    pub(crate) client: Client,
    pub(crate) cache: Cache,
}

impl Sites {
    pub(crate) fn new(runtime: &Runtime, memory_sites: u32, mib: u64) -> Self {
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

    pub(crate) async fn gateway(&self) -> Gateway {
        self.gateway_with(CacheSettings::default()).await
    }

    pub(crate) async fn gateway_with(&self, settings: CacheSettings) -> Gateway {
        self.gateway_by("normal", settings).await
    }

    /// Starts a gateway with this read policy.
    pub(crate) async fn gateway_by(&self, read_policy: &str, settings: CacheSettings) -> Gateway {
        let (formats, read_policy) = (FormatsInForce::new(Formats::NEWEST), read_policy.parse().unwrap());
        let stripes = StripeOptions { formats, read_policy, ..StripeOptions::default() };
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

    /// Wipes all durable data: later reads come from memory or fail.
    pub(crate) fn wipe_disks(&self) {
        self.disks.iter().for_each(|disk| disk.wipe());
    }

    pub(crate) async fn cached_splits(&self) -> Vec<(usize, ChunkId)> {
        let mut all = Vec::new();
        for (site, cache) in self.caches.iter().enumerate() {
            let page = cache.list(None, 1_000).await.unwrap();
            all.extend(page.chunks.into_iter().map(|info| (site, info.chunk)));
        }
        all
    }

    pub(crate) async fn remove(&self, (site, split): (usize, ChunkId)) {
        self.caches[site].delete(&[split], FencingEpoch::NONE).await.unwrap();
    }

    /// Waits until background work is done.
    pub(crate) async fn settle(&self) {
        self.runtime.sleep(Duration::from_millis(100)).await;
    }
}

impl Gateway {
    pub(crate) fn use_memory(&self, sites: &[Arc<dyn Site>]) {
        self.cache.set_sites(sites.iter().map(|site| (site.clone(), 1 << 30)).collect());
    }

    /// Of the memory sites, all of which stay members, lets only those answer for which `answers` returns true.
    pub(crate) fn let_answer(&self, sites: &Sites, answers: impl Fn(usize) -> bool) {
        let answering = sites.memory.iter().enumerate().filter(|(at, _)| answers(*at));
        self.client.stripes().set_memory_sites(answering.map(|(_, site)| site.clone()).collect());
    }

    pub(crate) async fn put(&self, key: &str, bytes: &[u8]) {
        self.put_in(BUCKET, key, bytes).await.unwrap();
    }

    pub(crate) async fn put_in(
        &self,
        bucket: &str,
        key: &str,
        bytes: &[u8],
    ) -> Result<ObjectInfo, ClientError> {
        self.client.put(put_request(bucket, key, bytes, WriteCondition::default())).await
    }

    pub(crate) async fn get(&self, key: &str, range: ReadRange) -> Vec<u8> {
        self.get_in(BUCKET, key, range).await.unwrap()
    }

    pub(crate) async fn get_in(
        &self,
        bucket: &str,
        key: &str,
        range: ReadRange,
    ) -> Result<Vec<u8>, ClientError> {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let mut body =
            self.client.get(GetRequest { bucket, key, range, ..GetRequest::default() }).await?.body;
        let mut bytes = Vec::new();
        while let Some(piece) = body.next().await {
            bytes.extend_from_slice(&piece?);
        }
        Ok(bytes)
    }

    pub(crate) async fn whole(&self, key: &str) -> Vec<u8> {
        self.get(key, ReadRange::Whole).await
    }

    pub(crate) fn reads(&self) -> [u64; 5] {
        ReadOutcome::ALL.map(|outcome| self.cache.counts().reads(outcome).0)
    }

    pub(crate) fn fills(&self) -> u64 {
        self.cache.counts().fills.load(Ordering::Relaxed)
    }
}

pub(crate) fn put_request(bucket: &str, key: &str, bytes: &[u8], condition: WriteCondition) -> PutRequest {
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

pub(crate) struct Body(pub(crate) Option<Bytes>);

#[async_trait]
impl PutBody for Body {
    async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        self.0.take().map(Ok)
    }
}

pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    striate_site::conformance::payload(seed, len).to_vec()
}

pub(crate) fn from(first: usize, len: usize) -> ReadRange {
    ReadRange::Bytes { first: first as u64, last: Some((first + len - 1) as u64) }
}

pub(crate) fn in_virtual_time<F: Future>(seed: u64, test: impl FnOnce(Runtime) -> F) -> F::Output {
    let executor =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    executor.block_on(async { test(Runtime::deterministic(seed, Duration::from_secs(1_700_000_000))).await })
}

pub(crate) const LENS: [usize; 5] = [2_000, 100_000, MIB, 4 * MIB - 7, 9 * MIB];

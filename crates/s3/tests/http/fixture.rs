//! A gateway on a port of its own, over stores in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use striate_client::{Client, ClientOptions};
use striate_core::{ClusterId, RackId, SiteId};
use striate_meta::{
    Commit, Lease, LeaseId, MemoryStore, MetaError, MetaStore, Row, ScanRange, Transaction, Watch,
};
use striate_runtime::Runtime;
use striate_s3::{
    AuditEntry, AuditSink, Certificates, Credentials, Gateway, GatewayOptions, Hooks, KeyStore, Limits,
    RemoteBuckets, RequestMetrics, SealingKey, serve,
};
use striate_site::{ChunkStore, LocalSite, QueueLimits, Site, SiteIdentity};
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot, watch};
use zeroize::Zeroizing;

use crate::wire::{Answer, Connection, Request, Signer};

pub const ACCESS: &str = "ACCESSKEY";
pub const SECRET: &str = "secret/with+signs";
pub struct Fixture {
    pub runtime: Runtime,
    pub address: std::net::SocketAddr,
    pub keys: Arc<KeyStore>,
    pub audit: Arc<Entries>,
    pub metrics: Arc<Counted>,
    meta: Arc<CountingMeta>,
    stop: Option<oneshot::Sender<()>>,
    served: Option<striate_runtime::JoinHandle<std::io::Result<()>>>,
}

/// Collects audit entries in order.
#[derive(Default)]
pub struct Entries(pub Mutex<Vec<AuditEntry>>, pub Fullness);

/// Whether there is no room for more entries, and who waits for it.
#[derive(Default)]
pub struct Fullness {
    pub is_full: watch::Sender<bool>,
    /// Notified when a request begins to wait.
    pub waits: Notify,
}

impl AuditSink for Entries {
    fn record(&self, entry: &AuditEntry) {
        self.0.lock().push(entry.clone());
    }

    fn await_room(&self) -> Option<BoxFuture<'_, ()>> {
        let mut is_full = self.1.is_full.subscribe();
        if !*is_full.borrow() {
            return None;
        }
        Some(Box::pin(async move {
            self.1.waits.notify_one();
            is_full.wait_for(|is_full| !is_full).await.unwrap();
        }))
    }
}

/// Collects refusals and cuts in order.
#[derive(Default)]
pub struct Counted {
    reasons: Mutex<Vec<&'static str>>,
    more: tokio::sync::Notify,
}

impl Counted {
    fn note(&self, reason: &'static str) {
        self.reasons.lock().push(reason);
        self.more.notify_one();
    }

    /// Returns all reasons so far, once there are `len`.
    pub async fn reasons(&self, len: usize) -> Vec<&'static str> {
        loop {
            let reasons = self.reasons.lock().clone();
            if reasons.len() >= len {
                return reasons;
            }
            self.more.notified().await;
        }
    }
}

impl RequestMetrics for Counted {
    fn request(&self, _: &'static str, _: u16, _: u64, _: u64, _: Duration) {}

    fn connection(&self, _opened: bool) {}

    fn refused(&self, reason: &'static str) {
        self.note(reason);
    }

    fn cut(&self, reason: &'static str) {
        self.note(reason);
    }
}

/// Returns the default limits, with a drain time of 20 seconds.
pub fn limits() -> Limits {
    Limits { drain: Duration::from_secs(20), ..Limits::default() }
}

impl Fixture {
    pub async fn open() -> Self {
        Self::open_with(limits(), &[]).await
    }

    pub async fn open_with(limits: Limits, domains: &[&str]) -> Self {
        let domains = domains.iter().map(|domain| (*domain).to_owned()).collect();
        Self::open_as(GatewayOptions { limits, domains, ..GatewayOptions::default() }).await
    }

    /// Opens a gateway with these options.
    pub async fn open_as(options: GatewayOptions) -> Self {
        let fixture = Self::start(options, None, Hooks::default()).await;
        assert_eq!(fixture.send(Request::new("PUT", "/bucket")).await.status, 200);
        fixture
    }

    /// Opens a gateway that accepts Signature Version 2.
    pub async fn open_with_version_2() -> Self {
        let options =
            GatewayOptions { allow_signature_v2: true, limits: limits(), ..GatewayOptions::default() };
        Self::open_as(options).await
    }

    /// Opens a gateway with a `RemoteBuckets`.
    pub async fn open_before(remote_buckets: Arc<dyn RemoteBuckets>) -> Self {
        let hooks = Hooks { remote_buckets, ..Hooks::default() };
        let options = GatewayOptions { limits: limits(), ..GatewayOptions::default() };
        let fixture = Self::start(options, None, hooks).await;
        assert_eq!(fixture.send(Request::new("PUT", "/bucket")).await.status, 200);
        fixture
    }

    /// Opens a gateway with TLS, without a bucket.
    pub async fn open_secure(limits: Limits, certificates: Certificates) -> Self {
        let options = GatewayOptions { limits, ..GatewayOptions::default() };
        Self::start(options, Some(certificates), Hooks::default()).await
    }

    async fn start(gateway: GatewayOptions, certificates: Option<Certificates>, hooks: Hooks) -> Self {
        let runtime = Runtime::real();
        let inner = MemoryStore::new(runtime.clone());
        let meta = Arc::new(CountingMeta { inner, calls: AtomicU64::new(0), key_calls: AtomicU64::new(0) });
        let sites = (1..=6).map(|number| site(&runtime, number)).collect();
        let options = ClientOptions { profile: "rs(4,2)".parse().unwrap(), ..ClientOptions::default() };
        let client = Client::open(runtime.clone(), meta.clone(), sites, options).await.unwrap();
        let root = Credentials { access_key: ACCESS.into(), secret: Zeroizing::new(SECRET.into()) };
        let sealing = SealingKey::new(&[9; 32]);
        let keys = Arc::new(KeyStore::new(runtime.clone(), meta.clone(), sealing, Some(root)).unwrap());
        let audit = Arc::new(Entries::default());
        let metrics = Arc::new(Counted::default());
        let hooks = Hooks { audit: audit.clone(), metrics: metrics.clone(), ..hooks };
        let gateway = Gateway::new(runtime.clone(), client, keys.clone(), gateway, hooks).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async move { drop(stopped.await) };
        let served = Some(runtime.spawn(serve(gateway, listener, certificates, Box::pin(shutdown))));
        Self { runtime, address, keys, audit, metrics, meta, stop: Some(stop), served }
    }

    pub fn signer(&self) -> Signer {
        Signer::new(ACCESS, SECRET, self.runtime.wall_time().as_secs())
    }

    pub async fn connect(&self) -> Connection {
        Connection::open(self.address).await
    }

    /// Signs a request and sends it on a connection of its own.
    pub async fn send(&self, mut request: Request) -> Answer {
        self.signer().sign(&mut request);
        self.raw(request).await
    }

    /// Sends a request unchanged.
    pub async fn raw(&self, request: Request) -> Answer {
        self.connect().await.ask(&request).await
    }

    pub async fn put(&self, key: &str, body: &[u8]) -> Answer {
        self.send(Request::new("PUT", &format!("/bucket/{key}")).body(body)).await
    }

    pub async fn get(&self, key: &str) -> Answer {
        self.send(Request::new("GET", &format!("/bucket/{key}"))).await
    }

    /// Returns the number of calls of the metadata store, except those for access keys.
    pub fn metadata_calls(&self) -> u64 {
        self.meta.calls.load(Ordering::Relaxed)
    }

    /// Returns the number of calls of the metadata store for access keys.
    pub fn key_calls(&self) -> u64 {
        self.meta.key_calls.load(Ordering::Relaxed)
    }

    pub fn begin_shutdown(&mut self) {
        drop(self.stop.take());
    }

    pub async fn served(&mut self) {
        self.served.take().unwrap().await.unwrap().unwrap();
    }
}

fn site(runtime: &Runtime, number: u32) -> Arc<dyn Site> {
    let identity =
        SiteIdentity { cluster: ClusterId(1), site: SiteId(number), rack: RackId(format!("rack-{number}")) };
    let store: Arc<dyn ChunkStore> = Arc::new(striate_site::MemoryStore::new(1 << 40));
    Arc::new(LocalSite::new(runtime.clone(), identity, store, QueueLimits::default()))
}

/// Counts calls of the metadata store, so that a test can show that there were none.
#[derive(Debug)]
struct CountingMeta {
    inner: MemoryStore,
    calls: AtomicU64,
    /// Calls for access keys.
    key_calls: AtomicU64,
}

impl CountingMeta {
    fn count(&self, key: &[u8]) {
        // Leases and intents belong to the client service and may be read at any time; access keys are read to verify.
        if key.starts_with(b"a/") {
            self.key_calls.fetch_add(1, Ordering::Relaxed);
        } else if !key.starts_with(b"i/") {
            self.calls.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[async_trait]
impl MetaStore for CountingMeta {
    async fn get(&self, key: &[u8]) -> Result<Option<Row>, MetaError> {
        self.count(key);
        self.inner.get(key).await
    }

    async fn get_many(&self, keys: &[Bytes]) -> Result<Vec<Option<Row>>, MetaError> {
        keys.iter().for_each(|key| self.count(key));
        self.inner.get_many(keys).await
    }

    async fn scan(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        self.count(&range.start);
        self.inner.scan(range, limit).await
    }

    async fn scan_back(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        self.count(&range.start);
        self.inner.scan_back(range, limit).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Commit, MetaError> {
        self.inner.commit(transaction).await
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<Lease, MetaError> {
        self.inner.grant_lease(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        self.inner.keep_alive(lease).await
    }

    async fn is_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        self.inner.is_alive(lease).await
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.inner.revoke_lease(lease).await
    }

    async fn watch(&self, prefix: &[u8]) -> Result<Watch, MetaError> {
        self.inner.watch(prefix).await
    }
}

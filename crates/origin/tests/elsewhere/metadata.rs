//! The metadata under the fences of writes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use striate_meta::{Commit, Lease, LeaseId, MetaError, Row, ScanRange, Transaction, Watch};

use super::*;

/// A metadata store that counts concurrent commits, and refuses them while it is away.
#[derive(Debug)]
struct Metadata {
    engine: MemoryMeta,
    is_away: AtomicBool,
    open: AtomicU64,
    most_open: AtomicU64,
}

#[async_trait]
impl MetaStore for Metadata {
    async fn get(&self, key: &[u8]) -> Result<Option<Row>, MetaError> {
        self.engine.get(key).await
    }

    async fn get_many(&self, keys: &[Bytes]) -> Result<Vec<Option<Row>>, MetaError> {
        self.engine.get_many(keys).await
    }

    async fn scan(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        self.engine.scan(range, limit).await
    }

    async fn scan_back(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        self.engine.scan_back(range, limit).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Commit, MetaError> {
        if self.is_away.load(Ordering::Relaxed) {
            return Err(MetaError::Unavailable("it is away".to_owned()));
        }
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_open.fetch_max(open, Ordering::Relaxed);
        tokio::task::yield_now().await;
        let commit = self.engine.commit(transaction).await;
        self.open.fetch_sub(1, Ordering::Relaxed);
        commit
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<Lease, MetaError> {
        self.engine.grant_lease(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        self.engine.keep_alive(lease).await
    }

    async fn is_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        self.engine.is_alive(lease).await
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.engine.revoke_lease(lease).await
    }

    async fn watch(&self, prefix: &[u8]) -> Result<Watch, MetaError> {
        self.engine.watch(prefix).await
    }
}

async fn world() -> (World, Arc<Metadata>) {
    let world = World::new(6).await;
    let meta = Arc::new(Metadata {
        engine: MemoryMeta::new(world.runtime.clone()),
        is_away: AtomicBool::new(false),
        open: AtomicU64::new(0),
        most_open: AtomicU64::new(0),
    });
    (World { meta: meta.clone(), ..world }, meta)
}

#[tokio::test]
async fn what_one_request_deletes_is_fenced_together() {
    let (world, meta) = world().await;
    let gateway = world.gateway(LONG).await;
    let objects: String = (0..20).map(|key| format!("<Object><Key>{key}</Key></Object>")).collect();
    let request = RemoteRequest {
        bucket: BUCKET.to_owned(),
        key: String::new(),
        method: Method::POST,
        query: "delete".to_owned(),
        headers: HeaderMap::new(),
        body: RemoteBody::Held(format!("<Delete>{objects}</Delete>").into()),
    };
    gateway.origins.answer(request).await.unwrap();
    assert!(meta.most_open.load(Ordering::Relaxed) > 8, "one after the other they would take long");
}

#[tokio::test]
async fn a_write_that_has_happened_is_answered_although_the_metadata_are_away_by_then() {
    let (world, meta) = world().await;
    let gateway = world.gateway(LONG).await;
    world.store.set_faults(Faults { slow_write: Duration::from_millis(400), ..Faults::default() });
    let leaving = async {
        world.settle().await;
        meta.is_away.store(true, Ordering::Relaxed);
    };
    let put = world.runtime.timeout(Duration::from_secs(60), gateway.put("k", b"bytes"));
    let (put, ()) = futures::future::join(put, leaving).await;
    assert!(put.is_ok(), "it is not answered");
    assert_eq!(gateway.open("k").await.headers()["x-striate-cache"], "bypass", "its fence is there");
    meta.is_away.store(false, Ordering::Relaxed);
    world.settle().await;
    world.settle().await;
    assert_ne!(gateway.open("k").await.headers()["x-striate-cache"], "bypass");
}

//! The modelled way to the metadata store: a round trip for each operation, to a real engine.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use striate_meta::{Commit, Lease, LeaseId, MetaError, MetaStore, Row, ScanRange, Transaction, Watch};

use crate::network::{Machine, Network};

/// A metadata store as a machine of the network sees it.
#[derive(Debug)]
pub struct DistantMeta {
    network: Network,
    here: Machine,
    there: Machine,
    engine: Arc<dyn MetaStore>,
}

impl DistantMeta {
    /// The way from `here` to `engine`, which runs on the machine `there`.
    pub fn new(network: Network, here: Machine, there: Machine, engine: Arc<dyn MetaStore>) -> Self {
        Self { network, here, there, engine }
    }

    async fn call<T>(&self, operation: impl Future<Output = T>) -> T {
        self.network.travel(self.here, self.there, 0).await;
        let output = operation.await;
        self.network.travel(self.there, self.here, 0).await;
        output
    }
}

#[async_trait]
impl MetaStore for DistantMeta {
    async fn get(&self, key: &[u8]) -> Result<Option<Row>, MetaError> {
        self.call(self.engine.get(key)).await
    }

    async fn get_many(&self, keys: &[Bytes]) -> Result<Vec<Option<Row>>, MetaError> {
        self.call(self.engine.get_many(keys)).await
    }

    async fn scan(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        self.call(self.engine.scan(range, limit)).await
    }

    async fn scan_back(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        self.call(self.engine.scan_back(range, limit)).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Commit, MetaError> {
        self.call(self.engine.commit(transaction)).await
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<Lease, MetaError> {
        self.call(self.engine.grant_lease(ttl)).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        self.call(self.engine.keep_alive(lease)).await
    }

    async fn is_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        self.call(self.engine.is_alive(lease)).await
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.call(self.engine.revoke_lease(lease)).await
    }

    async fn watch(&self, prefix: &[u8]) -> Result<Watch, MetaError> {
        self.call(self.engine.watch(prefix)).await
    }
}

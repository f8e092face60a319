//! The modelled transport to the metadata store: a round trip per operation, to a real engine.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use striate_meta::{Commit, Lease, LeaseId, MetaError, MetaStore, Row, ScanRange, Transaction, Watch};

use crate::network::{Machine, Network};

/// A metadata store as seen from a machine of the network.
#[derive(Debug)]
pub struct DistantMeta {
    network: Network,
    here: Machine,
    there: Machine,
    engine: Arc<dyn MetaStore>,
}

impl DistantMeta {
    /// The transport from `here` to `engine`, which runs on the machine `there`.
    pub fn new(network: Network, here: Machine, there: Machine, engine: Arc<dyn MetaStore>) -> Self {
        Self { network, here, there, engine }
    }

    /// Makes a round trip around an operation that changes nothing. It need not continue when its caller is gone.
    async fn call<T>(&self, operation: impl Future<Output = Result<T, MetaError>>) -> Result<T, MetaError> {
        let Some(arrives) = self.network.send(self.here, self.there, 0) else { return self.silence().await };
        self.network.wait_until(arrives).await;
        let output = operation.await;
        let Some(arrives) = self.network.send(self.there, self.here, 0) else { return self.silence().await };
        self.network.wait_until(arrives).await;
        output
    }

    async fn silence<T>(&self) -> Result<T, MetaError> {
        self.network.wait_in_vain().await;
        Err(MetaError::Unavailable("it did not answer in time".to_owned()))
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

    /// A transaction that was sent may commit whether or not its sender lives and the answer arrives.
    async fn commit(&self, transaction: Transaction) -> Result<Commit, MetaError> {
        let engine = Arc::clone(&self.engine);
        let commit = async move { engine.commit(transaction).await };
        let answer = self.network.carry(self.here, self.there, (0, 0), commit).await;
        answer.unwrap_or_else(|| Err(MetaError::UnknownOutcome("no answer came in time".to_owned())))
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

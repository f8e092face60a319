//! A chunk store in memory whose reads can be held back, to observe what waits in front of it.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use striate_core::{ChunkId, ChunkRange, FencingEpoch};
use tokio::sync::watch;

use crate::api::{ChunkPage, SiteError};
use crate::memory::MemoryStore;
use crate::store::{ChunkInfo, ChunkStore, StoreStatus};

/// A chunk store in memory whose reads can be held back.
#[derive(Debug)]
pub struct GatedStore {
    chunks: MemoryStore,
    gate: watch::Sender<Gate>,
    failure: Mutex<Option<SiteError>>,
}

#[derive(Debug, Default)]
struct Gate {
    held: HashSet<ChunkId>,
    /// Chunks whose read has begun, in the order of the reads.
    begun: Vec<ChunkId>,
}

impl Default for GatedStore {
    fn default() -> Self {
        let (gate, _) = watch::channel(Gate::default());
        Self { chunks: MemoryStore::default(), gate, failure: Mutex::default() }
    }
}

impl GatedStore {
    /// Holds back reads of `chunk` that begin from now on.
    pub fn hold(&self, chunk: ChunkId) {
        self.gate.send_modify(|gate| {
            gate.held.insert(chunk);
        });
    }

    /// Lets held reads of `chunk` end, and later ones pass.
    pub fn release(&self, chunk: ChunkId) {
        self.gate.send_modify(|gate| {
            gate.held.remove(&chunk);
        });
    }

    /// Completes when a read of `chunk` has begun.
    pub async fn wait_begun(&self, chunk: ChunkId) {
        let mut gate = self.gate.subscribe();
        gate.wait_for(|gate| gate.begun.contains(&chunk)).await.expect("the store holds the sender");
    }

    /// Returns the chunks whose read has begun since the last call, in the order of the reads.
    pub fn take_begun(&self) -> Vec<ChunkId> {
        let mut begun = Vec::new();
        self.gate.send_modify(|gate| begun = std::mem::take(&mut gate.begun));
        begun
    }

    /// Makes all operations fail with `error` from now on; `None` ends that.
    pub fn fail_with(&self, error: Option<SiteError>) {
        *self.failure.lock() = error;
    }

    fn check(&self) -> Result<(), SiteError> {
        self.failure.lock().clone().map_or(Ok(()), Err)
    }
}

#[async_trait]
impl ChunkStore for GatedStore {
    async fn write(
        &self,
        chunk: ChunkId,
        payload: Bytes,
        granule_crcs: Option<Arc<[u32]>>,
    ) -> Result<(), SiteError> {
        self.check()?;
        self.chunks.write(chunk, payload, granule_crcs).await
    }

    async fn read(&self, range: ChunkRange) -> Result<Bytes, SiteError> {
        self.check()?;
        self.gate.send_modify(|gate| gate.begun.push(range.chunk));
        let mut gate = self.gate.subscribe();
        gate.wait_for(|gate| !gate.held.contains(&range.chunk)).await.expect("the store holds the sender");
        self.chunks.read(range).await
    }

    fn try_read(&self, _range: ChunkRange) -> Option<Result<Bytes, SiteError>> {
        None
    }

    async fn delete(&self, chunks: &[ChunkId], epoch: FencingEpoch) -> Result<(), SiteError> {
        self.check()?;
        self.chunks.delete(chunks, epoch).await
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        self.check()?;
        self.chunks.list(from, limit).await
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        self.check()?;
        self.chunks.verify(chunk).await
    }

    fn status(&self) -> StoreStatus {
        self.chunks.status()
    }
}

//! A planted defect of the chunk store, as a wrapper: it identifies a chunk by its stripe and index alone.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use striate_core::{ChunkId, ChunkRange, FencingEpoch, Generation};
use striate_site::{ChunkInfo, ChunkPage, ChunkStore, SiteError, StoreStatus};

/// A store that accepts any generation of a chunk as the requested one. A stale copy is read and found good; deleting
/// a chunk that has moved away deletes the one that has come back.
#[derive(Debug)]
pub(super) struct ForgetfulStore(pub Arc<dyn ChunkStore>);

impl ForgetfulStore {
    /// Returns the newest generation of the chunk on this site.
    async fn newest(&self, chunk: ChunkId) -> ChunkId {
        let from = ChunkId { generation: Generation(0), ..chunk };
        let is_same = |other: &ChunkId| (other.stripe, other.index) == (chunk.stripe, chunk.index);
        let page = self.0.list(Some(from), 16).await;
        let here = page.map(|page| page.chunks).unwrap_or_default();
        here.iter().map(|info| info.chunk).filter(is_same).max().unwrap_or(chunk)
    }
}

#[async_trait]
impl ChunkStore for ForgetfulStore {
    async fn write(
        &self,
        chunk: ChunkId,
        payload: Bytes,
        granule_crcs: Option<Arc<[u32]>>,
    ) -> Result<(), SiteError> {
        self.0.write(chunk, payload, granule_crcs).await
    }

    async fn read(&self, range: ChunkRange) -> Result<Bytes, SiteError> {
        let chunk = self.newest(range.chunk).await;
        self.0.read(ChunkRange { chunk, ..range }).await
    }

    fn try_read(&self, _range: ChunkRange) -> Option<Result<Bytes, SiteError>> {
        None
    }

    async fn delete(&self, chunks: &[ChunkId], epoch: FencingEpoch) -> Result<(), SiteError> {
        let mut here = Vec::with_capacity(chunks.len());
        for &chunk in chunks {
            here.push(self.newest(chunk).await);
        }
        self.0.delete(&here, epoch).await
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        self.0.list(from, limit).await
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        let info = self.0.verify(self.newest(chunk).await).await?;
        Ok(ChunkInfo { chunk, ..info })
    }

    fn status(&self) -> StoreStatus {
        self.0.status()
    }
}

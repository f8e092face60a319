//! A defect of a memory site, planted over its store: it knows a block by too little of its name.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use striate_core::{ChunkId, ChunkRange, FencingEpoch, StripeId};
use striate_site::{ChunkInfo, ChunkPage, ChunkStore, SiteError, StoreStatus};

/// A cache in which blocks that were cut alike, and that some bits of a hash do not tell apart, pass for each other: as if blocks were
/// named by something that outlives their content.
#[derive(Debug)]
pub(super) struct Blurred(pub Arc<dyn ChunkStore>);

/// What it knows of a name: the number of splits, and three bits.
fn blurred(chunk: ChunkId) -> ChunkId {
    ChunkId { stripe: StripeId(chunk.stripe.0 & 0x7FF), ..chunk }
}

#[async_trait]
impl ChunkStore for Blurred {
    async fn write(
        &self,
        chunk: ChunkId,
        payload: Bytes,
        granule_crcs: Option<Arc<[u32]>>,
    ) -> Result<(), SiteError> {
        self.0.delete(&[blurred(chunk)], FencingEpoch::NONE).await?;
        self.0.write(blurred(chunk), payload, granule_crcs).await
    }

    async fn read(&self, range: ChunkRange) -> Result<Bytes, SiteError> {
        self.0.read(ChunkRange { chunk: blurred(range.chunk), ..range }).await
    }

    fn try_read(&self, range: ChunkRange) -> Option<Result<Bytes, SiteError>> {
        self.0.try_read(ChunkRange { chunk: blurred(range.chunk), ..range })
    }

    async fn delete(&self, chunks: &[ChunkId], epoch: FencingEpoch) -> Result<(), SiteError> {
        self.0.delete(chunks, epoch).await
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        self.0.list(from, limit).await
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        self.0.verify(blurred(chunk)).await
    }

    fn status(&self) -> StoreStatus {
        self.0.status()
    }
}

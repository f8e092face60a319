//! A planted defect of a memory site, as a wrapper of its store: it identifies a block by too little of its name.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use striate_core::{ChunkId, ChunkRange, FencingEpoch, StripeId};
use striate_site::{ChunkInfo, ChunkPage, ChunkStore, SiteError, StoreStatus};

/// A cache that confuses blocks with the same number of splits and the same few hash bits, as if names of blocks
/// outlived their content.
#[derive(Debug)]
pub(super) struct BlurredCache(pub Arc<dyn ChunkStore>);

/// The part of a name that the store looks at: the number of splits, and three bits.
fn blurred(chunk: ChunkId) -> ChunkId {
    ChunkId { stripe: StripeId(chunk.stripe.0 & 0x7FF), ..chunk }
}

#[async_trait]
impl ChunkStore for BlurredCache {
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

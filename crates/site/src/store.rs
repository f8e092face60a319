//! The trait of chunk stores: what a site stands on.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use striate_core::{ChunkId, ChunkRange, FencingEpoch};

use crate::api::{ChunkPage, SiteError};

/// About as many bytes are in memory while a store verifies a chunk.
pub(crate) const VERIFY_BYTES: u64 = 1 << 20;

/// A stored chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkInfo {
    /// Its name.
    pub chunk: ChunkId,
    /// Length of its payload in bytes.
    pub len: u32,
    /// CRC-32C of its payload.
    pub crc32c: u32,
}

/// A store's state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoreStatus {
    /// Chunks stored.
    pub chunks: u64,
    /// Payload bytes of the chunks stored.
    pub payload_bytes: u64,
    /// Bytes taken on the medium, dead records included.
    pub disk_bytes: u64,
    /// Size of the medium; sites on one file system all report the same.
    pub capacity_bytes: u64,
    /// Bytes that can be written before the reserve.
    pub free_bytes: u64,
    /// Identifies the medium, so that several sites on one file system are counted once.
    pub medium: u64,
    /// Why the store takes no writes, if so: for good, or as long as its disk hangs.
    pub suspect: Option<String>,
}

/// Takes note of the epoch of a delete, for a store that keeps the highest in memory.
///
/// # Errors
/// [`SiteError::Fenced`] where a higher one was seen.
pub(crate) fn fence(seen: &mut FencingEpoch, given: FencingEpoch) -> Result<(), SiteError> {
    if given == FencingEpoch::NONE {
        return Ok(());
    }
    if given < *seen {
        return Err(SiteError::Fenced { given, seen: *seen });
    }
    *seen = given;
    Ok(())
}

/// What an operation has reserved, such as its place in the queue. It travels with the bytes and is dropped with them: when a disk
/// hangs, callers give up, but their bytes stay in memory.
#[derive(Default)]
pub struct Held(Vec<Box<dyn Send>>);

impl Held {
    /// Holds `other` as well.
    #[must_use]
    pub fn and(mut self, other: impl Send + 'static) -> Self {
        self.0.push(Box::new(other));
        self
    }
}

impl Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Held({})", self.0.len())
    }
}

/// A chunk that comes in pieces. Nothing of it is stored before [`ChunkDraft::store`], and nothing stays when it is dropped.
#[async_trait]
pub trait ChunkDraft: Send {
    /// Its next bytes. There must not be more than was told.
    fn append(&mut self, bytes: &[u8]);

    /// Stores the chunk, all of which has come, as [`ChunkStore::write_holding`] does.
    async fn store(self: Box<Self>, held: Held) -> Result<(), SiteError>;
}

/// Keeps chunks durably. Chunks are immutable.
#[async_trait]
pub trait ChunkStore: Send + Sync + Debug {
    /// Stores a chunk; returns when it is durable. `granule_crcs`, if given, are the CRC-32C of each granule
    /// of `payload`, of either length (module [`crate::granule`]).
    async fn write(
        &self,
        chunk: ChunkId,
        payload: Bytes,
        granule_crcs: Option<Arc<[u32]>>,
    ) -> Result<(), SiteError>;

    /// As [`ChunkStore::write`]. The store drops `held` when it is done with the chunk, just before it answers, and not
    /// when the caller no longer waits; one that does nothing behind its callers' backs need not care.
    async fn write_holding(
        &self,
        chunk: ChunkId,
        payload: Bytes,
        granule_crcs: Option<Arc<[u32]>>,
        held: Held,
    ) -> Result<(), SiteError> {
        let written = self.write(chunk, payload, granule_crcs).await;
        drop(held);
        written
    }

    /// Begins a chunk of `len` bytes that come in pieces, so that work is done while they come. `None` where there would be
    /// nothing to do before all are there; such a chunk is written with [`ChunkStore::write`].
    fn draft(&self, _chunk: ChunkId, _len: u32) -> Option<Box<dyn ChunkDraft>> {
        None
    }

    /// The range's bytes, verified granule by granule.
    async fn read(&self, range: ChunkRange) -> Result<Bytes, SiteError>;

    /// As [`ChunkStore::read`], for the first range of a request that is served. A store with a cost for each
    /// request (o_j of EC-Store Eq. 1) pays it here.
    async fn read_first(&self, range: ChunkRange) -> Result<Bytes, SiteError> {
        self.read(range).await
    }

    /// As [`ChunkStore::read`], if it can be answered at once from memory or the page cache without
    /// blocking; otherwise `None`.
    fn try_read(&self, range: ChunkRange) -> Option<Result<Bytes, SiteError>>;

    /// Removes chunks, durably. Refuses epochs below the highest seen, which it keeps durably.
    async fn delete(&self, chunks: &[ChunkId], epoch: FencingEpoch) -> Result<(), SiteError>;

    /// As [`ChunkStore::delete`], with `held` as [`ChunkStore::write_holding`] has it.
    async fn delete_holding(
        &self,
        chunks: &[ChunkId],
        epoch: FencingEpoch,
        held: Held,
    ) -> Result<(), SiteError> {
        let deleted = self.delete(chunks, epoch).await;
        drop(held);
        deleted
    }

    /// At most `limit` chunks from `from` on, in order.
    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError>;

    /// Reads the whole chunk past any cache and verifies it.
    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError>;

    /// As [`ChunkStore::verify`], with `held` as [`ChunkStore::write_holding`] has it.
    async fn verify_holding(&self, chunk: ChunkId, held: Held) -> Result<ChunkInfo, SiteError> {
        let verified = self.verify(chunk).await;
        drop(held);
        verified
    }

    /// The state now; cheap.
    fn status(&self) -> StoreStatus;
}

//! The trait of chunk stores, which sites keep their chunks in.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use striate_core::{ChunkId, ChunkRange, FencingEpoch};

use crate::api::{ChunkPage, SiteError};

/// Approximate number of bytes in memory while a store verifies a chunk.
pub(crate) const VERIFY_BYTES: u64 = 1 << 20;

/// A stored chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkInfo {
    /// Name of the chunk.
    pub chunk: ChunkId,
    /// Length of the payload in bytes.
    pub len: u32,
    /// CRC-32C of the payload.
    pub crc32c: u32,
}

/// Status of a store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoreStatus {
    /// Number of chunks stored.
    pub chunks: u64,
    /// Payload bytes of the chunks stored.
    pub payload_bytes: u64,
    /// Bytes occupied on the medium, including dead records.
    pub disk_bytes: u64,
    /// Size of the medium in bytes; sites on one file system all report the same.
    pub capacity_bytes: u64,
    /// Bytes that can be written before the reserve is reached.
    pub free_bytes: u64,
    /// Identifies the medium, so that it is counted once when several sites share a file system.
    pub medium: u64,
    /// Why the store takes no writes, if so: permanently, or as long as its disk hangs.
    pub suspect: Option<String>,
    /// How long the disk has answered nothing, if so. Its other figures are as old.
    pub silent: Option<Duration>,
    /// Why the directory is no longer the one that was opened, if so.
    pub vanished: Option<String>,
}

impl StoreStatus {
    /// Returns whether the store can serve reads and writes now, as far as is known.
    pub fn is_well(&self) -> bool {
        self.suspect.is_none() && self.silent.is_none() && self.vanished.is_none()
    }
}

/// Records the epoch of a delete, for a store that keeps the highest epoch in memory.
///
/// # Errors
/// [`SiteError::Fenced`] if the store has seen a higher one.
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

/// What an operation has reserved, such as its place in the queue. It travels with the bytes and is dropped with them:
/// when a disk hangs, callers give up, but their bytes stay in memory.
#[derive(Default)]
pub struct HeldResources(Vec<Box<dyn Send>>);

impl HeldResources {
    /// Holds `other` as well.
    #[must_use]
    pub fn and(mut self, other: impl Send + 'static) -> Self {
        self.0.push(Box::new(other));
        self
    }
}

impl Debug for HeldResources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HeldResources({})", self.0.len())
    }
}

/// A chunk that arrives in pieces. Nothing is stored before [`ChunkDraft::store`], and nothing
/// remains if the draft is dropped.
#[async_trait]
pub trait ChunkDraft: Send {
    /// Appends the next bytes. All together must not exceed the announced length.
    fn append(&mut self, bytes: &[u8]);

    /// Stores the complete chunk as [`ChunkStore::write_holding`] does.
    async fn store(self: Box<Self>, held: HeldResources) -> Result<(), SiteError>;
}

/// Keeps chunks durably. Chunks are immutable.
#[async_trait]
pub trait ChunkStore: Send + Sync + Debug {
    /// Stores a chunk; returns when it is durable. `granule_crcs`, if given, are the CRC-32C of each granule of
    /// `payload`, long or short (module [`crate::granule`]).
    async fn write(
        &self,
        chunk: ChunkId,
        payload: Bytes,
        granule_crcs: Option<Arc<[u32]>>,
    ) -> Result<(), SiteError>;

    /// As [`ChunkStore::write`]. The store drops `held` when it is done with the chunk, just before it replies, and not
    /// when the caller stops waiting. A store that does nothing after its callers leave need not override this.
    async fn write_holding(
        &self,
        chunk: ChunkId,
        payload: Bytes,
        granule_crcs: Option<Arc<[u32]>>,
        held: HeldResources,
    ) -> Result<(), SiteError> {
        let written = self.write(chunk, payload, granule_crcs).await;
        drop(held);
        written
    }

    /// Begins a chunk of `len` bytes that arrives in pieces, so that the store can work while they arrive. `None` if
    /// there is nothing to do before all have arrived; such a chunk is written with [`ChunkStore::write`].
    fn draft(&self, _chunk: ChunkId, _len: u32) -> Option<Box<dyn ChunkDraft>> {
        None
    }

    /// Reads the bytes of a range, verified granule by granule.
    async fn read(&self, range: ChunkRange) -> Result<Bytes, SiteError>;

    /// As [`ChunkStore::read`], for the first range of a request. A store with a cost per request (o_j of EC-Store Eq.
    /// 1) pays it here.
    async fn read_first(&self, range: ChunkRange) -> Result<Bytes, SiteError> {
        self.read(range).await
    }

    /// As [`ChunkStore::read`], if memory or the page cache can serve it at once without blocking; otherwise `None`.
    fn try_read(&self, range: ChunkRange) -> Option<Result<Bytes, SiteError>>;

    /// Removes chunks, durably. Refuses epochs below the highest one seen, which is itself kept durably.
    async fn delete(&self, chunks: &[ChunkId], epoch: FencingEpoch) -> Result<(), SiteError>;

    /// As [`ChunkStore::delete`], treating `held` as [`ChunkStore::write_holding`] does.
    async fn delete_holding(
        &self,
        chunks: &[ChunkId],
        epoch: FencingEpoch,
        held: HeldResources,
    ) -> Result<(), SiteError> {
        let deleted = self.delete(chunks, epoch).await;
        drop(held);
        deleted
    }

    /// Returns at most `limit` chunks in order, starting with `from`.
    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError>;

    /// Reads the whole chunk past any cache and verifies it.
    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError>;

    /// As [`ChunkStore::verify`], treating `held` as [`ChunkStore::write_holding`] does.
    async fn verify_holding(&self, chunk: ChunkId, held: HeldResources) -> Result<ChunkInfo, SiteError> {
        let verified = self.verify(chunk).await;
        drop(held);
        verified
    }

    /// Returns the current status; cheap.
    fn status(&self) -> StoreStatus;
}

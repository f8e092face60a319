//! A chunk store in memory that follows the rules of the one on disk, for the lab and tests. (The store of the memory
//! tier is [`crate::cache`].)
//!
//! It keeps its contents as long as it lives, and refuses and verifies as a disk does. It has hooks for faults: damage
//! to a chunk, a full medium, failing writes. It does not survive its process.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use striate_core::{ChunkId, ChunkRange, FencingEpoch, GRANULE_LEN};

use crate::api::{ChunkPage, SiteError};
use crate::granule;
use crate::store::{ChunkInfo, ChunkStore, StoreStatus, fence};

/// A chunk store in a map, for the lab and tests.
#[derive(Debug)]
pub struct MemoryStore {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    chunks: BTreeMap<ChunkId, StoredChunk>,
    payload_bytes: u64,
    capacity_bytes: u64,
    medium: u64,
    epoch: FencingEpoch,
}

#[derive(Debug)]
struct StoredChunk {
    payload: Bytes,
    granules: Arc<[u32]>,
    crc32c: u32,
}

impl StoredChunk {
    fn info(&self, chunk: ChunkId) -> ChunkInfo {
        ChunkInfo { chunk, len: self.len(), crc32c: self.crc32c }
    }

    /// The length of the chunk, which damage does not change.
    fn len(&self) -> u32 {
        self.payload.len() as u32
    }

    fn read(&self, range: &ChunkRange) -> Result<Bytes, SiteError> {
        granule::verify_range(&self.payload, &self.granules, range)?;
        let start = range.offset as usize;
        Ok(self.payload.slice(start..start + range.len as usize))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(u64::MAX / 2)
    }
}

impl MemoryStore {
    /// Creates an empty store that takes `capacity_bytes` of payload.
    pub fn new(capacity_bytes: u64) -> Self {
        let state = State {
            chunks: BTreeMap::new(),
            payload_bytes: 0,
            capacity_bytes,
            medium: 0,
            epoch: FencingEpoch::default(),
        };
        Self { state: Mutex::new(state) }
    }

    /// Sets the number that [`StoreStatus::medium`] reports.
    pub fn with_medium(self, medium: u64) -> Self {
        self.state.lock().medium = medium;
        self
    }

    /// Fault hook: flips the lowest bit of byte `offset` of a chunk. Returns false if there is no such byte.
    pub fn corrupt(&self, chunk: ChunkId, offset: usize) -> bool {
        let mut state = self.state.lock();
        let Some(stored) = state.chunks.get_mut(&chunk).filter(|stored| offset < stored.payload.len()) else {
            return false;
        };
        let mut payload = stored.payload.to_vec();
        payload[offset] ^= 1;
        stored.payload = payload.into();
        true
    }

    /// Fault hook: removes a chunk, as if the disk had lost it. Returns false if there was none.
    pub fn lose(&self, chunk: ChunkId) -> bool {
        self.state.lock().remove(chunk)
    }

    /// Fault hook: removes all chunks, as if the disk had been wiped.
    pub fn wipe(&self) {
        let mut state = self.state.lock();
        state.chunks.clear();
        state.payload_bytes = 0;
    }
}

impl State {
    fn remove(&mut self, chunk: ChunkId) -> bool {
        let removed = self.chunks.remove(&chunk);
        self.payload_bytes -= removed.as_ref().map_or(0, |stored| u64::from(stored.len()));
        removed.is_some()
    }
}

#[async_trait]
impl ChunkStore for MemoryStore {
    async fn write(
        &self,
        chunk: ChunkId,
        payload: Bytes,
        granule_crcs: Option<Arc<[u32]>>,
    ) -> Result<(), SiteError> {
        let granules = granule::check_write(&payload, granule_crcs, GRANULE_LEN)?;
        let len = payload.len() as u32;
        let crc32c = granule::payload_crc(&granules, len, GRANULE_LEN);
        let mut state = self.state.lock();
        if let Some(existing) = state.chunks.get(&chunk) {
            return granule::check_rewrite(chunk, (existing.len(), existing.crc32c), (len, crc32c));
        }
        if state.payload_bytes + u64::from(len) > state.capacity_bytes {
            return Err(SiteError::NoSpace);
        }
        state.payload_bytes += u64::from(len);
        state.chunks.insert(chunk, StoredChunk { payload, granules, crc32c });
        Ok(())
    }

    async fn read(&self, range: ChunkRange) -> Result<Bytes, SiteError> {
        let state = self.state.lock();
        state.chunks.get(&range.chunk).ok_or(SiteError::Missing(range.chunk))?.read(&range)
    }

    fn try_read(&self, range: ChunkRange) -> Option<Result<Bytes, SiteError>> {
        let state = self.state.lock();
        Some(match state.chunks.get(&range.chunk) {
            Some(stored) => stored.read(&range),
            None => Err(SiteError::Missing(range.chunk)),
        })
    }

    async fn delete(&self, chunks: &[ChunkId], epoch: FencingEpoch) -> Result<(), SiteError> {
        let mut state = self.state.lock();
        fence(&mut state.epoch, epoch)?;
        for chunk in chunks {
            state.remove(*chunk);
        }
        Ok(())
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        let state = self.state.lock();
        let first =
            from.unwrap_or(ChunkId { stripe: Default::default(), index: 0, generation: Default::default() });
        let mut rest = state.chunks.range(first..);
        let chunks = rest.by_ref().take(limit.max(1)).map(|(id, stored)| stored.info(*id)).collect();
        Ok(ChunkPage { chunks, next: rest.next().map(|(id, _)| *id) })
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        let state = self.state.lock();
        let stored = state.chunks.get(&chunk).ok_or(SiteError::Missing(chunk))?;
        stored.read(&ChunkRange { chunk, offset: 0, len: stored.len() })?;
        Ok(stored.info(chunk))
    }

    fn status(&self) -> StoreStatus {
        let state = self.state.lock();
        StoreStatus {
            chunks: state.chunks.len() as u64,
            payload_bytes: state.payload_bytes,
            disk_bytes: state.payload_bytes,
            capacity_bytes: state.capacity_bytes,
            free_bytes: state.capacity_bytes - state.payload_bytes,
            medium: state.medium,
            ..StoreStatus::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{self, StoreUnderTest};

    #[derive(Default)]
    struct InMemory(Arc<MemoryStore>);

    #[async_trait]
    impl StoreUnderTest for InMemory {
        async fn open(&mut self) -> Arc<dyn ChunkStore> {
            self.0.clone()
        }

        async fn damage(&mut self, chunk: ChunkId) {
            assert!(self.0.corrupt(chunk, 0));
        }
    }

    #[tokio::test]
    async fn the_memory_store_conforms() {
        conformance::run(|| Box::new(InMemory::default())).await;
    }

    #[tokio::test]
    async fn a_full_memory_store_refuses_writes_and_still_deletes() {
        let store = MemoryStore::new(10);
        let chunk = conformance::chunk_id(1, 0, 1);
        store.write(chunk, Bytes::from_static(b"0123456789"), None).await.unwrap();
        let other = conformance::chunk_id(2, 0, 1);
        let refused = store.write(other, Bytes::from_static(b"0"), None).await;
        assert_eq!(refused, Err(SiteError::NoSpace));
        store.delete(&[chunk], FencingEpoch(1)).await.unwrap();
        store.write(other, Bytes::from_static(b"0"), None).await.unwrap();
    }
}

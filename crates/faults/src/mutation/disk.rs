//! Planted defects of the chunk store, as wrappers below and above it.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use striate_codec::crc32c;
use striate_core::{ChunkId, ChunkRange, FencingEpoch};
use striate_site::filesystem::{Directory, File, FileId, FileSystem, Lock, SimulatedFileSystem, Space};
use striate_site::{ChunkInfo, ChunkPage, ChunkStore, SiteError, StoreStatus};

/// A file system whose sync does nothing.
#[derive(Debug)]
pub(super) struct UnsyncedFileSystem(pub SimulatedFileSystem);

#[derive(Debug)]
struct UnsyncedFile(Arc<dyn File>);

impl FileSystem for UnsyncedFileSystem {
    fn create_directories(&self, path: &Path) -> io::Result<()> {
        self.0.create_directories(path)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(UnsyncedFile(self.0.create(path)?)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(UnsyncedFile(self.0.open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        self.0.unlink(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        self.0.list(directory)
    }

    fn open_directory(&self, directory: &Path) -> io::Result<Box<dyn Directory>> {
        self.0.open_directory(directory)
    }

    fn identify(&self, path: &Path) -> io::Result<FileId> {
        self.0.identify(path)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        self.0.space(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        self.0.lock(path)
    }
}

impl File for UnsyncedFile {
    fn write_all_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.0.write_all_at(parts, offset)
    }

    fn write_direct_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.0.write_direct_at(parts, offset)
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.0.read_at(offset, len)
    }

    fn read_into(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read_into(offset, buffer)
    }

    fn read_cached_into(&self, offset: u64, buffer: &mut [u8]) -> io::Result<bool> {
        self.0.read_cached_into(offset, buffer)
    }

    fn read_medium_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.0.read_medium_at(offset, len)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn id(&self) -> io::Result<FileId> {
        self.0.id()
    }
}

/// A store whose checksums do not cover the bytes: where the real store detects damage, it serves the damaged bytes.
#[derive(Debug)]
pub(super) struct UncheckedStore {
    store: Arc<dyn ChunkStore>,
    /// Chunks that were written in this run.
    written: Mutex<BTreeMap<ChunkId, Bytes>>,
}

impl UncheckedStore {
    pub(super) fn new(store: Arc<dyn ChunkStore>) -> Self {
        Self { store, written: Mutex::default() }
    }

    fn written(&self, chunk: ChunkId) -> Option<Bytes> {
        self.written.lock().get(&chunk).cloned()
    }
}

#[async_trait]
impl ChunkStore for UncheckedStore {
    async fn write(
        &self,
        chunk: ChunkId,
        payload: Bytes,
        granule_crcs: Option<Arc<[u32]>>,
    ) -> Result<(), SiteError> {
        self.written.lock().insert(chunk, payload.clone());
        self.store.write(chunk, payload, granule_crcs).await
    }

    async fn read(&self, range: ChunkRange) -> Result<Bytes, SiteError> {
        match (self.store.read(range).await, self.written(range.chunk)) {
            (Err(SiteError::Corrupt { .. }), Some(payload)) => {
                let bytes_read = range.offset as usize..(range.offset + range.len) as usize;
                let mut bytes = BytesMut::from(&payload[bytes_read]);
                if let Some(byte) = bytes.last_mut() {
                    *byte ^= 1;
                }
                Ok(bytes.freeze())
            }
            (read, _) => read,
        }
    }

    fn try_read(&self, _range: ChunkRange) -> Option<Result<Bytes, SiteError>> {
        None
    }

    async fn delete(&self, chunks: &[ChunkId], epoch: FencingEpoch) -> Result<(), SiteError> {
        self.store.delete(chunks, epoch).await
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        self.store.list(from, limit).await
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        match (self.store.verify(chunk).await, self.written(chunk)) {
            (Err(SiteError::Corrupt { .. }), Some(payload)) => {
                Ok(ChunkInfo { chunk, len: payload.len() as u32, crc32c: crc32c(&payload) })
            }
            (verified, _) => verified,
        }
    }

    fn status(&self) -> StoreStatus {
        self.store.status()
    }
}

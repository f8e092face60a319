//! A disk store that can be reopened while its process runs, because its disk has come back or is worth another try.
//!
//! Reopening is a start in every respect, never a flag that is cleared: the old store is closed, the directory is locked
//! again, and the index is rebuilt from the segments, whose records are synced before anything is acknowledged. In
//! addition, this process knows what it has made durable, which a start cannot know. The directory must hold all of it:
//! the highest fencing epoch, and every segment with at least its length. If it does not, it is an older copy of the
//! disk: segments have random names and only grow, so a copy lacks the writes and deletes that came after it. (A segment
//! whose live chunks a compaction has durably written elsewhere may be missing.)
//!
//! Condemned segments are condemned again first: the page cache still shows bytes that the medium lost (design.md
//! §10.1), and if the condemnation could not be recorded at the time, a scan must not believe them now. Then a new file
//! must reach the medium, so that a disk that can only be read is not taken for a healthy one.
//!
//! Until all this has succeeded the old store stays. It refuses changes and still tries to read.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use striate_core::{ChunkId, ChunkRange, FencingEpoch};
use striate_runtime::Runtime;

use super::recovery::RecoveredStore;
use super::writer::is_full;
use super::{DiskStore, DiskStoreError, DiskStoreOptions, Shared};
use crate::api::{ChunkPage, SiteError};
use crate::filesystem::{FileSystem, TEMPORARY_EXTENSION};
use crate::identity;
use crate::store::{ChunkDraft, ChunkInfo, ChunkStore, HeldResources, StoreStatus};

/// A [`DiskStore`] that can be reopened.
#[derive(Debug)]
pub struct ReopenableStore {
    runtime: Runtime,
    fs: Arc<dyn FileSystem>,
    root: PathBuf,
    options: DiskStoreOptions,
    current: RwLock<Arc<DiskStore>>,
    /// Held while the store is reopened.
    reopening: Arc<Mutex<()>>,
}

impl ReopenableStore {
    /// Opens the store in `root` as [`DiskStore::open`] does.
    ///
    /// # Errors
    /// As for [`DiskStore::open`].
    pub fn open(
        runtime: &Runtime,
        fs: Arc<dyn FileSystem>,
        root: &Path,
        options: DiskStoreOptions,
    ) -> Result<Self, DiskStoreError> {
        let store = DiskStore::open(runtime, fs.clone(), root, options.clone())?;
        Ok(Self {
            runtime: runtime.clone(),
            fs,
            root: root.to_owned(),
            options,
            current: RwLock::new(Arc::new(store)),
            reopening: Arc::default(),
        })
    }

    pub(super) fn current(&self) -> Arc<DiskStore> {
        self.current.read().clone()
    }

    /// Returns why the store takes no changes until it is reopened. `None` if it takes them, or will once its disk
    /// answers.
    pub fn failure(&self) -> Option<String> {
        let store = self.current();
        let failure = store.shared.suspect.lock().clone();
        failure.filter(|_| store.shared.hang().is_none())
    }

    /// Closes the store if it is open, and opens it again. Blocks, forever if the disk hangs.
    ///
    /// # Errors
    /// If the directory cannot be opened, or does not hold all that this process knows to be durable. The store then
    /// stays as it was: it takes no changes.
    pub fn reopen(&self) -> Result<(), DiskStoreError> {
        let Some(_alone) = self.reopening.try_lock() else {
            return Err(DiskStoreError::Busy(self.root.clone()));
        };
        let old = self.current();
        old.shut_down("it is being reopened");
        let new = DiskStore::open_again(
            &self.runtime,
            self.fs.clone(),
            &self.root,
            self.options.clone(),
            &old.shared,
        )?;
        *self.current.write() = Arc::new(new);
        Ok(())
    }

    /// Looks at the disk now, as [`DiskStore::look`] does.
    pub async fn look(&self) {
        self.current().look().await;
    }

    /// Closes the store as [`DiskStore::close`] does.
    ///
    /// # Errors
    /// As for [`DiskStore::close`].
    pub async fn close(&self) -> io::Result<()> {
        self.current().close().await
    }
}

impl DiskStore {
    /// Ends the writer, releases the directory, and refuses changes from now on. Blocks until the write in progress has
    /// ended.
    fn shut_down(&self, reason: &str) {
        self.shared.suspect.lock().get_or_insert_with(|| reason.to_owned());
        if let Some(thread) = self.stop() {
            // The thread returns nothing; a panic in it has been reported by its own hook.
            let _ = thread.join();
        }
        let mut compaction = self.shared.compaction.lock();
        compaction.stop(&self.shared);
        self.shared.lock.lock().take();
    }
}

impl Shared {
    /// Checks that `directory` exists, before anything is created in it, and condemns again what was condemned.
    pub(super) fn prepare_reopening(&self, root: &Path) -> Result<(), DiskStoreError> {
        for path in [identity::identity_path(root), self.directory.join("lock")] {
            self.fs.identify(&path).map_err(|error| DiskStoreError::io("find", &path, error))?;
        }
        for segment in self.state.read().segments.values() {
            let Some(durable_len) = segment.condemned else { continue };
            let name = segment.segment.name;
            if self.fs.identify(&segment.segment.path).is_ok() {
                let condemned = name.condemn(&*self.fs, &self.directory, durable_len);
                condemned
                    .map_err(|error| DiskStoreError::io("condemn a segment of", &self.directory, error))?;
            }
        }
        Ok(())
    }

    /// Checks that `recovered` holds all that this store knows to be durable, and continues its numbers.
    pub(super) fn continue_in(&self, recovered: &mut RecoveredStore) -> Result<(), DiskStoreError> {
        let older = |reason: String| Err(DiskStoreError::Older { path: self.directory.clone(), reason });
        let state = self.state.read();
        if recovered.state.epoch < state.epoch {
            return older(format!(
                "its fencing epoch is {}, this server saw {}",
                recovered.state.epoch.0, state.epoch.0
            ));
        }
        for (number, known) in state.segments.iter().filter(|(_, known)| !known.given_up) {
            let found = recovered.state.segments.get(number);
            match found.filter(|found| found.segment.name == known.segment.name) {
                None => return older(format!("segment {number} is missing")),
                Some(found) if found.len < known.len => {
                    return older(format!(
                        "segment {number} has {} bytes, this server wrote {}",
                        found.len, known.len
                    ));
                }
                Some(_) => {}
            }
        }
        drop(state);
        let next_segment = self.next_segment.load(std::sync::atomic::Ordering::Relaxed);
        recovered.next_segment = recovered.next_segment.max(next_segment);
        recovered.writer.next_sequence = recovered.writer.next_sequence.max(self.writer.lock().next_sequence);
        self.check_writable()
    }

    /// Writes a file that reaches the medium, and removes it.
    fn check_writable(&self) -> Result<(), DiskStoreError> {
        let path = self.directory.join("probe").with_extension(TEMPORARY_EXTENSION);
        let write = || {
            match self.fs.unlink(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let file = self.fs.create(&path)?;
            let written = file.write_all_at(&mut [IoSlice::new(&[0; 512])], 0).and_then(|()| file.sync());
            self.fs.unlink(&path)?;
            self.fs.sync_directory(&self.directory)?;
            written
        };
        match write() {
            // A full disk is healthy.
            Err(error) if !is_full(&error) => Err(DiskStoreError::io("write to", &self.directory, error)),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl ChunkStore for ReopenableStore {
    async fn write(
        &self,
        chunk: ChunkId,
        payload: Bytes,
        granule_crcs: Option<Arc<[u32]>>,
    ) -> Result<(), SiteError> {
        self.current().write(chunk, payload, granule_crcs).await
    }

    async fn write_holding(
        &self,
        chunk: ChunkId,
        payload: Bytes,
        granule_crcs: Option<Arc<[u32]>>,
        held: HeldResources,
    ) -> Result<(), SiteError> {
        self.current().write_holding(chunk, payload, granule_crcs, held).await
    }

    fn draft(&self, chunk: ChunkId, len: u32) -> Option<Box<dyn ChunkDraft>> {
        self.current().draft(chunk, len)
    }

    async fn read(&self, range: ChunkRange) -> Result<Bytes, SiteError> {
        self.current().read(range).await
    }

    fn try_read(&self, range: ChunkRange) -> Option<Result<Bytes, SiteError>> {
        self.current.read().try_read(range)
    }

    async fn delete(&self, chunks: &[ChunkId], epoch: FencingEpoch) -> Result<(), SiteError> {
        self.current().delete(chunks, epoch).await
    }

    async fn delete_holding(
        &self,
        chunks: &[ChunkId],
        epoch: FencingEpoch,
        held: HeldResources,
    ) -> Result<(), SiteError> {
        self.current().delete_holding(chunks, epoch, held).await
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        self.current().list(from, limit).await
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        self.current().verify(chunk).await
    }

    async fn verify_holding(&self, chunk: ChunkId, held: HeldResources) -> Result<ChunkInfo, SiteError> {
        self.current().verify_holding(chunk, held).await
    }

    fn status(&self) -> StoreStatus {
        self.current.read().status()
    }
}

//! The chunk store on a directory: append-only segments, and an index in memory that is rebuilt from them.
//!
//! ```text
//! DIR/.striate/identity.json        whose disk this is (module `identity`)
//! DIR/.striate/chunks/lock          held while the store is open
//! DIR/.striate/chunks/*.seg         segments of records (modules `segment` and `record` have the drawings)
//! DIR/.striate/chunks/*.condemned   which part of a segment counts after a failed sync
//! DIR/.striate/chunks/index.snapshot  the index at the last clean stop or checkpoint (module `snapshot`)
//! DIR/.striate/chunks/*.tmp         unfinished, swept at the next start
//! ```
//!
//! A write appends a record to the active segment; the writer (module `writer`) commits everything that waits with one
//! write and one sync. The layout of bytes and checksums in a record is its *form* (module `form`). A read is a lookup
//! in the index and one read of the disk (module `read`). A delete writes a tombstone; compaction (module `compaction`)
//! reclaims the space.
//!
//! The crash argument in short: nothing is ever overwritten. A record is appended, synced, then acknowledged, so a
//! crash can only tear what was never acknowledged. Each record carries checksums, so a torn one is detected and
//! ignored, and a damaged one harms only itself. Files appear by sync, rename, sync of the directory, and disappear
//! only when everything they held is durable elsewhere. The index and its snapshot can be lost.
//!
//! The store does not encrypt, does not compress, and does not bound waiting requests (the site's queue does).

mod compaction;
mod form;
mod index;
mod job;
mod layout;
mod prepare;
mod probe;
mod progress;
mod read;
mod record;
mod recovery;
mod reopening;
mod scan;
mod segment;
mod sizes;
mod snapshot;
mod state;
mod tables;
mod victims;
mod watch;
mod writer;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex, RwLock};
use striate_core::{ChunkId, ChunkRange, FencingEpoch, FormatsInForce};
use striate_runtime::Runtime;
use tokio::sync::oneshot;

use self::compaction::Compaction;
use self::prepare::PagedDraft;
use self::probe::Probe;
use self::progress::Progress;
use self::read::Source;
use self::segment::OpenFiles;
use self::state::State;
use self::tables::Tables;
use self::watch::{Watch, WatchError};
use self::writer::{Change, Reply, Request, Writer};
use crate::api::{ChunkPage, SiteError};
use crate::filesystem::{self, Directory, FileSystem, Lock, Space};
use crate::identity;
use crate::store::{ChunkDraft, ChunkInfo, ChunkStore, HeldResources, StoreStatus};

pub use self::compaction::CompactionStep;
pub use self::reopening::ReopenableStore;

/// Options of a disk store. The defaults suit disks of any size.
#[derive(Clone, Debug)]
pub struct DiskStoreOptions {
    /// Length in bytes at which a segment is sealed; at most 1 GiB. `None`: so that two fit into the reserve, and at
    /// most 256 MiB.
    pub segment_len: Option<u64>,
    /// Bytes of the file system that writes must leave free, so that deletes, compaction and metadata
    /// can continue. `None`: one hundredth of the disk, but at least 64 MiB and at most 8 GiB, and never
    /// more than an eighth of the disk.
    pub reserve_bytes: Option<u64>,
    /// Share of dead bytes, in thousandths, from which a segment is compacted while a tenth of the disk or more is free.
    /// On fuller disks a smaller share is enough.
    pub compact_dead_permille: u32,
    /// Maximum number of bytes that one compaction step reads.
    pub compact_step_bytes: u64,
    /// Pause between two steps of the background compaction; together with the step's size it bounds the rate.
    pub compact_pause: Duration,
    /// Length in bytes from which chunks are written past the page cache, if the file system supports it.
    pub direct_bytes: usize,
    /// Maximum number of open segment files.
    pub open_files: usize,
    /// The formats in force, which may be written. The caller that opens the store keeps them up to date.
    pub formats: FormatsInForce,
    /// Length in bytes beyond which chunks are paged: a small range then takes one read, at the price of a copy.
    pub paged_from: usize,
    /// Memory in bytes for checksum tables that were read before.
    pub table_bytes: usize,
    /// Bytes appended since the last snapshot of the index after which a new one is written (and at least eight times
    /// the snapshot's own size).
    pub snapshot_after_bytes: u64,
    /// Time after which a disk counts as hung if one group of writes takes as long. A group has some 16 MiB, which slow
    /// disks write in a few seconds, and in more under load and behind the cache of a virtual disk.
    pub hung_after: Duration,
}

impl Default for DiskStoreOptions {
    fn default() -> Self {
        Self {
            segment_len: None,
            reserve_bytes: None,
            compact_dead_permille: 350,
            compact_step_bytes: 4 * 1024 * 1024,
            compact_pause: Duration::from_millis(50),
            direct_bytes: 256 * 1024,
            open_files: 512,
            formats: FormatsInForce::default(),
            paged_from: form::PAGED_FROM,
            table_bytes: 4 * 1024 * 1024,
            snapshot_after_bytes: 4 * 1024 * 1024 * 1024,
            hung_after: Duration::from_secs(30),
        }
    }
}

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DiskStoreError {
    /// A call to the file system failed.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// Action that failed.
        action: &'static str,
        /// Path that the action was applied to.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Another server uses the directory.
    #[error(
        "{} is in use by another server; stop that one, or give this one another directory",
        .0.display()
    )]
    Locked(PathBuf),
    /// The directory is being opened already, or its disk hangs.
    #[error("{} is being opened already, or its disk hangs", .0.display())]
    Busy(PathBuf),
    /// The directory lacks what this process made durable in it.
    #[error(
        "{} is an older copy of this disk: {reason}; it is not used while this server runs. Bring the disk itself back, or \
         replace it",
        .path.display()
    )]
    Older {
        /// The directory.
        path: PathBuf,
        /// What it lacks.
        reason: String,
    },
    /// The directory was written by a newer version.
    #[error(
        "{} has format version {found}, this program knows up to {}; start the version that wrote it, or a newer one",
        .path.display(), record::FORMAT_VERSION
    )]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Format version of the file.
        found: u8,
    },
}

impl DiskStoreError {
    fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), source }
    }
}

/// A chunk store in a directory.
#[derive(Debug)]
pub struct DiskStore {
    shared: Arc<Shared>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// State shared by the writer's thread, the background compaction and the readers.
#[derive(Debug)]
struct Shared {
    runtime: Runtime,
    fs: Arc<dyn FileSystem>,
    directory: PathBuf,
    /// The directory, open: making its names durable must not fail for want of a descriptor.
    names: Box<dyn Directory>,
    options: DiskStoreOptions,
    reserve_bytes: u64,
    segment_len: u64,
    state: RwLock<State>,
    open_files: OpenFiles,
    tables: Tables,
    next_segment: AtomicU32,
    queue: Mutex<Queue>,
    queued: Condvar,
    /// Locked while appending; taken before `state`.
    writer: Mutex<Writer>,
    /// Locked during a compaction step and a checkpoint; taken before `writer`.
    compaction: Mutex<Compaction>,
    /// Why the store takes no more writes until it is opened again, if so.
    suspect: Mutex<Option<String>>,
    progress: Progress,
    probe: Probe,
    watch: Watch,
    lock: Mutex<Option<Box<dyn Lock>>>,
    capacity_bytes: AtomicU64,
    available_bytes: AtomicU64,
    medium: u64,
}

#[derive(Debug, Default)]
struct Queue {
    requests: VecDeque<Request>,
    closed: bool,
}

/// A store's directory, which no other server uses while its lock is held.
struct LockedDirectory {
    directory: PathBuf,
    lock_path: PathBuf,
    lock: Box<dyn Lock>,
    space: Space,
}

impl LockedDirectory {
    /// Locks the directory below `root`, and creates it if it does not exist.
    fn new(fs: &dyn FileSystem, root: &Path) -> Result<Self, DiskStoreError> {
        let directory = identity::striate_directory(root).join("chunks");
        fs.create_directories(&directory).map_err(|error| DiskStoreError::io("create", &directory, error))?;
        let lock_path = directory.join("lock");
        let lock = fs.lock(&lock_path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => DiskStoreError::Locked(root.to_owned()),
            _ => DiskStoreError::io("lock", &lock_path, error),
        })?;
        let space = fs.space(&directory);
        let space = space.map_err(|error| DiskStoreError::io("ask the free space of", &directory, error))?;
        Ok(Self { directory, lock_path, lock, space })
    }
}

impl DiskStore {
    /// Opens the store in `root/.striate/chunks`, and creates it if it does not exist.
    ///
    /// On a real runtime it must be called inside tokio (`run_blocking` counts), because it starts the background
    /// compaction; it blocks while it reads the index.
    pub fn open(
        runtime: &Runtime,
        fs: Arc<dyn FileSystem>,
        root: &Path,
        options: DiskStoreOptions,
    ) -> Result<Self, DiskStoreError> {
        Self::open_after(runtime, fs, root, options, None)
    }

    /// Opens the store of which this process had `earlier` open; see module `reopening`.
    fn open_again(
        runtime: &Runtime,
        fs: Arc<dyn FileSystem>,
        root: &Path,
        options: DiskStoreOptions,
        earlier: &Shared,
    ) -> Result<Self, DiskStoreError> {
        earlier.prepare_reopening(root)?;
        Self::open_after(runtime, fs, root, options, Some(earlier))
    }

    fn open_after(
        runtime: &Runtime,
        fs: Arc<dyn FileSystem>,
        root: &Path,
        options: DiskStoreOptions,
        earlier: Option<&Shared>,
    ) -> Result<Self, DiskStoreError> {
        let LockedDirectory { directory, lock_path, lock, space } = LockedDirectory::new(&*fs, root)?;
        let reserve_bytes = options.reserve_bytes.unwrap_or_else(|| sizes::default_reserve(space.capacity));
        let segment_len = options.segment_len.unwrap_or_else(|| sizes::default_segment_len(reserve_bytes));
        let segment_len = segment_len.min(1 << 30);
        let open_files = OpenFiles::new(options.open_files.max(4));
        let mut recovered = recovery::recover(&*fs, &directory, &open_files, segment_len)?;
        if let Some(earlier) = earlier {
            earlier.continue_in(&mut recovered)?;
        }
        let watch = Watch::new(&*fs, &[identity::identity_path(root), lock_path])
            .map_err(|error| DiskStoreError::io("identify", &directory, error))?;
        let names =
            fs.open_directory(&directory).map_err(|error| DiskStoreError::io("open", &directory, error))?;
        let identity = fs.open(&identity::identity_path(root)).ok();
        let bytes_at_snapshot = recovered.state.disk_bytes().saturating_sub(recovered.scanned_bytes);
        let shared = Arc::new(Shared {
            runtime: runtime.clone(),
            reserve_bytes,
            segment_len,
            tables: Tables::new(options.table_bytes),
            options,
            directory,
            names,
            open_files,
            next_segment: AtomicU32::new(recovered.next_segment),
            queue: Mutex::default(),
            queued: Condvar::new(),
            state: RwLock::new(recovered.state),
            writer: Mutex::new(recovered.writer),
            compaction: Mutex::new(Compaction::new(bytes_at_snapshot)),
            suspect: Mutex::new(None),
            progress: Progress::default(),
            probe: Probe::new(identity),
            watch,
            lock: Mutex::new(Some(lock)),
            capacity_bytes: AtomicU64::new(space.capacity),
            available_bytes: AtomicU64::new(space.available),
            medium: space.medium,
            fs,
        });
        if let Err(error) = shared.bury_uncovered() {
            // Compaction retries this before it does anything else.
            tracing::warn!(directory = %shared.directory.display(), %error, "dead copies are not buried yet");
        }
        let thread = (!runtime.is_deterministic()).then(|| Self::start(runtime, &shared));
        Ok(Self { shared, thread: Mutex::new(thread) })
    }

    fn start(runtime: &Runtime, shared: &Arc<Shared>) -> std::thread::JoinHandle<()> {
        compaction::start_in_background(runtime, Arc::downgrade(shared));
        let probed = shared.clone();
        // Nobody waits for this thread: it may hang for as long as the disk does.
        drop(runtime.spawn_thread("striate-probe", move || probed.probe_until_closed()));
        let shared = shared.clone();
        runtime.spawn_thread("striate-writer", move || {
            while let Some(requests) = shared.wait_for_requests() {
                // A compaction that holds the writer may hang while it appends, so the time starts before the lock.
                shared.begin_group();
                shared.writer.lock().serve(&shared, requests);
            }
        })
    }

    /// Runs one bounded step of compaction; see [`CompactionStep`]. Blocks.
    pub fn compact_step(&self) -> CompactionStep {
        self.shared.compact_step()
    }

    /// Writes a snapshot of the index, so that the next start need not scan. Blocks.
    pub fn checkpoint(&self) -> io::Result<()> {
        let mut compaction = self.shared.compaction.lock();
        // A snapshot does not cover copies that are still to come.
        compaction.stop(&self.shared);
        self.shared.checkpoint(&mut compaction)
    }

    /// Looks at the disk now. Returns when [`ChunkStore::status`] says what it is like from now on; with a silent disk that
    /// may be never.
    pub async fn look(&self) {
        match self.shared.runtime.is_deterministic() {
            true => self.shared.probe_once(),
            false => self.shared.probe.look().await,
        }
    }

    /// Serves what waits, refuses later changes, writes a snapshot and releases the directory.
    /// Reads still work afterwards.
    pub async fn close(&self) -> io::Result<()> {
        let thread = self.stop();
        let shared = self.shared.clone();
        self.shared
            .runtime
            .run_blocking(move || {
                if let Some(thread) = thread {
                    // The thread returns nothing; a panic in it has been reported by its own hook.
                    let _ = thread.join();
                }
                let mut compaction = shared.compaction.lock();
                compaction.stop(&shared);
                let is_open = shared.lock.lock().is_some();
                let result = if is_open { shared.checkpoint(&mut compaction) } else { Ok(()) };
                shared.lock.lock().take();
                result
            })
            .await
    }

    fn stop(&self) -> Option<std::thread::JoinHandle<()>> {
        self.shared.queue.lock().closed = true;
        self.shared.probe.close();
        self.shared.queued.notify_all();
        self.thread.lock().take()
    }
}

impl Drop for DiskStore {
    /// Without [`DiskStore::close`] there is no snapshot, and the next start scans; nothing else is lost.
    fn drop(&mut self) {
        if let Some(thread) = self.stop() {
            let _ = thread.join();
        }
        self.shared.compaction.lock().stop(&self.shared);
        self.shared.lock.lock().take();
    }
}

impl Shared {
    /// Blocks until requests wait; `None` when the store is closed and none do.
    fn wait_for_requests(&self) -> Option<VecDeque<Request>> {
        let mut queue = self.queue.lock();
        loop {
            if !queue.requests.is_empty() {
                return Some(std::mem::take(&mut queue.requests));
            }
            if queue.closed {
                return None;
            }
            self.queued.wait(&mut queue);
        }
    }

    /// Hands a change to the writer. It keeps `held` until the writer is done, even if the caller stops waiting.
    async fn change(&self, change: Change, held: HeldResources) -> Result<(), SiteError> {
        let (sender, answer) = oneshot::channel();
        let reply = Reply { sender, held };
        if let Some(reason) = self.hang() {
            return Err(SiteError::Suspect(reason));
        }
        {
            let mut queue = self.queue.lock();
            if queue.closed {
                let closed = || SiteError::Unavailable("the store is closed".into());
                return Err(self.suspect_error().unwrap_or_else(closed));
            }
            queue.requests.push_back(Request { change, reply });
        }
        if self.runtime.is_deterministic() {
            let requests = std::mem::take(&mut self.queue.lock().requests);
            self.writer.lock().serve(self, requests);
        } else {
            self.queued.notify_one();
        }
        answer.await.unwrap_or_else(|_| Err(SiteError::Unavailable("the store was closed".into())))
    }

    /// Returns the bytes that may be written before the reserve, as the file system reports them.
    fn free_bytes(&self) -> u64 {
        match self.fs.space(&self.directory) {
            Ok(space) => {
                self.capacity_bytes.store(space.capacity, Ordering::Relaxed);
                self.available_bytes.store(space.available, Ordering::Relaxed);
                space.available.saturating_sub(self.reserve_bytes)
            }
            // The write that follows will report what is wrong.
            Err(_) => u64::MAX,
        }
    }

    fn suspect_error(&self) -> Option<SiteError> {
        self.suspect.lock().clone().map(SiteError::Suspect)
    }

    /// Makes the store take no more writes. Only what the disk did leads here: a failed write or sync, a name that is
    /// gone. It ends with a full recovery, when the store is opened again.
    fn become_suspect(&self, reason: String) {
        tracing::error!(directory = %self.directory.display(), reason, "the disk is suspect; it takes no more writes");
        self.suspect.lock().get_or_insert(reason);
    }

    /// Writes the snapshot. Changes wait only while it is being encoded.
    ///
    /// A suspect store writes none: its segments may hold records of failed groups, which only a scan can judge. Nor is
    /// one written into a directory that has been replaced by another.
    fn checkpoint(&self, compaction: &mut Compaction) -> io::Result<()> {
        match self.check_watched(None) {
            Ok(()) => {}
            Err(WatchError::Lost(reason)) => self.become_suspect(reason),
            Err(WatchError::Unknown(error)) => return Err(error),
        }
        if self.suspect.lock().is_some() {
            return Ok(());
        }
        let content = {
            let mut writer = self.writer.lock();
            // A start from the snapshot does not look for uncovered copies: it trusts what the snapshot covers.
            self.bury(&mut writer)?;
            self.snapshot(&writer)
        };
        filesystem::write_atomically(&*self.fs, &snapshot::path(&self.directory), &content)?;
        compaction.bytes_at_snapshot = self.state.read().disk_bytes();
        Ok(())
    }
}

#[async_trait]
impl ChunkStore for DiskStore {
    async fn write(
        &self,
        chunk: ChunkId,
        payload: Bytes,
        granule_crcs: Option<Arc<[u32]>>,
    ) -> Result<(), SiteError> {
        self.write_holding(chunk, payload, granule_crcs, HeldResources::default()).await
    }

    async fn write_holding(
        &self,
        chunk: ChunkId,
        payload: Bytes,
        granule_crcs: Option<Arc<[u32]>>,
        held: HeldResources,
    ) -> Result<(), SiteError> {
        let (record, stored) = self.shared.prepare(chunk, payload, granule_crcs).await?;
        self.shared.change(Change::Write { record, stored }, held).await
    }

    fn draft(&self, chunk: ChunkId, len: u32) -> Option<Box<dyn ChunkDraft>> {
        PagedDraft::begin(&self.shared, chunk, len).map(|draft| Box::new(draft) as Box<dyn ChunkDraft>)
    }

    async fn read(&self, range: ChunkRange) -> Result<Bytes, SiteError> {
        let shared = self.shared.clone();
        let read = move || shared.read_range(range, Source::Any);
        match self.shared.runtime.run_blocking(read).await {
            Some(result) => result,
            None => Err(SiteError::Unavailable("the medium does not answer".into())),
        }
    }

    fn try_read(&self, range: ChunkRange) -> Option<Result<Bytes, SiteError>> {
        self.shared.read_range(range, Source::Cache)
    }

    async fn delete(&self, chunks: &[ChunkId], epoch: FencingEpoch) -> Result<(), SiteError> {
        self.delete_holding(chunks, epoch, HeldResources::default()).await
    }

    async fn delete_holding(
        &self,
        chunks: &[ChunkId],
        epoch: FencingEpoch,
        held: HeldResources,
    ) -> Result<(), SiteError> {
        self.shared.change(Change::Delete { chunks: chunks.to_vec(), epoch }, held).await
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        let first = from.unwrap_or(State::FIRST_CHUNK);
        let state = self.shared.state.read();
        let mut remaining = state.index.range(first);
        let chunks = remaining.by_ref().take(limit.max(1)).map(|(id, location)| location.info(id)).collect();
        Ok(ChunkPage { chunks, next: remaining.next().map(|(id, _)| id) })
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        self.verify_holding(chunk, HeldResources::default()).await
    }

    async fn verify_holding(&self, chunk: ChunkId, held: HeldResources) -> Result<ChunkInfo, SiteError> {
        let shared = self.shared.clone();
        let verify = move || {
            let verified = shared.verify_chunk(chunk);
            // Not earlier: when a disk hangs, this thread still occupies memory after its caller gave up.
            drop(held);
            verified
        };
        self.shared.runtime.run_blocking(verify).await
    }

    fn status(&self) -> StoreStatus {
        let shared = &self.shared;
        let state = shared.state.read();
        let available = shared.available_bytes.load(Ordering::Relaxed);
        StoreStatus {
            chunks: state.index.len() as u64,
            payload_bytes: state.payload_bytes,
            disk_bytes: state.disk_bytes(),
            capacity_bytes: shared.capacity_bytes.load(Ordering::Relaxed),
            free_bytes: available.saturating_sub(shared.reserve_bytes),
            medium: shared.medium,
            suspect: shared.suspect.lock().clone().or_else(|| shared.hang()),
            silent: shared.probe.silent_for(shared.runtime.now()),
            vanished: shared.probe.vanished(),
        }
    }
}

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod form_tests;
#[cfg(test)]
mod reopening_tests;
#[cfg(test)]
mod tests;

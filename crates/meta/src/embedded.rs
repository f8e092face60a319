//! The embedded engine: redb, mirrored over directories of the cluster (design.md §7, §10.9, §10.10).
//!
//! An [`EmbeddedStore`] keeps 1 + r complete copies of the metadata, each in a directory of its own, and commits groups
//! of transactions on all of them before it acknowledges. Losing any r directories loses nothing, even while the server
//! runs: failed mirrors are ejected, the ejection is recorded in every reachable directory, and
//! [`EmbeddedStore::restore_mirrors`] copies the metadata to other directories.
//!
//! | module | content |
//! |--|--|
//! | `volume` | the files of a real directory |
//! | [`simulated`] | the same with power cuts, for tests and the lab |
//! | `epoch` | the in-sync set as every directory records it |
//! | `mirror`, `snapshot` | one redb database: applying groups, reading states |
//! | `group`, `committer`, `worker` | drafting groups, committing them on all mirrors |
//! | `membership`, `join`, `level`, `open` | ejecting, adding, levelling, starting |
//!
//! What it does not do: consensus. One process owns the directories; gateways that share metadata use a separate engine
//! (docs/decisions/embedded-metadata.md).

mod committer;
mod epoch;
mod group;
mod join;
mod level;
mod membership;
mod mirror;
mod open;
mod shared;
pub mod simulated;
mod snapshot;
mod volume;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use striate_core::ClusterId;
use striate_runtime::Runtime;
use tokio::sync::{broadcast, mpsc, oneshot};

use committer::{Committer, Request};
use join::Copy;
use shared::Shared;
use snapshot::{Failure, Snapshot};

pub use epoch::{EPOCH_FILE, EpochError, EpochRecord, LAST_EPOCH_FILE};
pub use mirror::MIRROR_FILE;
pub use shared::{MirrorEvent, MirrorStatus};
pub use volume::{Directory, DiskId, MetaDirectory, Storage, Volume};

use crate::archive::{PageFuture, Pages};
use crate::store::{Commit, Lease, LeaseId, MetaError, MetaStore, Row, ScanRange, Transaction, Watch};

/// Timeout for a disk to return the length of a mirror's file.
const MEASURE_TIMEOUT: Duration = Duration::from_millis(500);

/// The part of the cluster's configuration that the metadata depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The cluster's identity.
    pub cluster: ClusterId,
    /// n: number of directories of the cluster, present or not.
    pub total_directories: usize,
    /// r: number of directories that may be lost, which is the largest parity count of any profile in use.
    pub tolerance: usize,
}

impl Layout {
    /// Returns the number of mirrors to keep: one more than may be lost.
    pub fn mirrors(&self) -> usize {
        (self.tolerance + 1).min(self.total_directories)
    }

    /// Returns the number of directories that must be readable to start: any set of this size holds the newest epoch.
    pub fn directories_to_start(&self) -> usize {
        self.total_directories.saturating_sub(self.tolerance).max(1)
    }

    /// Returns the number of directories that must hold an epoch before it is in force.
    fn epoch_copies(&self) -> usize {
        (self.tolerance + 1).min(self.directories_to_start())
    }
}

/// Options of the embedded engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Memory for cached pages in bytes, over all mirrors.
    pub cache_bytes: usize,
    /// Timeout after which a mirror that does not answer is ejected, if another one has answered.
    pub deadline: Duration,
    /// Minimum free space of a mirror's directory in bytes; below it, only deletes are accepted.
    pub min_free_bytes: u64,
    /// Bytes reserved in every mirror's directory, and freed for deletes when the disk is full.
    pub reserve_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
            deadline: Duration::from_secs(10),
            min_free_bytes: 16 << 20,
            reserve_bytes: 4 << 20,
        }
    }
}

impl Options {
    /// The first mirror serves the reads and gets half of the cache. The others only need the pages that a commit
    /// changes, and share the rest.
    fn cache_bytes_of_mirror(&self, position: usize) -> usize {
        match position {
            0 => self.cache_bytes / 2,
            _ => (self.cache_bytes / 8).max(1 << 20),
        }
    }
}

/// Metadata in directories of this machine. Cheap to clone; dropping the last clone closes the store.
#[derive(Clone, Debug)]
pub struct EmbeddedStore {
    runtime: Runtime,
    shared: Arc<Shared>,
    requests: mpsc::Sender<Request>,
    /// Mirrors that were old copies when the store was opened.
    stale: Arc<[String]>,
}

/// One committed state, which does not change however long it is read; used for exports. While a view lives, the
/// database file cannot reuse the space of rows that were removed since.
#[derive(Clone, Debug)]
pub struct View {
    runtime: Runtime,
    snapshot: Arc<Snapshot>,
}

impl Pages for View {
    fn page(&self, range: ScanRange, limit: usize) -> PageFuture<'_> {
        let snapshot = self.snapshot.clone();
        Box::pin(async move {
            let page = self.runtime.run_blocking(move || snapshot.scan(&range, limit, false)).await;
            page.map_err(|failure| MetaError::Unavailable(failure.to_string()))
        })
    }
}

/// Scans of more rows than this run outside the event loop.
const INLINE_SCAN_ROWS: usize = 4096;

impl EmbeddedStore {
    /// Returns the paths of mirrors that were older at the start than the record of the set in force says, so that they are
    /// copies from an earlier time. If all mirrors are, what was stored since is lost.
    pub fn stale_mirrors(&self) -> &[String] {
        &self.stale
    }

    /// Returns the mirrors, and those ejected in this run that have not been replaced.
    pub async fn mirrors(&self) -> Result<Vec<MirrorStatus>, MetaError> {
        let looked_up = self.between_groups(|committer| {
            committer.refresh_status();
            let status = committer.shared.status.lock().clone();
            let volume = |mirror: MirrorStatus| {
                let known = committer.known_directory(mirror.disk_id).filter(|_| mirror.in_sync);
                let volume = known.map(|known| known.directory.volume.clone());
                (mirror, volume)
            };
            status.into_iter().map(volume).collect::<Vec<_>>()
        });
        // Outside of the committer, which must not wait for a disk because somebody asks.
        let measured = looked_up.await?.into_iter().map(|(mirror, volume)| self.measured(mirror, volume));
        Ok(futures::future::join_all(measured).await)
    }

    /// Returns the mirrors as they were last known, without the lengths of their files. Waits for nothing.
    pub fn last_known_mirrors(&self) -> Vec<MirrorStatus> {
        let known = self.shared.status.lock().clone();
        known.into_iter().map(|mirror| MirrorStatus { file_bytes: None, ..mirror }).collect()
    }

    /// Adds the length of its file to the status of a mirror.
    async fn measured(&self, mirror: MirrorStatus, volume: Option<Arc<dyn Volume>>) -> MirrorStatus {
        let Some(volume) = volume else { return mirror };
        let measure = self.runtime.run_blocking(move || volume.file_len(MIRROR_FILE).unwrap_or(0));
        let file_bytes = self.runtime.timeout(MEASURE_TIMEOUT, measure).await.ok();
        MirrorStatus { file_bytes, ..mirror }
    }

    /// Subscribes to the ejection and addition of mirrors from now on.
    pub fn events(&self) -> broadcast::Receiver<MirrorEvent> {
        self.shared.events.subscribe()
    }

    /// Returns the current state, to be read at leisure.
    ///
    /// # Errors
    /// [`MetaError::Unavailable`] if the store does not serve.
    pub fn view(&self) -> Result<View, MetaError> {
        Ok(View { runtime: self.runtime.clone(), snapshot: self.shared.visible()? })
    }

    /// Returns the number of rows.
    pub async fn row_count(&self) -> Result<u64, MetaError> {
        self.read(Snapshot::row_count).await
    }

    /// Replaces the list of the cluster's directories that are present, after one was added or a blank disk replaced a
    /// lost one. A mirror in a directory that is no longer listed is ejected.
    ///
    /// # Errors
    /// [`MetaError::Unavailable`] if too few directories recorded the current epoch, or if no mirror would remain.
    pub async fn set_directories(
        &self,
        layout: Layout,
        present: Vec<MetaDirectory>,
    ) -> Result<(), MetaError> {
        let changed =
            self.between_groups(move |committer| committer.set_directories(layout, present)).await?;
        changed.map_err(MetaError::Unavailable)
    }

    /// Adds a mirror in a directory of the cluster, while serving: copies a consistent state, catches up, and records
    /// the larger in-sync set.
    ///
    /// # Errors
    /// [`MetaError::NoSpace`] or [`MetaError::Unavailable`], naming the directory; the other mirrors are not affected.
    pub async fn add_mirror(&self, directory: MetaDirectory) -> Result<(), MetaError> {
        let name = directory.volume.name();
        let named = |failure: Failure| match failure {
            Failure::NoSpace(reason) => MetaError::NoSpace(format!("{name}: {reason}")),
            failure => MetaError::Unavailable(format!("{name} cannot take a metadata mirror: {failure}")),
        };
        let copy = self.between_groups(|committer| committer.begin_join(directory)).await?.map_err(named)?;
        let copied: (Copy, _) = self
            .runtime
            .run_blocking(move || {
                let db = copy.run();
                (copy, db)
            })
            .await;
        let joined = self.between_groups(|committer| committer.finish_join(copied.0, copied.1)).await?;
        joined.map_err(named)
    }

    /// Adds mirrors in healthy directories until there are as many as the layout requires, or no directory is left.
    /// Returns the directories that hold new mirrors. Call it after a start and after every [`MirrorEvent::Ejected`].
    pub async fn restore_mirrors(&self) -> Result<Vec<DiskId>, MetaError> {
        let mut added = Vec::new();
        let missing = |committer: &mut Committer| match committer.mirrors.len() < committer.layout.mirrors() {
            true => committer.spare_directories(),
            false => Vec::new(),
        };
        for directory in self.between_groups(missing).await? {
            if self.between_groups(missing).await?.is_empty() {
                break;
            }
            let disk_id = directory.disk_id;
            match self.add_mirror(directory).await {
                Ok(()) => added.push(disk_id),
                Err(error) => tracing::warn!(%error, "a directory cannot take a metadata mirror"),
            }
        }
        Ok(added)
    }

    /// Writes an empty group, so that mirrors that vanished or hang are ejected even when there are no writes.
    ///
    /// # Errors
    /// [`MetaError::Unavailable`] if none is left.
    pub async fn check_mirrors(&self) -> Result<(), MetaError> {
        self.between_groups(Committer::check).await?.map_err(MetaError::Unavailable)
    }

    /// Reads every row of every mirror and ejects mirrors that are damaged or lack rows that another has. Returns the
    /// number of rows read from each.
    ///
    /// # Errors
    /// [`MetaError::Corrupt`] if the only mirror is damaged.
    pub async fn scrub(&self) -> Result<u64, MetaError> {
        let snapshots = self.between_groups(|committer| committer.snapshots()).await?;
        let sums: Vec<_> = self
            .runtime
            .run_blocking(move || {
                snapshots.into_iter().map(|(disk_id, state)| (disk_id, state.sum())).collect()
            })
            .await;
        let whole = sums.iter().filter_map(|(_, sum)| sum.as_ref().ok().copied()).max();
        for (disk_id, sum) in sums {
            let failure = match sum {
                Ok(sum) if Some(sum) == whole => continue,
                Ok((rows, _)) => Failure::Broken(format!("it shows {rows} rows, another mirror has others")),
                Err(failure) => failure,
            };
            self.between_groups(move |committer| committer.damaged(disk_id, failure)).await??;
        }
        Ok(whole.map_or(0, |(rows, _)| rows))
    }

    /// Closes the store cleanly, so that the next start need not repair the databases. Every later call fails with
    /// [`MetaError::Unavailable`].
    pub async fn close(&self) {
        // An error means that it is closed already.
        let _ = self.between_groups(|committer| committer.closed = true).await;
        self.requests.closed().await;
    }

    /// Runs `work` on the committer between two groups.
    async fn between_groups<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Committer) -> T + Send + 'static,
    ) -> Result<T, MetaError> {
        let (answer, answered) = oneshot::channel();
        let admin = Box::new(move |committer: &mut Committer| {
            // The caller may have gone.
            let _ = answer.send(work(committer));
        });
        let closed = |_| self.shared.visible().err().unwrap_or_else(closed);
        self.requests.send(Request::Admin(admin)).await.map_err(|_| closed(()))?;
        answered.await.map_err(|_| closed(()))
    }

    /// Reads the visible state. A mirror that cannot be read is ejected and the next one read.
    async fn read<T>(&self, read: impl Fn(&Snapshot) -> Result<T, Failure>) -> Result<T, MetaError> {
        loop {
            let snapshot = self.shared.visible()?;
            match read(&snapshot) {
                Ok(value) => return Ok(value),
                Err(failure) => self.report(snapshot, failure).await?,
            }
        }
    }

    /// Ejects the mirror of `snapshot`.
    ///
    /// # Errors
    /// If it is the only one.
    async fn report(&self, snapshot: Arc<Snapshot>, failure: Failure) -> Result<(), MetaError> {
        self.between_groups(move |committer| committer.unreadable(&snapshot, failure)).await?
    }

    async fn scan_rows(&self, range: ScanRange, limit: usize, back: bool) -> Result<Vec<Row>, MetaError> {
        if limit <= INLINE_SCAN_ROWS {
            return self.read(|snapshot| snapshot.scan(&range, limit, back)).await;
        }
        loop {
            let (snapshot, range) = (self.shared.visible()?, range.clone());
            let scanned = snapshot.clone();
            match self.runtime.run_blocking(move || scanned.scan(&range, limit, back)).await {
                Ok(rows) => return Ok(rows),
                Err(failure) => self.report(snapshot, failure).await?,
            }
        }
    }
}

fn closed() -> MetaError {
    MetaError::Unavailable("the metadata store was closed".to_owned())
}

#[async_trait]
impl MetaStore for EmbeddedStore {
    async fn get(&self, key: &[u8]) -> Result<Option<Row>, MetaError> {
        self.read(|snapshot| snapshot.get(key)).await
    }

    async fn get_many(&self, keys: &[Bytes]) -> Result<Vec<Option<Row>>, MetaError> {
        self.read(|snapshot| keys.iter().map(|key| snapshot.get(key)).collect()).await
    }

    async fn scan(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        self.scan_rows(range, limit, false).await
    }

    async fn scan_back(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        self.scan_rows(range, limit, true).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Commit, MetaError> {
        transaction.check_limits()?;
        let (reply, replied) = oneshot::channel();
        let request = Request::Commit(transaction, reply);
        // A request that was never taken was never tried. One that was taken and not answered may have been committed.
        let closed = |_| self.shared.visible().err().unwrap_or_else(closed);
        self.requests.send(request).await.map_err(|_| closed(()))?;
        let unknown = |_| MetaError::UnknownOutcome("the metadata store ended while it committed".to_owned());
        replied.await.map_err(unknown)?
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<Lease, MetaError> {
        self.shared.visible()?;
        Ok(self.shared.leases.grant(ttl))
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        self.shared.visible()?;
        Ok(self.shared.leases.keep_alive(lease))
    }

    async fn is_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        self.shared.visible()?;
        Ok(self.shared.leases.is_alive(lease))
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.shared.visible()?;
        self.shared.leases.revoke(lease);
        Ok(())
    }

    async fn watch(&self, prefix: &[u8]) -> Result<Watch, MetaError> {
        // Registers between two groups, so that the first event is that of the next commit.
        let prefix = prefix.to_vec();
        self.between_groups(move |committer| committer.shared.watchers.watch(&prefix)).await
    }
}

//! The embedded engine: redb, mirrored over directories of the cluster (design.md §7, §10.9, §10.10).
//!
//! A [`EmbeddedStore`] keeps 1 + r complete copies of the metadata, one in each of as many directories, and
//! commits groups of transactions on all of them before it acknowledges. Losing any r directories, also
//! under the running server, loses nothing: the failed mirrors are ejected, which is recorded in every
//! directory that can be reached, and [`EmbeddedStore::restore_mirrors`] copies the metadata to other ones.
//!
//! | module | what |
//! |--|--|
//! | `volume` | a directory's files, real ones |
//! | [`simulated`] | the same with power cuts, for tests and the lab |
//! | `epoch` | the in-sync set as every directory records it |
//! | `mirror`, `snapshot` | one redb database: groups in, states out |
//! | `group`, `committer`, `worker` | drafting groups, committing them on all mirrors |
//! | `membership`, `join`, `level`, `open` | ejecting, adding, levelling, starting |
//!
//! What it does not do: consensus. One process owns the directories; several gateways share metadata
//! through an engine of their own (docs/decisions/embedded-metadata.md).

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

pub use epoch::{EPOCH_FILE, EpochRecord};
pub use mirror::MIRROR_FILE;
pub use shared::{MirrorEvent, MirrorStatus};
pub use volume::{Directory, DiskId, MetaDirectory, Storage, Volume};

use crate::archive::{PageFuture, Pages};
use crate::store::{Commit, Lease, LeaseId, MetaError, MetaStore, Row, ScanRange, Transaction, Watch};

/// The cluster as far as metadata must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The cluster's identity.
    pub cluster: ClusterId,
    /// n: the cluster's directories, present or not.
    pub total_directories: usize,
    /// r: how many directories may be lost; the largest parity count of any profile in use.
    pub tolerance: usize,
}

impl Layout {
    /// How many mirrors there should be: one more than may be lost.
    pub fn mirrors(&self) -> usize {
        (self.tolerance + 1).min(self.total_directories)
    }

    /// How many directories must be readable to start: the newest epoch is in one of any so many.
    pub fn directories_to_start(&self) -> usize {
        self.total_directories.saturating_sub(self.tolerance).max(1)
    }

    /// How many directories must hold an epoch before it is in force.
    fn epoch_copies(&self) -> usize {
        (self.tolerance + 1).min(self.directories_to_start())
    }
}

/// Settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Memory for cached pages, over all mirrors.
    pub cache_bytes: usize,
    /// A mirror that does not answer for so long is ejected, if another one has.
    pub deadline: Duration,
    /// With less free space than this in a mirror's directory only deletes are accepted.
    pub min_free_bytes: u64,
    /// Set aside in every mirror's directory, and given up for deletes on a full disk.
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
    /// Half of the cache is for the first mirror, which serves the reads; the rest is shared by the others,
    /// which only need the pages that a commit changes.
    fn cache_bytes_of_mirror(&self, position: usize) -> usize {
        match position {
            0 => self.cache_bytes / 2,
            _ => (self.cache_bytes / 8).max(1 << 20),
        }
    }
}

/// Metadata in directories of this machine. Cheap to clone; the last clone's end closes the store.
#[derive(Clone, Debug)]
pub struct EmbeddedStore {
    runtime: Runtime,
    shared: Arc<Shared>,
    requests: mpsc::Sender<Request>,
}

/// One committed state, however long it is read: for exports. While a view lives the database's file cannot
/// use the space of rows that were removed since.
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

/// Scans of more rows than this leave the event loop.
const INLINE_SCAN_ROWS: usize = 4096;

impl EmbeddedStore {
    /// The mirrors, and those that were ejected in this run as long as nobody has taken their place.
    pub async fn mirrors(&self) -> Result<Vec<MirrorStatus>, MetaError> {
        self.between_groups(|committer| {
            committer.refresh_status();
            let mut status = committer.shared.status.lock().clone();
            for mirror in status.iter_mut().filter(|mirror| mirror.in_sync) {
                let volume = committer.known(mirror.disk_id).map(|known| known.directory.volume.clone());
                mirror.file_bytes = volume.and_then(|volume| volume.file_len(MIRROR_FILE).ok()).unwrap_or(0);
            }
            status
        })
        .await
    }

    /// Tells of mirrors that are ejected and added from now on.
    pub fn events(&self) -> broadcast::Receiver<MirrorEvent> {
        self.shared.events.subscribe()
    }

    /// The state as it is now, to be read at leisure.
    ///
    /// # Errors
    /// [`MetaError::Unavailable`] when the store does not serve.
    pub fn view(&self) -> Result<View, MetaError> {
        Ok(View { runtime: self.runtime.clone(), snapshot: self.shared.visible()? })
    }

    /// How many rows there are.
    pub async fn row_count(&self) -> Result<u64, MetaError> {
        self.read(Snapshot::row_count).await
    }

    /// Replaces the list of the cluster's directories that are present: one was added, or a blank disk took
    /// the place of a lost one. A mirror in a directory that is not listed any more is ejected.
    ///
    /// # Errors
    /// [`MetaError::Unavailable`] when too few directories took the present epoch, or no mirror would remain.
    pub async fn set_directories(
        &self,
        layout: Layout,
        present: Vec<MetaDirectory>,
    ) -> Result<(), MetaError> {
        let changed =
            self.between_groups(move |committer| committer.set_directories(layout, present)).await?;
        changed.map_err(MetaError::Unavailable)
    }

    /// Adds a mirror in a directory of the cluster, while serving: copies a consistent state, catches up,
    /// and records the larger in-sync set.
    ///
    /// # Errors
    /// [`MetaError::NoSpace`] or [`MetaError::Unavailable`] naming the directory; the other mirrors go on.
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

    /// Adds mirrors in healthy directories until there are as many as the layout asks for, or no directory
    /// is left. Answers the directories that hold new ones. To be called after a start and after every
    /// [`MirrorEvent::Ejected`].
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

    /// Writes an empty group, so that mirrors which vanished or hang are ejected also while nobody writes.
    ///
    /// # Errors
    /// [`MetaError::Unavailable`] when none is left.
    pub async fn check_mirrors(&self) -> Result<(), MetaError> {
        self.between_groups(Committer::check).await?.map_err(MetaError::Unavailable)
    }

    /// Reads every row of every mirror and ejects those that are damaged or lack rows that another has.
    /// Answers how many rows were read of each.
    ///
    /// # Errors
    /// [`MetaError::Corrupt`] when the only mirror is damaged.
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

    /// Closes the store cleanly, so that the next start need not repair the databases. Everything fails
    /// with [`MetaError::Unavailable`] afterwards.
    pub async fn close(&self) {
        // An error says that it was closed already.
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
            // Who asked may have gone.
            let _ = answer.send(work(committer));
        });
        let closed = |_| self.shared.visible().err().unwrap_or_else(closed);
        self.requests.send(Request::Admin(admin)).await.map_err(|_| closed(()))?;
        answered.await.map_err(|_| closed(()))
    }

    /// Reads the visible state. A mirror that cannot be read is ejected and the next one asked.
    async fn read<T>(&self, read: impl Fn(&Snapshot) -> Result<T, Failure>) -> Result<T, MetaError> {
        loop {
            let snapshot = self.shared.visible()?;
            match read(&snapshot) {
                Ok(value) => return Ok(value),
                Err(failure) => self.report(snapshot, failure).await?,
            }
        }
    }

    /// Has the mirror of `snapshot` ejected.
    ///
    /// # Errors
    /// When there is no other.
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
        // What was never taken was never tried; what was taken and not answered may have been committed.
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
        // Between two groups, so that the first event is that of the first commit from now on.
        let prefix = prefix.to_vec();
        self.between_groups(move |committer| committer.shared.watchers.watch(&prefix)).await
    }
}

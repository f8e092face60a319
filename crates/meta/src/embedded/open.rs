//! Starting: finds the directories that belong to the cluster and the mirrors that count, and levels them.
//!
//! 1. Read every present directory's epoch record. n − r of them must have one; otherwise the newest might be
//!    overlooked, and the start is refused.
//! 2. Open the mirrors that the newest record names. Others are stale and ignored.
//! 3. Level them.
//! 4. Increment the run, durably on all of them, so that no lease id of an earlier run is ever granted again.
//! 5. Record the next epoch with the opened mirrors in every directory. Only then serve.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::BoxFuture;
use striate_runtime::Runtime;
use tokio::sync::mpsc;

use super::committer::{Committer, Mirror, WAITING_REQUESTS};
use super::epoch::{EpochRecord, FIRST_EPOCH};
use super::group::Group;
use super::level::level;
use super::membership::{KnownDirectory, RESERVE_FILE, record_everywhere};
use super::mirror::MirrorDb;
use super::shared::Shared;
use super::snapshot::Failure;
use super::volume::{DiskId, MetaDirectory};
use super::{EmbeddedStore, Layout, Options};
use crate::lease::Leases;
use crate::outcomes::Outcomes;
use crate::store::{MetaError, Revision, TxId};

/// A store that is open but does not serve yet.
struct OpenedStore {
    record: EpochRecord,
    mirrors: Vec<(MetaDirectory, MirrorDb)>,
    transactions: Vec<(TxId, Revision)>,
    /// Names of the mirrors that were old copies.
    stale: Vec<String>,
}

impl EmbeddedStore {
    /// Creates the metadata of a new cluster: empty mirrors in the first directories, and the first epoch in all of
    /// them. It may be repeated after a crash, as long as the store was never opened.
    ///
    /// # Errors
    /// If a directory already holds metadata, or a file cannot be written.
    pub fn create<'a>(
        runtime: &'a Runtime,
        options: Options,
        layout: Layout,
        present: &'a [MetaDirectory],
    ) -> BoxFuture<'a, Result<(), MetaError>> {
        Box::pin(async move {
            let (task, present) = (runtime.clone(), present.to_vec());
            runtime.run_blocking(move || create(&task, &options, &layout, &present)).await
        })
    }

    /// Opens the metadata of a cluster; `present` are the directories that were found.
    ///
    /// # Errors
    /// [`MetaError::Unavailable`], naming them, if too few directories or no in-sync mirror are present;
    /// [`MetaError::Corrupt`] if the metadata is of another cluster or a newer program.
    pub fn open<'a>(
        runtime: &'a Runtime,
        options: Options,
        layout: Layout,
        present: &'a [MetaDirectory],
    ) -> BoxFuture<'a, Result<Self, MetaError>> {
        Box::pin(async move {
            let (task, directories) = (runtime.clone(), known_directories(present));
            let opening = directories.clone();
            let opened = runtime.run_blocking(move || open(&task, &options, &layout, &opening)).await?;
            Self::serve(runtime, options, layout, directories, opened)
        })
    }

    /// Creates the metadata of a cluster that never had any, or opens it.
    ///
    /// # Errors
    /// As [`EmbeddedStore::create`] and [`EmbeddedStore::open`].
    pub fn open_or_create<'a>(
        runtime: &'a Runtime,
        options: Options,
        layout: Layout,
        present: &'a [MetaDirectory],
    ) -> BoxFuture<'a, Result<Self, MetaError>> {
        Box::pin(async move {
            let (directories, total) = (present.to_vec(), layout.total_directories);
            let is_new = runtime.run_blocking(move || is_new(&directories, total)).await?;
            if is_new {
                Self::create(runtime, options, layout, present).await?;
            }
            Self::open(runtime, options, layout, present).await
        })
    }

    fn serve(
        runtime: &Runtime,
        options: Options,
        layout: Layout,
        directories: Vec<KnownDirectory>,
        opened: OpenedStore,
    ) -> Result<Self, MetaError> {
        let start = |(directory, db): (MetaDirectory, MirrorDb)| {
            let name = directory.volume.name();
            Mirror::start(runtime, directory.disk_id, directory.volume, db)
                .map_err(|failure| MetaError::Unavailable(format!("{name}: {failure}")))
        };
        let mirrors: Vec<_> = opened.mirrors.into_iter().map(start).collect::<Result<_, _>>()?;
        let mut outcomes = Outcomes::default();
        opened.transactions.into_iter().for_each(|(id, revision)| outcomes.insert(id, revision));
        let leases = Leases::new(runtime.clone(), opened.record.run);
        let shared = Arc::new(Shared::new(mirrors[0].snapshot.clone(), leases));
        let committer = Committer {
            runtime: runtime.clone(),
            options,
            layout,
            directories,
            mirrors,
            record: opened.record,
            outcomes,
            shared: shared.clone(),
            joining: None,
            down: None,
            closed: false,
        };
        committer.refresh_status();
        let (requests, queue) = mpsc::channel(WAITING_REQUESTS);
        match runtime.is_deterministic() {
            true => drop(runtime.spawn(committer.run_as_task(queue))),
            false => drop(runtime.spawn_thread("meta committer", move || committer.run_on_thread(queue))),
        }
        Ok(Self { runtime: runtime.clone(), shared, requests, stale: opened.stale.into() })
    }
}

fn known_directories(directories: &[MetaDirectory]) -> Vec<KnownDirectory> {
    directories.iter().cloned().map(KnownDirectory::new).collect()
}

/// Returns true if all directories are present and nothing was ever acknowledged in them.
fn is_new(present: &[MetaDirectory], total: usize) -> Result<bool, MetaError> {
    for directory in present {
        if EpochRecord::read(directory)?.is_some_and(|record| record.epoch > FIRST_EPOCH) {
            return Ok(false);
        }
    }
    Ok(present.len() == total)
}

fn create(
    runtime: &Runtime,
    options: &Options,
    layout: &Layout,
    present: &[MetaDirectory],
) -> Result<(), MetaError> {
    if present.len() != layout.total_directories {
        return Err(MetaError::Unavailable(format!(
            "a new cluster needs all of its {} directories, {} are present",
            layout.total_directories,
            present.len()
        )));
    }
    for directory in present {
        match EpochRecord::read(directory)? {
            Some(record) if record.epoch > FIRST_EPOCH || record.cluster != layout.cluster => {
                return Err(MetaError::Corrupt(format!(
                    "{} holds metadata of cluster {} already",
                    directory.volume.name(),
                    record.cluster
                )));
            }
            _ => {}
        }
    }
    let chosen = &present[..layout.mirrors()];
    for directory in chosen {
        let created = MirrorDb::create(&directory.volume, options.cache_bytes_of_mirror(1));
        created.map_err(|failure| in_directory(directory, &failure))?;
    }
    let in_sync = chosen.iter().map(|directory| directory.disk_id).collect();
    let record = EpochRecord { cluster: layout.cluster, epoch: FIRST_EPOCH, run: 0, in_sync };
    record_everywhere(
        runtime,
        layout,
        &known_directories(present),
        &BTreeSet::new(),
        &record,
        options.deadline,
    )
    .map_err(MetaError::Unavailable)
}

fn in_directory(directory: &MetaDirectory, failure: &Failure) -> MetaError {
    let reason = format!("{}: {failure}", directory.volume.name());
    match failure {
        Failure::NoSpace(_) => MetaError::NoSpace(reason),
        _ => MetaError::Unavailable(reason),
    }
}

fn open(
    runtime: &Runtime,
    options: &Options,
    layout: &Layout,
    directories: &[KnownDirectory],
) -> Result<OpenedStore, MetaError> {
    let newest = newest_record(layout, directories)?;
    // A start writes a little; the reserve may be all the space that is left.
    for KnownDirectory { directory: MetaDirectory { volume, .. }, .. } in directories {
        let is_full = volume.free_bytes().is_ok_and(|free| free < options.min_free_bytes);
        if is_full && let Err(error) = volume.remove_file(RESERVE_FILE) {
            tracing::warn!(directory = volume.name(), %error, "what was set aside on a full disk stays");
        }
    }
    let OpenedMirrors { mut mirrors, transactions, stale } =
        open_mirrors(runtime, options, directories, &newest)?;
    let run = mirrors.iter().map(|(_, db)| db.run()).max().unwrap_or(0).max(newest.run) + 1;
    let mut group = Group::after(mirrors[0].1.revision());
    group.run = Some(run);
    mirrors.retain_mut(|(directory, db)| match db.apply(&group) {
        Ok(_) => true,
        Err(failure) => {
            tracing::warn!(directory = directory.volume.name(), %failure, "a metadata mirror cannot be written");
            false
        }
    });
    if mirrors.is_empty() {
        return Err(MetaError::Unavailable("no metadata mirror can be written".to_owned()));
    }
    let in_sync = mirrors.iter().map(|(directory, _)| directory.disk_id).collect();
    let record = EpochRecord { cluster: layout.cluster, epoch: newest.epoch + 1, run, in_sync };
    record_everywhere(runtime, layout, directories, &BTreeSet::new(), &record, options.deadline)
        .map_err(MetaError::Unavailable)?;
    Ok(OpenedStore { record, mirrors, transactions, stale })
}

/// Returns the record in force.
fn newest_record(layout: &Layout, directories: &[KnownDirectory]) -> Result<EpochRecord, MetaError> {
    let (mut found, mut unusable) = (Vec::new(), Vec::new());
    let mut disks = BTreeSet::new();
    for KnownDirectory { directory, .. } in directories {
        let name = directory.volume.name();
        match EpochRecord::read(directory) {
            Ok(Some(record)) if record.cluster != layout.cluster => {
                return Err(MetaError::Corrupt(format!(
                    "{name} holds metadata of cluster {}, not of {}; remove it from the list of directories",
                    record.cluster, layout.cluster
                )));
            }
            Ok(Some(record)) => {
                if !disks.insert(directory.disk_id) {
                    return Err(MetaError::Corrupt(format!(
                        "{name} is listed twice, or is a copy of another disk"
                    )));
                }
                found.push(record);
            }
            Ok(None) => unusable.push(format!("{name} is blank")),
            Err(error) => unusable.push(error.to_string()),
        }
    }
    let needed = layout.directories_to_start();
    let newest = found.iter().max_by_key(|record| record.age()).cloned();
    match newest {
        Some(newest) if found.len() >= needed => Ok(newest),
        _ => Err(MetaError::Unavailable(format!(
            "{} of the cluster's {} directories hold its metadata's identity, {needed} are needed to know the \
             newest; bring back the missing ones{}",
            found.len(),
            layout.total_directories,
            unusable.iter().map(|reason| format!("; {reason}")).collect::<String>()
        ))),
    }
}

/// Level mirrors.
struct OpenedMirrors {
    mirrors: Vec<(MetaDirectory, MirrorDb)>,
    /// Transactions that they remember.
    transactions: Vec<(TxId, Revision)>,
    /// Names of those that were old copies.
    stale: Vec<String>,
}

/// Opens and levels the mirrors of the in-sync set. A run is durable in every mirror of the set before the set's record
/// names it, so a mirror with an earlier run is a copy from before.
fn open_mirrors(
    runtime: &Runtime,
    options: &Options,
    directories: &[KnownDirectory],
    newest: &EpochRecord,
) -> Result<OpenedMirrors, MetaError> {
    let named =
        |known_directory: &&KnownDirectory| newest.in_sync.contains(&known_directory.directory.disk_id);
    let candidates: Vec<_> =
        directories.iter().filter(named).map(|known_directory| known_directory.directory.clone()).collect();
    let opened = open_all(runtime, options, &candidates);
    let is_stale = |(_, db): &(&MetaDirectory, &Result<MirrorDb, Failure>)| {
        db.as_ref().is_ok_and(|db| db.run() < newest.run)
    };
    let stale: Vec<_> = candidates.iter().zip(&opened).filter(is_stale).collect();
    let stale = stale.into_iter().map(|(directory, _)| directory.volume.name()).collect();
    let mut failures = Vec::new();
    let mut mirrors = Vec::new();
    for (directory, db) in candidates.into_iter().zip(level(opened)) {
        match db {
            Ok(db) => mirrors.push((directory, db)),
            // A mirror must not be ejected while another server owns it.
            Err(Failure::Busy(reason)) => return Err(MetaError::Unavailable(reason)),
            Err(failure) => {
                let name = directory.volume.name();
                tracing::warn!(directory = name, %failure, "a metadata mirror cannot be opened");
                failures.push(format!("; {name}: {failure}"));
            }
        }
    }
    let Some((_, first)) = mirrors.first() else {
        let in_sync_disks: Vec<_> = newest.in_sync.iter().map(DiskId::to_string).collect();
        return Err(MetaError::Unavailable(format!(
            "no mirror of the metadata in force (epoch {}) can be opened; bring back one of the directories {}{}",
            newest.epoch,
            in_sync_disks.join(", "),
            failures.concat()
        )));
    };
    let transactions = first.transactions();
    let transactions = transactions.map_err(|failure| MetaError::Unavailable(failure.to_string()))?;
    Ok(OpenedMirrors { mirrors, transactions, stale })
}

/// Opens all mirrors concurrently: a repair after a crash reads the whole file.
fn open_all(
    runtime: &Runtime,
    options: &Options,
    candidates: &[MetaDirectory],
) -> Vec<Result<MirrorDb, Failure>> {
    let (answers, replies) = std::sync::mpsc::channel();
    for (position, directory) in candidates.iter().cloned().enumerate() {
        let (answers, cache_bytes) = (answers.clone(), options.cache_bytes_of_mirror(position));
        let open = move || {
            // The receiver waits for all of them.
            let _ = answers.send((position, open_one(&directory, cache_bytes)));
        };
        match runtime.is_deterministic() {
            true => open(),
            false => drop(runtime.spawn_thread("meta open", open)),
        }
    }
    drop(answers);
    let panicked = || Err(Failure::Broken("the database panicked: its file is damaged".to_owned()));
    let mut opened: Vec<_> = candidates.iter().map(|_| panicked()).collect();
    replies.into_iter().for_each(|(position, db)| opened[position] = db);
    opened
}

fn open_one(directory: &MetaDirectory, cache_bytes: usize) -> Result<MirrorDb, Failure> {
    let mut db = MirrorDb::open(&directory.volume, cache_bytes)?;
    if db.compact_if_worthwhile()? {
        tracing::info!(directory = directory.volume.name(), "a metadata mirror was compacted");
    }
    Ok(db)
}

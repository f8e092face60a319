//! Membership of mirrors: ejecting them, recording the in-sync set, choosing directories, and free space.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use striate_runtime::Runtime;

use super::committer::{Committer, Mirror};
use super::epoch::{EPOCH_FILE, EpochRecord, LAST_EPOCH_FILE};
use super::shared::{MirrorEvent, MirrorStatus};
use super::snapshot::{Failure, Snapshot};
use super::volume::{DiskId, MetaDirectory, Volume, is_out_of_descriptors};
use super::worker::{AnswerQuorum, gather};
use super::{Layout, Options};
use crate::store::MetaError;

/// Name of the file that reserves space for deletes on a full disk.
pub(super) const RESERVE_FILE: &str = "meta.reserve";

/// How long a record of the mirrors is tried again while the process is short of descriptors.
const SHORTAGE_PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two such attempts.
const SHORTAGE_RETRY: Duration = Duration::from_millis(50);

/// A directory of the cluster.
#[derive(Clone, Debug)]
pub(super) struct KnownDirectory {
    pub(super) directory: MetaDirectory,
    /// Number of operations on it that have not returned. While there are any, the directory counts as unreachable: a
    /// late write of an old epoch must not overtake a new one.
    pub(super) under_way: Arc<AtomicUsize>,
}

impl KnownDirectory {
    pub(super) fn new(directory: MetaDirectory) -> Self {
        Self { directory, under_way: Arc::default() }
    }

    fn is_hung(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) > 0
    }
}

/// The name of a directory, and whether it took a record.
type RecordAnswer = (String, std::io::Result<()>);

/// Records `record` in every directory that answers within `deadline`, and waits beyond the deadline until as many as
/// needed have answered. Directories in `vanished` are skipped: a new file in a directory that is being wiped would
/// keep `rm -rf` from ending, so the old record is removed there instead and no longer speaks for the cluster.
///
/// # Errors
/// If fewer than min(r+1, n−r) recorded it: the next start could then overlook the set in force.
pub(super) fn record_everywhere(
    runtime: &Runtime,
    layout: &Layout,
    directories: &[KnownDirectory],
    vanished: &BTreeSet<DiskId>,
    record: &EpochRecord,
    deadline: Duration,
) -> Result<(), String> {
    let (asked_count, replies) = start_recording(runtime, directories, vanished, record);
    let (mut recorded, mut failures) = (0, Vec::new());
    let needed = layout.epoch_copies();
    let quorum = AnswerQuorum {
        all: asked_count,
        least: needed,
        description: "directory that took the set of mirrors",
    };
    gather(&replies, &quorum, deadline, |(name, written): RecordAnswer| {
        match &written {
            Ok(()) => recorded += 1,
            Err(error) => failures.push(format!("{name}: {error}")),
        }
        written.is_ok()
    });
    if recorded >= needed {
        return Ok(());
    }
    Err(format!(
        "the set of metadata mirrors could be recorded in only {recorded} of {} directories, {needed} are needed ({})",
        layout.total_directories,
        failures.join("; ")
    ))
}

/// Starts to record `record` in every directory that does not hang. Returns how many were asked, and their answers.
fn start_recording(
    runtime: &Runtime,
    directories: &[KnownDirectory],
    vanished: &BTreeSet<DiskId>,
    record: &EpochRecord,
) -> (usize, mpsc::Receiver<RecordAnswer>) {
    let (answers, replies) = mpsc::channel();
    let mut asked_count = 0;
    for known_directory in directories.iter().filter(|known_directory| !known_directory.is_hung()) {
        known_directory.under_way.fetch_add(1, Ordering::SeqCst);
        let (known_directory, answers, own_runtime) =
            (known_directory.clone(), answers.clone(), runtime.clone());
        let bytes = (!vanished.contains(&known_directory.directory.disk_id))
            .then(|| record.encode(known_directory.directory.disk_id));
        let write = move || {
            let written = match bytes {
                Some(bytes) => {
                    replace_epoch_patiently(&own_runtime, &*known_directory.directory.volume, &bytes)
                }
                None => withdraw_epoch(&*known_directory.directory.volume),
            };
            known_directory.under_way.fetch_sub(1, Ordering::SeqCst);
            // Past the deadline, no receiver is left.
            let _ = answers.send((known_directory.directory.volume.name(), written));
        };
        asked_count += 1;
        match runtime.is_deterministic() {
            true => write(),
            false => drop(runtime.spawn_thread("meta epoch", write)),
        }
    }
    (asked_count, replies)
}

/// Removes the record of a directory whose mirror vanished. Always an error: nothing was recorded there.
fn withdraw_epoch(volume: &dyn Volume) -> std::io::Result<()> {
    volume.verify()?;
    // The one before it, too: a wipe should find nothing that was kept for later.
    [EPOCH_FILE, LAST_EPOCH_FILE].iter().try_for_each(|name| volume.remove_file(name))?;
    Err(std::io::Error::other("its mirror has vanished"))
}

/// Replaces the record, and tries again for [`SHORTAGE_PATIENCE`] while the process is short of descriptors: it cannot go
/// on without the record, and others free descriptors soon. An incomplete attempt changes nothing, since a record takes
/// its name only when it is durable.
fn replace_epoch_patiently(runtime: &Runtime, volume: &dyn Volume, bytes: &[u8]) -> std::io::Result<()> {
    let deadline = runtime.now() + SHORTAGE_PATIENCE;
    loop {
        match replace_epoch(volume, bytes) {
            Err(error)
                if is_out_of_descriptors(&error)
                    && !runtime.is_deterministic()
                    && runtime.now() < deadline =>
            {
                runtime.pause_thread(SHORTAGE_RETRY);
            }
            replaced => return replaced,
        }
    }
}

/// Replaces the record. A full disk may refuse even this tiny file; the reserve then makes room.
fn replace_epoch(volume: &dyn Volume, bytes: &[u8]) -> std::io::Result<()> {
    volume.replace_file(EPOCH_FILE, bytes).or_else(|error| match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            volume.remove_file(RESERVE_FILE)?;
            volume.replace_file(EPOCH_FILE, bytes)
        }
        _ => Err(error),
    })
}

impl Committer {
    /// Records `in_sync` as the in-sync set of the next epoch, everywhere but in `vanished`.
    pub(super) fn record(
        &mut self,
        in_sync: BTreeSet<DiskId>,
        vanished: &BTreeSet<DiskId>,
    ) -> Result<(), String> {
        // A failure also uses up the number: some directory may hold it.
        self.record.epoch += 1;
        let record = EpochRecord { in_sync, ..self.record.clone() };
        let Self { runtime, layout, directories, options, .. } = self;
        record_everywhere(runtime, layout, directories, vanished, &record, options.deadline)?;
        self.record = record;
        Ok(())
    }

    /// Removes the mirrors at `failed` from the set: records the others first, then drops them.
    pub(super) fn eject(&mut self, failed: Vec<(usize, Failure)>) -> Result<(), String> {
        let positions: BTreeSet<usize> = failed.iter().map(|(position, _)| *position).collect();
        let stays = |position: &usize| !positions.contains(position);
        let in_sync: BTreeSet<_> =
            (0..self.mirrors.len()).filter(stays).map(|position| self.mirrors[position].disk_id).collect();
        if in_sync.is_empty() {
            let reasons = failed
                .iter()
                .map(|(position, why)| format!("{}: {why}", self.mirrors[*position].volume.name()));
            return Err(format!("no metadata mirror is left: {}", reasons.collect::<Vec<_>>().join("; ")));
        }
        for (position, failure) in &failed {
            let disk_id = self.mirrors[*position].disk_id;
            if matches!(failure, Failure::Hung(_))
                && let Some(known_directory) = self.known_directory(disk_id)
            {
                known_directory.under_way.fetch_add(1, Ordering::SeqCst);
            }
        }
        let has_vanished = |(_, failure): &&(usize, Failure)| matches!(failure, Failure::Vanished(_));
        let vanished =
            failed.iter().filter(has_vanished).map(|(position, _)| self.mirrors[*position].disk_id);
        self.record(in_sync, &vanished.collect())?;
        for (position, failure) in failed.into_iter().rev() {
            let mirror = self.mirrors.remove(position);
            if matches!(failure, Failure::Hung(_))
                && let Some(known_directory) = self.known_directory(mirror.disk_id)
            {
                mirror.worker.abandon(&self.runtime, known_directory.under_way.clone());
            }
            let reason = failure.to_string();
            self.remember_ejected(mirror.disk_id, mirror.volume.name(), reason.clone());
            self.shared.tell(MirrorEvent::Ejected { disk_id: mirror.disk_id, reason });
        }
        self.shared.show(self.mirrors[0].snapshot.clone());
        self.refresh_status();
        Ok(())
    }

    /// Handles a mirror whose `snapshot` a reader found unreadable.
    pub(super) fn unreadable(&mut self, snapshot: &Arc<Snapshot>, failure: Failure) -> Result<(), MetaError> {
        if let Some(reason) = &self.down {
            return Err(MetaError::Unavailable(reason.clone()));
        }
        match self.mirrors.iter().find(|mirror| Arc::ptr_eq(&mirror.snapshot, snapshot)) {
            Some(mirror) => self.damaged(mirror.disk_id, failure),
            // A newer state is visible by now; it may well be readable.
            None => Ok(()),
        }
    }

    /// Ejects a mirror that is damaged. The only mirror is kept all the same: other rows may be readable.
    pub(super) fn damaged(&mut self, disk_id: DiskId, failure: Failure) -> Result<(), MetaError> {
        let Some(position) = self.mirrors.iter().position(|mirror| mirror.disk_id == disk_id) else {
            return Ok(());
        };
        if self.mirrors.len() == 1 {
            let name = self.mirrors[position].volume.name();
            return Err(MetaError::Corrupt(format!("{name}, the only mirror of the metadata: {failure}")));
        }
        self.eject_or_go_down(vec![(position, failure)]).map_err(MetaError::Unavailable)
    }

    /// Returns the current state of every mirror.
    pub(super) fn snapshots(&mut self) -> Vec<(DiskId, Arc<Snapshot>)> {
        self.mirrors.iter().map(|mirror| (mirror.disk_id, mirror.snapshot.clone())).collect()
    }

    /// Replaces the list of directories; see [`super::EmbeddedStore::set_directories`].
    pub(super) fn set_directories(
        &mut self,
        layout: Layout,
        present: Vec<MetaDirectory>,
    ) -> Result<(), String> {
        if let Some(reason) = &self.down {
            return Err(reason.clone());
        }
        let gone = |mirror: &Mirror| present.iter().all(|directory| directory.disk_id != mirror.disk_id);
        let gone: Vec<_> =
            (0..self.mirrors.len()).filter(|&position| gone(&self.mirrors[position])).collect();
        if gone.len() == self.mirrors.len() {
            return Err("none of the listed directories holds an in-sync mirror of the metadata".to_owned());
        }
        // A directory that has not moved keeps its handle, which knows the files it wrote.
        let keep = |directory: MetaDirectory| {
            let known_directory = self
                .known_directory(directory.disk_id)
                .filter(|known_directory| known_directory.directory.volume.verify().is_ok());
            known_directory.cloned().unwrap_or_else(|| KnownDirectory::new(directory))
        };
        self.directories = present.into_iter().map(keep).collect();
        self.layout = layout;
        let reason = || Failure::Broken("its directory is lost or was given up".to_owned());
        // Records the set even if no mirror is ejected, so that new directories learn it.
        self.eject_or_go_down(gone.into_iter().map(|position| (position, reason())).collect())
    }

    pub(super) fn known_directory(&self, disk_id: DiskId) -> Option<&KnownDirectory> {
        self.directories.iter().find(|known_directory| known_directory.directory.disk_id == disk_id)
    }

    fn remember_ejected(&self, disk_id: DiskId, path: String, reason: String) {
        let mut status = self.shared.status.lock();
        status.retain(|mirror| mirror.disk_id != disk_id);
        let (in_sync, primary) = (false, false);
        status.push(MirrorStatus {
            disk_id,
            path,
            in_sync,
            primary,
            file_bytes: Some(0),
            last_error: Some(reason),
        });
    }

    /// Refreshes the shared status. An ejected mirror stays listed until it is a mirror again or others have replaced
    /// it.
    pub(super) fn refresh_status(&self) {
        let mut status = self.shared.status.lock();
        let is_complete = self.mirrors.len() >= self.layout.mirrors();
        let ejected = |mirror: &MirrorStatus| {
            let is_back = self.mirrors.iter().any(|in_sync| in_sync.disk_id == mirror.disk_id);
            !mirror.in_sync && !is_back && !is_complete
        };
        status.retain(ejected);
        for (position, mirror) in self.mirrors.iter().enumerate() {
            let (disk_id, path) = (mirror.disk_id, mirror.volume.name());
            let primary = position == 0;
            status.push(MirrorStatus {
                disk_id,
                path,
                in_sync: true,
                primary,
                file_bytes: Some(0),
                last_error: None,
            });
        }
    }

    /// Returns healthy directories with enough space that hold no mirror.
    pub(super) fn spare_directories(&self) -> Vec<MetaDirectory> {
        let needed = 2 * self.options.min_free_bytes;
        let spare = |known_directory: &&KnownDirectory| {
            let volume = &known_directory.directory.volume;
            !known_directory.is_hung()
                && self.mirrors.iter().all(|mirror| mirror.disk_id != known_directory.directory.disk_id)
                && volume.verify().is_ok()
                && volume.free_bytes().is_ok_and(|free| free >= needed)
        };
        self.directories
            .iter()
            .filter(spare)
            .map(|known_directory| known_directory.directory.clone())
            .collect()
    }

    /// Returns true if only transactions that take no space can be accepted. If another directory can replace a mirror
    /// on a full disk, the mirror is ejected instead.
    pub(super) fn is_full(&mut self) -> bool {
        let Options { min_free_bytes, reserve_bytes, .. } = self.options;
        let mut full = Vec::new();
        for (position, mirror) in self.mirrors.iter_mut().enumerate() {
            // A volume that fails here fails again in the commit, with a better error.
            let free = mirror.volume.free_bytes().unwrap_or(u64::MAX);
            if free < min_free_bytes {
                full.push((position, Failure::NoSpace(format!("{free} bytes are free"))));
            } else if !mirror.has_reserve && free >= 2 * min_free_bytes + reserve_bytes {
                mirror.has_reserve = mirror.volume.reserve(RESERVE_FILE, reserve_bytes).is_ok();
            }
        }
        if full.is_empty() {
            return false;
        }
        let others_have_space = full.len() < self.mirrors.len() && !self.spare_directories().is_empty();
        !(others_have_space && self.eject(full).is_ok())
    }

    /// Frees the reserved space.
    pub(super) fn give_up_reserves(&mut self) {
        for mirror in &mut self.mirrors {
            if mirror.has_reserve && mirror.volume.remove_file(RESERVE_FILE).is_ok() {
                mirror.has_reserve = false;
            }
        }
    }
}

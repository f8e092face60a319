//! Adding a mirror while serving.
//!
//! The new mirror copies a snapshot in the background while the committer puts every further group into a [`Backlog`].
//! The new mirror applies the backlog until little is left, and the committer applies the rest between two groups. Only
//! when the mirror holds everything is the larger in-sync set recorded, and only then do groups count on it. A crash
//! before that leaves a file that no recorded set names.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::committer::{Committer, Mirror};
use super::group::Group;
use super::mirror::MirrorDb;
use super::shared::MirrorEvent;
use super::snapshot::{Failure, Snapshot};
use super::volume::MetaDirectory;

/// Maximum number of bytes of keys and values that wait for a new mirror.
const BACKLOG_BYTES: usize = 128 << 20;

/// Maximum number of groups that the committer itself applies between two groups.
const LAST_GROUPS: usize = 4;

/// Groups committed since a new mirror's snapshot.
#[derive(Debug, Default)]
pub(super) struct Backlog(Mutex<JoinQueue>);

#[derive(Debug, Default)]
struct JoinQueue {
    groups: VecDeque<Arc<Group>>,
    bytes: usize,
    overrun: bool,
}

impl Backlog {
    pub(super) fn push(&self, group: Arc<Group>) {
        let mut waiting = self.0.lock();
        waiting.bytes += group.bytes();
        waiting.groups.push_back(group);
        if waiting.bytes > BACKLOG_BYTES {
            *waiting = JoinQueue { overrun: true, ..JoinQueue::default() };
        }
    }

    fn pop(&self) -> Result<Option<Arc<Group>>, Failure> {
        let mut waiting = self.0.lock();
        if waiting.overrun {
            return Err(Failure::Broken("it could not keep up with the writes".to_owned()));
        }
        let group = waiting.groups.pop_front();
        waiting.bytes -= group.as_ref().map_or(0, |group| group.bytes());
        Ok(group)
    }

    fn len(&self) -> usize {
        self.0.lock().groups.len()
    }
}

/// The copy that a new mirror makes.
pub(super) struct Copy {
    pub(super) directory: MetaDirectory,
    pub(super) source: Arc<Snapshot>,
    pub(super) backlog: Arc<Backlog>,
    pub(super) cache_bytes: usize,
}

impl Copy {
    /// Copies everything but the last few groups.
    pub(super) fn run(&self) -> Result<MirrorDb, Failure> {
        let mut db = MirrorDb::create(&self.directory.volume, self.cache_bytes)?;
        db.level(&self.source, false)?;
        while self.backlog.len() > LAST_GROUPS {
            apply_next(&mut db, &self.backlog)?;
        }
        Ok(db)
    }
}

/// Applies the backlog's next group; returns false if there is none.
fn apply_next(db: &mut MirrorDb, backlog: &Backlog) -> Result<bool, Failure> {
    let Some(group) = backlog.pop()? else { return Ok(false) };
    if group.last > db.revision() {
        db.apply(&group)?;
    }
    Ok(true)
}

impl Committer {
    /// Starts adding a mirror in `directory`.
    pub(super) fn begin_join(&mut self, directory: MetaDirectory) -> Result<Copy, Failure> {
        let refuse = |reason: &str| Err(Failure::Broken(reason.to_owned()));
        if let Some(reason) = &self.down {
            return refuse(reason);
        }
        if self.joining.is_some() {
            return refuse("another mirror is being added");
        }
        if self.mirrors.iter().any(|mirror| mirror.disk_id == directory.disk_id) {
            return refuse("the directory holds a mirror already");
        }
        // Use the known handle, which knows the files that were written through it.
        let Some(known_directory) = self.known_directory(directory.disk_id) else {
            return refuse("the directory is none of the cluster's");
        };
        let directory = known_directory.directory.clone();
        directory.volume.verify()?;
        let source = self.mirrors[0].snapshot.clone();
        let backlog = Arc::new(Backlog::default());
        self.joining = Some(backlog.clone());
        let cache_bytes = self.options.cache_bytes_of_mirror(self.mirrors.len() + 1);
        Ok(Copy { directory, source, backlog, cache_bytes })
    }

    /// Completes the copy, records the larger set and counts on the new mirror from the next group on.
    pub(super) fn finish_join(&mut self, copy: Copy, db: Result<MirrorDb, Failure>) -> Result<(), Failure> {
        self.joining = None;
        let mut db = db?;
        while apply_next(&mut db, &copy.backlog)? {}
        if let Some(reason) = &self.down {
            return Err(Failure::Broken(reason.clone()));
        }
        if db.revision() != self.mirrors[0].snapshot.revision() {
            return Err(Failure::Broken("its copy is not complete".to_owned()));
        }
        let MetaDirectory { disk_id, volume } = copy.directory;
        let mirror = Mirror::start(&self.runtime, disk_id, volume, db)?;
        let in_sync = self.mirrors.iter().map(|mirror| mirror.disk_id).chain([disk_id]).collect();
        if let Err(reason) = self.record(in_sync, &Default::default()) {
            // Some directories may already name the new mirror, so nothing may be acknowledged without it.
            self.eject_or_go_down(Vec::new()).map_err(|_| Failure::Broken(reason.clone()))?;
            return Err(Failure::Broken(reason));
        }
        self.mirrors.push(mirror);
        self.refresh_status();
        self.shared.tell(MirrorEvent::Added { disk_id });
        Ok(())
    }
}

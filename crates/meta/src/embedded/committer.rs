//! The committer: commits groups of waiting transactions on all mirrors, makes them visible, then acknowledges them.
//!
//! Sources: group commit as in DeWitt et al., “Implementation Techniques for Main Memory Database Systems” (SIGMOD
//! 1984), §5.2; the rules of design.md §10.9 and §10.10. Correctness rests on the order of the steps:
//!
//! 1. draft: check each transaction against the visible state and the group's earlier ones;
//! 2. apply the group on every in-sync mirror, each with its own fsync, and check that the files are still at their
//!    paths;
//! 3. eject the mirrors that failed: record the smaller set first, then drop them;
//! 4. swap the visible state, notify the watchers, reply.
//!
//! Whatever is visible is therefore durable on all mirrors of the recorded set, and a crash before step 4 loses only
//! what was never acknowledged. If all mirrors fail, the outcome is unknown and the store stops serving.

use std::collections::BTreeSet;
use std::sync::Arc;

use striate_runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

use super::group::{Draft, DraftOutcome, Group};
use super::join::Backlog;
use super::membership::{KnownDirectory, RESERVE_FILE};
use super::mirror::MirrorDb;
use super::shared::{MirrorEvent, Shared};
use super::snapshot::{Failure, Snapshot};
use super::volume::{DiskId, Volume};
use super::worker::{ApplyResult, Worker, apply_on_all};
use super::{Layout, Options, epoch::EpochRecord};
use crate::outcomes::Outcomes;
use crate::store::{Commit, MetaError, Revision, Transaction, WatchEvent, Write};

/// Maximum number of transactions in one group.
const GROUP_TRANSACTIONS: usize = 256;

/// Approximate maximum of bytes of keys and values in one group.
const GROUP_BYTES: usize = 4 << 20;

/// Maximum number of waiting requests; beyond it, senders wait.
pub(super) const WAITING_REQUESTS: usize = 4096;

/// Channel for the reply to a transaction.
pub(super) type Reply = oneshot::Sender<Result<Commit, MetaError>>;

/// Work to run between two groups.
pub(super) type Admin = Box<dyn FnOnce(&mut Committer) + Send>;

/// A request to the committer.
pub(super) enum Request {
    Commit(Transaction, Reply),
    Admin(Admin),
}

/// An in-sync mirror.
#[derive(Debug)]
pub(super) struct Mirror {
    pub(super) disk_id: DiskId,
    pub(super) volume: Arc<dyn Volume>,
    pub(super) worker: Worker,
    /// State after the last group.
    pub(super) snapshot: Arc<Snapshot>,
    /// Whether its directory holds the reserve for deletes on a full disk.
    pub(super) has_reserve: bool,
}

/// The committer's state. The first mirror serves the reads.
pub(super) struct Committer {
    pub(super) runtime: Runtime,
    pub(super) options: Options,
    pub(super) layout: Layout,
    pub(super) directories: Vec<KnownDirectory>,
    pub(super) mirrors: Vec<Mirror>,
    pub(super) record: EpochRecord,
    pub(super) outcomes: Outcomes,
    pub(super) shared: Arc<Shared>,
    pub(super) joining: Option<Arc<Backlog>>,
    pub(super) down: Option<String>,
    pub(super) closed: bool,
}

/// Why a group did not become visible.
#[derive(Debug)]
enum ApplyFailure {
    /// No mirror holds the group.
    NoSpace(String),
    /// Some mirrors may hold the group.
    Unknown(String),
}

/// A drafted group with its watch events and replies.
struct DraftedGroup {
    group: Arc<Group>,
    events: Vec<WatchEvent>,
    answers: Vec<DraftOutcome>,
}

impl Committer {
    /// Serves requests until the last sender is gone or the store is closed.
    pub(super) fn run_on_thread(mut self, mut requests: mpsc::Receiver<Request>) {
        while !self.closed
            && let Some(request) = requests.blocking_recv()
        {
            self.serve(request, &mut requests);
        }
        self.end();
    }

    /// Serves requests as a task, for deterministic runtimes.
    pub(super) async fn run_as_task(mut self, mut requests: mpsc::Receiver<Request>) {
        while !self.closed
            && let Some(request) = requests.recv().await
        {
            self.serve(request, &mut requests);
        }
        self.end();
    }

    /// Serves `request` together with the transactions that wait, up to a group's limits.
    fn serve(&mut self, request: Request, requests: &mut mpsc::Receiver<Request>) {
        let mut next = Some(request);
        let (mut group, mut bytes) = (Vec::new(), 0);
        while let Some(Request::Commit(tx, reply)) = next {
            bytes += tx.writes.iter().map(written_bytes).sum::<usize>();
            group.push((tx, reply));
            let room = group.len() < GROUP_TRANSACTIONS && bytes < GROUP_BYTES;
            next = if room { requests.try_recv().ok() } else { None };
        }
        if !group.is_empty() {
            self.commit(group);
        }
        if let Some(Request::Admin(work)) = next {
            work(self);
        }
    }

    /// Closes the mirrors cleanly, so that the next start need not repair them.
    fn end(&mut self) {
        self.shared.shut("the metadata store was closed");
        for mirror in self.mirrors.drain(..) {
            drop(mirror.snapshot);
            if !mirror.worker.end(self.options.deadline) {
                tracing::warn!(directory = mirror.volume.name(), "a metadata mirror did not close in time");
            }
        }
    }

    fn commit(&mut self, requests: Vec<(Transaction, Reply)>) {
        if let Some(reason) = &self.down {
            let error = MetaError::Unavailable(reason.clone());
            return answer_all(requests, &error);
        }
        let drawn = match self.draw(&requests) {
            Ok(drawn) => drawn,
            Err(error) => return answer_all(requests, &error),
        };
        if !drawn.group.ids.is_empty() {
            match self.apply(&drawn.group) {
                Ok(()) => self.publish(&drawn),
                Err(ApplyFailure::NoSpace(reason)) => {
                    return answer_all(requests, &MetaError::NoSpace(reason));
                }
                Err(ApplyFailure::Unknown(reason)) => {
                    return answer_all(requests, &MetaError::UnknownOutcome(reason));
                }
            }
        }
        for ((_, reply), drafted) in requests.into_iter().zip(drawn.answers) {
            // The caller may have gone.
            let _ = reply.send(match drafted {
                DraftOutcome::Answer(commit) => Ok(commit),
                DraftOutcome::Moved(whereto) => Err(MetaError::Moved(whereto)),
                DraftOutcome::NoSpace => Err(MetaError::NoSpace(format!(
                    "less than {} KiB are free in a directory that holds metadata; only deletes are accepted until \
                     there is room",
                    self.options.min_free_bytes >> 10
                ))),
            });
        }
    }

    /// Drafts the group against the primary, or against the next mirror if the primary cannot be read.
    fn draw(&mut self, requests: &[(Transaction, Reply)]) -> Result<DraftedGroup, MetaError> {
        let full = self.is_full();
        loop {
            let mut draft = Draft::new(&self.mirrors[0].snapshot, &self.outcomes, &self.shared.leases);
            let answers = requests.iter().map(|(tx, _)| draft.add(tx, full)).collect::<Result<_, _>>();
            match answers {
                Ok(answers) => {
                    let (group, events) = (Arc::new(draft.group), draft.events);
                    if full && !group.ids.is_empty() {
                        self.give_up_reserves();
                    }
                    return Ok(DraftedGroup { group, events, answers });
                }
                Err(failure) if self.mirrors.len() == 1 => {
                    return Err(MetaError::Corrupt(failure.to_string()));
                }
                Err(failure) => self.eject_or_go_down(vec![(0, failure)]).map_err(MetaError::Unavailable)?,
            }
        }
    }

    /// Makes a group durable on all mirrors; ejects those that fail.
    fn apply(&mut self, group: &Arc<Group>) -> Result<(), ApplyFailure> {
        let workers = self.mirrors.iter_mut().map(|mirror| &mut mirror.worker);
        let applied = apply_on_all(workers, group, self.options.deadline);
        let failed = self.take_snapshots(applied);
        if failed.len() == self.mirrors.len()
            && failed.iter().all(|(_, why)| matches!(why, Failure::NoSpace(_)))
        {
            return self.recover_from_full_disks(group, &failed[0].1.to_string());
        }
        if !failed.is_empty() {
            self.eject_or_go_down(failed).map_err(ApplyFailure::Unknown)?;
        }
        if let Some(backlog) = &self.joining {
            backlog.push(group.clone());
        }
        Ok(())
    }

    /// Writes an empty group to find out which mirrors still work.
    pub(super) fn check(&mut self) -> Result<(), String> {
        if let Some(reason) = &self.down {
            return Err(reason.clone());
        }
        let group = Arc::new(Group::after(self.mirrors[0].snapshot.revision()));
        match self.apply(&group) {
            // A full disk is no reason to eject a mirror.
            Ok(()) | Err(ApplyFailure::NoSpace(_)) => {
                self.shared.show(self.mirrors[0].snapshot.clone());
                Ok(())
            }
            Err(ApplyFailure::Unknown(reason)) => Err(reason),
        }
    }

    /// Stores the new states, and returns the mirrors that failed to produce one.
    fn take_snapshots(&mut self, applied: Vec<ApplyResult>) -> Vec<(usize, Failure)> {
        let mut failed = Vec::new();
        for (position, (mirror, applied)) in self.mirrors.iter_mut().zip(applied).enumerate() {
            match applied {
                Ok(snapshot) => mirror.snapshot = snapshot,
                Err(failure) => failed.push((position, failure)),
            }
        }
        failed
    }

    fn publish(&mut self, drawn: &DraftedGroup) {
        self.shared.show(self.mirrors[0].snapshot.clone());
        for (id, number) in drawn.group.ids.iter().zip(drawn.group.base.0 + 1..) {
            self.outcomes.insert(*id, Revision(number));
        }
        drawn.events.iter().for_each(|event| self.shared.watchers.publish(event));
    }

    /// Ejects the mirrors at `failed`, or stops serving if that is impossible.
    pub(super) fn eject_or_go_down(&mut self, failed: Vec<(usize, Failure)>) -> Result<(), String> {
        self.eject(failed).inspect_err(|reason| self.go_down(reason))
    }

    fn go_down(&mut self, reason: &str) {
        self.down = Some(reason.to_owned());
        self.shared.shut(reason);
        self.shared.tell(MirrorEvent::Down { reason: reason.to_owned() });
    }

    /// Handles disks that all became full in the middle of a group. redb refuses a database that met an error, so all
    /// mirrors are reopened, which rolls the group back. If one holds the group after all, levelling gives it to the
    /// others.
    fn recover_from_full_disks(&mut self, group: &Arc<Group>, reason: &str) -> Result<(), ApplyFailure> {
        self.give_up_reserves();
        let mut closed = Vec::new();
        for mirror in self.mirrors.drain(..) {
            mirror.worker.end(self.options.deadline);
            closed.push((mirror.disk_id, mirror.volume));
        }
        let cache_bytes = self.options.cache_bytes_of_mirror(closed.len());
        let opened = closed.iter().map(|(_, volume)| MirrorDb::open(volume, cache_bytes));
        let levelled = super::level::level(opened.collect());
        let mut names = BTreeSet::new();
        for ((disk_id, volume), db) in closed.into_iter().zip(levelled) {
            match db.and_then(|db| Mirror::start(&self.runtime, disk_id, volume.clone(), db)) {
                Ok(mirror) => self.mirrors.push(mirror),
                Err(failure) => {
                    names.insert(format!("{}: {failure}", volume.name()));
                }
            }
        }
        if !names.is_empty() {
            let reason = format!("{reason}; then {}", names.into_iter().collect::<Vec<_>>().join("; "));
            self.go_down(&reason);
            return Err(ApplyFailure::Unknown(reason));
        }
        self.shared.show(self.mirrors[0].snapshot.clone());
        match self.mirrors[0].snapshot.revision() == group.last {
            true => Ok(()),
            false => Err(ApplyFailure::NoSpace(reason.to_owned())),
        }
    }
}

impl Mirror {
    pub(super) fn start(
        runtime: &Runtime,
        disk_id: DiskId,
        volume: Arc<dyn Volume>,
        db: MirrorDb,
    ) -> Result<Self, Failure> {
        let snapshot = db.snapshot()?;
        let worker = Worker::start(runtime, &volume.name(), db);
        // A reserve of an earlier process is still there, and may be all the space that is left.
        let has_reserve = volume.file_len(RESERVE_FILE).is_ok_and(|len| len > 0);
        Ok(Self { disk_id, volume, worker, snapshot, has_reserve })
    }
}

fn written_bytes(write: &Write) -> usize {
    match write {
        Write::Put(key, value) => key.len() + value.len(),
        Write::Delete(key) => key.len(),
    }
}

fn answer_all(requests: Vec<(Transaction, Reply)>, error: &MetaError) {
    for (_, reply) in requests {
        // The caller may have gone.
        let _ = reply.send(Err(error.clone()));
    }
}

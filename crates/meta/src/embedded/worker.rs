//! Runs the work of all mirrors in parallel, with a deadline.
//!
//! In a real runtime every mirror has its own thread, so a group is written to all mirrors at once and a hung disk
//! delays no other. Once another mirror has the group, the committer does not wait for a hung one beyond the deadline;
//! the hung mirror's thread ends if the disk ever answers. In a deterministic runtime the work is done inline, one
//! mirror after the other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use striate_runtime::Runtime;

use super::group::Group;
use super::mirror::MirrorDb;
use super::snapshot::{Failure, Snapshot};

/// The place where a mirror's work runs.
#[derive(Debug)]
pub(super) enum Worker {
    Thread { jobs: mpsc::Sender<Job>, ended: mpsc::Receiver<()> },
    Inline(Box<MirrorDb>),
}

/// A group, and the channel for the result with the mirror's position.
#[derive(Debug)]
pub(super) struct Job {
    group: Arc<Group>,
    position: usize,
    answers: mpsc::Sender<(usize, ApplyResult)>,
}

/// Outcome of a group on one mirror.
pub(super) type ApplyResult = Result<Arc<Snapshot>, Failure>;

impl Worker {
    pub(super) fn start(runtime: &Runtime, name: &str, mut db: MirrorDb) -> Self {
        if runtime.is_deterministic() {
            return Self::Inline(Box::new(db));
        }
        let (jobs, queue) = mpsc::channel::<Job>();
        let (end, ended) = mpsc::channel();
        runtime.spawn_thread(&format!("meta {name}"), move || {
            for job in queue {
                // The committer stops listening at the deadline.
                let _ = job.answers.send((job.position, apply(&mut db, &job.group)));
            }
            drop(db);
            drop(end);
        });
        Self::Thread { jobs, ended }
    }

    fn begin(&mut self, job: Job) {
        match self {
            Self::Inline(db) => {
                let applied = apply(db, &job.group);
                let _ = job.answers.send((job.position, applied));
            }
            Self::Thread { jobs, .. } => {
                // A thread that died drops the sender of its results, which counts as no answer.
                let _ = jobs.send(job);
            }
        }
    }

    /// Abandons a hung mirror. Its thread ends when the disk answers, and is then subtracted from `under_way`.
    pub(super) fn abandon(self, runtime: &Runtime, under_way: Arc<AtomicUsize>) {
        if let Self::Thread { jobs, ended } = self {
            drop(jobs);
            runtime.spawn_thread("meta hung", move || {
                // Nothing is ever sent; the channel closes when the thread ends.
                let _ = ended.recv();
                under_way.fetch_sub(1, Ordering::SeqCst);
            });
        }
    }

    /// Closes the mirror and waits for at most `deadline`. Returns false if it did not end in time.
    pub(super) fn end(self, deadline: Duration) -> bool {
        match self {
            Self::Inline(_) => true,
            Self::Thread { jobs, ended } => {
                drop(jobs);
                ended.recv_timeout(deadline) == Err(mpsc::RecvTimeoutError::Disconnected)
            }
        }
    }
}

/// redb panics where a file breaks its invariants; then the mirror is broken, not the server.
fn apply(db: &mut MirrorDb, group: &Group) -> ApplyResult {
    let applied = catch_unwind(AssertUnwindSafe(|| db.apply(group)));
    applied.unwrap_or_else(|_| Err(Failure::Broken("the database panicked: its file is damaged".to_owned())))
}

/// Applies `group` on all mirrors and returns the outcome on each, in order.
///
/// A mirror is hung when it lets the deadline pass *and another has the group*. While all are silent, all are waited
/// for: whole machines stall (a volume that has spent its I/O burst, a virtual machine that is being moved), and
/// ejecting mirrors gains nothing unless another one keeps working.
pub(super) fn apply_on_all<'a>(
    workers: impl Iterator<Item = &'a mut Worker>,
    group: &Arc<Group>,
    deadline: Duration,
) -> Vec<ApplyResult> {
    let (answers, replies) = mpsc::channel();
    let mut count = 0;
    for worker in workers {
        worker.begin(Job { group: group.clone(), position: count, answers: answers.clone() });
        count += 1;
    }
    drop(answers);
    let mut applied: Vec<Option<ApplyResult>> = (0..count).map(|_| None).collect();
    let quorum =
        AnswerQuorum { all: count, least: 1, description: "mirror of the metadata that wrote a group" };
    gather(&replies, &quorum, deadline, |(position, result)| {
        let is_done = result.is_ok();
        applied[position] = Some(result);
        is_done
    });
    let missing = || Err(Failure::Hung(format!("it did not answer within {deadline:?}")));
    applied.into_iter().map(|result| result.unwrap_or_else(missing)).collect()
}

/// How many answers to wait for.
pub(super) struct AnswerQuorum {
    /// Number of mirrors or directories asked.
    pub(super) all: usize,
    /// Number of successes to wait for regardless of the deadline.
    pub(super) least: usize,
    /// Name of an answer in the log.
    pub(super) description: &'static str,
}

/// Receives answers until all have come. Once `least` of them were successes (`take` decides), it stops when none has
/// come for `deadline`.
pub(super) fn gather<T>(
    replies: &mpsc::Receiver<T>,
    quorum: &AnswerQuorum,
    deadline: Duration,
    mut take: impl FnMut(T) -> bool,
) {
    let (mut all, mut good) = (0, 0);
    while all < quorum.all {
        match replies.recv_timeout(deadline) {
            Ok(answer) => {
                all += 1;
                good += usize::from(take(answer));
            }
            Err(mpsc::RecvTimeoutError::Timeout) if good < quorum.least => {
                tracing::warn!(found = good, needed = quorum.least, "waiting for a {}", quorum.description);
            }
            Err(_) => return,
        }
    }
}

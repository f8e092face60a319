//! Whether the disk answers: a thread that does nothing but touch it.
//!
//! A disk that hangs returns no error; every call to it waits. So nobody asks the disk for the state of the
//! store: a thread of its own looks, twice a second, whether the directory is still the one that was opened, how much
//! space is left, and whether the medium returns a few bytes. Everybody else reads what it noted last. While it waits,
//! the disk is *silent*; that is reported from [`SILENT_AFTER`] on, unless a group of writes has completed meanwhile,
//! because a busy disk is slow and not silent. (Reads say nothing: the page cache may have served them.)
//!
//! A silent disk is only reported. What counts as hung, and takes no writes, is for module `progress` to say.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use striate_runtime::Instant;
use tokio::sync::watch;

use super::Shared;
use super::watch::WatchError;
use crate::filesystem::{DIRECT_ALIGNMENT, File};

/// Interval between two probes.
const EVERY: Duration = Duration::from_millis(500);
/// Silence from which a disk is reported.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// The state of the probing thread.
#[derive(Debug)]
pub(super) struct Probe {
    /// The file that is read, if there is one. It was opened with the store, so a probe needs no further descriptor.
    file: Option<Arc<dyn File>>,
    turn: Mutex<Turn>,
    wanted: Condvar,
    /// The newest request that a finished probe has answered.
    answered: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Turn {
    /// The newest request for a probe.
    asked: u64,
    /// When the probe under way began.
    began: Option<Instant>,
    /// When the disk last completed a probe or a group of writes.
    completed: Option<Instant>,
    /// Why the directory is not the one that was opened, by the last probe.
    vanished: Option<String>,
    is_closed: bool,
}

impl Probe {
    /// Creates the state of a store whose identity file is `file`.
    pub fn new(file: Option<Arc<dyn File>>) -> Self {
        let (turn, wanted) = Default::default();
        Self { file, turn, wanted, answered: watch::Sender::new(0) }
    }

    /// Notes that the disk has completed something.
    pub fn note_completion(&self, now: Instant) {
        self.turn.lock().completed = Some(now);
    }

    /// Ends the thread after the probe under way, if it ends.
    pub fn close(&self) {
        self.turn.lock().is_closed = true;
        self.wanted.notify_all();
    }

    /// Returns how long the disk has been silent, if that is worth a report.
    pub fn silent_for(&self, now: Instant) -> Option<Duration> {
        let turn = self.turn.lock();
        let began = turn.began?;
        let since = turn.completed.map_or(began, |completed| completed.max(began));
        Some(now.saturating_duration_since(since)).filter(|silence| *silence >= SILENT_AFTER)
    }

    /// Returns why the directory is not the one that was opened, as the last probe found.
    pub fn vanished(&self) -> Option<String> {
        self.turn.lock().vanished.clone()
    }

    /// Waits for a probe that begins from now on to end, for as long as the future is polled.
    pub async fn look(&self) {
        let mut answered = self.answered.subscribe();
        let request = {
            let mut turn = self.turn.lock();
            turn.asked += 1;
            turn.asked
        };
        self.wanted.notify_one();
        // The sender is in `self`, so the channel cannot close.
        let _ = answered.wait_for(|answered| *answered >= request).await;
    }

    /// Waits until a probe is due; returns the requests that it answers, or `None` when the store is closed.
    fn wait(&self) -> Option<u64> {
        let mut turn = self.turn.lock();
        if !turn.is_closed && turn.asked == *self.answered.borrow() {
            self.wanted.wait_for(&mut turn, EVERY);
        }
        (!turn.is_closed).then_some(turn.asked)
    }
}

impl Shared {
    /// Probes the disk until the store is closed. Runs on a thread of its own.
    pub(super) fn probe_until_closed(&self) {
        while let Some(request) = self.probe.wait() {
            self.probe_once();
            self.probe.answered.send_replace(request);
        }
    }

    /// Probes the disk and notes what it is like.
    pub(super) fn probe_once(&self) {
        self.probe.turn.lock().began = Some(self.runtime.now());
        let vanished = match self.watch.check(&*self.fs) {
            Err(WatchError::Lost(reason)) => Some(reason),
            // The process is short of something; that says nothing about the disk.
            Ok(()) | Err(WatchError::Unknown(_)) => None,
        };
        if vanished.is_none() {
            self.free_bytes();
            // Reads of chunks find the error and judge it.
            let _ = self.probe.file.as_ref().map(|file| file.read_medium_at(0, DIRECT_ALIGNMENT));
        }
        let mut turn = self.probe.turn.lock();
        turn.began = None;
        turn.completed = Some(self.runtime.now());
        turn.vanished = vanished;
    }
}

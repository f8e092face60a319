//! Pushes load reports to a site's watchers when its queue changes.
//!
//! A reply reports the queue of the site that served it, at that moment. A planner of reads also needs the queues of
//! sites that it has not asked recently, which others may have loaded meanwhile. (Hu et al. §2.4 probe for them, which
//! costs a message and a wait each.) So a site pushes: a load report at once to each new watcher, and one to all
//! watchers when the queue no longer matches the last report ([`QueueLength::is_news_after`]), at most every
//! [`PUSH_INTERVAL`]. The first change after a pause is reported without delay; the last one of a storm, at the latest
//! after the interval.
//!
//! One task serves all watchers, and lives while there are any. It never waits for them: each watcher reads the last
//! report when it gets to it, and a watcher that stalls misses those in between. The queue's locks are not touched;
//! [`crate::alarm`] says what a change costs. Watchers are woken in the order in which they wait, so that a
//! simulation's seed gives one run.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use parking_lot::Mutex;
use striate_core::LoadReport;
use striate_runtime::Runtime;
use tokio::sync::Notify;

use crate::alarm::QueueLength;
use crate::api::{LoadStream, SiteError};
use crate::load::LoadMeter;

/// Minimum interval between two reports to one watcher. With 5 ms, gateways that share the same stale state all rush to
/// the sites that were idle in it: in the lab, reads took longer than without pushes (docs/decisions/site-protocol.md).
pub const PUSH_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum number of watchers of a site. More are refused as busy, and rely on the load reports in replies.
pub(crate) const MAX_WATCHERS: usize = 1024;

/// The reports that one site pushes.
#[derive(Debug)]
pub struct Pushes {
    runtime: Runtime,
    load: Arc<LoadMeter>,
    state: Mutex<State>,
    pushed: Notify,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// The last report, and the number of reports so far.
    last_report: LoadReport,
    reports: u64,
    watchers: usize,
    /// Whether the task is running.
    runs: bool,
}

impl State {
    fn tell(&mut self, report: LoadReport) {
        self.last_report = report;
        self.reports += 1;
    }
}

impl Pushes {
    /// Creates the pushes of what `load` measures.
    pub fn new(runtime: Runtime, load: Arc<LoadMeter>) -> Arc<Self> {
        Arc::new(Self { runtime, load, state: Mutex::default(), pushed: Notify::new() })
    }

    /// Streams the last report and every later one; if several are waiting, only the newest.
    ///
    /// # Errors
    /// [`SiteError::Busy`] when there are [`MAX_WATCHERS`] watchers.
    pub fn watch(self: &Arc<Self>) -> Result<LoadStream, SiteError> {
        let mut state = self.state.lock();
        if state.watchers >= MAX_WATCHERS {
            return Err(SiteError::Busy);
        }
        state.watchers += 1;
        if !std::mem::replace(&mut state.runs, true) {
            state.tell(self.load.report());
            self.runtime.spawn(Arc::clone(self).run());
        }
        // Starts with the last report, not the current load: the next report comes when the
        // queue differs from the last one.
        let watcher = Watcher { pushes: Arc::clone(self), reports_seen: state.reports - 1 };
        let next = |mut watcher: Watcher| async move { Some((Ok(watcher.next().await), watcher)) };
        Ok(stream::unfold(watcher, next).boxed())
    }

    async fn run(self: Arc<Self>) {
        while self.has_watchers() {
            self.wait_for_news().await;
            if self.has_news() {
                self.state.lock().tell(self.load.report());
                self.pushed.notify_waiters();
            }
            self.runtime.sleep(PUSH_INTERVAL).await;
        }
    }

    /// Completes when the queue no longer matches the last report, or when no watcher is left.
    async fn wait_for_news(&self) {
        let alarm = self.load.counts().alarm();
        while self.state.lock().watchers > 0 {
            alarm.arm(self.last_length());
            if self.has_news() {
                return;
            }
            alarm.wait().await;
        }
    }

    fn last_length(&self) -> QueueLength {
        QueueLength::of_report(&self.state.lock().last_report)
    }

    fn has_news(&self) -> bool {
        self.load.counts().length().is_news_after(self.last_length())
    }

    /// Returns whether the task continues. A watcher that arrives after it has ended starts another.
    fn has_watchers(&self) -> bool {
        let mut state = self.state.lock();
        state.runs = state.watchers > 0;
        if !state.runs {
            self.load.counts().alarm().disarm();
        }
        state.runs
    }
}

/// A watcher of a site's load.
struct Watcher {
    pushes: Arc<Pushes>,
    /// The number of the last report that it received.
    reports_seen: u64,
}

impl Watcher {
    /// Returns the newest report, once there is one that it has not seen.
    async fn next(&mut self) -> LoadReport {
        loop {
            // Registers for pushes before it reads the state.
            let pushed = self.pushes.pushed.notified();
            let state = *self.pushes.state.lock();
            if self.reports_seen != state.reports {
                self.reports_seen = state.reports;
                return state.last_report;
            }
            pushed.await;
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let watchers = {
            let mut state = self.pushes.state.lock();
            state.watchers -= 1;
            state.watchers
        };
        if watchers == 0 {
            // The task wakes, finds no watchers, and ends.
            self.pushes.load.counts().alarm().ring();
        }
    }
}

#[cfg(test)]
#[path = "pushes_tests.rs"]
mod tests;

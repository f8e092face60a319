//! Tells those who watch a site when its queue has changed.
//!
//! A reply tells its reader what is before the site at that moment. Who decides where to read wants to know it of the sites that
//! it did not ask lately too, and that others may have loaded meanwhile (Hu et al. §2.4 probe for it, at a message and a wait for
//! each). So a site pushes: a load report at once to each new watcher, and one to all of them when the queue is not what the last one
//! told ([`QueueLength::is_news_after`]), at most every [`PUSH_INTERVAL`]. The first change after a pause is told without delay, the
//! last one of a storm after the interval at the latest.
//!
//! One task serves all watchers, and lives while there are any. It never waits for them: each reads the last report when it comes
//! to it, and one that stalls has missed those in between. The queue's locks are not touched; see [`crate::alarm`] for what a
//! change costs. Watchers are woken in the order in which they wait, so that a seed of a simulation gives one run.

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

/// Least time between two reports to one watcher. With 5 ms, gateways that all know the same old state run together to the sites that
/// were idle in it: in the lab reads took longer than without pushes (docs/decisions/site-protocol.md).
pub const PUSH_INTERVAL: Duration = Duration::from_millis(1);
/// Most watchers of a site; more are refused as busy, and live on what replies tell them.
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
    /// What was told last, and how many reports that makes.
    told: LoadReport,
    reports: u64,
    watchers: usize,
    /// Whether the task runs.
    runs: bool,
}

impl State {
    fn tell(&mut self, report: LoadReport) {
        self.told = report;
        self.reports += 1;
    }
}

impl Pushes {
    /// Pushes of what `load` measures.
    pub fn new(runtime: Runtime, load: Arc<LoadMeter>) -> Arc<Self> {
        Arc::new(Self { runtime, load, state: Mutex::default(), pushed: Notify::new() })
    }

    /// What was told last, and everything that will be; the newest only when several wait.
    ///
    /// # Errors
    /// [`SiteError::Busy`] when [`MAX_WATCHERS`] watch.
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
        // Not the load of this moment: the next report comes when the queue differs from what was told last.
        let watcher = Watcher { pushes: Arc::clone(self), seen: state.reports - 1 };
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

    /// Completes when the queue is not what was told, or when nobody watches.
    async fn wait_for_news(&self) {
        let alarm = self.load.counts().alarm();
        while self.state.lock().watchers > 0 {
            alarm.arm(self.told_length());
            if self.has_news() {
                return;
            }
            alarm.wait().await;
        }
    }

    fn told_length(&self) -> QueueLength {
        QueueLength::told(&self.state.lock().told)
    }

    fn has_news(&self) -> bool {
        self.load.counts().length().is_news_after(self.told_length())
    }

    /// Whether the task goes on. A watcher that comes after it has ended starts another.
    fn has_watchers(&self) -> bool {
        let mut state = self.state.lock();
        state.runs = state.watchers > 0;
        if !state.runs {
            self.load.counts().alarm().disarm();
        }
        state.runs
    }
}

/// One who watches.
struct Watcher {
    pushes: Arc<Pushes>,
    /// The number of the report that it has.
    seen: u64,
}

impl Watcher {
    /// The newest report, when it has not that one.
    async fn next(&mut self) -> LoadReport {
        loop {
            // Hears of what is pushed from here on.
            let pushed = self.pushes.pushed.notified();
            let state = *self.pushes.state.lock();
            if self.seen != state.reports {
                self.seen = state.reports;
                return state.told;
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
            // The task looks, and ends.
            self.pushes.load.counts().alarm().ring();
        }
    }
}

#[cfg(test)]
#[path = "pushes_tests.rs"]
mod tests;

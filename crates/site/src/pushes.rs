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
//! change costs.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::select;
use futures::stream;
use parking_lot::Mutex;
use striate_core::LoadReport;
use striate_runtime::Runtime;
use tokio::sync::watch;

use crate::alarm::QueueLength;
use crate::api::{LoadStream, SiteError};
use crate::load::LoadMeter;

/// Least time between two reports to one watcher: at most 200 a second. In the model of load direction reports every 5 ms
/// read within 5 to 8% of reports at every change.
pub const PUSH_INTERVAL: Duration = Duration::from_millis(5);
/// Most watchers of a site; more are refused as busy, and live on what replies tell them.
pub const MAX_WATCHERS: usize = 1024;

/// The reports that one site pushes.
#[derive(Debug)]
pub struct Pushes {
    runtime: Runtime,
    load: Arc<LoadMeter>,
    /// What was told last.
    told: watch::Sender<LoadReport>,
    /// Whether the task runs. Held while a watcher comes and while the task looks whether the last has gone.
    runs: Mutex<bool>,
}

impl Pushes {
    /// Pushes of what `load` measures.
    pub fn new(runtime: Runtime, load: Arc<LoadMeter>) -> Arc<Self> {
        let (told, _) = watch::channel(LoadReport::default());
        Arc::new(Self { runtime, load, told, runs: Mutex::new(false) })
    }

    /// What was told last, and everything that will be; the newest only when several wait.
    ///
    /// # Errors
    /// [`SiteError::Busy`] when [`MAX_WATCHERS`] watch.
    pub fn watch(self: &Arc<Self>) -> Result<LoadStream, SiteError> {
        let mut runs = self.runs.lock();
        if self.told.receiver_count() >= MAX_WATCHERS {
            return Err(SiteError::Busy);
        }
        let mut reports = self.told.subscribe();
        if !std::mem::replace(&mut *runs, true) {
            self.told.send_replace(self.load.report());
            self.runtime.spawn(Arc::clone(self).run());
        }
        // Not the load of this moment: the next report comes when the queue differs from what was told last.
        reports.mark_changed();
        let next = |mut reports: watch::Receiver<LoadReport>| async move {
            reports.changed().await.ok()?;
            let report = *reports.borrow_and_update();
            Some((Ok(report), reports))
        };
        Ok(stream::unfold(reports, next).boxed())
    }

    async fn run(self: Arc<Self>) {
        while self.has_watchers() {
            self.wait_for_news().await;
            if self.has_news() {
                self.told.send_replace(self.load.report());
            }
            self.runtime.sleep(PUSH_INTERVAL).await;
        }
    }

    /// Completes when the queue is not what was told, or when nobody watches.
    async fn wait_for_news(&self) {
        let alarm = self.load.counts().alarm();
        while self.told.receiver_count() > 0 {
            alarm.arm(self.told_length());
            if self.has_news() {
                return;
            }
            select(pin!(alarm.wait()), pin!(self.told.closed())).await;
        }
    }

    fn told_length(&self) -> QueueLength {
        QueueLength::told(&self.told.borrow())
    }

    fn has_news(&self) -> bool {
        self.load.counts().length().is_news_after(self.told_length())
    }

    /// Whether the task goes on.
    fn has_watchers(&self) -> bool {
        let mut runs = self.runs.lock();
        *runs = self.told.receiver_count() > 0;
        if !*runs {
            self.load.counts().alarm().disarm();
        }
        *runs
    }
}

#[cfg(test)]
#[path = "pushes_tests.rs"]
mod tests;

//! Watches the queues of sites while this process reads.
//!
//! A plan needs the queues of all sites, including those that this process has not asked recently. Sites behind a
//! network push theirs ([`striate_site::pushes`]) to their watchers. A process watches every such site that answers
//! reads while it has planned a read within the last [`INTEREST`]. A process that only writes, or is idle, costs the
//! sites nothing.
//!
//! A scan runs at most once per [`LOOK`], and only when a read is planned. It starts the missing watches: at first,
//! when a site is new or has recovered, and when a stream has ended. For a site whose streams end without a report
//! (one of 0.1.0, which does not know the call) the pause between attempts doubles each time, up to [`MAX_PAUSE`].
//! Until then, only its replies report its queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use parking_lot::Mutex;
use striate_runtime::{Instant, Runtime};

use super::{Entry, SharedEstimates};

/// Minimum interval between two scans for sites to watch.
const LOOK: Duration = Duration::from_secs(1);
/// How long sites are watched after a read. If it were shorter, each burst of reads would begin without knowing the
/// queues.
const INTEREST: Duration = Duration::from_secs(60);
/// Maximum pause before another attempt at a site whose streams end without a report.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Counts of pushed reports, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushView {
    /// Load reports that sites pushed.
    pub received: u64,
    /// Sites that push now.
    pub sites: u64,
}

/// When this process last planned a read, and what sites push to it.
#[derive(Debug)]
pub(super) struct WatchActivity {
    since: Instant,
    /// Times in milliseconds: when a read was last planned, and when the next scan is due.
    read_at: AtomicU64,
    look_at: AtomicU64,
    received: AtomicU64,
    sites: AtomicU64,
}

/// Watch state of a site.
#[derive(Debug, Default)]
pub(super) struct WatchState(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is_under_way: bool,
    /// Streams in a row that ended without a report.
    failures: u32,
    not_before: Option<Instant>,
}

impl WatchActivity {
    pub(super) fn new(now: Instant) -> Self {
        let zero = || AtomicU64::new(0);
        Self { since: now, read_at: zero(), look_at: zero(), received: zero(), sites: zero() }
    }

    pub(super) fn view(&self) -> PushView {
        let (received, sites) = (&self.received, &self.sites);
        PushView { received: received.load(Ordering::Relaxed), sites: sites.load(Ordering::Relaxed) }
    }

    /// Records that a read is planned. Returns true when a scan is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let now = self.milliseconds(now);
        self.read_at.fetch_max(now, Ordering::Relaxed);
        let due = self.look_at.load(Ordering::Relaxed);
        let next = now + LOOK.as_millis() as u64;
        now >= due && self.look_at.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn has_read_lately(&self, now: Instant) -> bool {
        let since = self.milliseconds(now).saturating_sub(self.read_at.load(Ordering::Relaxed));
        since < INTEREST.as_millis() as u64
    }

    fn milliseconds(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.since).as_millis() as u64
    }
}

impl WatchState {
    /// Claims the watch. Returns true if the caller must begin now.
    fn begins(&self, now: Instant) -> bool {
        let mut state = self.0.lock();
        let may = !state.is_under_way && state.not_before.is_none_or(|at| at <= now);
        state.is_under_way |= may;
        may
    }

    /// Records the end of the stream.
    fn ended(&self, has_pushed: bool, now: Instant) {
        let mut state = self.0.lock();
        state.is_under_way = false;
        state.failures = if has_pushed { 0 } else { state.failures.saturating_add(1) };
        let pause = LOOK.saturating_mul(1 << state.failures.min(16)).min(MAX_PAUSE);
        state.not_before = Some(now + pause);
    }
}

/// Begins to watch a site, if that is due.
pub(super) fn begin(runtime: &Runtime, entry: &Entry, usual: &Arc<SharedEstimates>, now: Instant) {
    if entry.site.knows_its_load() || !entry.is_readable() || !entry.health.watched.begins(now) {
        return;
    }
    let (task_runtime, entry, usual) = (runtime.clone(), entry.clone(), Arc::clone(usual));
    runtime.spawn(async move {
        let has_pushed = watch(&task_runtime, &entry, &usual).await;
        entry.health.watched.ended(has_pushed, task_runtime.now());
    });
}

/// Records the reports that a site pushes until the stream ends or is no longer wanted. Returns whether any came.
async fn watch(runtime: &Runtime, entry: &Entry, usual: &SharedEstimates) -> bool {
    let (load, watching) = (&entry.health.load, &usual.watching);
    let mut reports = entry.site.watch();
    let mut has_pushed = false;
    // When a site was replaced, this task alone holds its state.
    let is_wanted = || {
        let is_known = Arc::strong_count(&entry.health) > 1;
        is_known && entry.is_readable() && watching.has_read_lately(runtime.now())
    };
    while is_wanted() {
        match runtime.timeout(LOOK, reports.next()).await {
            // Nothing has changed.
            Err(_) => {}
            Ok(Some(Ok(report))) => {
                load.hear_push(&report, runtime.now(), &usual.queue);
                watching.received.fetch_add(1, Ordering::Relaxed);
                if !std::mem::replace(&mut has_pushed, true) {
                    watching.sites.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(Some(Err(error))) => {
                tracing::debug!(site = %entry.site.id(), %error, "the site does not push load reports");
                break;
            }
            Ok(None) => break,
        }
    }
    load.end_pushes(runtime.now());
    if has_pushed {
        watching.sites.fetch_sub(1, Ordering::Relaxed);
    }
    has_pushed
}

#[cfg(test)]
#[path = "watching_tests.rs"]
mod tests;

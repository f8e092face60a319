//! Watches sites for their queues while this process reads.
//!
//! A plan needs the queues of all sites, also of those that this process did not ask lately. Sites behind a network push theirs
//! ([`striate_site::pushes`]) to those who watch. A process watches every such site that answers reads as long as it has planned a read
//! within [`INTEREST`]: one that only writes, or does nothing, costs the sites nothing.
//!
//! Each look, at most one in [`LOOK`] and only when a read is planned, begins what is missing: at first, when a site is new or well
//! again, and when its stream has ended. A site whose streams end without a report (one of 0.1.0, which does not know the call) is
//! asked after twice as long each time, up to [`MAX_PAUSE`]. Until then, what its replies tell is what is known of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use parking_lot::Mutex;
use striate_runtime::{Instant, Runtime};

use super::{Entry, Usual};

/// Time between two looks for what is to be watched.
const LOOK: Duration = Duration::from_secs(1);
/// For so long after a read sites are watched. Shorter, and each burst of reads would begin without knowing the queues.
const INTEREST: Duration = Duration::from_secs(60);
/// Longest pause before a site is asked again whose streams end without a report.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The pushes received, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushView {
    /// Load reports that sites pushed.
    pub received: u64,
    /// Sites that push now.
    pub sites: u64,
}

/// Whether this process reads, and what sites push to it.
#[derive(Debug)]
pub(super) struct Watching {
    since: Instant,
    /// In milliseconds: when a read was planned last, and when to look next.
    read_at: AtomicU64,
    look_at: AtomicU64,
    received: AtomicU64,
    sites: AtomicU64,
}

/// How a site is watched.
#[derive(Debug, Default)]
pub(super) struct Watched(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is_under_way: bool,
    /// Streams in a row that ended without a report.
    failures: u32,
    not_before: Option<Instant>,
}

impl Watching {
    pub(super) fn new(now: Instant) -> Self {
        let zero = || AtomicU64::new(0);
        Self { since: now, read_at: zero(), look_at: zero(), received: zero(), sites: zero() }
    }

    pub(super) fn view(&self) -> PushView {
        let (received, sites) = (&self.received, &self.sites);
        PushView { received: received.load(Ordering::Relaxed), sites: sites.load(Ordering::Relaxed) }
    }

    /// A read is planned. True when it is time for a look.
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

impl Watched {
    /// Whether the caller is to begin now.
    fn begins(&self, now: Instant) -> bool {
        let mut state = self.0.lock();
        let may = !state.is_under_way && state.not_before.is_none_or(|at| at <= now);
        state.is_under_way |= may;
        may
    }

    /// The stream has ended.
    fn ended(&self, has_told: bool, now: Instant) {
        let mut state = self.0.lock();
        state.is_under_way = false;
        state.failures = if has_told { 0 } else { state.failures.saturating_add(1) };
        let pause = LOOK.saturating_mul(1 << state.failures.min(16)).min(MAX_PAUSE);
        state.not_before = Some(now + pause);
    }
}

/// Begins to watch a site, where that is to be.
pub(super) fn begin(runtime: &Runtime, entry: &Entry, usual: &Arc<Usual>, now: Instant) {
    if entry.site.knows_its_load() || !entry.is_readable() || !entry.health.watched.begins(now) {
        return;
    }
    let (of_task, entry, usual) = (runtime.clone(), entry.clone(), Arc::clone(usual));
    runtime.spawn(async move {
        let has_told = watch(&of_task, &entry, &usual).await;
        entry.health.watched.ended(has_told, of_task.now());
    });
}

/// Hears what a site pushes until it ends or nobody wants it any more. Answers whether anything came.
async fn watch(runtime: &Runtime, entry: &Entry, usual: &Usual) -> bool {
    let (load, watching) = (&entry.health.load, &usual.watching);
    let mut reports = entry.site.watch();
    let mut has_told = false;
    // Of a site that was replaced, this task alone holds what is known.
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
                if !std::mem::replace(&mut has_told, true) {
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
    if has_told {
        watching.sites.fetch_sub(1, Ordering::Relaxed);
    }
    has_told
}

#[cfg(test)]
#[path = "watching_tests.rs"]
mod tests;

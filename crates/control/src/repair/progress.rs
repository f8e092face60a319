//! Progress and speed of repair.

use std::time::Duration;

use striate_core::SiteId;
use striate_meta::records::{RepairWork, SilentSite};
use striate_runtime::Instant;

use crate::recent::RecentWork;
use crate::repair::RepairOutcome;

/// Granularity in milliseconds to which the rest of a wait is rounded up.
const ROUNDED_MS: u64 = 30_000;

/// The progress of a repair service.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    work: RepairWork,
    /// Recently repaired stripes and bytes.
    recent: RecentWork,
    last_published: Option<RepairWork>,
}

impl Progress {
    pub(crate) fn begin(&mut self, now: Instant, off: bool) {
        self.recent.begin(now);
        self.work.off = off;
    }

    pub(crate) fn record(&self) -> RepairWork {
        self.work.clone()
    }

    /// Sets the silent sites, each with the rest of its wait.
    pub(crate) fn sites(&mut self, silent: Vec<(SiteId, Duration)>) {
        // Rounded up, so that waiting does not change the record at every poll.
        let site = |(site, remaining): (SiteId, Duration)| SilentSite {
            site: site.0,
            rebuilt_after_s: (remaining.as_millis() as u64).div_ceil(ROUNDED_MS) * ROUNDED_MS / 1_000,
        };
        self.work.silent = silent.into_iter().map(site).collect();
    }

    /// Records a new list: how many stripes are not whole, if they were counted, and how many of them wait for a
    /// site.
    pub(crate) fn found(&mut self, not_whole: Option<u64>, waiting: u64) {
        self.work.left = not_whole.unwrap_or(self.work.left).max(waiting);
        self.work.waiting = waiting;
    }

    pub(crate) fn repaired(&mut self, now: Instant, outcome: &RepairOutcome) {
        let stripes = u64::from(outcome.is_whole());
        self.work.left = self.work.left.saturating_sub(stripes);
        self.work.stripes += stripes;
        self.work.chunks += outcome.chunks;
        self.work.bytes += outcome.bytes;
        self.recent.add(now, stripes, outcome.bytes);
    }

    /// Returns the progress if it has changed since the last call.
    pub(crate) fn unpublished(&mut self, now: Instant) -> Option<RepairWork> {
        (self.work.rate_stripes_per_ks, self.work.rate_bytes_per_s) = self.recent.rates(now);
        if self.last_published.as_ref() == Some(&self.work) {
            return None;
        }
        self.last_published = Some(self.work.clone());
        self.last_published.clone()
    }
}

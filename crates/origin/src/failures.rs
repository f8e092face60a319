//! Whether an origin answers.

use std::time::Duration;

use parking_lot::Mutex;
use striate_runtime::Instant;

/// Failures in a row after which an origin counts as failing: as many as a read makes attempts.
const LEAST: u64 = 3;

/// A bucket whose origin does not answer, as its last requests found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingOrigin {
    /// Name of the bucket here.
    pub bucket: String,
    /// Endpoint of the origin.
    pub endpoint: String,
    /// Requests that failed since the origin last answered.
    pub requests: u64,
    /// Time since the first of them failed.
    pub since: Duration,
    /// Time since the last of them failed.
    pub last: Duration,
    /// Why the last of them failed, as text.
    pub reason: String,
}

/// Requests to one origin that failed since it last answered.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<Option<Run>>);

/// Failures in a row.
#[derive(Debug)]
struct Run {
    requests: u64,
    first: Instant,
    last: Instant,
    reason: String,
}

impl Failures {
    pub(crate) fn add(&self, now: Instant, reason: String) {
        let mut run = self.0.lock();
        let (requests, first) = run.as_ref().map_or((0, now), |run| (run.requests, run.first));
        *run = Some(Run { requests: requests + 1, first, last: now, reason });
    }

    /// Notes that the origin has answered.
    pub(crate) fn end(&self) {
        *self.0.lock() = None;
    }

    /// Returns the failures of a bucket's origin; `None` while it answers.
    pub(crate) fn view(&self, now: Instant, bucket: &str, endpoint: &str) -> Option<FailingOrigin> {
        let run = self.0.lock();
        let run = run.as_ref().filter(|run| run.requests >= LEAST)?;
        Some(FailingOrigin {
            bucket: bucket.to_owned(),
            endpoint: endpoint.to_owned(),
            requests: run.requests,
            since: now.saturating_duration_since(run.first),
            last: now.saturating_duration_since(run.last),
            reason: run.reason.clone(),
        })
    }
}

//! Results of a run.

use serde::Serialize;

use super::super::outcome::Row;

/// Summary of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RunSummary {
    /// Request latencies, from arrival at the front end to the last byte needed.
    pub requests: Row,
    /// 99th percentile of the request latencies, in seconds.
    pub p99: f64,
    /// Task latencies, from arrival at the node to the end.
    pub tasks: Row,
    /// Tasks per request.
    pub tasks_per_request: f64,
    /// Share of requests that timed out.
    pub timed_out: f64,
    /// Unsolicited messages per second that report queues to front ends.
    pub pushes_per_s: f64,
    /// λ: how far the busiest node's bytes are above the mean, in percent.
    pub imbalance: f64,
}

/// All times of a run in seconds, ascending.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunTimes {
    /// Request latencies.
    pub requests: Vec<f64>,
    /// Task latencies.
    pub tasks: Vec<f64>,
    /// Waiting times of tasks at their nodes.
    pub waits: Vec<f64>,
    /// Times of requests at their front ends before their tasks were sent.
    pub controllers: Vec<f64>,
}

impl RunTimes {
    pub(super) fn sort(&mut self) {
        for times in [&mut self.requests, &mut self.tasks, &mut self.waits, &mut self.controllers] {
            times.sort_by(f64::total_cmp);
        }
    }
}

/// Returns a quantile of sorted times; 0 if there are none.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = (sorted.len() as f64 * share) as usize;
    sorted.get(place.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

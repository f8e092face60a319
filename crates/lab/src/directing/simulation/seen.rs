//! What a run has shown.

use serde::Serialize;

use super::super::outcome::Row;

/// What a run has shown, summed up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Seen {
    /// Of requests: from their arrival at the front end to the last byte needed.
    pub requests: Row,
    /// Their 99th percentile.
    pub p99: f64,
    /// Of tasks: from their arrival at the node to their end.
    pub tasks: Row,
    /// Tasks for each request.
    pub tasks_per_request: f64,
    /// The share of requests that timed out.
    pub timed_out: f64,
    /// Messages that tell front ends of queues without being asked, a second.
    pub pushes_per_s: f64,
    /// λ: by how much the busiest node's bytes are above the mean, in %.
    pub imbalance: f64,
}

/// Every time of a run in seconds, ascending.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    /// Of requests.
    pub requests: Vec<f64>,
    /// Of tasks.
    pub tasks: Vec<f64>,
    /// How long tasks waited at their nodes.
    pub waits: Vec<f64>,
    /// How long requests were at their front ends before their tasks were sent.
    pub controllers: Vec<f64>,
}

impl Times {
    pub(super) fn sort(&mut self) {
        for times in [&mut self.requests, &mut self.tasks, &mut self.waits, &mut self.controllers] {
            times.sort_by(f64::total_cmp);
        }
    }
}

/// The quantile of sorted times; 0 of none.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = (sorted.len() as f64 * share) as usize;
    sorted.get(place.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

//! Measurements of reads, for metrics: the breakdown of EC-Store's Figure 1, and the effects of hedging and planning.
//!
//! Counters only grow; they cost a few atomic additions per read. A *read* is a query of many blocks or one block of
//! a get.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use striate_plan::PlanCost;

use super::query::ReadStats;

/// Phase of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Look-up of an object's row.
    Object,
    /// Look-up of the stripes, for the locations of chunks.
    Metadata,
    /// Choice of the chunks of a query, including probes for it.
    Plan,
    /// From the requests to the sites to the last chunk needed.
    Retrieve,
    /// Computation of data from other chunks. Reads that decode nothing are not counted.
    Decode,
}

/// Upper bounds of the duration buckets, in seconds.
const SECONDS: [f64; 16] = [
    0.000_01, 0.000_025, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
    0.5, 1.0, 5.0,
];
/// Upper bounds of the buckets of plan costs, where asking an idle site costs 1.
const COSTS: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0];
/// Upper bounds of the buckets of the fraction of its cost that a better plan could save.
const GAPS: [f64; 9] = [0.0, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25];

/// Distribution of values.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// Values in each bucket; one more bucket than bounds.
    counts: Vec<AtomicU64>,
    /// Sum of all values in 10⁻⁹ of the unit.
    sum: AtomicU64,
}

/// Snapshot of a histogram.
#[derive(Clone, Debug, PartialEq)]
pub struct HistogramView {
    /// Upper bounds of the buckets, ascending; one more bucket follows.
    pub bounds: &'static [f64],
    /// Values in each bucket.
    pub counts: Vec<u64>,
    /// Sum of all values.
    pub sum: f64,
}

/// Measurements of the reads of one client.
#[derive(Debug)]
pub struct ReadMeasures {
    phases: [Histogram; 5],
    /// Chunks beyond a sufficient set that queries requested at once (δ).
    pub extra_chunks: AtomicU64,
    /// Chunks requested because others were late.
    pub hedged_chunks: AtomicU64,
    /// Requests to sites cancelled because their replies were no longer needed.
    pub cancelled_requests: AtomicU64,
    /// Pieces planned again because a chunk was missing, damaged or lost with its site.
    pub planned_again: AtomicU64,
    /// Messages that asked a site for its queue, for policies that probe.
    pub probes: AtomicU64,
    /// Costs of the plans of policies that minimise the cost.
    pub plan_costs: Histogram,
    /// Maximum fraction of its cost that another plan could have saved, by plan.
    pub plan_gaps: Histogram,
}

impl Phase {
    /// All phases, in their order in a request.
    pub const ALL: [Self; 5] = [Self::Object, Self::Metadata, Self::Plan, Self::Retrieve, Self::Decode];

    /// Name of the phase.
    pub fn name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Metadata => "metadata",
            Self::Plan => "plan",
            Self::Retrieve => "retrieve",
            Self::Decode => "decode",
        }
    }
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0) }
    }

    fn observe(&self, value: f64) {
        let bucket = self.bounds.iter().position(|&bound| value <= bound).unwrap_or(self.bounds.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add((value * 1e9) as u64, Ordering::Relaxed);
    }

    /// Returns a snapshot.
    pub fn view(&self) -> HistogramView {
        HistogramView {
            bounds: self.bounds,
            counts: self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            sum: self.sum.load(Ordering::Relaxed) as f64 / 1e9,
        }
    }
}

impl Default for ReadMeasures {
    fn default() -> Self {
        Self {
            phases: std::array::from_fn(|_| Histogram::new(&SECONDS)),
            extra_chunks: AtomicU64::new(0),
            hedged_chunks: AtomicU64::new(0),
            cancelled_requests: AtomicU64::new(0),
            planned_again: AtomicU64::new(0),
            probes: AtomicU64::new(0),
            plan_costs: Histogram::new(&COSTS),
            plan_gaps: Histogram::new(&GAPS),
        }
    }
}

impl ReadMeasures {
    /// Durations of a phase, over all reads.
    pub fn phase(&self, phase: Phase) -> &Histogram {
        &self.phases[phase as usize]
    }

    /// Records the duration of a phase of a read.
    pub fn took(&self, phase: Phase, time: Duration) {
        self.phase(phase).observe(time.as_secs_f64());
    }

    pub(crate) fn planned(&self, plan: PlanCost) {
        self.plan_costs.observe(plan.cost);
        self.plan_gaps.observe(plan.gap());
    }

    /// Records what a query requested beyond its plan, or without using it.
    pub(crate) fn queried(&self, stats: &ReadStats) {
        Self::count(&self.extra_chunks, stats.extra_chunks);
        Self::count(&self.hedged_chunks, stats.hedged_chunks);
        Self::count(&self.cancelled_requests, stats.cancelled);
        Self::count(&self.planned_again, stats.planned_again);
    }

    pub(crate) fn count(counter: &AtomicU64, more: usize) {
        if more > 0 {
            counter.fetch_add(more as u64, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fall_into_the_first_bucket_that_holds_them() {
        let histogram = Histogram::new(&GAPS);
        [0.0, 0.001, 0.002, 9.0].iter().for_each(|&value| histogram.observe(value));
        let view = histogram.view();
        assert_eq!(view.counts, [1, 1, 1, 0, 0, 0, 0, 0, 0, 1]);
        assert!((view.sum - 9.003).abs() < 1e-6, "{view:?}");
        for bounds in [&SECONDS[..], &COSTS, &GAPS] {
            assert!(bounds.is_sorted());
        }
    }
}

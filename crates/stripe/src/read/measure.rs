//! What reads took, counted for whoever shows it: the breakdown of EC-Store's Figure 1, and what hedging and planning did.
//!
//! Counters only grow; they cost a few atomic additions for each read. A *read* is a query of many blocks or one block of
//! a get.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use striate_plan::PlanCost;

use super::query::ReadStats;

/// A part of a request's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The look-up of an object's row.
    Object,
    /// The look-up of the stripes: where the chunks are.
    Metadata,
    /// Choosing the chunks of a query, probes for it included.
    Plan,
    /// From asking the sites to the last chunk that was needed.
    Retrieve,
    /// Computing data from other chunks; reads that decode nothing do not count.
    Decode,
}

/// Upper bounds of the buckets of times, in seconds.
const SECONDS: [f64; 16] = [
    0.000_01, 0.000_025, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
    0.5, 1.0, 5.0,
];
/// Upper bounds of the buckets of plans' costs, where asking an idle site costs 1.
const COSTS: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0];
/// Upper bounds of the buckets of what part of its cost a better plan could save.
const GAPS: [f64; 9] = [0.0, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25];

/// Values by size.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One more than there are bounds.
    counts: Vec<AtomicU64>,
    /// In 10⁻⁹ of the unit.
    sum: AtomicU64,
}

/// A histogram at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct HistogramView {
    /// Upper bounds of the buckets, ascending; one more bucket follows.
    pub bounds: &'static [f64],
    /// Values in each bucket.
    pub counts: Vec<u64>,
    /// The sum of all values.
    pub sum: f64,
}

/// What the reads of one client took.
#[derive(Debug)]
pub struct ReadMeasures {
    phases: [Histogram; 5],
    /// Chunks beyond a sufficient set that queries asked for at once (δ).
    pub extra_chunks: AtomicU64,
    /// Chunks that were asked for because others were late.
    pub hedged_chunks: AtomicU64,
    /// Requests to sites that were taken back because their answer was no longer needed.
    pub cancelled_requests: AtomicU64,
    /// Pieces that were planned again because a chunk was missing, damaged or lost with its site.
    pub planned_again: AtomicU64,
    /// Messages that asked a site for its queue, for a policy that wants it.
    pub probes: AtomicU64,
    /// What the plans of policies that minimise the cost cost.
    pub plan_costs: Histogram,
    /// What part of its cost another plan could have saved at most.
    pub plan_gaps: Histogram,
}

impl Phase {
    /// All phases, in the order of a request.
    pub const ALL: [Self; 5] = [Self::Object, Self::Metadata, Self::Plan, Self::Retrieve, Self::Decode];

    /// Its name.
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

    /// Its state now.
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
    /// How long this phase took, over all reads.
    pub fn phase(&self, phase: Phase) -> &Histogram {
        &self.phases[phase as usize]
    }

    /// A read took so long in this phase.
    pub fn took(&self, phase: Phase, time: Duration) {
        self.phase(phase).observe(time.as_secs_f64());
    }

    pub(crate) fn planned(&self, plan: PlanCost) {
        self.plan_costs.observe(plan.cost);
        self.plan_gaps.observe(plan.gap());
    }

    /// What a query asked beyond its plan, or in vain.
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

//! Any sufficient set, each equally likely: k random chunks of an MDS code (the papers' EC), or a random copy of a
//! replicated block (R). With δ extra chunks, the first sufficient ones to arrive are used (EC-Store's EC+LB,
//! EC-Cache's k + Δ).

use std::fmt;

use rand::{Rng, RngCore};
use striate_codec::CodecError;
use striate_plan::ordered::plan_in_order;
use striate_plan::{ChosenChunk, ChunkChoice, Policy, QueryPlan, ReadPlanner, ReadPurpose, ReadQuery};

/// Reads random chunks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Random {
    /// Chunks beyond a sufficient set, if any.
    pub late_binding: Option<LateBinding>,
}

/// Requests for more chunks than needed.
#[derive(Clone, Copy, Debug)]
pub struct LateBinding {
    /// δ: chunks requested beyond a sufficient set.
    pub extra_reads: usize,
    /// Cancels reads that are still queued at the sites once a block is complete.
    pub cancel: bool,
}

impl Policy for Random {
    fn planner(&self) -> Box<dyn ReadPlanner> {
        Box::new(*self)
    }

    fn extra_reads(&self) -> usize {
        self.late_binding.map_or(0, |late_binding| late_binding.extra_reads)
    }

    fn cancels(&self) -> bool {
        self.late_binding.is_none_or(|late_binding| late_binding.cancel)
    }

    fn why(&self, _: ChosenChunk) -> ChunkChoice {
        ChunkChoice::Drawn
    }
}

impl fmt::Display for Random {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.late_binding {
            None => f.write_str("random"),
            Some(LateBinding { extra_reads, cancel: true }) => write!(f, "late-binding({extra_reads})"),
            Some(LateBinding { extra_reads, cancel: false }) => write!(f, "late-binding({extra_reads},keep)"),
        }
    }
}

impl ReadPlanner for Random {
    fn plan(&mut self, query: &ReadQuery<'_>, rng: &mut dyn RngCore) -> Result<QueryPlan, CodecError> {
        let extra_reads = if query.purpose == ReadPurpose::Rest { 0 } else { self.extra_reads() };
        plan_in_order(query, extra_reads, |_, order, _| shuffle(order, rng))
    }
}

/// Shuffles uniformly.
pub(crate) fn shuffle(order: &mut [usize], rng: &mut dyn RngCore) {
    for last in (1..order.len()).rev() {
        order.swap(last, rng.random_range(0..=last));
    }
}

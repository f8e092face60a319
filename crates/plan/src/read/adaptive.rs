//! The default policy: requests follow the sites' queues.
//!
//! - A query of whole blocks is planned by the cost model, with one extra read only while queues are short.
//! - A query with pieces that want one chunk (packed objects, ranges) gets one plan for all its pieces, whole blocks
//!   included, so that the last chunk arrives soon and little load is added ([`crate::solver::makespan`]). A single
//!   such piece is planned the same way once its site has a queue, by its own predicted latency and the load it adds.
//! - If chunks are later than predicted, others are requested.
//!
//! A single such piece whose site has no queue is not worth planning, and neither is a small read-ahead of any other
//! single piece: they request the wanted chunks themselves, and nothing is drawn or solved. All other read-ahead
//! follows the cost model.

use std::fmt;

use rand::RngCore;
use striate_codec::CodecError;

use super::cost_model::{CheapestChunks, CostModel};
use super::piece::QueryPlan;
use super::policy::{ChosenChunk, ChunkChoice, Policy, ReadPlanner, ReadPurpose, ReadQuery};
use super::query_options::wants_one_chunk;
use super::soonest::{SoonestChunks, may_read_around};
use crate::solver::makespan::USUAL_WEIGHT;

/// Reads by the predictions from the sites' queues.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adaptive {
    /// w: weight of the load that a read adds against its latency. [`USUAL_WEIGHT`] unless queues are known late.
    pub load_weight: f64,
}

impl Default for Adaptive {
    fn default() -> Self {
        Self { load_weight: USUAL_WEIGHT }
    }
}

/// Requests waiting per worker up to which an extra chunk is requested, as the mean over the sites with chunks of the
/// query.
const MOST_WAITING_FOR_EXTRA_READS: f64 = 0.1;
/// Bytes above which a read-ahead of one piece is planned.
const SMALL_BYTES: usize = 1 << 20;

impl Adaptive {
    /// Parses the policy's text.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if text == "adaptive" {
            return Some(Self::default());
        }
        let load_weight = text.strip_prefix("adaptive(")?.strip_suffix(')')?.parse().ok()?;
        (f64::is_finite(load_weight) && load_weight >= 0.0).then_some(Self { load_weight })
    }
}

impl Policy for Adaptive {
    fn planner(&self) -> Box<dyn ReadPlanner> {
        Box::new(AdaptivePlanner { load_weight: self.load_weight, ..AdaptivePlanner::default() })
    }

    fn is_worth_planning(&self, query: &ReadQuery<'_>) -> bool {
        let [piece] = query.pieces else { return true };
        if wants_one_chunk(piece) {
            return may_read_around(piece, query, self.load_weight);
        }
        query.purpose != ReadPurpose::Ahead || piece.len as usize * piece.wanted.len() > SMALL_BYTES
    }

    fn most_extra_reads(&self) -> usize {
        1
    }

    fn predicts_lateness(&self) -> bool {
        true
    }

    fn optimises(&self) -> bool {
        true
    }

    fn why(&self, chunk: ChosenChunk) -> ChunkChoice {
        CostModel::default().why(chunk)
    }
}

impl fmt::Display for Adaptive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self == Self::default() {
            true => f.write_str("adaptive"),
            false => write!(f, "adaptive({})", self.load_weight),
        }
    }
}

#[derive(Debug, Default)]
struct AdaptivePlanner {
    load_weight: f64,
    blocks: CheapestChunks,
    directed: SoonestChunks,
}

impl ReadPlanner for AdaptivePlanner {
    fn plan(&mut self, query: &ReadQuery<'_>, rng: &mut dyn RngCore) -> Result<QueryPlan, CodecError> {
        match is_directed(query) {
            true => self.directed.plan(query, self.load_weight, rng),
            false => self.blocks.plan(query, extra_reads(query), rng),
        }
    }
}

/// Returns whether a caller waits for pieces that may be read around a queue.
fn is_directed(query: &ReadQuery<'_>) -> bool {
    let is_awaited = match query.purpose {
        ReadPurpose::Query => true,
        ReadPurpose::Ahead => query.pieces.len() == 1,
        ReadPurpose::Rest => false,
    };
    is_awaited && query.pieces.iter().any(wants_one_chunk)
}

/// Returns the current δ: one extra chunk as long as no request has to wait for it.
fn extra_reads(query: &ReadQuery<'_>) -> usize {
    if query.purpose != ReadPurpose::Query {
        return 0;
    }
    let sites = query.pieces.iter().flat_map(|piece| piece.sites);
    let waiting: Vec<f64> = sites.filter_map(|&site| Some((query.queue)(site)?.waiting)).collect();
    let mean = waiting.iter().sum::<f64>() / waiting.len().max(1) as f64;
    usize::from(mean <= MOST_WAITING_FOR_EXTRA_READS)
}

//! The default: what is asked for follows the sites' queues.
//!
//! - A query of whole blocks by the cost model, with one extra read only while queues are short.
//! - A query with pieces that want one chunk (packed objects, ranges) as one plan of all of them, whole blocks too: so that the
//!   last chunk comes soon and little load is added ([`crate::solver::makespan`]). So is a single such piece, by its own
//!   predicted latency and the load that it adds, once its site has a queue.
//! - Other chunks are asked for when some are later than predicted.
//!
//! Planning is not worth it for a small read of one piece otherwise: the wanted chunks themselves are asked for, and
//! nothing is drawn or solved. What is read ahead of a receiver goes by the cost model.

use std::fmt;

use rand::RngCore;
use striate_codec::CodecError;

use super::cost_model::{CheapestChunks, CostModel};
use super::piece::QueryPlan;
use super::policy::{ChosenChunk, ChunkChoice, Policy, Purpose, ReadPlanner, ReadQuery};
use super::query_options::wants_one_chunk;
use super::soonest::{SoonestChunks, may_read_around};
use crate::solver::makespan::USUAL_WEIGHT;

/// Reads as the sites' queues let expect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adaptive {
    /// w: what the load that a read adds counts against its latency. [`USUAL_WEIGHT`] unless queues are known late.
    pub load_weight: f64,
}

impl Default for Adaptive {
    fn default() -> Self {
        Self { load_weight: USUAL_WEIGHT }
    }
}

/// An extra chunk is asked for while so many requests wait for each worker, in the mean over the sites that have chunks of
/// the query.
const MOST_WAITING_FOR_EXTRA_READS: f64 = 0.1;
/// A read of one piece with more bytes is planned.
const SMALL_BYTES: usize = 1 << 20;

impl Adaptive {
    /// Reads the policy's text.
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
        query.purpose != Purpose::Ahead || piece.len as usize * piece.wanted.len() > SMALL_BYTES
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

/// Whether somebody waits for pieces that may be read around.
fn is_directed(query: &ReadQuery<'_>) -> bool {
    let is_awaited = match query.purpose {
        Purpose::Query => true,
        Purpose::Ahead => query.pieces.len() == 1,
        Purpose::Rest => false,
    };
    is_awaited && query.pieces.iter().any(wants_one_chunk)
}

/// δ now: one chunk more as long as that makes nobody wait.
fn extra_reads(query: &ReadQuery<'_>) -> usize {
    if query.purpose != Purpose::Query {
        return 0;
    }
    let sites = query.pieces.iter().flat_map(|piece| piece.sites);
    let waiting: Vec<f64> = sites.filter_map(|&site| Some((query.queue)(site)?.waiting)).collect();
    let mean = waiting.iter().sum::<f64>() / waiting.len().max(1) as f64;
    usize::from(mean <= MOST_WAITING_FOR_EXTRA_READS)
}

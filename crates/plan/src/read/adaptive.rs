//! The default: the cost model, with one extra read only while queues are short, and other chunks asked when some are
//! later than predicted.
//!
//! Planning is not worth it for a small read of one piece: the wanted chunks themselves are asked for, and nothing is
//! drawn or solved.

use std::fmt;

use rand::RngCore;
use striate_codec::CodecError;

use super::cost_model::{CheapestChunks, CostModel};
use super::piece::QueryPlan;
use super::policy::{ChosenChunk, ChunkChoice, Policy, Purpose, ReadPlanner, ReadQuery};

/// Reads as the sites' queues let expect.
#[derive(Clone, Copy, Debug, Default)]
pub struct Adaptive;

/// An extra chunk is asked for while so many requests wait for each worker, in the mean over the sites that have chunks of
/// the query.
const MOST_WAITING_FOR_EXTRA_READS: f64 = 0.1;
/// A read of one piece with more bytes is planned.
const SMALL_BYTES: usize = 1 << 20;

impl Policy for Adaptive {
    fn planner(&self) -> Box<dyn ReadPlanner> {
        Box::<AdaptivePlanner>::default()
    }

    fn is_worth_planning(&self, query: &ReadQuery<'_>) -> bool {
        let [piece] = query.pieces else { return true };
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
        f.write_str("adaptive")
    }
}

#[derive(Debug, Default)]
struct AdaptivePlanner {
    solver: CheapestChunks,
}

impl ReadPlanner for AdaptivePlanner {
    fn plan(&mut self, query: &ReadQuery<'_>, rng: &mut dyn RngCore) -> Result<QueryPlan, CodecError> {
        self.solver.plan(query, extra_reads(query), rng)
    }
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

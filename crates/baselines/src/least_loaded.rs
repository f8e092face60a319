//! Chooses chunks on the sites of least cost. Each chosen chunk raises the cost of its site for the rest of the query
//! (load-aware R, for replicated blocks).

use std::fmt;

use rand::RngCore;
use striate_codec::CodecError;
use striate_plan::ordered::{ChosenChunks, plan_in_order};
use striate_plan::{ChosenChunk, ChunkChoice, Policy, QueryPiece, QueryPlan, ReadPlanner, ReadQuery};

/// Reads from the least loaded sites.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeastLoaded;

impl Policy for LeastLoaded {
    fn planner(&self) -> Box<dyn ReadPlanner> {
        Box::new(Self)
    }

    fn why(&self, _: ChosenChunk) -> ChunkChoice {
        ChunkChoice::LeastCost
    }
}

impl fmt::Display for LeastLoaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("least-loaded")
    }
}

impl ReadPlanner for LeastLoaded {
    fn plan(&mut self, query: &ReadQuery<'_>, _: &mut dyn RngCore) -> Result<QueryPlan, CodecError> {
        plan_in_order(query, 0, |piece, order, chosen| {
            sort_by_cost(order, &query.pieces[piece], query, chosen);
        })
    }
}

/// Sorts by the site's cost and the number of chunks that this query already asks of it. The sort is stable: equals
/// stay in code order, data chunks first.
fn sort_by_cost(order: &mut [usize], piece: &QueryPiece<'_>, query: &ReadQuery<'_>, chosen: &ChosenChunks) {
    let cost_of = |index: &usize| {
        let site = piece.sites[*index];
        let asked = chosen.iter().filter(|(other, _)| *other == site).count();
        (query.cost)(site).map_or(f64::INFINITY, |cost| cost.asking) + asked as f64
    };
    order.sort_by(|a, b| cost_of(a).total_cmp(&cost_of(b)));
}

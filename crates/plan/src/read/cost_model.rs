//! The chunks of a whole query with the least cost by EC-Store's Eq. 1 (§IV-B), which charges for each site: the
//! optimal plan, or the best found in about 200 µs (EC+C, and EC+C+LB with extra reads). The first sufficient chunks to
//! arrive are used, and queued requests for a complete piece are cancelled.
//!
//! Eq. 1 is for blocks that any k chunks determine. A query with a piece that wants one chunk (a packed object, a
//! range) is planned as a whole, with the options of such pieces ([`crate::solver::alternatives`]).

use std::fmt;
use std::ops::Range;

use rand::{Rng, RngCore};
use striate_codec::CodecError;
use striate_core::SiteId;

use super::cheapest_options::CheapestOptions;
use super::ordered::plan_in_order;
use super::piece::{PlanCost, QueryChunk, QueryPiece, QueryPlan};
use super::policy::{
    ChosenChunk, ChunkChoice, Policy, ReadPlanner, ReadPurpose, ReadQuery, write_with_extra_reads,
};
use super::query_options::wants_one_chunk;
use crate::cost::SiteCost;
use crate::solver::access::{self, AccessOption, AccessProblem, AccessWorkspace, BUDGET_OF_200_US};

/// Reads the chunks that cost least.
#[derive(Clone, Copy, Debug, Default)]
pub struct CostModel {
    /// δ: chunks requested beyond a sufficient set.
    pub extra_reads: usize,
}

impl Policy for CostModel {
    fn planner(&self) -> Box<dyn ReadPlanner> {
        Box::new(CostModelPlanner { extra_reads: self.extra_reads, ..CostModelPlanner::default() })
    }

    fn extra_reads(&self) -> usize {
        self.extra_reads
    }

    fn optimises(&self) -> bool {
        true
    }

    fn why(&self, chunk: ChosenChunk) -> ChunkChoice {
        if chunk.shares_site { ChunkChoice::SharedSite } else { ChunkChoice::LeastCost }
    }
}

impl fmt::Display for CostModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_extra_reads(f, "cost-model", self.extra_reads)
    }
}

/// Factor by which o_j is randomised, so that clients with the same loads do not all choose the same of equally cheap
/// plans.
pub(super) const DRAWN: Range<f64> = 0.99..1.01;

#[derive(Debug, Default)]
struct CostModelPlanner {
    extra_reads: usize,
    blocks: CheapestChunks,
    options: CheapestOptions,
}

impl ReadPlanner for CostModelPlanner {
    fn plan(&mut self, query: &ReadQuery<'_>, rng: &mut dyn RngCore) -> Result<QueryPlan, CodecError> {
        let extra_reads = if query.purpose == ReadPurpose::Rest { 0 } else { self.extra_reads };
        match query.pieces.iter().any(wants_one_chunk) {
            true => self.options.plan(query, extra_reads, rng),
            false => self.blocks.plan(query, extra_reads, rng),
        }
    }
}

/// Finds the cheapest chunks of whole blocks. Other pieces are read normally; the solver does not know that their sites
/// are asked anyway.
#[derive(Debug, Default)]
pub(super) struct CheapestChunks {
    problem: AccessProblem,
    workspace: AccessWorkspace,
    /// The sites of the problem, ascending.
    sites: Vec<SiteId>,
    /// The chunks of the cheapest plan, ascending.
    cheapest: Vec<QueryChunk>,
}

impl CheapestChunks {
    /// Returns the plan of least cost with k + δ chunks of every whole block.
    pub(super) fn plan(
        &mut self,
        query: &ReadQuery<'_>,
        extra_reads: usize,
        rng: &mut dyn RngCore,
    ) -> Result<QueryPlan, CodecError> {
        let cost = self.find(query, extra_reads, rng);
        // Other chunks follow, because some sets of k chunks of a local reconstruction code are not sufficient.
        let plan = plan_in_order(query, extra_reads, |piece, order, _| {
            order.sort_by_key(|&index| self.cheapest.binary_search(&QueryChunk { piece, index }).is_err());
        })?;
        Ok(QueryPlan { cost, ..plan })
    }

    /// Solves Eq. 1 for k + δ chunks of every whole block, or all available ones. Leaves `cheapest` empty if there is
    /// no plan.
    fn find(&mut self, query: &ReadQuery<'_>, extra_reads: usize, rng: &mut dyn RngCore) -> Option<PlanCost> {
        let cost = query.cost;
        self.cheapest.clear();
        let pieces: Vec<(usize, &QueryPiece<'_>)> =
            query.pieces.iter().enumerate().filter(|(_, piece)| piece.takes_any()).collect();
        let Self { problem, workspace, sites, cheapest } = self;
        set_up(problem, sites, &pieces, extra_reads, query, rng);
        let plan = access::solve(problem, BUDGET_OF_200_US, workspace).ok()?;
        debug_assert_eq!(access::check_access(problem, &plan), Ok(()));
        let site_of = |piece: &QueryPiece<'_>, index: usize| sites.binary_search(&piece.sites[index]);
        let mut is_asked = vec![false; sites.len()];
        let mut counts = vec![0; pieces.len()];
        for chunk in plan.chunks {
            counts[chunk.block] += 1;
            is_asked[problem.block(chunk.block).options[chunk.option].site] = true;
        }
        for (&(number, piece), count) in pieces.iter().zip(counts) {
            let on_asked = |&index: &usize| site_of(piece, index).is_ok_and(|site| is_asked[site]);
            let mut chosen: Vec<usize> = piece.available(query.can_be_asked).filter(on_asked).collect();
            prefer_data(&mut chosen, |index| transfer(piece, index, cost));
            cheapest.extend(chosen.into_iter().take(count).map(|index| QueryChunk { piece: number, index }));
        }
        cheapest.sort_unstable();
        Some(PlanCost { cost: plan.cost, lower_bound: plan.lower_bound })
    }
}

/// Sets up Eq. 1 for these pieces. `sites` becomes the list of their chunks' sites.
fn set_up(
    problem: &mut AccessProblem,
    sites: &mut Vec<SiteId>,
    pieces: &[(usize, &QueryPiece<'_>)],
    extra_reads: usize,
    query: &ReadQuery<'_>,
    rng: &mut dyn RngCore,
) {
    let cost = query.cost;
    sites.clear();
    sites.extend(
        pieces
            .iter()
            .flat_map(|(_, piece)| piece.available(query.can_be_asked).map(|index| piece.sites[index])),
    );
    sites.sort_unstable();
    sites.dedup();
    let mut drawn = |site: &SiteId| asking(cost(*site)) * rng.random_range(DRAWN);
    problem.reset(sites.iter().map(&mut drawn));
    for (_, piece) in pieces {
        let need = (piece.code.k() + extra_reads).saturating_sub(piece.awaited.len());
        let need = need.min(piece.available(query.can_be_asked).count());
        let option = |index: usize| {
            let site = sites.binary_search(&piece.sites[index]).unwrap_or_else(|place| place);
            AccessOption { site, transfer: transfer(piece, index, cost) }
        };
        problem.push_block(need, piece.available(query.can_be_asked).map(option));
    }
}

fn transfer(piece: &QueryPiece<'_>, index: usize, cost: &dyn Fn(SiteId) -> Option<SiteCost>) -> f64 {
    cost(piece.sites[index]).map_or(0.0, |cost| piece.chunk_cost(index, cost))
}

/// Orders a block's chunks on sites that are asked anyway by the cost of their transfer. Chunks about as cheap as the
/// cheapest count as equal, and data comes first among them, because it needs no decoding.
fn prefer_data(chunks: &mut [usize], transfer: impl Fn(usize) -> f64) {
    const ABOUT: f64 = 1.25;
    let least = chunks.iter().map(|&index| transfer(index)).fold(f64::INFINITY, f64::min);
    let key = |index: usize| Some(transfer(index)).filter(|cost| *cost > ABOUT * least).unwrap_or(least);
    chunks.sort_by(|&a, &b| key(a).total_cmp(&key(b)).then(a.cmp(&b)));
}

/// Returns o_j of a site, or 0 for one that cannot be asked.
pub(super) fn asking(cost: Option<SiteCost>) -> f64 {
    cost.map_or(0.0, |cost| cost.asking.max(0.0))
}

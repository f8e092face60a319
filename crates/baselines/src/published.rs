//! EC-Store's way from a query to a plan (§V-A, §V-B1), the baseline for our default.
//!
//! A query with a cached plan is read by it. Any other is read by the greedy heuristic, while an optimal plan for it is
//! found in the background. Costs come from probes alone: the sites' loads at the last probe, scaled so that the mean
//! o_j is 5, with m_j = 1 for every chunk (§V-B3). When these change, the cached plans are solved again ("we
//! dynamically reload solutions", §V-B1). Here each plan is solved again when it next serves, which is equivalent and
//! skips plans that no request uses. A plan from before a chunk of its blocks moved still serves once, and is then
//! solved again in the background.
//!
//! The paper solves its integer program with a general solver; here [`access::solve`] finds the same optima. The
//! executor of the plans decides how long the work in the background takes.
//!
//! Plans are for blocks: pieces for which any chunks suffice. Bytes that a plan does not deliver are read at random.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rand::RngCore;
use striate_codec::CodecError;
use striate_core::{SiteId, StripeId};
use striate_plan::ordered::plan_in_order;
use striate_plan::solver::access::{self, AccessOption, AccessProblem, AccessWorkspace, BUDGET_OF_200_US};
use striate_plan::{
    ChosenChunk, ChunkChoice, Policy, Probe, ProbedSite, QueryChunk, QueryPiece, QueryPlan, ReadPlanner,
    ReadPurpose, ReadQuery, write_with_extra_reads,
};

use crate::plan_cache::{CachedPlan, PlanCache, plan_greedily};
use crate::random::shuffle;

/// Interval between probes of all sites' loads (§V-A).
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// Time that HiGHS takes for a query of ten blocks, about (`make plan-bench`). The paper has one thread for it.
const SOLVE_TIME: Duration = Duration::from_millis(10);
/// Mean o_j over the sites, where m_j z_i = 1 (§V-B3).
const MEAN_OVERHEAD: f64 = 5.0;
/// Maximum number of cached plans.
const MOST_PLANS: usize = 20_000;

/// Reads by the cost model as published.
#[derive(Clone, Copy, Debug, Default)]
pub struct PublishedPolicy {
    /// δ: chunks requested beyond a sufficient set; they are not cancelled.
    pub extra_reads: usize,
}

impl Policy for PublishedPolicy {
    fn planner(&self) -> Box<dyn ReadPlanner> {
        Box::new(PublishedPlanner::new(self.extra_reads))
    }

    fn extra_reads(&self) -> usize {
        self.extra_reads
    }

    fn cancels(&self) -> bool {
        false
    }

    fn probe_every(&self) -> Option<Duration> {
        Some(PROBE_EVERY)
    }

    fn solve_time(&self) -> Duration {
        SOLVE_TIME
    }

    fn why(&self, chunk: ChosenChunk) -> ChunkChoice {
        match chunk {
            ChosenChunk { shares_site: true, .. } => ChunkChoice::SharedSite,
            // The heuristic ignores costs; the plan that is cached later for the query does not.
            ChosenChunk { is_cached: false, .. } => ChunkChoice::Drawn,
            _ => ChunkChoice::LeastCost,
        }
    }
}

impl fmt::Display for PublishedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_extra_reads(f, "published", self.extra_reads)
    }
}

/// Plans as published.
#[derive(Debug)]
struct PublishedPlanner {
    extra_reads: usize,
    cache: PlanCache<StripeId, BlockFetch>,
    plan_requests: Vec<PlanRequest>,
    solver: Solver,
}

/// What a cached plan fetches of a block.
#[derive(Clone, Debug)]
struct BlockFetch {
    indices: Vec<usize>,
    /// Number of the loads with which the plan was found.
    loads: u64,
    /// The places of the block's chunks at that time.
    placed: BlockPlacement,
}

/// What a plan needs to know of a block.
#[derive(Clone, Debug, PartialEq)]
struct BlockPlacement {
    need: usize,
    /// Site of each chunk; 0 if it cannot be asked.
    sites: Vec<SiteId>,
}

/// A query without a plan, or with an outdated one.
#[derive(Debug)]
struct PlanRequest(Vec<(StripeId, BlockPlacement)>);

/// The costs of Eq. 1, and the solver.
#[derive(Debug, Default)]
struct Solver {
    /// Number of probes so far.
    loads: u64,
    overheads: BTreeMap<SiteId, f64>,
    workspace: AccessWorkspace,
}

impl PublishedPlanner {
    fn new(extra_reads: usize) -> Self {
        Self {
            extra_reads,
            cache: PlanCache::new(MOST_PLANS),
            plan_requests: Vec::new(),
            solver: Solver::default(),
        }
    }

    /// Plans the blocks of a query, from the cache or by the heuristic.
    fn plan_blocks(
        &mut self,
        query: &ReadQuery<'_>,
        blocks: &[(usize, &QueryPiece<'_>)],
        rng: &mut dyn RngCore,
    ) -> Result<QueryPlan, CodecError> {
        let placed = |piece: &QueryPiece<'_>| BlockPlacement {
            need: (piece.code.k() + self.extra_reads).min(piece.available(query.can_be_asked).count()),
            sites: piece
                .sites
                .iter()
                .map(|&site| if (query.can_be_asked)(site) { site } else { SiteId(0) })
                .collect(),
        };
        let all: Vec<(StripeId, BlockPlacement)> =
            blocks.iter().map(|(_, piece)| (piece.stripe, placed(piece))).collect();
        if let Some(plan) = self.plan_from_cache(&all, blocks, query) {
            return Ok(plan);
        }
        let (problem, sites, options) = self.solver.problem(all.iter().map(|(_, placed)| placed));
        let chunks = plan_greedily(&problem, rng);
        let short =
            blocks.iter().find(|(_, piece)| piece.available(query.can_be_asked).count() < piece.code.k());
        if let Some((_, piece)) = short {
            let available: Vec<usize> = piece.available(query.can_be_asked).collect();
            piece.code.decode_plan(&available, &(0..piece.code.k()).collect::<Vec<_>>())?;
        }
        self.plan_requests.push(PlanRequest(all));
        let chosen = chunks.unwrap_or_default().into_iter().map(|chunk| {
            let index = options[chunk.block][chunk.option];
            let site = sites[problem.block(chunk.block).options[chunk.option].site];
            (site, QueryChunk { piece: blocks[chunk.block].0, index })
        });
        Ok(QueryPlan::of_chunks(chosen.collect()))
    }

    /// Plans a query by a cached plan, if one covers it and all its sites can be asked.
    fn plan_from_cache(
        &mut self,
        all: &[(StripeId, BlockPlacement)],
        blocks: &[(usize, &QueryPiece<'_>)],
        query: &ReadQuery<'_>,
    ) -> Option<QueryPlan> {
        let solver = &mut self.solver;
        let ids: Vec<StripeId> = all.iter().map(|(id, _)| *id).collect();
        let planned = self.cache.get(&ids, |plan| solver.renew(plan, all))?;
        // A plan found while sites were away may have too few chunks.
        if !planned.iter().zip(blocks).all(|(planned, (_, piece))| piece.code.is_sufficient(&planned.indices))
        {
            return None;
        }
        let moved = planned.iter().zip(all).any(|(planned, (_, placed))| planned.placed != *placed);
        let chosen = planned.iter().zip(blocks).flat_map(|(planned, &(number, piece))| {
            planned
                .indices
                .iter()
                .map(move |&index| (piece.sites[index], QueryChunk { piece: number, index }))
        });
        let chosen: Vec<_> = chosen.collect();
        if !chosen.iter().all(|(site, _)| (query.can_be_asked)(*site)) {
            return None;
        }
        if moved {
            self.plan_requests.push(PlanRequest(all.to_vec()));
        }
        Some(QueryPlan { is_cached: true, ..QueryPlan::of_chunks(chosen) })
    }

    /// Numbers of queries that a cached plan served, and of the others.
    #[cfg(test)]
    fn hits_and_misses(&self) -> (u64, u64) {
        (self.cache.hits(), self.cache.misses())
    }

    /// Solves and caches the plans of the queries that had none, or an outdated one. Returns their number.
    fn solve_wanted(&mut self) -> usize {
        let plan_requests = std::mem::take(&mut self.plan_requests);
        for PlanRequest(blocks) in &plan_requests {
            // Takes a block that the query names more than once only once.
            let blocks: BTreeMap<StripeId, BlockPlacement> = blocks.iter().cloned().collect();
            if let Some(plan) = self.solver.solve(&blocks) {
                self.cache.insert(plan);
            }
        }
        plan_requests.len()
    }
}

impl ReadPlanner for PublishedPlanner {
    fn plan(&mut self, query: &ReadQuery<'_>, rng: &mut dyn RngCore) -> Result<QueryPlan, CodecError> {
        let blocks: Vec<(usize, &QueryPiece<'_>)> = query.pieces.iter().enumerate().collect();
        let are_blocks = blocks.iter().all(|(_, piece)| piece.takes_any() && piece.requested.is_empty());
        if query.purpose == ReadPurpose::Rest || !are_blocks {
            return plan_in_order(query, 0, |_, order, _| shuffle(order, rng));
        }
        let plan = self.plan_blocks(query, &blocks, rng)?;
        let needed: usize = query.pieces.iter().map(|piece| piece.code.k()).sum();
        Ok(QueryPlan { extra_chunks: plan.chunk_count().saturating_sub(needed), ..plan })
    }

    /// From now on, plans found with other loads do not serve.
    fn take_probe(&mut self, probe: &Probe, _: &mut dyn RngCore) {
        let load = |site: &ProbedSite| 1.0 + site.requests;
        let mean = probe.sites.iter().map(load).sum::<f64>() / probe.sites.len().max(1) as f64;
        let scale = MEAN_OVERHEAD / mean.max(f64::MIN_POSITIVE);
        self.solver.overheads = probe.sites.iter().map(|site| (site.site, load(site) * scale)).collect();
        self.solver.loads += 1;
    }

    fn has_background_work(&self) -> bool {
        !self.plan_requests.is_empty()
    }

    fn work_in_background(&mut self) {
        self.solve_wanted();
    }
}

impl Solver {
    /// Solves a plan again if it was found with other loads: with the places of the blocks in `current`, and the former
    /// places of its other blocks.
    fn renew(&mut self, plan: &mut CachedPlan<StripeId, BlockFetch>, current: &[(StripeId, BlockPlacement)]) {
        if plan.values().all(|planned| planned.loads == self.loads) {
            return;
        }
        let earlier = plan.iter().map(|(&id, planned)| (id, planned.placed.clone()));
        let blocks = earlier.chain(current.iter().cloned()).collect();
        if let Some(renewed) = self.solve(&blocks) {
            *plan = renewed;
        }
    }

    /// Solves for the optimal plan of these blocks, if there is one.
    fn solve(
        &mut self,
        blocks: &BTreeMap<StripeId, BlockPlacement>,
    ) -> Option<CachedPlan<StripeId, BlockFetch>> {
        let (problem, _, options) = self.problem(blocks.values());
        let solved = access::solve(&problem, BUDGET_OF_200_US, &mut self.workspace).ok()?;
        let mut indices = vec![Vec::new(); blocks.len()];
        for chunk in solved.chunks {
            indices[chunk.block].push(options[chunk.block][chunk.option]);
        }
        let planned = blocks.iter().zip(indices).map(|((&id, placed), indices)| {
            (id, BlockFetch { indices, loads: self.loads, placed: placed.clone() })
        });
        Some(planned.collect())
    }

    /// Eq. 1 for these blocks: the problem, its sites, and for each block the chunks that are its options.
    fn problem<'a>(
        &self,
        blocks: impl Iterator<Item = &'a BlockPlacement> + Clone,
    ) -> (AccessProblem, Vec<SiteId>, Vec<Vec<usize>>) {
        let mut sites: Vec<SiteId> = blocks
            .clone()
            .flat_map(|placed| placed.sites.iter().copied())
            .filter(|site| site.0 != 0)
            .collect();
        sites.sort_unstable();
        sites.dedup();
        let mut problem = AccessProblem::default();
        problem.reset(sites.iter().map(|site| self.overheads.get(site).copied().unwrap_or(MEAN_OVERHEAD)));
        let mut options = Vec::new();
        for placed in blocks {
            let indices: Vec<usize> =
                (0..placed.sites.len()).filter(|&index| placed.sites[index].0 != 0).collect();
            let option = |&index: &usize| {
                let site = sites.binary_search(&placed.sites[index]).unwrap_or_else(|place| place);
                AccessOption { site, transfer: 1.0 }
            };
            problem.push_block(placed.need, indices.iter().map(option));
            options.push(indices);
        }
        (problem, sites, options)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;
    use striate_codec::Code;
    use striate_plan::SiteCost;

    use super::*;

    fn asked(plan: &QueryPlan) -> Vec<u32> {
        plan.reads.iter().map(|read| read.site.0).collect()
    }

    fn code() -> Code {
        "rs(2,2)".parse().expect("a code")
    }

    /// Plans a query of blocks at these places over the sites that are not `down`.
    fn plan(
        planner: &mut PublishedPlanner,
        ids: &[u64],
        placed: &[[SiteId; 4]],
        down: &[u32],
        rng: &mut SmallRng,
    ) -> Result<QueryPlan, CodecError> {
        let code = code();
        let pieces: Vec<_> = ids
            .iter()
            .zip(placed)
            .map(|(&id, sites)| QueryPiece::whole(StripeId::new(1, id), &code, sites, 50_000))
            .collect();
        let cost = |site: SiteId| (!down.contains(&site.0)).then_some(SiteCost::of_asking(1.0));
        let query = ReadQuery {
            pieces: &pieces,
            purpose: ReadPurpose::Query,
            can_be_asked: &|site| cost(site).is_some(),
            cost: &cost,
            queue: &|_| None,
        };
        planner.plan(&query, rng)
    }

    /// Three blocks with two sites in common: the optimum is a plan of those two, which the heuristic rarely finds.
    #[test]
    fn a_query_is_read_by_the_heuristic_first_and_then_by_its_optimal_plan() {
        let placed = [[1, 2, 3, 4], [3, 4, 5, 6], [3, 4, 7, 8]].map(|of| of.map(SiteId));
        let mut rng = SmallRng::seed_from_u64(5);
        let mut planner = PublishedPlanner::new(0);
        let first = plan(&mut planner, &[10, 11, 12], &placed, &[], &mut rng).unwrap();
        assert!(asked(&first).len() > 2, "the heuristic begins at random: {first:?}");
        assert_eq!((planner.solve_wanted(), planner.hits_and_misses()), (1, (0, 1)));
        let second = plan(&mut planner, &[10, 11, 12], &placed, &[], &mut rng).unwrap();
        assert_eq!(asked(&second), [3, 4]);
        let part = plan(&mut planner, &[12, 10], &[placed[2], placed[0]], &[], &mut rng).unwrap();
        assert_eq!((asked(&part), planner.hits_and_misses()), (vec![3, 4], (2, 1)));
    }

    #[test]
    fn a_block_that_is_named_twice_has_one_plan_with_no_chunk_twice() {
        let sites = [1, 2, 3, 4].map(SiteId);
        let mut rng = SmallRng::seed_from_u64(8);
        let mut planner = PublishedPlanner::new(0);
        plan(&mut planner, &[1, 1], &[sites, sites], &[], &mut rng).unwrap();
        planner.solve_wanted();
        let plan = plan(&mut planner, &[1], &[sites], &[], &mut rng).unwrap();
        assert!(plan.is_cached);
        let mut indices: Vec<_> =
            plan.reads.iter().flat_map(|read| &read.chunks).map(|chunk| chunk.index).collect();
        indices.sort_unstable();
        indices.dedup();
        assert_eq!((indices.len(), plan.chunk_count()), (2, 2));
    }

    #[test]
    fn a_chunk_that_moves_makes_cached_plans_old() {
        let (apart, together) = ([[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 2, 3, 4], [5, 6, 1, 2]]);
        let [apart, together] = [apart, together].map(|of| of.map(|of| of.map(SiteId)));
        let mut rng = SmallRng::seed_from_u64(7);
        let mut planner = PublishedPlanner::new(0);
        let mut sites_asked = Vec::new();
        for placed in [apart, apart, together, together] {
            let plan = plan(&mut planner, &[10, 11], &placed, &[], &mut rng).unwrap();
            sites_asked.push((plan.is_cached, asked(&plan).len(), planner.solve_wanted()));
        }
        assert_eq!(sites_asked[..2], [(false, 4, 1), (true, 4, 0)]);
        assert_eq!((sites_asked[2].0, sites_asked[2].2), (true, 1), "it serves once more");
        assert_eq!(sites_asked[3], (true, 2, 0), "and is found anew");
        planner.take_probe(&Probe::default(), &mut rng);
        let whole = plan(&mut planner, &[10, 11], &apart, &[], &mut rng).unwrap();
        assert_eq!((asked(&whole).len(), planner.solve_wanted()), (4, 0), "new costs come with new places");
        let part = plan(&mut planner, &[11], &apart[1..], &[], &mut rng).unwrap();
        assert!(part.is_cached, "as part of the plan for both");
    }

    #[test]
    fn a_plan_that_was_found_while_sites_were_away_serves_only_if_it_has_enough_chunks() {
        let sites = [[1, 2, 3, 4].map(SiteId)];
        let mut rng = SmallRng::seed_from_u64(9);
        let mut planner = PublishedPlanner::new(0);
        planner.plan_requests.push(PlanRequest(vec![(
            StripeId::new(1, 1),
            BlockPlacement { need: 1, sites: [0, 0, 0, 4].map(SiteId).to_vec() },
        )]));
        planner.solve_wanted();
        let plan = plan(&mut planner, &[1], &sites, &[], &mut rng).unwrap();
        assert_eq!((plan.is_cached, plan.chunk_count()), (false, 2));
    }

    #[test]
    fn new_costs_change_cached_plans_and_lost_sites_are_not_asked() {
        let sites = [[1, 2, 3, 4].map(SiteId)];
        let mut rng = SmallRng::seed_from_u64(6);
        let mut planner = PublishedPlanner::new(0);
        plan(&mut planner, &[1], &sites, &[], &mut rng).unwrap();
        planner.solve_wanted();
        let probe = |busy: [u32; 2]| {
            let of_site = |site: SiteId| {
                let requests = if busy.contains(&site.0) { 8.0 } else { 0.0 };
                ProbedSite { site, requests, bytes: 0.0 }
            };
            Probe { sites: sites[0].map(of_site).to_vec(), ..Probe::default() }
        };
        for (busy, others) in [([1, 2], [3, 4]), ([3, 4], [1, 2])] {
            planner.take_probe(&probe(busy), &mut rng);
            let plan = plan(&mut planner, &[1], &sites, &[], &mut rng).unwrap();
            assert_eq!((plan.is_cached, asked(&plan), planner.solve_wanted()), (true, others.to_vec(), 0));
        }
        let mut planner = PublishedPlanner { extra_reads: 1, ..planner };
        let without = plan(&mut planner, &[1], &sites, &[1], &mut rng).unwrap();
        assert_eq!(asked(&without), [2, 3, 4]);
        assert!(plan(&mut planner, &[1], &sites, &[1, 2, 3], &mut rng).is_err());
    }
}

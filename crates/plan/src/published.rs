//! EC-Store's own way from a query to a plan (§V-A, §V-B1), beside which [`crate::query`] is measured.
//!
//! A query for which the cache has a plan is read by it; any other by the greedy heuristic, while an optimal plan for it
//! is found in the background. Costs come from probes alone: the sites' loads at the last probe, scaled so that o_j is 5 in
//! the mean, with m_j = 1 for every chunk (§V-B3). When these change, the cached plans are found anew ("we dynamically
//! reload solutions", §V-B1). Here each one is when it serves next, which comes to the same and leaves out plans that
//! nobody asks for. A plan that was found before a chunk of its blocks moved still serves once, and is then found anew in
//! the background.
//!
//! The paper solves its integer program by a general solver; here [`access::solve`] finds the same optima. Who calls
//! [`PublishedPlanner::solve_wanted`] and [`PublishedPlanner::reload`] decides how long that takes.

use std::collections::BTreeMap;
use std::hash::Hash;

use rand::Rng;
use striate_codec::CodecError;
use striate_core::SiteId;

use crate::access::published::{CachedPlan, PlanCache, plan_greedily};
use crate::access::{self, AccessOption, AccessProblem, AccessWorkspace, BUDGET_OF_200_US};
use crate::query::{QueryBlock, QueryChunk, QueryPlan, available, group_by_site};

/// o_j in the mean over the sites, where m_j z_i = 1 (§V-B3).
const MEAN_OVERHEAD: f64 = 5.0;
/// Plans that are cached.
const MOST_PLANS: usize = 20_000;

/// Plans as published. `K` names a block.
#[derive(Debug)]
pub struct PublishedPlanner<K> {
    cache: PlanCache<K, Planned>,
    wanted: Vec<Wanted<K>>,
    solver: Solver,
}

/// What a cached plan fetches of a block.
#[derive(Clone, Debug)]
struct Planned {
    indices: Vec<usize>,
    /// The number of the loads that the plan was found with.
    loads: u64,
    /// Where the block's chunks were.
    placed: Placed,
}

/// What a plan for a block needs to know of it.
#[derive(Clone, Debug, PartialEq)]
struct Placed {
    need: usize,
    /// Of each chunk; 0 where it cannot be asked for.
    sites: Vec<SiteId>,
}

/// A query that had no plan, or an old one.
#[derive(Debug)]
struct Wanted<K>(Vec<(K, Placed)>);

/// The costs of Eq. 1, and what finds the optima.
#[derive(Debug, Default)]
struct Solver {
    /// How often loads came.
    loads: u64,
    overheads: BTreeMap<SiteId, f64>,
    workspace: AccessWorkspace,
}

impl<K: Copy + Ord + Hash> Default for PublishedPlanner<K> {
    fn default() -> Self {
        Self { cache: PlanCache::new(MOST_PLANS), wanted: Vec::new(), solver: Solver::default() }
    }
}

impl<K: Copy + Ord + Hash> PublishedPlanner<K> {
    /// Plans a query of k + `extra_reads` chunks of every block. `ids` names the blocks; `can_be_asked` says it of a site.
    ///
    /// # Errors
    /// [`CodecError::Insufficient`] when a block's chunks that can be had do not determine it.
    pub fn plan(
        &mut self,
        ids: &[K],
        blocks: &[QueryBlock<'_>],
        extra_reads: usize,
        can_be_asked: impl Fn(SiteId) -> bool,
        rng: &mut impl Rng,
    ) -> Result<QueryPlan, CodecError> {
        let cost = |site: SiteId| can_be_asked(site).then_some(1.0);
        let placed = |of: &QueryBlock<'_>| Placed {
            need: (of.code.k() + extra_reads).min(available(of, &cost).count()),
            sites: of.sites.iter().map(|&site| if can_be_asked(site) { site } else { SiteId(0) }).collect(),
        };
        let all: Vec<(K, Placed)> = ids.iter().copied().zip(blocks.iter().map(placed)).collect();
        if let Some(plan) = self.plan_from_cache(ids, &all, blocks, &can_be_asked) {
            return Ok(plan);
        }
        let (problem, sites, options) = self.solver.problem(all.iter().map(|(_, placed)| placed));
        let chunks = plan_greedily(&problem, rng);
        let short = blocks.iter().find(|of| available(of, &cost).count() < of.code.k());
        if let Some(of) = short {
            let had: Vec<usize> = available(of, &cost).collect();
            of.code.decode_plan(&had, &(0..of.code.k()).collect::<Vec<_>>())?;
        }
        self.wanted.push(Wanted(all));
        let chosen = chunks.unwrap_or_default().into_iter().map(|chunk| {
            let index = options[chunk.block][chunk.option];
            let site = sites[problem.block(chunk.block).options[chunk.option].site];
            (site, QueryChunk { block: chunk.block, index })
        });
        Ok(QueryPlan { reads: group_by_site(chosen.collect()), cost: None, is_cached: false })
    }

    /// Whether a query waits for its optimal plan.
    pub fn is_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Finds the optimal plans of the queries that had none, or an old one, and caches them. Answers how many.
    pub fn solve_wanted(&mut self) -> usize {
        let wanted = std::mem::take(&mut self.wanted);
        for Wanted(blocks) in &wanted {
            // Of a block that the query names more than once, once.
            let blocks: BTreeMap<K, Placed> = blocks.iter().cloned().collect();
            if let Some(plan) = self.solver.solve(&blocks) {
                self.cache.insert(plan);
            }
        }
        wanted.len()
    }

    /// Takes new loads of the sites. From now on no plan serves that was found with others.
    pub fn reload(&mut self, loads: &[(SiteId, f64)]) {
        let mean = loads.iter().map(|(_, load)| load).sum::<f64>() / loads.len().max(1) as f64;
        let scale = MEAN_OVERHEAD / mean.max(f64::MIN_POSITIVE);
        self.solver.overheads = loads.iter().map(|&(site, load)| (site, load * scale)).collect();
        self.solver.loads += 1;
    }

    /// Queries that were read by a cached plan, and those that were not.
    pub fn hits_and_misses(&self) -> (u64, u64) {
        (self.cache.hits(), self.cache.misses())
    }

    /// The query by a cached plan, if one covers it and all its sites can be asked.
    fn plan_from_cache(
        &mut self,
        ids: &[K],
        all: &[(K, Placed)],
        blocks: &[QueryBlock<'_>],
        can_be_asked: impl Fn(SiteId) -> bool,
    ) -> Option<QueryPlan> {
        let solver = &mut self.solver;
        let planned = self.cache.get(ids, |plan| solver.renew(plan, all))?;
        let moved = planned.iter().zip(all).any(|(planned, (_, placed))| planned.placed != *placed);
        let chosen = planned.iter().enumerate().flat_map(|(block, planned)| {
            let sites = blocks[block].sites;
            planned.indices.iter().map(move |&index| (sites[index], QueryChunk { block, index }))
        });
        let chosen: Vec<_> = chosen.collect();
        if !chosen.iter().all(|(site, _)| can_be_asked(*site)) {
            return None;
        }
        if moved {
            self.wanted.push(Wanted(all.to_vec()));
        }
        Some(QueryPlan { reads: group_by_site(chosen), cost: None, is_cached: true })
    }
}

impl Solver {
    /// Finds a plan anew if it was found with other loads: with the chunks of `asked` where they are now, and those of its
    /// other blocks where they were.
    fn renew<K: Copy + Ord>(&mut self, plan: &mut CachedPlan<K, Planned>, asked: &[(K, Placed)]) {
        if plan.values().all(|planned| planned.loads == self.loads) {
            return;
        }
        let known = plan.iter().map(|(&id, planned)| (id, planned.placed.clone()));
        let blocks = known.chain(asked.iter().cloned()).collect();
        if let Some(renewed) = self.solve(&blocks) {
            *plan = renewed;
        }
    }

    /// The optimal plan of these blocks, if there is one.
    fn solve<K: Copy + Ord>(&mut self, blocks: &BTreeMap<K, Placed>) -> Option<CachedPlan<K, Planned>> {
        let (problem, _, options) = self.problem(blocks.values());
        let solved = access::solve(&problem, BUDGET_OF_200_US, &mut self.workspace).ok()?;
        let mut indices = vec![Vec::new(); blocks.len()];
        for chunk in solved.chunks {
            indices[chunk.block].push(options[chunk.block][chunk.option]);
        }
        let planned = blocks.iter().zip(indices).map(|((&id, placed), indices)| {
            (id, Planned { indices, loads: self.loads, placed: placed.clone() })
        });
        Some(planned.collect())
    }

    /// Eq. 1 for these blocks: the problem, its sites, and of each block the chunks that are its options.
    fn problem<'a>(
        &self,
        blocks: impl Iterator<Item = &'a Placed> + Clone,
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

    use super::*;

    fn asked(plan: &QueryPlan) -> Vec<u32> {
        plan.reads.iter().map(|read| read.site.0).collect()
    }

    /// Three blocks with two sites in common: a plan of those two is the optimum, which the heuristic rarely finds.
    #[test]
    fn a_query_is_read_by_the_heuristic_first_and_then_by_its_optimal_plan() {
        let code: Code = "rs(2,2)".parse().unwrap();
        let placed = [[1, 2, 3, 4], [3, 4, 5, 6], [3, 4, 7, 8]].map(|of| of.map(SiteId));
        let blocks = [0, 1, 2].map(|block| QueryBlock::new(&code, &placed[block], 50_000));
        let mut rng = SmallRng::seed_from_u64(5);
        let mut planner = PublishedPlanner::default();
        let first = planner.plan(&[10, 11, 12], &blocks, 0, |_| true, &mut rng).unwrap();
        assert!(asked(&first).len() > 2, "the heuristic begins at random: {first:?}");
        assert_eq!((planner.solve_wanted(), planner.hits_and_misses()), (1, (0, 1)));
        let second = planner.plan(&[10, 11, 12], &blocks, 0, |_| true, &mut rng).unwrap();
        assert_eq!(asked(&second), [3, 4]);
        let part = planner.plan(&[12, 10], &[blocks[2], blocks[0]], 0, |_| true, &mut rng).unwrap();
        assert_eq!((asked(&part), planner.hits_and_misses()), (vec![3, 4], (2, 1)));
    }

    #[test]
    fn a_block_that_is_named_twice_has_one_plan_with_no_chunk_twice() {
        let code: Code = "rs(4,2)".parse().unwrap();
        let sites = [1, 2, 3, 4, 5, 6].map(SiteId);
        let block = QueryBlock::new(&code, &sites, 50_000);
        let mut rng = SmallRng::seed_from_u64(8);
        let mut planner = PublishedPlanner::default();
        planner.plan(&[1, 1], &[block, block], 0, |_| true, &mut rng).unwrap();
        planner.solve_wanted();
        let plan = planner.plan(&[1], &[block], 0, |_| true, &mut rng).unwrap();
        assert!(plan.is_cached);
        let mut indices: Vec<_> =
            plan.reads.iter().flat_map(|read| &read.chunks).map(|chunk| chunk.index).collect();
        indices.sort_unstable();
        indices.dedup();
        assert_eq!((indices.len(), plan.chunk_count()), (4, 4));
    }

    #[test]
    fn a_chunk_that_moves_makes_cached_plans_old() {
        let code: Code = "rs(2,2)".parse().unwrap();
        let (apart, together) = ([[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 2, 3, 4], [5, 6, 1, 2]]);
        let mut rng = SmallRng::seed_from_u64(7);
        let mut planner = PublishedPlanner::default();
        let mut sites_asked = Vec::new();
        for placed in [apart, apart, together, together] {
            let placed = placed.map(|of| of.map(SiteId));
            let blocks = [0, 1].map(|block| QueryBlock::new(&code, &placed[block], 50_000));
            let plan = planner.plan(&[10, 11], &blocks, 0, |_| true, &mut rng).unwrap();
            sites_asked.push((plan.is_cached, asked(&plan).len(), planner.solve_wanted()));
        }
        assert_eq!(sites_asked[..2], [(false, 4, 1), (true, 4, 0)]);
        assert_eq!((sites_asked[2].0, sites_asked[2].2), (true, 1), "it serves once more");
        assert_eq!(sites_asked[3], (true, 2, 0), "and is found anew");
        planner.reload(&[]);
        let placed = apart.map(|of| of.map(SiteId));
        let blocks = [0, 1].map(|block| QueryBlock::new(&code, &placed[block], 50_000));
        let plan = planner.plan(&[10, 11], &blocks, 0, |_| true, &mut rng).unwrap();
        assert_eq!((asked(&plan).len(), planner.solve_wanted()), (4, 0), "new costs come with new places");
        let part = planner.plan(&[11], &blocks[1..], 0, |_| true, &mut rng).unwrap();
        assert!(part.is_cached, "as part of the plan for both");
    }

    #[test]
    fn new_costs_change_cached_plans_and_lost_sites_are_not_asked() {
        let code: Code = "rs(2,2)".parse().unwrap();
        let sites = [1, 2, 3, 4].map(SiteId);
        let block = [QueryBlock::new(&code, &sites, 50_000)];
        let mut rng = SmallRng::seed_from_u64(6);
        let mut planner = PublishedPlanner::default();
        planner.plan(&[1], &block, 0, |_| true, &mut rng).unwrap();
        planner.solve_wanted();
        let loads = |busy: [u32; 2]| sites.map(|site| (site, if busy.contains(&site.0) { 9.0 } else { 1.0 }));
        for (busy, others) in [([1, 2], [3, 4]), ([3, 4], [1, 2])] {
            planner.reload(&loads(busy));
            let plan = planner.plan(&[1], &block, 0, |_| true, &mut rng).unwrap();
            assert_eq!((plan.is_cached, asked(&plan), planner.solve_wanted()), (true, others.to_vec(), 0));
        }
        let plan = planner.plan(&[1], &block, 1, |site| site.0 != 1, &mut rng).unwrap();
        assert_eq!(asked(&plan), [2, 3, 4]);
        assert!(planner.plan(&[1], &block, 0, |site| site.0 == 1, &mut rng).is_err());
    }
}

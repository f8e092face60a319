//! EC-Store's own way from a query to a plan (§V-A, §V-B1), beside which [`crate::query`] is measured.
//!
//! A query for which the cache has a plan is read by it; any other by the greedy heuristic, while an optimal plan for it
//! is found in the background. Costs come from probes alone: the sites' loads at the last probe, scaled so that o_j is 5 in
//! the mean, with m_j = 1 for every chunk (§V-B3). A plan that was found with older costs, or before a chunk of its blocks
//! moved, still serves, and is found anew in the background.
//!
//! The paper solves its integer program by a general solver; here [`access::solve`] finds the same optima. Who calls
//! [`PublishedPlanner::solve_wanted`] decides how long that takes.

use std::collections::{BTreeMap, BTreeSet};
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
    cache: PlanCache<K, Cached>,
    /// How often loads came.
    loads: u64,
    overheads: BTreeMap<SiteId, f64>,
    wanted: Vec<Wanted<K>>,
    workspace: AccessWorkspace,
}

/// A chunk of a cached plan.
#[derive(Clone, Copy, Debug)]
struct Cached {
    index: usize,
    /// The number of the loads that the plan was found with.
    loads: u64,
    /// Where the block's chunks were: [`Placed::stamp`].
    placed: u64,
}

/// What a plan for a block needs to know of it.
#[derive(Clone, Debug)]
struct Placed {
    need: usize,
    sites: Vec<SiteId>,
}

impl Placed {
    /// A number that changes when a chunk moves.
    fn stamp(&self) -> u64 {
        self.sites.iter().fold(0, |stamp, site| (stamp ^ u64::from(site.0)).wrapping_mul(0x0100_0000_01b3))
    }
}

/// A query that had no plan.
#[derive(Debug)]
struct Wanted<K>(Vec<(K, Placed)>);

impl<K: Copy + Ord + Hash> Default for PublishedPlanner<K> {
    fn default() -> Self {
        Self {
            cache: PlanCache::new(MOST_PLANS),
            loads: 0,
            overheads: BTreeMap::new(),
            wanted: Vec::new(),
            workspace: AccessWorkspace::default(),
        }
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
        let placed = |of: &QueryBlock<'_>| {
            let sites = (0..of.sites.len()).map(|index| match can_be_asked(of.sites[index]) {
                true => of.sites[index],
                false => SiteId(0),
            });
            Placed {
                need: (of.code.k() + extra_reads).min(available(of, &cost).count()),
                sites: sites.collect(),
            }
        };
        let all: Vec<(K, Placed)> = ids.iter().copied().zip(blocks.iter().map(placed)).collect();
        if let Some(chunks) = self.cache.get(ids) {
            let is_old = chunks.iter().zip(&all).any(|(of, (_, placed))| {
                of.iter().any(|chunk| (chunk.loads, chunk.placed) != (self.loads, placed.stamp()))
            });
            let chosen = chunks.iter().enumerate().flat_map(|(block, of)| {
                of.iter().map(move |&Cached { index, .. }| {
                    (blocks[block].sites[index], QueryChunk { block, index })
                })
            });
            let chosen: Vec<_> = chosen.collect();
            if chosen.iter().all(|(site, _)| can_be_asked(*site)) {
                if is_old {
                    self.wanted.push(Wanted(all));
                }
                return Ok(QueryPlan { reads: group_by_site(chosen), cost: None, is_cached: true });
            }
        }
        let (problem, sites, options) = self.problem(all.iter().map(|(_, placed)| placed));
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
        wanted.iter().for_each(|Wanted(blocks)| self.solve(blocks));
        wanted.len()
    }

    /// Takes new loads of the sites.
    pub fn reload(&mut self, loads: &[(SiteId, f64)]) {
        let mean = loads.iter().map(|(_, load)| load).sum::<f64>() / loads.len().max(1) as f64;
        let scale = MEAN_OVERHEAD / mean.max(f64::MIN_POSITIVE);
        self.overheads = loads.iter().map(|&(site, load)| (site, load * scale)).collect();
        self.loads += 1;
    }

    /// Queries that were read by a cached plan, and those that were not.
    pub fn hits_and_misses(&self) -> (u64, u64) {
        (self.cache.hits(), self.cache.misses())
    }

    /// Finds an optimal plan and caches it; of a block that the query names more than once, once.
    fn solve(&mut self, blocks: &[(K, Placed)]) {
        let mut known = BTreeSet::new();
        let blocks: Vec<&(K, Placed)> = blocks.iter().filter(|(id, _)| known.insert(*id)).collect();
        let (problem, _, options) = self.problem(blocks.iter().map(|(_, placed)| placed));
        let Ok(solved) = access::solve(&problem, BUDGET_OF_200_US, &mut self.workspace) else { return };
        let mut plan: CachedPlan<K, Cached> = blocks.iter().map(|(id, _)| (*id, Vec::new())).collect();
        for chunk in solved.chunks {
            let index = options[chunk.block][chunk.option];
            let (id, placed) = blocks[chunk.block];
            let cached = Cached { index, loads: self.loads, placed: placed.stamp() };
            plan.entry(*id).or_default().push(cached);
        }
        self.cache.insert(plan);
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
            planner.plan(&[1], &block, 0, |_| true, &mut rng).unwrap();
            assert_eq!(planner.solve_wanted(), 1, "the plan is older than the loads");
            assert_eq!(asked(&planner.plan(&[1], &block, 0, |_| true, &mut rng).unwrap()), others);
            assert_eq!(planner.solve_wanted(), 0);
        }
        let plan = planner.plan(&[1], &block, 1, |site| site.0 != 1, &mut rng).unwrap();
        assert_eq!(asked(&plan), [2, 3, 4]);
        assert!(planner.plan(&[1], &block, 0, |site| site.0 == 1, &mut rng).is_err());
    }
}

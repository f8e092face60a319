//! EC-Store's way to a plan (§V-B1): a greedy heuristic at once, and a cache of optimal plans.
//!
//! The paper's solver takes tens of milliseconds. So a request without a cached plan is read by the heuristic, while
//! the solver works in the background; its plan then serves all requests for the same blocks. This module has the parts
//! that compute. The caller decides who solves, and when plans are solved again because costs have changed
//! ([`PlanCache::get`], [`PlanCache::insert`]).

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use rand::{Rng, RngCore};

use striate_plan::solver::access::{AccessChunk, AccessError, AccessProblem};

/// The paper's heuristic: for each block in turn, chunks at sites that the plan already accesses, then chunks at random
/// sites. It ignores costs. O(chunks).
///
/// # Errors
/// [`AccessError::TooFewOptions`] names a block that lacks chunks.
pub fn plan_greedily(
    problem: &AccessProblem,
    rng: &mut dyn RngCore,
) -> Result<Vec<AccessChunk>, AccessError> {
    let mut is_accessed = vec![false; problem.overheads().len()];
    let mut chunks = Vec::new();
    let mut order = Vec::new();
    for (block, of) in problem.blocks().enumerate() {
        if of.options.len() < of.need {
            return Err(AccessError::TooFewOptions { block, need: of.need, options: of.options.len() });
        }
        order.clear();
        order.extend(0..of.options.len());
        let accessed = move_to_front(&mut order, |&option| is_accessed[of.options[option].site]);
        for next in accessed..of.need {
            let chosen = rng.random_range(next..order.len());
            order.swap(next, chosen);
        }
        let start = chunks.len();
        for &option in &order[..of.need] {
            is_accessed[of.options[option].site] = true;
            chunks.push(AccessChunk { block, option });
        }
        chunks[start..].sort_unstable();
    }
    Ok(chunks)
}

/// Eq. 1 for these chunks, which must exist.
pub fn cost_of(problem: &AccessProblem, chunks: &[AccessChunk]) -> f64 {
    let mut is_accessed = vec![false; problem.overheads().len()];
    let mut cost = 0.0;
    for chunk in chunks {
        let option = problem.block(chunk.block).options[chunk.option];
        cost += option.transfer;
        if !std::mem::replace(&mut is_accessed[option.site], true) {
            cost += problem.overheads()[option.site];
        }
    }
    cost
}

/// Moves the elements that satisfy `is_first` to the front, in their order. Returns their number.
fn move_to_front(order: &mut [usize], is_first: impl Fn(&usize) -> bool) -> usize {
    let mut count = 0;
    for index in 0..order.len() {
        if is_first(&order[index]) {
            order.swap(count, index);
            count += 1;
        }
    }
    count
}

/// A cached plan: for each block, by its key, what is fetched.
pub type CachedPlan<K, F> = BTreeMap<K, F>;

/// Plans by their blocks. `K` names a block, and `F` says what is fetched of it.
///
/// A plan serves requests for its blocks, and for any part of them, restricted to that part. A restricted plan need not
/// be optimal, but accesses no other sites. At most `capacity` plans are kept; the least recently used one is evicted
/// first. A look-up costs O(plans that have the request's rarest block × blocks).
#[derive(Clone, Debug)]
pub struct PlanCache<K, F> {
    capacity: usize,
    /// Plans by the number of their insertion or last use, so the first is the least recently used.
    plans: BTreeMap<u64, CachedPlan<K, F>>,
    /// For each block, the numbers of the plans that contain it.
    having: HashMap<K, Vec<u64>>,
    used: u64,
    hits: u64,
    misses: u64,
}

impl<K: Clone + Ord + Hash, F: Clone> PlanCache<K, F> {
    /// Creates an empty cache of at most `capacity` plans.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, plans: BTreeMap::new(), having: HashMap::new(), used: 0, hits: 0, misses: 0 }
    }

    /// Returns what a cached plan fetches of each of these blocks, in their order, if one covers them all. Among
    /// several it takes the plan with the fewest blocks, then the most recently used. `renew` may replace the plan
    /// before it serves, for the same blocks.
    pub fn get(&mut self, blocks: &[K], renew: impl FnOnce(&mut CachedPlan<K, F>)) -> Option<Vec<F>> {
        let Some(number) = self.find(blocks) else {
            self.misses += 1;
            return None;
        };
        self.hits += 1;
        let mut plan = self.take(number);
        renew(&mut plan);
        let restricted = blocks.iter().map(|block| plan[block].clone()).collect();
        self.put(plan);
        Some(restricted)
    }

    /// Caches a plan. Replaces one for the same blocks.
    pub fn insert(&mut self, plan: CachedPlan<K, F>) {
        if self.capacity == 0 || plan.is_empty() {
            return;
        }
        let same = |number: &u64| self.plans[number].len() == plan.len();
        let blocks: Vec<K> = plan.keys().cloned().collect();
        if let Some(number) = self.find(&blocks).filter(same) {
            self.take(number);
        } else if self.plans.len() == self.capacity
            && let Some(&oldest) = self.plans.keys().next()
        {
            self.take(oldest);
        }
        self.put(plan);
    }

    /// Number of cached plans.
    pub fn len(&self) -> usize {
        self.plans.len()
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }

    /// Number of requests that a cached plan served.
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// Number of requests that no cached plan served.
    pub fn misses(&self) -> u64 {
        self.misses
    }

    fn find(&self, blocks: &[K]) -> Option<u64> {
        let plans_of = |block: &K| self.having.get(block).map_or(&[][..], Vec::as_slice);
        let rarest = blocks.iter().min_by_key(|block| plans_of(block).len())?;
        let covers = |number: &&u64| blocks.iter().all(|block| self.plans[*number].contains_key(block));
        let covering = plans_of(rarest).iter().filter(covers);
        covering.copied().min_by_key(|number| (self.plans[number].len(), u64::MAX - number))
    }

    fn take(&mut self, number: u64) -> CachedPlan<K, F> {
        let plan = self.plans.remove(&number).expect("a plan that was found");
        for block in plan.keys() {
            let having = self.having.get_mut(block).expect("every block of a plan is listed");
            having.retain(|other| *other != number);
            if having.is_empty() {
                self.having.remove(block);
            }
        }
        plan
    }

    fn put(&mut self, plan: CachedPlan<K, F>) {
        self.used += 1;
        for block in plan.keys() {
            self.having.entry(block.clone()).or_default().push(self.used);
        }
        self.plans.insert(self.used, plan);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;
    use striate_plan::solver::access::{AccessOption, AccessPlan, check_access};

    /// A plan that fetches chunk `chunk` of each of these blocks.
    fn plan(blocks: &[u32], chunk: usize) -> CachedPlan<u32, usize> {
        blocks.iter().map(|&block| (block, chunk)).collect()
    }

    /// What the cached plan fetches of these blocks, without renewal.
    fn get(cache: &mut PlanCache<u32, usize>, blocks: &[u32]) -> Option<Vec<usize>> {
        cache.get(blocks, |_| ())
    }

    proptest! {
        #[test]
        fn greedy_plans_are_legal(
            seed: u64, sites in 4usize..12, needs in proptest::collection::vec(0usize..5, 0..12),
        ) {
            let mut rng = SmallRng::seed_from_u64(seed);
            let mut problem = AccessProblem::new((0..sites).map(|site| site as f64));
            for need in needs {
                let placed = rand::seq::index::sample(&mut rng, sites, 4);
                problem.push_block(need, placed.iter().map(|site| AccessOption { site, transfer: 1.0 }));
            }
            let chunks = plan_greedily(&problem, &mut rng).unwrap();
            let plan = AccessPlan { chunks: &chunks, cost: cost_of(&problem, &chunks), lower_bound: 0.0, work: 0 };
            check_access(&problem, &plan).unwrap();
        }
    }

    #[test]
    fn the_greedy_heuristic_prefers_sites_that_are_accessed_and_is_random_else() {
        let mut problem = AccessProblem::new([1.0; 6]);
        for sites in [[0, 1], [0, 2], [1, 2]] {
            problem.push_block(1, sites.map(|site| AccessOption { site, transfer: 0.0 }));
        }
        let mut first_sites = std::collections::BTreeSet::new();
        for seed in 0..32 {
            let chunks = plan_greedily(&problem, &mut SmallRng::seed_from_u64(seed)).unwrap();
            let sites: Vec<usize> =
                chunks.iter().map(|chunk| problem.block(chunk.block).options[chunk.option].site).collect();
            first_sites.insert(sites[0]);
            // With site 0 the second block needs no other; with site 1 the third needs none.
            assert!(if sites[0] == 0 { sites[1] == 0 } else { sites[2] == 1 }, "{sites:?}");
        }
        assert_eq!(first_sites.into_iter().collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn the_greedy_heuristic_names_a_block_that_cannot_be_had() {
        let mut problem = AccessProblem::new([1.0]);
        problem.push_block(2, [AccessOption { site: 0, transfer: 1.0 }]);
        let error = plan_greedily(&problem, &mut SmallRng::seed_from_u64(1)).unwrap_err();
        assert_eq!(error, AccessError::TooFewOptions { block: 0, need: 2, options: 1 });
    }

    #[test]
    fn a_plan_serves_its_blocks_and_any_part_of_them() {
        let mut cache = PlanCache::new(4);
        cache.insert(plan(&[1, 2, 3], 0));
        assert_eq!(get(&mut cache, &[3, 1]), Some(vec![0, 0]));
        assert_eq!(get(&mut cache, &[1, 2, 3]), Some(vec![0, 0, 0]));
        assert_eq!(get(&mut cache, &[1, 4]), None);
        assert_eq!((cache.hits(), cache.misses()), (2, 1));
    }

    #[test]
    fn the_plan_of_fewest_blocks_serves() {
        let mut cache = PlanCache::new(4);
        cache.insert(plan(&[1, 2], 7));
        cache.insert(plan(&[1, 2, 3], 8));
        assert_eq!(get(&mut cache, &[1]), Some(vec![7]));
    }

    #[test]
    fn a_new_plan_replaces_the_one_for_the_same_blocks() {
        let mut cache = PlanCache::new(2);
        cache.insert(plan(&[1, 2], 0));
        cache.insert(plan(&[1, 2, 3], 0));
        cache.insert(plan(&[1, 2], 5));
        assert_eq!(cache.len(), 2);
        assert_eq!(get(&mut cache, &[2]), Some(vec![5]));
        assert_eq!(get(&mut cache, &[2, 3]), Some(vec![0, 0]));
    }

    #[test]
    fn a_plan_that_is_found_anew_serves_and_stays() {
        let mut cache = PlanCache::new(2);
        cache.insert(plan(&[1, 2], 0));
        assert_eq!(cache.get(&[2], |old| *old = plan(&[1, 2], 6)), Some(vec![6]));
        assert_eq!((get(&mut cache, &[2, 1]), cache.len()), (Some(vec![6, 6]), 1));
    }

    #[test]
    fn the_plan_used_longest_ago_goes_first() {
        let mut cache = PlanCache::new(2);
        cache.insert(plan(&[1], 0));
        cache.insert(plan(&[2], 0));
        get(&mut cache, &[1]);
        cache.insert(plan(&[3], 0));
        assert_eq!((get(&mut cache, &[2]), cache.len()), (None, 2));
        assert_eq!((get(&mut cache, &[1]), get(&mut cache, &[3])), (Some(vec![0]), Some(vec![0])));
    }
}

//! The solver: preparation, then for each component prices, a good plan, and the search for a better one.

use super::branch::{Branching, PRECISION};
use super::complement::PackedComponent;
use super::component::Component;
use super::dual::Dual;
use super::greedy::OpenSites;
use super::prepare::Preparation;
use super::{AccessError, AccessProblem};

/// A fetched chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccessChunk {
    /// Position of the block in the problem.
    pub block: usize,
    /// Position of the chunk among the block's options.
    pub option: usize,
}

/// The chunks to fetch, their cost, and what is proven about it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AccessPlan<'a> {
    /// need_i chunks of each block, in the order of blocks and options.
    pub chunks: &'a [AccessChunk],
    /// The cost of these chunks by Eq. 1.
    pub cost: f64,
    /// Lower bound of the cost of any plan, with a relative error of up to 1e-9; equal to the cost if the plan is
    /// optimal.
    pub lower_bound: f64,
    /// Work units spent.
    pub work: u64,
}

impl AccessPlan<'_> {
    /// Returns whether the plan is proven optimal.
    pub fn is_optimal(&self) -> bool {
        self.lower_bound >= self.cost
    }

    /// Returns the largest part of the cost that the cheapest plan could save; 0 if this one is optimal.
    pub fn gap(&self) -> f64 {
        if self.is_optimal() { 0.0 } else { (self.cost - self.lower_bound) / self.cost }
    }
}

/// Memory of the solver. After the first problems of a size, solving allocates nothing.
#[derive(Debug, Default)]
pub struct AccessWorkspace {
    preparation: Preparation,
    component: Component,
    prices: Dual,
    packing: PackedComponent,
    greedy: OpenSites,
    branching: Branching,
    /// Whether the plan fetches from each site of the problem.
    accessed: Vec<bool>,
    /// Sites by reduced cost or value, or the options of a block by transfer.
    order: Vec<(f64, usize)>,
    chunks: Vec<AccessChunk>,
}

/// Work units that take about 200 µs on one core of an AMD EPYC.
pub const BUDGET_OF_200_US: u64 = 1_600;

/// Finds the cheapest plan, or within about `budget` work units a good one with a proven bound.
///
/// A work unit is some 50 ns, in deterministic steps of the search: the result depends only on the arguments.
/// Preparation and a first plan are made whatever the budget.
///
/// # Errors
/// Names the block with fewer options than its need, the value that is not a cost, or the unknown or repeated site.
pub fn solve<'a>(
    problem: &AccessProblem,
    budget: u64,
    workspace: &'a mut AccessWorkspace,
) -> Result<AccessPlan<'a>, AccessError> {
    workspace.branching.work = 0;
    workspace.branching.limit = budget;
    workspace.preparation.run(problem)?;
    let (mut lower_bound, mut is_optimal) = (workspace.preparation.constant, true);
    for index in 0..workspace.preparation.component_count() {
        workspace.preparation.build(problem, index, &mut workspace.component);
        let (cost, bound) = workspace.solve_component();
        is_optimal &= bound >= cost;
        lower_bound += bound;
        for (&site, &is_open) in workspace.component.sites.iter().zip(&workspace.branching.open) {
            workspace.preparation.settled[site] |= is_open;
        }
    }
    let cost = workspace.fetch(problem);
    let lower_bound = if is_optimal { cost } else { lower_bound.min(cost) };
    Ok(AccessPlan { chunks: &workspace.chunks, cost, lower_bound, work: workspace.branching.work })
}

impl AccessWorkspace {
    /// Stores the open sites of a plan in `branching.open`. Returns its cost, and a bound that equals the cost if the
    /// plan is optimal.
    fn solve_component(&mut self) -> (f64, f64) {
        let Self { component, prices, packing, branching, order, .. } = self;
        let bound = prices.start(component, &mut branching.work);
        order.clear();
        order.extend(prices.reduced.iter().copied().zip(0..));
        sort_by_key(order);
        let is_packing = PackedComponent::fits(component);
        if is_packing {
            packing.load(component);
            self.close_greedily(bound);
        } else {
            self.open_greedily();
        }
        let Self { component, prices, packing, branching, .. } = self;
        branching.run(component, is_packing.then_some(&*packing), prices);
        let (cost, unexplored) = (branching.best, branching.unexplored);
        (cost, if unexplored < cost { unexplored.max(bound).min(cost) } else { cost })
    }

    /// Makes a first plan by closing sites, those of the greatest reduced cost first. If that is not proven optimal, it
    /// starts again with the sites that cost most for the blocks they have. The second start makes the first plan
    /// optimal in half of the cases in which it was not (32 sites, RS(2,2), 10 to 100 blocks).
    fn close_greedily(&mut self, bound: f64) {
        let Self { component, prices, packing, branching, order, .. } = self;
        let total = component.overheads.iter().sum::<f64>();
        let most = (total - bound) * (1.0 - PRECISION);
        let mut heaviest = f64::NEG_INFINITY;
        let value = |site: usize| component.overheads[site] / (component.blocks_at(site).len() as f64).sqrt();
        for start in 0..2 {
            if start == 1 {
                order.iter_mut().for_each(|(key, site)| *key = value(*site));
                sort_by_key(order);
            }
            let dearest_first = order.iter().rev().map(|&(_, site)| site);
            let (work, limit) = (&mut branching.work, branching.limit);
            let weight = packing.close_greedily(component, dearest_first, most, &prices.reduced, work, limit);
            if weight > heaviest {
                heaviest = weight;
                branching.open.clear();
                branching.open.extend(packing.closed.iter().map(|closed| !closed));
            }
            if heaviest >= most {
                break;
            }
        }
        branching.best = total - heaviest;
    }

    /// Makes a first plan by opening sites, those of the least reduced cost first.
    fn open_greedily(&mut self) {
        let Self { component, prices, branching, greedy, order, .. } = self;
        let is_worth_it = prices.reduced.iter().zip(&component.overheads);
        greedy.set(component, is_worth_it.map(|(&reduced, &overhead)| reduced <= 0.0 || overhead == 0.0));
        greedy.complete(component, order.iter().map(|&(_, site)| site));
        greedy.improve(component, &mut branching.work, branching.limit);
        branching.best = greedy.cost;
        branching.open.clone_from(&greedy.open);
    }

    /// Takes for each block the cheapest chunks from open sites. Returns the cost.
    fn fetch(&mut self, problem: &AccessProblem) -> f64 {
        let Self { preparation, chunks, order, accessed, .. } = self;
        chunks.clear();
        accessed.clear();
        accessed.resize(problem.overheads().len(), false);
        let mut cost = 0.0;
        for (block, access_block) in problem.blocks().enumerate() {
            let open = access_block
                .options
                .iter()
                .enumerate()
                .filter(|(_, option)| preparation.settled[option.site]);
            order.clear();
            order.extend(open.map(|(index, option)| (option.transfer, index)));
            sort_by_key(order);
            let start = chunks.len();
            for &(transfer, option) in &order[..access_block.need] {
                let site = access_block.options[option].site;
                if !std::mem::replace(&mut accessed[site], true) {
                    cost += problem.overheads()[site];
                }
                cost += transfer;
                chunks.push(AccessChunk { block, option });
            }
            chunks[start..].sort_unstable();
        }
        cost
    }
}

/// Sorts ascending by key; ties by position.
fn sort_by_key(order: &mut [(f64, usize)]) {
    order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
}

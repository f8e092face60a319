//! The solver: preparation, good plans, bounds, search.

use super::branch::Branching;
use super::complement::Packing;
use super::component::Component;
use super::dual::{Decision, Dual};
use super::greedy::OpenSites;
use super::prepare::Preparation;
use super::{AccessError, AccessProblem};

/// One chunk that is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccessChunk {
    /// Position of the block in the problem.
    pub block: usize,
    /// Position of the chunk among the block's options.
    pub option: usize,
}

/// What is fetched, what that costs, and how far from the least cost that can be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AccessPlan<'a> {
    /// need_i chunks of each block, in the order of blocks and options.
    pub chunks: &'a [AccessChunk],
    /// Eq. 1 of these chunks.
    pub cost: f64,
    /// No plan costs less, up to rounding. Equal to the cost when the plan is optimal.
    pub lower_bound: f64,
    /// Work units spent, of the budget.
    pub work: u64,
}

impl AccessPlan<'_> {
    /// Whether it is proved that no plan costs less.
    pub fn is_optimal(&self) -> bool {
        self.lower_bound >= self.cost
    }

    /// By what part of its own cost the plan may be dearer than the cheapest one; 0 when it is optimal.
    pub fn gap(&self) -> f64 {
        if self.is_optimal() { 0.0 } else { (self.cost - self.lower_bound) / self.cost }
    }
}

/// Memory of the solver. After the first problems of a size, solving allocates nothing.
#[derive(Debug, Default)]
pub struct AccessWorkspace {
    preparation: Preparation,
    component: Component,
    root: Dual,
    packing: Packing,
    branching: Branching,
    sites: Vec<usize>,
    closed: Vec<bool>,
    trial: Vec<bool>,
    /// Of each site of the component: whether the best plan opens it.
    open: Vec<bool>,
    incumbent: OpenSites,
    order: Vec<(f64, usize)>,
    chunks: Vec<AccessChunk>,
    work: u64,
    budget: u64,
}

/// Finds the cheapest plan, or in `budget` work units a good one with a proved bound.
///
/// # Errors
/// The block whose options are fewer than its need; costs and sites that are none.
pub fn solve<'a>(
    problem: &AccessProblem,
    budget: u64,
    workspace: &'a mut AccessWorkspace,
) -> Result<AccessPlan<'a>, AccessError> {
    workspace.work = 0;
    workspace.budget = budget;
    workspace.preparation.run(problem)?;
    let mut lower_bound = workspace.preparation.constant;
    let mut is_optimal = true;
    for index in 0..workspace.preparation.component_count() {
        let AccessWorkspace { preparation, component, .. } = workspace;
        preparation.build(problem, index, component);
        let (cost, bound) = workspace.solve_component();
        is_optimal &= bound >= cost;
        lower_bound += bound;
        let AccessWorkspace { preparation, component, open, .. } = workspace;
        for (&site, &is_open) in component.sites.iter().zip(open.iter()) {
            preparation.settled[site] |= is_open;
        }
    }
    let cost = workspace.fetch(problem);
    let lower_bound = if is_optimal { cost } else { lower_bound.min(cost) };
    Ok(AccessPlan { chunks: &workspace.chunks, cost, lower_bound, work: workspace.work })
}

impl AccessWorkspace {
    /// Leaves the sites of the best plan in `open`; its cost, and a bound that equals it when that is proved.
    fn solve_component(&mut self) -> (f64, f64) {
        self.root.reset(&self.component);
        for _ in 0..4 {
            for block in 0..self.component.block_count() {
                self.root.ascend(&self.component, block);
            }
        }
        let bound = self.root.bound(&self.component);
        let is_packing = Packing::fits(&self.component);
        if is_packing {
            self.packing.load(&self.component);
            self.start_from_packing();
        } else {
            self.start_from_prices();
        }
        self.branching.work = self.work;
        self.branching.limit = self.budget;
        self.branching.run(&self.component, is_packing.then_some(&self.packing), &self.root);
        self.work = self.branching.work;
        self.open.clone_from(&self.branching.best_open);
        let cost = self.branching.best;
        let unexplored = self.branching.unexplored;
        (cost, if unexplored < cost { unexplored.max(bound).min(cost) } else { cost })
    }

    fn start_from_packing(&mut self) {
        let component = &self.component;
        self.order.clear();
        self.order.extend(self.root.reduced.iter().copied().zip(0..));
        self.order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        self.closed.clear();
        self.closed.resize(component.site_count(), false);
        let order = self.order.iter().map(|&(_, site)| site);
        let mut counters = self.packing.start;
        let weight = self.packing.close_in_order(component, &mut counters, order, &mut self.closed);
        let weight = self.packing.improve(component, &mut self.closed, &mut self.trial, weight);
        let total: f64 = component.overheads.iter().sum();
        self.branching.best = total - weight;
        self.branching.best_open.clear();
        self.branching.best_open.extend(self.closed.iter().map(|closed| !closed));
    }

    fn start_from_prices(&mut self) {
        let component = &self.component;
        self.order.clear();
        self.order.extend(self.root.reduced.iter().copied().zip(0..));
        self.order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        self.sites.clear();
        self.sites.extend(self.order.iter().map(|&(_, site)| site));
        let decisions = self.root.decisions.iter().zip(&self.root.reduced);
        let is_open = |(&decision, &reduced): (&Decision, &f64)| decision == Decision::Open || reduced <= 0.0;
        self.incumbent.set(component, decisions.map(is_open));
        self.incumbent.complete(component, &self.sites);
        self.incumbent.improve(component);
        self.branching.best = self.incumbent.cost;
        self.branching.best_open.clone_from(&self.incumbent.open);
    }

    /// Takes for each block the cheapest chunks from open sites; what that costs.
    fn fetch(&mut self, problem: &AccessProblem) -> f64 {
        let Self { preparation, chunks, order, trial, .. } = self;
        chunks.clear();
        trial.clear();
        trial.resize(problem.overheads().len(), false);
        let mut cost = 0.0;
        for (block, of) in problem.blocks().enumerate() {
            order.clear();
            let open = of.options.iter().enumerate().filter(|(_, option)| preparation.settled[option.site]);
            order.extend(open.map(|(index, option)| (option.transfer, index)));
            order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            let start = chunks.len();
            for &(transfer, option) in &order[..of.need] {
                let site = of.options[option].site;
                if !std::mem::replace(&mut trial[site], true) {
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

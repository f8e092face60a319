//! Branch and bound on the dual, for components that the complement does not fit.
//!
//! A node opens or closes one more site and raises the prices of the blocks there. Sites whose reduced cost exceeds
//! what is left to the best plan are decided at once. Depth first, the likelier side first.

use super::complement::{Packing, Search};
use super::component::Component;
use super::dual::{Decision, Dual};
use super::greedy::OpenSites;

/// The search, and its memory.
#[derive(Debug, Default)]
pub struct Branching {
    /// The state of the node at each depth.
    stack: Vec<Dual>,
    trial: OpenSites,
    /// The cost to beat, and the sites of the plan that has it.
    pub best: f64,
    pub best_open: Vec<bool>,
    /// The least cost that an unexplored plan may have.
    pub unexplored: f64,
    pub work: u64,
    pub limit: u64,
    search: Search,
}

/// Proofs are up to this part of the cost: what sums of floating-point numbers lose.
pub const PRECISION: f64 = 1e-10;

/// How many undecided sites the complement is searched with.
const LEAF_SITES: usize = 36;

impl Branching {
    /// Searches below the root's prices for plans better than `best`, whose sites are in `best_open`.
    pub fn run(&mut self, component: &Component, packing: Option<&Packing>, root: &Dual) {
        self.unexplored = f64::INFINITY;
        if self.stack.is_empty() {
            self.stack.push(Dual::default());
        }
        self.stack[0].copy_from(root);
        self.visit(component, packing, 0, None);
    }

    fn visit(&mut self, component: &Component, packing: Option<&Packing>, depth: usize, site: Option<usize>) {
        let Self { stack, best, .. } = self;
        let dual = &mut stack[depth];
        let threshold = *best * (1.0 - PRECISION);
        let Some(bound) = dual.tighten(component, site, threshold, &mut self.work) else { return };
        if bound >= threshold {
            return;
        }
        if let Some(packing) = packing
            && dual.undecided_count() <= LEAF_SITES
        {
            self.search.work = self.work;
            self.search.limit = self.limit;
            if let Some(cost) = self.search.run(component, packing, dual, threshold, &mut self.best_open) {
                self.best = cost;
            }
            self.work = self.search.work;
            self.unexplored = self.unexplored.min(self.search.unexplored);
            return;
        }
        let Some(site) = dual.most_doubtful(component) else {
            self.trial.set(component, dual.decisions.iter().map(|&decision| decision == Decision::Open));
            self.keep_trial();
            return;
        };
        if self.work > self.limit {
            self.unexplored = self.unexplored.min(bound);
            return;
        }
        let first = if dual.reduced[site] > 0.0 { Decision::Closed } else { Decision::Open };
        let second = if first == Decision::Open { Decision::Closed } else { Decision::Open };
        for decision in [first, second] {
            if self.stack.len() == depth + 1 {
                self.stack.push(Dual::default());
            }
            let (parents, children) = self.stack.split_at_mut(depth + 1);
            children[0].copy_from(&parents[depth]);
            children[0].decisions[site] = decision;
            self.visit(component, packing, depth + 1, Some(site));
        }
    }

    fn keep_trial(&mut self) {
        if self.trial.cost < self.best {
            self.best = self.trial.cost;
            self.best_open.clone_from(&self.trial.open);
        }
    }
}

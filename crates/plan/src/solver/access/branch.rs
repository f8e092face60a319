//! Branch and bound on the dual.
//!
//! A node opens or closes one more site and raises the prices of the blocks there. Sites whose reduced cost exceeds the
//! gap to the best plan are decided at once. The search is depth first, the likelier side first. If the component fits
//! the complement, that search takes over once few sites are undecided: its nodes are some ten times as fast, while a
//! node here has the better bound.

use super::closing::ClosingSearch;
use super::complement::PackedComponent;
use super::component::Component;
use super::dual::{Decision, Dual};
use super::greedy::OpenSites;

/// Relative precision of proofs: what sums of floating-point numbers lose.
pub const PRECISION: f64 = 1e-10;

/// Number of undecided sites at which the search of the complement takes over. With 98 sites, RS(6,3) and 20 blocks,
/// fewer than 30 is slowest, and more than 40 is slower again.
const FEW_SITES: usize = 36;

/// The search and its memory.
#[derive(Debug, Default)]
pub struct Branching {
    /// The cost to beat, and the open sites of the plan that has it.
    pub best: f64,
    pub open: Vec<bool>,
    /// Lower bound of the cost of plans that the limit left unexplored.
    pub unexplored: f64,
    /// Work units spent, and the limit at which to stop.
    pub work: u64,
    pub limit: u64,
    /// The state of the node at each depth.
    stack: Vec<Dual>,
    closing: ClosingSearch,
    trial: OpenSites,
}

impl Branching {
    /// Searches for plans cheaper than `best`, starting from these prices. `packing` is the component in that form, if
    /// it fits.
    pub fn run(&mut self, component: &Component, packing: Option<&PackedComponent>, root: &Dual) {
        self.unexplored = f64::INFINITY;
        self.make_room(0);
        self.stack[0].copy_from(root);
        self.visit(component, packing, 0, None);
    }

    fn visit(
        &mut self,
        component: &Component,
        packing: Option<&PackedComponent>,
        depth: usize,
        site: Option<usize>,
    ) {
        let threshold = self.best * (1.0 - PRECISION);
        let dual = &mut self.stack[depth];
        let Some(bound) = dual.tighten(component, site, threshold, &mut self.work) else { return };
        if bound >= threshold {
            return;
        }
        if let Some(packing) = packing
            && dual.undecided_count() <= FEW_SITES
        {
            return self.search_complement(component, packing, depth, threshold);
        }
        let Some(site) = dual.most_doubtful(component) else {
            return self.try_decisions(component, depth);
        };
        if self.work > self.limit {
            self.unexplored = self.unexplored.min(bound);
            return;
        }
        let sides = [Decision::Closed, Decision::Open];
        let likelier = usize::from(dual.reduced[site] <= 0.0);
        self.make_room(depth + 1);
        for decision in [sides[likelier], sides[1 - likelier]] {
            let (parents, children) = self.stack.split_at_mut(depth + 1);
            children[0].copy_from(&parents[depth]);
            children[0].decisions[site] = decision;
            self.visit(component, packing, depth + 1, Some(site));
        }
    }

    fn search_complement(
        &mut self,
        component: &Component,
        packing: &PackedComponent,
        depth: usize,
        threshold: f64,
    ) {
        self.closing.work = self.work;
        self.closing.limit = self.limit;
        let dual = &self.stack[depth];
        if let Some(cost) = self.closing.run(component, packing, dual, threshold, &mut self.open) {
            self.best = cost;
        }
        self.work = self.closing.work;
        self.unexplored = self.unexplored.min(self.closing.unexplored);
    }

    /// Takes the plan of a node in which every site is decided, if it is the cheapest so far.
    fn try_decisions(&mut self, component: &Component, depth: usize) {
        let decisions = &self.stack[depth].decisions;
        self.trial.set(component, decisions.iter().map(|&decision| decision == Decision::Open));
        if self.trial.cost < self.best {
            self.best = self.trial.cost;
            self.open.clone_from(&self.trial.open);
        }
    }

    fn make_room(&mut self, depth: usize) {
        if self.stack.len() <= depth {
            self.stack.push(Dual::default());
        }
    }
}

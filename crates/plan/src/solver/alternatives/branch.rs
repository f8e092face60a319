//! Branch and bound on the dual.
//!
//! A node decides one more site, inherits the prices and raises them. It closes sites whose residual exceeds the gap to
//! the best plan, and opens those without which the pieces would lose more than that. The pieces' choices at these
//! prices are themselves a plan. The search is depth first, and branches on the site with the greatest product of what
//! its two sides raise the bound by.

use super::PRECISION;
use super::choice::Chooser;
use super::dual::{Decision, Dual, Scratch};
use super::model::Model;

/// Rounds of ascent in a node.
const ROUNDS: usize = 2;
/// Minimum weight of each side of a branch, as a part of the gap: a side that does not raise the bound still counts.
const LEAST_SIDE: f64 = 0.01;

/// The search and its memory.
#[derive(Debug, Default)]
pub(super) struct Branching {
    /// The cost to beat, and the open sites of the plan that has it.
    pub(super) best: f64,
    pub(super) open: Vec<bool>,
    /// Lower bound of the cost of plans that the limit left unexplored.
    pub(super) unexplored: f64,
    /// Maximum number of slots examined.
    pub(super) limit: u64,
    /// The state of the node at each depth.
    stack: Vec<Dual>,
    /// Proven lower bound of what the pieces lose without each site.
    losses: Vec<f64>,
    /// Whether any slot at each site is picked.
    is_picked: Vec<bool>,
}

impl Branching {
    /// Searches for plans cheaper than `best`, starting from these prices.
    pub(super) fn run(&mut self, model: &Model, root: &Dual, chooser: &mut Chooser, scratch: &mut Scratch) {
        self.unexplored = f64::INFINITY;
        self.make_room(0);
        self.stack[0].copy_from(root);
        self.visit(model, 0, chooser, scratch);
    }

    fn visit(&mut self, model: &Model, depth: usize, chooser: &mut Chooser, scratch: &mut Scratch) {
        let Some(bound) = self.tighten(model, depth, chooser, scratch) else { return };
        let Some(site) = self.most_telling(depth, bound) else { return };
        if chooser.looked_at > self.limit {
            self.unexplored = self.unexplored.min(bound);
            return;
        }
        let is_opened_first = self.losses[site] >= self.stack[depth].residuals[site];
        self.make_room(depth + 1);
        for is_opened in [is_opened_first, !is_opened_first] {
            let (parents, children) = self.stack.split_at_mut(depth + 1);
            children[0].copy_from(&parents[depth]);
            let decision = if is_opened { Decision::Open } else { Decision::Closed };
            children[0].decide(model, site, decision);
            for &(piece, _) in model.at_site(site) {
                children[0].ascend(model, piece as usize, chooser, scratch);
            }
            for _ in 0..ROUNDS {
                if children[0].bound() < self.best * (1.0 - PRECISION) {
                    children[0].ascend_all(model, chooser, scratch);
                }
            }
            self.visit(model, depth + 1, chooser, scratch);
        }
    }

    /// Decides sites as long as the bound allows. Returns D, or `None` if no plan of the node is below the threshold.
    fn tighten(
        &mut self,
        model: &Model,
        depth: usize,
        chooser: &mut Chooser,
        scratch: &mut Scratch,
    ) -> Option<f64> {
        loop {
            let bound = self.stack[depth].bound();
            if bound >= self.threshold() {
                return None;
            }
            self.look(model, depth, chooser);
            if bound >= self.threshold() {
                return None;
            }
            if !self.decide(model, depth, bound) {
                return Some(bound);
            }
            self.stack[depth].ascend_all(model, chooser, scratch);
        }
    }

    fn threshold(&self) -> f64 {
        self.best * (1.0 - PRECISION)
    }

    /// Finds the picks at the node's prices and the losses without each site. Keeps the plan of these picks if it is
    /// the cheapest so far.
    fn look(&mut self, model: &Model, depth: usize, chooser: &mut Chooser) {
        let Self { stack, losses, is_picked, .. } = self;
        let prices = &stack[depth].prices;
        let sites = model.overheads.len();
        losses.clear();
        losses.resize(sites, 0.0);
        is_picked.clear();
        is_picked.resize(sites, false);
        let mut cost = 0.0;
        for piece in 0..model.piece_count() {
            chooser.cheapest_with_losses(model, piece, |slot| slot.load + prices[slot.place as usize]);
            for (&pick, loss) in chooser.picks.iter().zip(&chooser.losses) {
                let slot = model.slots[pick as usize];
                losses[slot.site as usize] += loss;
                is_picked[slot.site as usize] = true;
                cost += slot.load;
            }
        }
        let overheads = model.overheads.iter().zip(&*is_picked).filter(|(_, picked)| **picked);
        cost += overheads.map(|(overhead, _)| overhead).sum::<f64>();
        if cost < self.best {
            self.best = cost;
            self.open.clone_from(&self.is_picked);
        }
    }

    /// Closes and opens the sites whose opposite decision no plan below the threshold makes. Returns whether there were
    /// any.
    fn decide(&mut self, model: &Model, depth: usize, bound: f64) -> bool {
        let gap = self.threshold() - bound;
        let node = &mut self.stack[depth];
        let mut is_any = false;
        for site in 0..model.overheads.len() {
            if node.decisions[site] != Decision::Undecided {
                continue;
            }
            let decision = match (node.residuals[site] >= gap, self.losses[site] >= gap) {
                (true, _) => Decision::Closed,
                (_, true) => Decision::Open,
                _ => continue,
            };
            node.decide(model, site, decision);
            is_any = true;
        }
        is_any
    }

    /// Returns the undecided picked site whose sides raise the bound most, or `None` if all of them are decided.
    fn most_telling(&self, depth: usize, bound: f64) -> Option<usize> {
        let node = &self.stack[depth];
        let least = LEAST_SIDE * (self.threshold() - bound);
        let undecided = (0..node.decisions.len())
            .filter(|&site| node.decisions[site] == Decision::Undecided && self.is_picked[site]);
        let telling = |site: usize| (node.residuals[site] + least) * (self.losses[site] + least);
        undecided.max_by(|&a, &b| telling(a).total_cmp(&telling(b)))
    }

    fn make_room(&mut self, depth: usize) {
        if self.stack.len() <= depth {
            self.stack.push(Dual::default());
        }
    }
}

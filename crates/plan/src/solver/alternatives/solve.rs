//! The solver: prices, a good plan, better prices, a better plan, and the search.

use super::branch::Branching;
use super::choice::Chooser;
use super::dual::{Dual, Scratch};
use super::model::Model;
use super::open_sites::{Exchange, OpenSites};
use super::settle::settle;
use super::{AlternativesProblem, PRECISION};
use crate::solver::piece_options::NoOption;

/// The slots to read, their cost, and what is proven about it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AlternativesPlan<'a> {
    /// The slots to read, as positions in [`crate::solver::piece_options::PieceOptions::slots`], piece by piece.
    pub picks: &'a [u32],
    /// The end of each piece's slots in `picks`.
    pub ends: &'a [usize],
    /// Σ o_j of the sites asked, plus transfers and decoding.
    pub cost: f64,
    /// Lower bound of the cost of any plan, with a relative error of up to 1e-9; equal to the cost if the plan is
    /// optimal.
    pub lower_bound: f64,
    /// Work units spent.
    pub work: u64,
}

impl<'a> AlternativesPlan<'a> {
    /// Returns the slots to read of a piece, which must exist.
    pub fn picks_of(&self, piece: usize) -> &'a [u32] {
        let start = if piece == 0 { 0 } else { self.ends[piece - 1] };
        &self.picks[start..self.ends[piece]]
    }

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
pub struct AlternativesWorkspace {
    model: Model,
    chooser: Chooser,
    scratch: Scratch,
    dual: Dual,
    trial: OpenSites,
    exchange: Exchange,
    branching: Branching,
    /// Sites by residual, the greatest first.
    order: Vec<u32>,
    /// Whether each site of the problem is asked.
    is_asked: Vec<bool>,
    picks: Vec<u32>,
    ends: Vec<usize>,
}

/// Slots examined per work unit: some 125 ns, like a unit of [`crate::solver::access`].
const SLOTS_PER_WORK: u64 = 14;
/// Rounds of ascent before the first plan.
const FIRST_ROUNDS: usize = 3;
/// Maximum number of Polyak steps.
const STEPS: usize = 50;
/// The parts of the budget after which the first plan is no longer improved, steps end, and the second plan is no
/// longer improved.
const PARTS: [f64; 3] = [0.1, 0.5, 0.9];

/// Finds the cheapest plan, or within about `budget` work units, those of [`crate::solver::access::solve`], a good one
/// with a proven bound.
///
/// The result depends only on the arguments. First prices and a first plan are made whatever the budget.
///
/// # Errors
/// [`NoOption`] for a piece without options.
pub fn solve<'a>(
    problem: &AlternativesProblem,
    budget: u64,
    workspace: &'a mut AlternativesWorkspace,
) -> Result<AlternativesPlan<'a>, NoOption> {
    problem.pieces.all_have_options()?;
    workspace.model.load(problem);
    workspace.chooser.looked_at = 0;
    let settled = settle(&mut workspace.model, &mut workspace.chooser);
    let lower_bound = workspace.search(budget.saturating_mul(SLOTS_PER_WORK)) + settled;
    let cost = workspace.read(problem);
    let work = workspace.chooser.looked_at / SLOTS_PER_WORK;
    let is_optimal = lower_bound >= cost * (1.0 - 2.0 * PRECISION);
    let lower_bound = if is_optimal { cost } else { lower_bound };
    let AlternativesWorkspace { picks, ends, .. } = workspace;
    Ok(AlternativesPlan { picks, ends, cost, lower_bound, work })
}

impl AlternativesWorkspace {
    /// Stores the open sites of a plan in `branching.open`. Returns a lower bound of the cost of every plan, without
    /// settled sites.
    fn search(&mut self, limit: u64) -> f64 {
        let Self { model, chooser, scratch, dual, .. } = self;
        dual.start(model);
        for _ in 0..FIRST_ROUNDS {
            dual.ascend_all(model, chooser, scratch);
        }
        let mut bound = dual.bound();
        self.branching.limit = limit;
        self.branching.best = f64::INFINITY;
        let parts = PARTS.map(|part| (limit as f64 * part) as u64);
        self.make_plan(bound, parts[0]);
        if bound < self.threshold() {
            let Self { model, chooser, scratch, dual, branching, .. } = self;
            bound = bound.max(dual.step(model, branching.best, (STEPS, parts[1]), chooser, scratch));
            self.make_plan(bound, parts[2]);
        }
        if bound < self.threshold() {
            let Self { model, chooser, scratch, dual, branching, .. } = self;
            branching.run(model, dual, chooser, scratch);
            bound = bound.max(branching.unexplored.min(branching.best));
        }
        bound.min(self.branching.best)
    }

    fn threshold(&self) -> f64 {
        self.branching.best * (1.0 - PRECISION)
    }

    /// Makes a plan by the current prices, and keeps it if it is the best.
    fn make_plan(&mut self, bound: f64, limit: u64) {
        let Self { model, chooser, dual, trial, exchange, branching, order, .. } = self;
        order.clear();
        order.extend(0..model.overheads.len() as u32);
        let residual = |site: u32| dual.residuals[site as usize];
        order.sort_unstable_by(|&a, &b| residual(b).total_cmp(&residual(a)).then(a.cmp(&b)));
        trial.set(model, std::iter::repeat_n(true, order.len()), chooser);
        trial.drop(model, order, chooser, exchange);
        let least = |site: usize| bound + dual.residuals[site];
        trial.improve(model, order, least, (chooser, limit), exchange);
        if trial.cost < branching.best {
            branching.best = trial.cost;
            branching.open.clone_from(&trial.open);
        }
    }

    /// Takes the cheapest choice of each piece from the open sites. Returns the cost of the plan.
    fn read(&mut self, problem: &AlternativesProblem) -> f64 {
        let Self { model, chooser, trial, branching, is_asked, picks, ends, .. } = self;
        let open = branching.open.iter().zip(&model.overheads);
        trial.set(model, open.map(|(&open, &overhead)| open || overhead == 0.0), chooser);
        is_asked.clear();
        is_asked.resize(problem.overheads().len(), false);
        picks.clear();
        ends.clear();
        let (pieces, mut cost) = (&problem.pieces, 0.0);
        for (piece, &merged) in model.merged.iter().enumerate() {
            let first = pieces.options[pieces.options_of(piece).start].first;
            for &pick in trial.picks(merged) {
                let pick = first + model.slots[pick as usize].offset as usize;
                let slot = pieces.slots[pick];
                picks.push(pick as u32);
                cost += slot.load();
                if !std::mem::replace(&mut is_asked[slot.site], true) {
                    cost += problem.overheads()[slot.site];
                }
            }
            ends.push(picks.len());
        }
        cost
    }
}

//! The dual: lower bounds on what plans cost, from prices that pieces pay for sites.
//!
//! Piece i pays λ_ij ≥ 0 for what it takes from site j. With v_i its cheapest choice at m_j·z + λ_ij,
//!
//! ```text
//! D(λ) = Σ_i v_i + Σ_j min(0, o_j − Σ_i λ_ij)
//! ```
//!
//! is at most the cost of every plan: the Lagrangian of "what piece i takes from j, by whichever option, is at most a_j". A plan
//! that opens j costs at least D and its *residual* o_j − Σ_i λ_ij, and one that does not at least D and what the pieces lose
//! without j.
//!
//! *Ascent* gives one piece after the other all that is left of o_j, and takes back what v_i does not need: of each option the
//! part of the prices above the level at which it still costs v_i. It stalls where pieces would have to move together, 5 to 24%
//! below the best plan. *Polyak steps* along the subgradient, as long as the distance from the best plan says, close most of that.

use super::choice::Chooser;
use super::model::Model;

/// Whether a site is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Decision {
    #[default]
    Undecided,
    Open,
    Closed,
}

/// Prices and what follows from them. A child of a search node starts from a copy.
#[derive(Debug, Default)]
pub(super) struct Dual {
    /// λ of each place; nothing at open sites, infinite at closed ones.
    pub(super) prices: Vec<f64>,
    /// o_j − Σ_i λ_ij of each undecided site; 0 at others.
    pub(super) residuals: Vec<f64>,
    pub(super) decisions: Vec<Decision>,
    /// v_i of each piece.
    values: Vec<f64>,
    /// Σ o_j of open sites.
    opened: f64,
}

/// Memory of ascents and steps.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// What each option of a piece takes, and where that ends.
    costs: Vec<f64>,
    ends: Vec<(f64, usize)>,
    /// The prices that a piece needs.
    needed: Vec<f64>,
    /// Prices of the best step.
    best: Vec<f64>,
    direction: Vec<f64>,
}

/// The first step as a part of the way to the best plan.
const STEP: f64 = 1.7;
/// After so many steps without gain they are made shorter,
const PATIENCE: usize = 8;
/// by this.
const SHORTER: f64 = 0.7;

impl Dual {
    /// No prices. Sites that cost nothing are open.
    pub(super) fn start(&mut self, model: &Model) {
        self.prices.clear();
        self.prices.resize(model.places.len(), 0.0);
        self.residuals.clone_from(&model.overheads);
        self.decisions.clear();
        let is_free = |&overhead: &f64| if overhead == 0.0 { Decision::Open } else { Decision::Undecided };
        self.decisions.extend(model.overheads.iter().map(is_free));
        self.values.clear();
        self.values.resize(model.piece_count(), 0.0);
        self.opened = 0.0;
    }

    /// The same as another, in memory that is there.
    pub(super) fn copy_from(&mut self, other: &Dual) {
        self.prices.clone_from(&other.prices);
        self.residuals.clone_from(&other.residuals);
        self.decisions.clone_from(&other.decisions);
        self.values.clone_from(&other.values);
        self.opened = other.opened;
    }

    /// Opens or closes an undecided site.
    pub(super) fn decide(&mut self, model: &Model, site: usize, decision: Decision) {
        let price = if decision == Decision::Open { 0.0 } else { f64::INFINITY };
        model.at_site(site).iter().for_each(|&(_, place)| self.prices[place as usize] = price);
        self.residuals[site] = 0.0;
        self.decisions[site] = decision;
        if decision == Decision::Open {
            self.opened += model.overheads[site];
        }
    }

    /// D, as the last ascent of every piece left it; infinite when a piece cannot be read.
    pub(super) fn bound(&self) -> f64 {
        self.opened + self.values.iter().sum::<f64>()
    }

    /// Raises D over the prices of every piece.
    pub(super) fn ascend_all(&mut self, model: &Model, chooser: &mut Chooser, scratch: &mut Scratch) {
        (0..model.piece_count()).for_each(|piece| self.ascend(model, piece, chooser, scratch));
    }

    /// Raises D over the prices of a piece.
    pub(super) fn ascend(
        &mut self,
        model: &Model,
        piece: usize,
        chooser: &mut Chooser,
        scratch: &mut Scratch,
    ) {
        let Scratch { costs, ends, needed, .. } = scratch;
        let places = model.places_of(piece);
        // All that is left is offered, and what is not needed taken back.
        for place in places.clone() {
            let site = model.places[place] as usize;
            self.prices[place] += std::mem::replace(&mut self.residuals[site], 0.0);
        }
        costs.clear();
        ends.clear();
        let mut value = f64::INFINITY;
        for option in model.options_of(piece) {
            let of_slot = |slot: &super::model::ModelSlot| slot.load + self.prices[slot.place as usize];
            let cost = chooser.costs_of(model, option, of_slot, costs);
            ends.push((cost, costs.len()));
            value = value.min(cost);
        }
        self.values[piece] = value;
        needed.clear();
        needed.resize(places.len(), 0.0);
        let mut start = 0;
        for (option, &(cost, end)) in model.options_of(piece).iter().zip(&*ends) {
            let taken = &costs[std::mem::replace(&mut start, end)..end];
            if cost == f64::INFINITY || taken.is_empty() {
                continue;
            }
            let level = level(taken, value);
            for slot in &model.slots[option.slots()] {
                let needed = &mut needed[slot.place as usize - places.start];
                *needed = needed.max(level - slot.load);
            }
        }
        for (place, &needed) in places.zip(&*needed) {
            let site = model.places[place] as usize;
            if self.decisions[site] == Decision::Undecided {
                let kept = self.prices[place].min(needed);
                self.residuals[site] += self.prices[place] - kept;
                self.prices[place] = kept;
            }
        }
    }

    /// Up to `steps` Polyak steps towards `best`, from a root, while `chooser` has looked at no more than `limit` slots. The greatest
    /// bound on the way.
    pub(super) fn step(
        &mut self,
        model: &Model,
        best: f64,
        (steps, limit): (usize, u64),
        chooser: &mut Chooser,
        scratch: &mut Scratch,
    ) -> f64 {
        let (mut length, mut in_vain, mut raised) = (STEP, 0, self.bound());
        scratch.best.clone_from(&self.prices);
        for _ in 0..steps {
            let (bound, norm) = self.look(model, chooser, &mut scratch.direction);
            in_vain += 1;
            if bound > raised {
                (raised, in_vain) = (bound, 0);
                scratch.best.clone_from(&self.prices);
            }
            if in_vain == PATIENCE {
                (length, in_vain) = (length * SHORTER, 0);
            }
            if norm == 0.0 || best <= bound || chooser.looked_at > limit {
                break;
            }
            let length = length * (best - bound) / norm;
            for (price, direction) in self.prices.iter_mut().zip(&scratch.direction) {
                *price = (*price + length * direction).max(0.0);
            }
        }
        std::mem::swap(&mut self.prices, &mut scratch.best);
        self.make_feasible(model);
        self.ascend_all(model, chooser, scratch);
        raised.max(self.bound())
    }

    /// D of any prices, and the square of the subgradient's length. The subgradient of a price is whether its piece takes what it
    /// stands for, less whether its site is open; no price falls below 0.
    fn look(&mut self, model: &Model, chooser: &mut Chooser, direction: &mut Vec<f64>) -> (f64, f64) {
        direction.clear();
        direction.resize(model.places.len(), 0.0);
        let mut bound = self.opened;
        for piece in 0..model.piece_count() {
            bound += chooser.cheapest(model, piece, |slot| slot.load + self.prices[slot.place as usize]);
            for &pick in &chooser.picks {
                direction[model.slots[pick as usize].place as usize] = 1.0;
            }
        }
        self.residuals.clone_from(&model.overheads);
        for (&site, price) in model.places.iter().zip(&self.prices) {
            self.residuals[site as usize] -= price;
        }
        bound += self.residuals.iter().map(|residual| residual.min(0.0)).sum::<f64>();
        let mut norm = 0.0;
        for ((direction, &site), &price) in direction.iter_mut().zip(&model.places).zip(&self.prices) {
            *direction -= f64::from(self.residuals[site as usize] < 0.0);
            let stays = model.overheads[site as usize] == 0.0 || (*direction < 0.0 && price == 0.0);
            *direction = if stays { 0.0 } else { *direction };
            norm += *direction * *direction;
        }
        (bound, norm)
    }

    /// Lowers prices until no site is paid more than o_j.
    fn make_feasible(&mut self, model: &Model) {
        for site in 0..model.overheads.len() {
            let overhead = model.overheads[site];
            let places = model.at_site(site);
            let paid: f64 = places.iter().map(|&(_, place)| self.prices[place as usize]).sum();
            if paid > overhead {
                places.iter().for_each(|&(_, place)| self.prices[place as usize] *= overhead / paid);
            }
            self.residuals[site] = (overhead - paid).max(0.0);
        }
    }
}

/// The level t at which Σ min(cost, t) is `sum`, for ascending costs whose sum is not less.
fn level(costs: &[f64], sum: f64) -> f64 {
    let mut below: f64 = costs.iter().sum();
    for (at, &cost) in costs.iter().enumerate().rev() {
        below -= cost;
        let level = (sum - below) / (costs.len() - at) as f64;
        if at == 0 || level >= costs[at - 1] {
            return level;
        }
    }
    0.0
}

//! The dual: lower bounds on the cost of plans, from prices that pieces pay for sites.
//!
//! Piece i pays λ_ij ≥ 0 for what it takes from site j. With v_i as its cheapest choice at m_j·z + λ_ij,
//!
//! ```text
//! D(λ) = Σ_i v_i + Σ_j min(0, o_j − Σ_i λ_ij)
//! ```
//!
//! is at most the cost of every plan: it is the Lagrangian of "what piece i takes from j, by whichever option, is at
//! most a_j". A plan that opens j costs at least D plus its *residual* o_j − Σ_i λ_ij. A plan that does not costs at
//! least D plus what the pieces lose without j.
//!
//! *Ascent* offers one piece after the other all that is left of o_j, and takes back what v_i does not need: for each
//! option, the part of the prices above the level at which the option still costs v_i. It stalls where several pieces
//! would have to move together, 5 to 24% below the best plan. *Polyak steps* along the subgradient, whose length
//! follows from the distance to the best plan, close most of that gap.

use std::ops::Range;

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

/// Prices and the values derived from them. A child of a search node starts from a copy.
#[derive(Debug, Default)]
pub(super) struct Dual {
    /// λ of each place; 0 at open sites, infinite at closed ones.
    pub(super) prices: Vec<f64>,
    /// o_j − Σ_i λ_ij of each undecided site; 0 at the others.
    pub(super) residuals: Vec<f64>,
    pub(super) decisions: Vec<Decision>,
    /// v_i of each piece.
    values: Vec<f64>,
    /// Σ o_j of the open sites.
    opened: f64,
}

/// Memory of ascents and steps.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// The costs of what each option of a piece takes; `ends` has each option's sum and end.
    costs: Vec<f64>,
    ends: Vec<(f64, usize)>,
    /// The prices that a piece needs.
    needed: Vec<f64>,
    /// The prices of the best step.
    best: Vec<f64>,
    direction: Vec<f64>,
}

/// Length of the first step, as a factor of the distance to the best plan.
const STEP: f64 = 1.7;
/// Number of steps without gain after which steps are shortened.
const PATIENCE: usize = 8;
/// Factor by which steps are shortened.
const SHORTER: f64 = 0.7;

impl Dual {
    /// Resets all prices to 0. Sites that cost nothing are open.
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

    /// Copies another dual, reusing memory.
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

    /// Returns D, according to the last ascent of every piece; infinite if a piece cannot be read.
    pub(super) fn bound(&self) -> f64 {
        self.opened + self.values.iter().sum::<f64>()
    }

    /// Raises D over the prices of every piece.
    pub(super) fn ascend_all(&mut self, model: &Model, chooser: &mut Chooser, scratch: &mut Scratch) {
        (0..model.piece_count()).for_each(|piece| self.ascend(model, piece, chooser, scratch));
    }

    /// Raises D over the prices of one piece.
    pub(super) fn ascend(
        &mut self,
        model: &Model,
        piece: usize,
        chooser: &mut Chooser,
        scratch: &mut Scratch,
    ) {
        let Scratch { costs, ends, needed, .. } = scratch;
        let places = model.places_of(piece);
        // Offer all that is left, then take back what is not needed.
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
        self.take_back(model, places, needed);
    }

    /// Takes back what exceeds the needed part of each price.
    fn take_back(&mut self, model: &Model, places: Range<usize>, needed: &[f64]) {
        for (place, &needed) in places.zip(needed) {
            let site = model.places[place] as usize;
            if self.decisions[site] == Decision::Undecided {
                let kept = self.prices[place].min(needed);
                self.residuals[site] += self.prices[place] - kept;
                self.prices[place] = kept;
            }
        }
    }

    /// Makes up to `steps` Polyak steps from a root towards `best`, while `chooser` has examined at most `limit` slots.
    /// Returns the greatest bound on the way.
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

    /// Returns D at any prices, and the squared norm of the subgradient. The component of a price is 1 if its piece
    /// takes the place, less 1 if its site is open; no price falls below 0.
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

    /// Lowers prices until the pieces pay no site more than o_j.
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

/// Returns the level t at which Σ min(cost, t) equals `sum`, for ascending costs whose sum is at least `sum`.
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

//! The cheapest choice for a piece at given prices.
//!
//! Of an option it takes the cheapest slots, skipping those over the cap, which is exact because options are matroids.
//! The handful of slots is sorted by insertion, from an order that is nearly right.

use super::model::{Model, ModelOption, ModelSlot, NO_GROUP};

/// Finds choices, keeps the last one, and counts the work.
#[derive(Debug, Default)]
pub(super) struct Chooser {
    /// The slots of the choice.
    pub(super) picks: Vec<u32>,
    /// Lower bound of how much more any choice costs without each pick.
    pub(super) losses: Vec<f64>,
    /// Number of slots examined.
    pub(super) looked_at: u64,
    /// The costs of an option's slots, ascending.
    order: Vec<(f64, u32)>,
    /// The slots taken from the current option, as positions in `order`.
    trial: Vec<usize>,
    /// Number of slots taken from each group.
    taken: Vec<u32>,
}

impl Chooser {
    /// Stores the cheapest choice for a piece in `picks` and returns its cost; infinite if there is none.
    pub(super) fn cheapest(&mut self, model: &Model, piece: usize, price: impl Fn(&ModelSlot) -> f64) -> f64 {
        let mut least = f64::INFINITY;
        self.picks.clear();
        for option in model.options_of(piece) {
            let cost = self.take(model, option, &price);
            if cost < least {
                least = cost;
                self.picks.clear();
                self.picks.extend(self.trial.iter().map(|&at| self.order[at].1));
            }
        }
        least
    }

    /// As [`Self::cheapest`], and also computes `losses`.
    pub(super) fn cheapest_with_losses(
        &mut self,
        model: &Model,
        piece: usize,
        price: impl Fn(&ModelSlot) -> f64,
    ) -> f64 {
        let (mut least, mut second) = (f64::INFINITY, f64::INFINITY);
        self.picks.clear();
        self.losses.clear();
        for option in model.options_of(piece) {
            let cost = self.take(model, option, &price);
            if cost >= least {
                second = second.min(cost);
                continue;
            }
            (least, second) = (cost, least);
            self.picks.clear();
            self.losses.clear();
            for &at in &self.trial {
                self.picks.push(self.order[at].1);
                self.losses.push(self.loss_within(model, option, at));
            }
        }
        self.losses.iter_mut().for_each(|loss| *loss = loss.min(second - least));
        least
    }

    /// Appends the costs of the slots that an option takes at these prices to `costs`, ascending. Returns their sum;
    /// infinite if there are too few.
    pub(super) fn costs_of(
        &mut self,
        model: &Model,
        option: &ModelOption,
        price: impl Fn(&ModelSlot) -> f64,
        costs: &mut Vec<f64>,
    ) -> f64 {
        let cost = self.take(model, option, &price);
        costs.extend(self.trial.iter().map(|&at| self.order[at].0));
        cost
    }

    /// Takes the cheapest slots of an option into `trial`. Returns their cost; infinite if there are too few.
    fn take(&mut self, model: &Model, option: &ModelOption, price: &impl Fn(&ModelSlot) -> f64) -> f64 {
        self.trial.clear();
        self.looked_at += option.slots().len() as u64;
        self.order.clear();
        for slot in option.slots() {
            let cost = price(&model.slots[slot]);
            if cost == f64::INFINITY {
                continue;
            }
            let mut at = self.order.len();
            self.order.push((cost, slot as u32));
            while at > 0 && self.order[at - 1].0 > cost {
                self.order[at] = self.order[at - 1];
                at -= 1;
            }
            self.order[at] = (cost, slot as u32);
        }
        if self.order.len() < option.need {
            return f64::INFINITY;
        }
        self.taken.clear();
        self.taken.resize(model.groups, 0);
        let mut sum = 0.0;
        for at in 0..self.order.len() {
            if self.trial.len() == option.need {
                break;
            }
            let (cost, slot) = self.order[at];
            let group = model.slots[slot as usize].group;
            if group != NO_GROUP {
                if self.taken[group as usize] == option.cap {
                    continue;
                }
                self.taken[group as usize] += 1;
            }
            sum += cost;
            self.trial.push(at);
        }
        if self.trial.len() == option.need { sum } else { f64::INFINITY }
    }

    /// Returns how much more the option costs without the slot at `at`: the cheapest slot that then fits replaces it.
    fn loss_within(&self, model: &Model, option: &ModelOption, at: usize) -> f64 {
        let group = |at: usize| model.slots[self.order[at].1 as usize].group;
        let fits = |other: usize| {
            let other_group = group(other);
            other_group == NO_GROUP
                || other_group == group(at)
                || self.taken[other_group as usize] < option.cap
        };
        let mut others = (0..self.order.len()).filter(|other| !self.trial.contains(other));
        let instead = others.find(|&other| fits(other));
        instead.map_or(f64::INFINITY, |other| self.order[other].0 - self.order[at].0)
    }
}

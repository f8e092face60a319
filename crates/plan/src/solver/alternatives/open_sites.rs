//! Plans as sets of open sites, and the exchanges that improve them.
//!
//! Given the open sites, each piece takes its cheapest choice. A plan starts from all sites, and closes one after the
//! other where that saves more than it costs. Two exchanges improve it: *adding* a site and closing those that it makes
//! superfluous; and *evicting* a site, which opens the cheapest substitutes for the pieces that it strands. Without
//! eviction, single plans were 17 to 19% above the optimum.

use super::choice::Chooser;
use super::model::{Model, ModelSlot};

/// Maximum number of rounds over all sites.
const MOST_ROUNDS: usize = 8;

/// A plan.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenSites {
    pub(super) open: Vec<bool>,
    /// Σ o_j of the open sites, plus the cost of the pieces' choices.
    pub(super) cost: f64,
    /// The cost of each piece's choice.
    values: Vec<f64>,
    /// The slots of each piece's choice.
    picks: Vec<Vec<u32>>,
    /// Number of slots taken at each site.
    uses: Vec<u32>,
}

/// Memory of exchanges.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    before: OpenSites,
    /// Sites from which a piece now takes less, and opened sites.
    touched: Vec<usize>,
}

impl OpenSites {
    /// Sets the plan to these open sites.
    pub(super) fn set(&mut self, model: &Model, open: impl Iterator<Item = bool>, chooser: &mut Chooser) {
        self.open.clear();
        self.open.extend(open);
        self.values.clear();
        self.values.resize(model.piece_count(), 0.0);
        self.picks.resize_with(self.picks.len().max(model.piece_count()), Vec::new);
        self.picks.iter_mut().for_each(Vec::clear);
        self.uses.clear();
        self.uses.resize(model.overheads.len(), 0);
        let opened = model.overheads.iter().zip(&self.open).filter(|(_, open)| **open);
        self.cost = opened.map(|(overhead, _)| overhead).sum();
        for piece in 0..model.piece_count() {
            self.choose(model, piece, chooser, &mut Vec::new());
        }
    }

    /// Copies another plan, reusing memory.
    pub(super) fn copy_from(&mut self, other: &OpenSites) {
        self.open.clone_from(&other.open);
        self.cost = other.cost;
        self.values.clone_from(&other.values);
        self.picks.clone_from(&other.picks);
        self.uses.clone_from(&other.uses);
    }

    /// Returns the slots of a piece's choice.
    pub(super) fn picks(&self, piece: usize) -> &[u32] {
        &self.picks[piece]
    }

    /// Closes the sites of `order` that are worth less than they cost, one after the other.
    pub(super) fn drop(
        &mut self,
        model: &Model,
        order: &[u32],
        chooser: &mut Chooser,
        exchange: &mut Exchange,
    ) {
        for &site in order {
            exchange.touched.clear();
            self.try_closing(model, site as usize, chooser, &mut exchange.touched);
        }
    }

    /// Exchanges sites, from the back of `order`, until no exchange helps or `chooser` has examined more than `limit`
    /// slots. A site whose `least` is not below the plan's cost is not added: no plan with it costs less than that.
    pub(super) fn improve(
        &mut self,
        model: &Model,
        order: &[u32],
        least: impl Fn(usize) -> f64,
        (chooser, limit): (&mut Chooser, u64),
        exchange: &mut Exchange,
    ) {
        let mut in_vain = 0;
        for &site in order.iter().rev().cycle().take(MOST_ROUNDS * order.len()) {
            if in_vain == order.len() || chooser.looked_at > limit {
                return;
            }
            let site = site as usize;
            let is_tried = model.overheads[site] > 0.0 && (self.open[site] || least(site) < self.cost);
            in_vain = if is_tried && self.exchange(model, site, chooser, exchange) { 0 } else { in_vain + 1 };
        }
    }

    /// Adds a site, or evicts it. Returns whether that improved the plan; if not, the plan is unchanged.
    fn exchange(
        &mut self,
        model: &Model,
        site: usize,
        chooser: &mut Chooser,
        exchange: &mut Exchange,
    ) -> bool {
        let Exchange { before, touched } = exchange;
        before.copy_from(self);
        touched.clear();
        match self.open[site] {
            true => self.evict(model, site, chooser, touched),
            false => self.add(model, site, chooser, touched),
        }
        let mut at = 0;
        while at < touched.len() {
            self.try_closing(model, touched[at], chooser, touched);
            at += 1;
        }
        let is_better = self.cost < before.cost * (1.0 - super::PRECISION);
        if !is_better {
            std::mem::swap(self, before);
        }
        is_better
    }

    fn add(&mut self, model: &Model, site: usize, chooser: &mut Chooser, touched: &mut Vec<usize>) {
        self.open[site] = true;
        self.cost += model.overheads[site];
        for &(piece, _) in model.at_site(site) {
            self.choose(model, piece as usize, chooser, touched);
        }
    }

    /// Closes a site, and opens the cheapest substitutes for each piece that took something there.
    fn evict(&mut self, model: &Model, site: usize, chooser: &mut Chooser, touched: &mut Vec<usize>) {
        self.open[site] = false;
        self.cost -= model.overheads[site];
        for &(piece, _) in model.at_site(site) {
            let piece = piece as usize;
            if !self.takes(model, piece, site) {
                continue;
            }
            let price = |slot: &ModelSlot| match slot.site as usize {
                closed if closed == site => f64::INFINITY,
                closed if !self.open[closed] => slot.load + model.overheads[closed],
                _ => slot.load,
            };
            chooser.cheapest(model, piece, price);
            for &pick in &chooser.picks {
                let opened = model.slots[pick as usize].site as usize;
                if !std::mem::replace(&mut self.open[opened], true) {
                    self.cost += model.overheads[opened];
                    touched.push(opened);
                }
            }
            self.choose(model, piece, chooser, touched);
        }
    }

    /// Closes a site if that does not raise the cost, without opening others.
    fn try_closing(&mut self, model: &Model, site: usize, chooser: &mut Chooser, touched: &mut Vec<usize>) {
        if !self.open[site] || model.overheads[site] == 0.0 {
            return;
        }
        self.open[site] = false;
        let mut left = model.overheads[site];
        if self.uses[site] > 0 {
            for &(piece, _) in model.at_site(site) {
                let piece = piece as usize;
                if self.takes(model, piece, site) {
                    let value = chooser.cheapest(model, piece, |slot| self.price(slot));
                    left -= value - self.values[piece];
                    if left < 0.0 {
                        self.open[site] = true;
                        return;
                    }
                }
            }
        }
        self.cost -= model.overheads[site];
        if self.uses[site] > 0 {
            for &(piece, _) in model.at_site(site) {
                if self.takes(model, piece as usize, site) {
                    self.choose(model, piece as usize, chooser, touched);
                }
            }
        }
    }

    /// Returns the cost of a slot; infinite at a closed site.
    fn price(&self, slot: &ModelSlot) -> f64 {
        if self.open[slot.site as usize] { slot.load } else { f64::INFINITY }
    }

    fn takes(&self, model: &Model, piece: usize, site: usize) -> bool {
        self.picks[piece].iter().any(|&pick| model.slots[pick as usize].site as usize == site)
    }

    /// Chooses again for a piece. Marks the sites from which it now takes less.
    fn choose(&mut self, model: &Model, piece: usize, chooser: &mut Chooser, touched: &mut Vec<usize>) {
        let value = chooser.cheapest(model, piece, |slot| self.price(slot));
        self.cost += value - std::mem::replace(&mut self.values[piece], value);
        let site = |&pick: &u32| model.slots[pick as usize].site as usize;
        self.picks[piece].iter().map(site).for_each(|site| self.uses[site] -= 1);
        chooser.picks.iter().map(site).for_each(|site| self.uses[site] += 1);
        touched.extend(self.picks[piece].iter().map(site).filter(|&site| self.open[site]));
        self.picks[piece].clone_from(&chooser.picks);
    }
}

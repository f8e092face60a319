//! Good plans for any component by prices and exchanges, from which the search starts.

use super::component::Component;

/// A set of open sites, with the cost of its plan and how one site changes it.
#[derive(Clone, Debug, Default)]
pub struct OpenSites {
    /// Which sites are open.
    pub open: Vec<bool>,
    /// o_j of the open sites plus the cheapest transfers of each block; infinite while a block lacks some.
    pub cost: f64,
    /// Need-th cheapest transfer from an open site, per block; infinite if the block lacks sites.
    last: Vec<f64>,
    /// The next transfer after `last`, per block; infinite if there is none.
    next: Vec<f64>,
    /// The transfers of the current block.
    transfers: Vec<f64>,
    /// The sites that the current exchange closed.
    closed: Vec<usize>,
}

/// Work units of opening or closing a site for trial.
const TRIAL_WORK: u64 = 8;

impl OpenSites {
    /// Opens exactly these sites.
    pub fn set(&mut self, component: &Component, open: impl Iterator<Item = bool>) {
        self.open.clear();
        self.open.extend(open);
        for list in [&mut self.last, &mut self.next] {
            list.clear();
            list.resize(component.block_count(), f64::INFINITY);
        }
        for block in 0..component.block_count() {
            self.look_at(component, block);
        }
        self.cost = self.evaluate(component);
    }

    /// Opens sites in this order for blocks that lack some, then closes those not worth their cost, last first.
    pub fn complete(&mut self, component: &Component, order: impl DoubleEndedIterator<Item = usize> + Clone) {
        for site in order.clone() {
            let is_lacked = |&block: &usize| self.last[block].is_infinite();
            if !self.open[site] && component.blocks_at(site).iter().any(is_lacked) {
                self.flip(component, site);
            }
        }
        self.cost = self.evaluate(component);
        self.close_sites(component, order.rev(), None);
    }

    /// Repeatedly opens a closed site and closes those no longer worth their cost, until no exchange helps or `limit`
    /// is reached.
    pub fn improve(&mut self, component: &Component, work: &mut u64, limit: u64) {
        let sites = component.site_count();
        let (mut site, mut unhelpful) = (0, 0);
        while unhelpful < sites && *work < limit {
            unhelpful += 1;
            if !self.open[site] {
                let before = self.cost;
                self.cost += self.opening(component, site);
                self.flip(component, site);
                self.close_sites(component, 0..sites, Some(site));
                *work += TRIAL_WORK * (1 + self.closed.len() as u64);
                if self.cost < before * (1.0 - f64::EPSILON * sites as f64) {
                    unhelpful = 0;
                } else {
                    self.take_back(component, site, before);
                }
            }
            site = (site + 1) % sites;
        }
    }

    fn take_back(&mut self, component: &Component, site: usize, cost: f64) {
        while let Some(closed) = self.closed.pop() {
            self.flip(component, closed);
        }
        self.flip(component, site);
        self.cost = cost;
    }

    /// Closes every site in `order` except `kept` that costs more than it saves.
    fn close_sites(
        &mut self,
        component: &Component,
        order: impl Iterator<Item = usize>,
        kept: Option<usize>,
    ) {
        self.closed.clear();
        for site in order {
            if self.open[site] && Some(site) != kept {
                let change = self.closing(component, site);
                if change < 0.0 {
                    self.cost += change;
                    self.flip(component, site);
                    self.closed.push(site);
                }
            }
        }
    }

    /// Returns what opening a site adds to the cost.
    fn opening(&self, component: &Component, site: usize) -> f64 {
        let blocks = component.blocks_at(site).iter().zip(component.transfers_at(site));
        let saved = blocks.map(|(&block, transfer)| (self.last[block] - transfer).max(0.0));
        component.overheads[site] - saved.sum::<f64>()
    }

    /// Returns what closing a site adds to the cost.
    fn closing(&self, component: &Component, site: usize) -> f64 {
        let blocks = component.blocks_at(site).iter().zip(component.transfers_at(site));
        let used = blocks.filter(|(block, transfer)| **transfer <= self.last[**block]);
        used.map(|(&block, transfer)| self.next[block] - transfer).sum::<f64>() - component.overheads[site]
    }

    fn flip(&mut self, component: &Component, site: usize) {
        self.open[site] = !self.open[site];
        component.blocks_at(site).iter().for_each(|&block| self.look_at(component, block));
    }

    fn look_at(&mut self, component: &Component, block: usize) {
        let need = component.needs[block];
        self.transfers.clear();
        let open = component.choices(block).iter().filter(|choice| self.open[choice.site]);
        self.transfers.extend(open.map(|choice| choice.transfer));
        self.transfers.sort_unstable_by(f64::total_cmp);
        self.last[block] = self.transfers.get(need - 1).copied().unwrap_or(f64::INFINITY);
        self.next[block] = self.transfers.get(need).copied().unwrap_or(f64::INFINITY);
    }

    fn evaluate(&mut self, component: &Component) -> f64 {
        let open = (0..component.site_count()).filter(|&site| self.open[site]);
        let mut cost = open.map(|site| component.overheads[site]).sum::<f64>();
        for (block, &need) in component.needs.iter().enumerate() {
            self.transfers.clear();
            let open = component.choices(block).iter().filter(|choice| self.open[choice.site]);
            self.transfers.extend(open.map(|choice| choice.transfer));
            self.transfers.sort_unstable_by(f64::total_cmp);
            cost += match self.transfers.get(..need) {
                Some(cheapest) => cheapest.iter().sum(),
                None => f64::INFINITY,
            };
        }
        cost
    }
}

//! The dual: lower bounds on the cost of a component, from a price for every block's chunks.
//!
//! Let y_i be what a chunk of block i is worth. A site j that sells chunks at these prices is worth opening when its
//! *reduced cost* ρ_j = o_j − Σ_i max(0, y_i − m_j z_i) is negative, so for any prices y
//!
//! ```text
//! D(y) = Σ_i need_i · y_i + Σ_{j open} ρ_j + Σ_{j undecided} min(0, ρ_j)
//! ```
//!
//! is at most the cost of every plan (the Lagrangian of Eq. 2, whose greatest value is that of the linear relaxation
//! with s_ij ≤ a_j). Further, a plan that opens j costs at least D(y) + max(0, ρ_j), and one that does not
//! D(y) + max(0, −ρ_j), which decides sites without search.
//!
//! D is concave and piecewise linear. Prices are raised one block at a time to where D is greatest with the others
//! fixed: the need-th to the next of the prices at which a further site would sell.

use super::component::Component;

/// Whether a site may be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Undecided,
    Open,
    Closed,
}

/// Prices and what follows from them. A child of a search node starts from a copy.
#[derive(Debug, Default)]
pub struct Dual {
    /// y_i of each block.
    pub prices: Vec<f64>,
    /// ρ_j of each site.
    pub reduced: Vec<f64>,
    /// What is known of each site.
    pub decisions: Vec<Decision>,
    /// The prices at which the sites of a block begin to sell.
    steps: Vec<f64>,
}

impl Dual {
    /// Prices of nothing; sites that cost nothing are open.
    pub fn reset(&mut self, component: &Component) {
        self.prices.clear();
        self.prices.resize(component.block_count(), 0.0);
        self.reduced.clone_from(&component.overheads);
        self.decisions.clear();
        let is_free = |&overhead: &f64| if overhead == 0.0 { Decision::Open } else { Decision::Undecided };
        self.decisions.extend(component.overheads.iter().map(is_free));
    }

    /// D(y).
    pub fn bound(&self, component: &Component) -> f64 {
        let needs = component.needs.iter().zip(&self.prices).map(|(&need, price)| need as f64 * price);
        let sites = self.decisions.iter().zip(&self.reduced).map(|(decision, &reduced)| match decision {
            Decision::Open => reduced,
            Decision::Undecided => reduced.min(0.0),
            Decision::Closed => 0.0,
        });
        needs.sum::<f64>() + sites.sum::<f64>()
    }

    /// Raises D over the price of one block; false if its sites that are not closed are too few for it.
    pub fn ascend(&mut self, component: &Component, block: usize) -> bool {
        let (need, price) = (component.needs[block], self.prices[block]);
        self.steps.clear();
        for choice in component.choices(block) {
            let sells_at = match self.decisions[choice.site] {
                Decision::Closed => continue,
                Decision::Open => choice.transfer,
                Decision::Undecided => {
                    let without = self.reduced[choice.site] + (price - choice.transfer).max(0.0);
                    choice.transfer + without.max(0.0)
                }
            };
            self.steps.push(sells_at);
        }
        if self.steps.len() < need {
            return false;
        }
        self.steps.sort_unstable_by(f64::total_cmp);
        // Anything between the two is as good for this block; the middle leaves most to the others.
        let low = self.steps[need - 1];
        let high = self.steps.get(need).copied().unwrap_or(low);
        self.set_price(component, block, 0.5 * (low + high));
        true
    }

    fn set_price(&mut self, component: &Component, block: usize, price: f64) {
        let before = std::mem::replace(&mut self.prices[block], price);
        for choice in component.choices(block) {
            let (old, new) = ((before - choice.transfer).max(0.0), (price - choice.transfer).max(0.0));
            self.reduced[choice.site] += old - new;
        }
    }

    /// The same, in memory that is there.
    pub fn copy_from(&mut self, other: &Dual) {
        self.prices.clone_from(&other.prices);
        self.reduced.clone_from(&other.reduced);
        self.decisions.clone_from(&other.decisions);
    }

    /// Raises D at the blocks of `site` whose decision is new, then everywhere while that helps, and decides sites
    /// that no plan below `threshold` would open, or close. D(y), or `None` when a block cannot be had.
    pub fn tighten(
        &mut self,
        component: &Component,
        site: Option<usize>,
        threshold: f64,
        work: &mut u64,
    ) -> Option<f64> {
        if let Some(site) = site {
            for &block in component.blocks_at(site) {
                *work += 1;
                if !self.ascend(component, block) {
                    return None;
                }
            }
        }
        let mut bound = self.bound(component);
        for _ in 0..ROUNDS {
            if bound >= threshold {
                break;
            }
            for block in 0..component.block_count() {
                *work += 1;
                if !self.ascend(component, block) {
                    return None;
                }
            }
            let raised = self.bound(component);
            let gained = raised - bound;
            bound = raised;
            self.decide(bound, threshold);
            if gained < ENOUGH * (threshold - bound) {
                break;
            }
        }
        Some(bound)
    }

    /// Decides the sites whose other state costs more than what is left below the threshold.
    pub fn decide(&mut self, bound: f64, threshold: f64) {
        for (decision, &reduced) in self.decisions.iter_mut().zip(&self.reduced) {
            if *decision == Decision::Undecided && bound + reduced.abs() >= threshold {
                *decision = if reduced > 0.0 { Decision::Closed } else { Decision::Open };
            }
        }
    }

    pub fn undecided_count(&self) -> usize {
        self.decisions.iter().filter(|decision| **decision == Decision::Undecided).count()
    }

    /// The undecided site whose reduced cost says least for the cost that it has.
    pub fn most_doubtful(&self, component: &Component) -> Option<usize> {
        let undecided = (0..component.site_count()).filter(|&site| self.decisions[site] == Decision::Undecided);
        let doubt = |&site: &usize| self.reduced[site].abs() / component.overheads[site];
        undecided.min_by(|a, b| doubt(a).total_cmp(&doubt(b)))
    }
}

/// How often all prices are gone through in a node.
const ROUNDS: usize = 4;
/// What part of the distance to the threshold a round must gain for another to be tried.
const ENOUGH: f64 = 0.05;

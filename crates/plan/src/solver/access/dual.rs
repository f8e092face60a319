//! The dual: lower bounds on the cost of a component, from a price for every block's chunks.
//!
//! Let y_i be the value of a chunk of block i. A site j that delivers chunks at these prices is worth opening if its
//! *reduced cost* ρ_j = o_j − Σ_i max(0, y_i − m_j·z_i) is negative. For any prices y ≥ 0,
//!
//! ```text
//! D(y) = Σ_i need_i · y_i + Σ_{j open} ρ_j + Σ_{j undecided} min(0, ρ_j)
//! ```
//!
//! is therefore at most the cost of every plan (the Lagrangian of Eq. 2, whose maximum is that of the linear relaxation
//! with s_ij ≤ a_j). A plan that opens j costs at least D(y) + ρ_j, and one that does not at least D(y) − ρ_j, which
//! decides sites without search.
//!
//! D is concave and piecewise linear. It is raised one price at a time, to its maximum with the others fixed: between
//! the need-th and the next of the prices at which a further site would deliver.

use super::component::Component;

/// Whether a site is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Undecided,
    Open,
    Closed,
}

/// Prices and the values derived from them. A child of a search node starts from a copy.
#[derive(Debug, Default)]
pub struct Dual {
    /// y_i of each block.
    pub prices: Vec<f64>,
    /// ρ_j of each site.
    pub reduced: Vec<f64>,
    /// The decision on each site.
    pub decisions: Vec<Decision>,
    /// The prices at which the sites of a block begin to deliver.
    steps: Vec<f64>,
}

/// Maximum number of rounds over all prices in a node.
const ROUNDS: usize = 4;
/// Minimum gain of a round, as a part of the distance to the cost to beat, for another round to be tried.
const ENOUGH: f64 = 0.05;
/// Minimum gain of a round, as a part of the bound, while there is no cost to beat.
const ENOUGH_AT_FIRST: f64 = 0.002;
/// Number of options for which an ascent costs one work unit, some 50 ns.
const OPTIONS_PER_WORK: u64 = 8;

impl Dual {
    /// Computes prices from scratch and returns D(y). Sites that cost nothing are open.
    pub fn start(&mut self, component: &Component, work: &mut u64) -> f64 {
        self.prices.clear();
        self.prices.resize(component.block_count(), 0.0);
        self.reduced.clone_from(&component.overheads);
        let is_free = |&overhead: &f64| if overhead == 0.0 { Decision::Open } else { Decision::Undecided };
        self.decisions.clear();
        self.decisions.extend(component.overheads.iter().map(is_free));
        let mut bound = 0.0;
        for _ in 0..ROUNDS {
            self.ascend_all(component, work).expect("preparation has seen enough options");
            let raised = self.bound(component);
            let gained = raised - std::mem::replace(&mut bound, raised);
            if gained < ENOUGH_AT_FIRST * raised {
                break;
            }
        }
        bound
    }

    /// Copies another dual, reusing memory.
    pub fn copy_from(&mut self, other: &Dual) {
        self.prices.clone_from(&other.prices);
        self.reduced.clone_from(&other.reduced);
        self.decisions.clone_from(&other.decisions);
    }

    /// Raises D at the blocks of `site`, whose decision is new, then everywhere while that helps. Decides sites that no
    /// plan below `threshold` would open, or close. Returns D(y), or `None` if a block cannot be completed.
    pub fn tighten(
        &mut self,
        component: &Component,
        site: Option<usize>,
        threshold: f64,
        work: &mut u64,
    ) -> Option<f64> {
        for &block in site.map_or(&[][..], |site| component.blocks_at(site)) {
            self.ascend(component, block, work)?;
        }
        let mut bound = self.bound(component);
        for _ in 0..ROUNDS {
            self.decide(bound, threshold);
            if bound >= threshold {
                break;
            }
            self.ascend_all(component, work)?;
            let raised = self.bound(component);
            let gained = raised - std::mem::replace(&mut bound, raised);
            if gained < ENOUGH * (threshold - raised) {
                break;
            }
        }
        self.decide(bound, threshold);
        Some(bound)
    }

    /// Returns the number of undecided sites.
    pub fn undecided_count(&self) -> usize {
        self.decisions.iter().filter(|decision| **decision == Decision::Undecided).count()
    }

    /// Returns the undecided site whose reduced cost is smallest relative to its o_j.
    pub fn most_doubtful(&self, component: &Component) -> Option<usize> {
        let undecided =
            (0..component.site_count()).filter(|&site| self.decisions[site] == Decision::Undecided);
        let doubt = |site: usize| self.reduced[site].abs() / component.overheads[site];
        undecided.min_by(|&a, &b| doubt(a).total_cmp(&doubt(b)))
    }

    /// Returns D(y).
    fn bound(&self, component: &Component) -> f64 {
        let needs = component.needs.iter().zip(&self.prices).map(|(&need, price)| need as f64 * price);
        let sites = self.decisions.iter().zip(&self.reduced).map(|(decision, &reduced)| match decision {
            Decision::Open => reduced,
            Decision::Undecided => reduced.min(0.0),
            Decision::Closed => 0.0,
        });
        needs.sum::<f64>() + sites.sum::<f64>()
    }

    /// Decides the sites whose opposite decision would cost at least the gap to the threshold.
    fn decide(&mut self, bound: f64, threshold: f64) {
        for (decision, &reduced) in self.decisions.iter_mut().zip(&self.reduced) {
            if *decision == Decision::Undecided && bound + reduced.abs() >= threshold {
                *decision = if reduced > 0.0 { Decision::Closed } else { Decision::Open };
            }
        }
    }

    fn ascend_all(&mut self, component: &Component, work: &mut u64) -> Option<()> {
        (0..component.block_count()).try_for_each(|block| self.ascend(component, block, work))
    }

    /// Raises D over the price of one block. Returns `None` if too few of its sites are not closed.
    fn ascend(&mut self, component: &Component, block: usize, work: &mut u64) -> Option<()> {
        let (need, price) = (component.needs[block], self.prices[block]);
        let choices = component.choices(block);
        *work += 1 + choices.len() as u64 / OPTIONS_PER_WORK;
        self.steps.clear();
        for choice in choices {
            let delivers_at = match self.decisions[choice.site] {
                Decision::Closed => continue,
                Decision::Open => choice.transfer,
                Decision::Undecided => {
                    let without = self.reduced[choice.site] + (price - choice.transfer).max(0.0);
                    choice.transfer + without.max(0.0)
                }
            };
            self.steps.push(delivers_at);
        }
        if self.steps.len() < need {
            return None;
        }
        sort_few(&mut self.steps);
        // Any price between the two is optimal for this block. The midpoint keeps the other blocks from getting stuck
        // early.
        let low = self.steps[need - 1];
        let high = self.steps.get(need).copied().unwrap_or(low);
        let raised = 0.5 * (low + high);
        for choice in choices {
            let (before, after) = ((price - choice.transfer).max(0.0), (raised - choice.transfer).max(0.0));
            self.reduced[choice.site] += before - after;
        }
        self.prices[block] = raised;
        Some(())
    }
}

/// Sorts numbers, rarely more than a dozen.
#[inline(always)]
fn sort_few(numbers: &mut [f64]) {
    if numbers.len() > 20 {
        return numbers.sort_unstable_by(f64::total_cmp);
    }
    for end in 1..numbers.len() {
        let (number, mut at) = (numbers[end], end);
        while at > 0 && numbers[at - 1] > number {
            numbers[at] = numbers[at - 1];
            at -= 1;
        }
        numbers[at] = number;
    }
}

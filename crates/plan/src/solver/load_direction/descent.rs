//! Problem (1) with the ℓ2 norm, by coordinate descent.
//!
//! The price of an option is the sum of (L_j + Q_j) / S_j over its nodes: the derivative of
//! F = ½ Σ_j (L_j + Q_j)² / S_j by the bytes that it gets. Partitions take turns. Each moves share from more expensive
//! options to its cheapest one until F no longer falls; the amount takes one division. This is exact along every
//! direction, and the size of D_i does not slow it. F is convex, so `Σ_i D_i (Σ_o y_io price_o − min_o price_o)` bounds
//! how far F is above its optimum; the descent ends when that is small.

use super::DirectionProblem;

/// Rounds over all partitions between two checks of the bound.
const TURNS: usize = 4;
/// Maximum number of node visits, whatever is proven by then; each takes some 0.6 ns.
const MOST_WORK: u64 = 100_000_000;

/// The shares during the descent.
pub(super) struct DescentState<'a> {
    problem: &'a DirectionProblem,
    pub(super) shares: Vec<f64>,
    /// L_j + Q_j.
    totals: Vec<f64>,
    /// Number of node visits.
    work: u64,
}

impl<'a> DescentState<'a> {
    /// Starts with every request read normally.
    pub(super) fn new(problem: &'a DirectionProblem) -> Self {
        let shares = problem.normal_shares();
        Self { problem, totals: problem.totals(&shares), shares, work: 0 }
    }

    /// Descends to within `tolerance` of the optimum, relative to F. Returns a lower bound of F.
    pub(super) fn descend(&mut self, tolerance: f64) -> f64 {
        let mut bound = 0.0f64;
        while self.work < MOST_WORK {
            for _ in 0..TURNS {
                self.take_turns();
            }
            // Recomputed from the shares, so that rounding errors do not accumulate.
            self.totals = self.problem.totals(&self.shares);
            let value = self.problem.squares(&self.totals);
            bound = bound.max(value - self.slack());
            self.work += 2 * self.problem.nodes.len() as u64;
            if value - bound <= tolerance * value {
                break;
            }
        }
        bound
    }

    /// Each partition moves its shares to its cheapest option, as far as that lowers F.
    fn take_turns(&mut self) {
        for partition in 0..self.problem.len() {
            if self.problem.demands[partition] > 0.0 {
                self.take_turn(partition);
            }
        }
        self.work += 2 * self.problem.nodes.len() as u64;
    }

    fn take_turn(&mut self, partition: usize) {
        let options = self.problem.options(partition);
        let mut cheapest = (f64::INFINITY, options.start);
        for option in options.clone() {
            let price = self.price(option);
            if price < cheapest.0 {
                cheapest = (price, option);
            }
        }
        for option in options {
            if option != cheapest.1 && self.shares[option] > 0.0 {
                self.shift(partition, option, cheapest.1);
            }
        }
    }

    /// Moves the best amount of a partition's share from one option to another, if any.
    fn shift(&mut self, partition: usize, from: usize, to: usize) {
        let (demand, gain) = (self.problem.demands[partition], self.price(from) - self.price(to));
        if gain <= 0.0 {
            return;
        }
        let (losing, winning) = (self.problem.option(from), self.problem.option(to));
        // The difference of their prices shrinks only through nodes that one option has and the other has not.
        let only = |nodes: &[u32], others: &[u32]| -> f64 {
            let alone = nodes.iter().filter(|node| !others.contains(node));
            alone.map(|&node| 1.0 / self.problem.rates[node as usize]).sum()
        };
        let growth = only(losing, winning) + only(winning, losing);
        // The last part of a share moves as a whole, so that exactly 0 remains.
        let share = self.shares[from].min(gain / (growth * demand));
        self.shares[to] += share;
        self.shares[from] -= share;
        losing.iter().for_each(|&node| self.totals[node as usize] -= share * demand);
        winning.iter().for_each(|&node| self.totals[node as usize] += share * demand);
    }

    fn price(&self, option: usize) -> f64 {
        let of_node = |&node: &u32| self.totals[node as usize] / self.problem.rates[node as usize];
        self.problem.option(option).iter().map(of_node).sum()
    }

    /// Returns an upper bound of how far F is above its optimum.
    fn slack(&self) -> f64 {
        let of_partition = |partition: usize| {
            let prices =
                self.problem.options(partition).map(|option| (self.price(option), self.shares[option]));
            let (least, mean) = prices.fold((f64::INFINITY, 0.0), |(least, mean), (price, share)| {
                (least.min(price), mean + price * share)
            });
            self.problem.demands[partition] * (mean - least)
        };
        (0..self.problem.len()).map(of_partition).sum::<f64>().max(0.0)
    }
}

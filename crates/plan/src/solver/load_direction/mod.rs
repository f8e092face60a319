//! The load direction table of Hu et al. (SoCC'17, §2.3): in what proportions to serve the requests for each partition
//! by the normal read and by each degraded read, so that the loads of all nodes are balanced.
//!
//! Partition i has a demand of D_i bytes and some options, each a set of nodes that it asks for D_i; option o gets the
//! share y_io. Node j has Q_j bytes queued and serves S_j bytes per second. Problem (1) is
//!
//! ```text
//! minimise F(L + Q)   where   L_j = Σ_i Σ_{o ∋ j} D_i y_io,   Σ_o y_io = 1,   y_io ≥ 0
//! F = ½ Σ_j (L_j + Q_j)² / S_j     least_squares: the ℓ2 norm, a convex quadratic program
//! F = max_j (L_j + Q_j) / S_j      least_maximum: the ℓ∞ norm, a linear program
//! ```
//!
//! With one degraded read beside the normal one, the paper's simplification, each partition has one free share in [0,
//! 1], and the quadratic program has only these box constraints. The paper solves both with MOSEK; here [`descent`]
//! solves the quadratic and [`interior_point`] the linear program.
//!
//! Both return a bound that proves the quality of the result. They read no clock, and end after a number of steps.

mod descent;
mod interior_point;

use rand::{Rng, RngCore};

use self::descent::DescentState;

/// Relative distance of F from its bound at which the solver of the ℓ2 norm ends.
const TOLERANCE_OF_SQUARES: f64 = 1e-6;
/// Relative distance at which it ends if its shares are the start of the other solver.
const TOLERANCE_OF_FIRST_SHARES: f64 = 1e-3;
/// Relative distance at which the solver of the ℓ∞ norm ends.
const TOLERANCE_OF_MAXIMUM: f64 = 1e-5;

/// Problem (1).
#[derive(Clone, Debug, Default)]
pub struct DirectionProblem {
    /// Q_j.
    queues: Vec<f64>,
    /// S_j.
    rates: Vec<f64>,
    /// D_i.
    demands: Vec<f64>,
    /// The end of each partition's options.
    ends: Vec<usize>,
    /// The end of each option's nodes.
    node_ends: Vec<usize>,
    nodes: Vec<u32>,
}

/// The shares of a problem's options, with the resulting loads.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadDirection {
    /// y_io, partition by partition.
    shares: Vec<f64>,
    ends: Vec<usize>,
    /// L_j + Q_j: bytes of each node with these shares.
    pub totals: Vec<f64>,
    /// F.
    pub value: f64,
    /// Lower bound of F for any shares. Within a relative 1e-5 of `value` if the solver converged.
    pub lower_bound: f64,
}

impl DirectionProblem {
    /// Creates a problem of nodes with Q_j in bytes and S_j in bytes per second, without partitions.
    ///
    /// # Panics
    /// Unless every Q_j is finite and not negative, and every S_j is finite and above 0.
    pub fn new(nodes: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let (queues, rates): (Vec<f64>, Vec<f64>) = nodes.into_iter().unzip();
        assert!(queues.iter().all(|queue| queue.is_finite() && *queue >= 0.0), "queues are sizes");
        assert!(rates.iter().all(|rate| rate.is_finite() && *rate > 0.0), "rates are above 0");
        Self { queues, rates, ..Self::default() }
    }

    /// Adds a partition of `demand` bytes (D_i). Its options are nonempty sets of nodes, by number, the normal read
    /// first.
    ///
    /// # Panics
    /// If there is no option, a node is unknown, or the demand is negative or not finite.
    pub fn push_partition<'a>(&mut self, demand: f64, options: impl IntoIterator<Item = &'a [usize]>) {
        assert!(demand.is_finite() && demand >= 0.0, "a demand is a size");
        let before = self.node_ends.len();
        for option in options {
            assert!(!option.is_empty() && option.iter().all(|&node| node < self.queues.len()));
            self.nodes.extend(option.iter().map(|&node| node as u32));
            self.node_ends.push(self.nodes.len());
        }
        assert!(self.node_ends.len() > before, "a partition can be read");
        self.ends.push(self.node_ends.len());
        self.demands.push(demand);
    }

    /// Returns n, the number of partitions.
    pub fn len(&self) -> usize {
        self.demands.len()
    }

    /// Returns whether there are no partitions.
    pub fn is_empty(&self) -> bool {
        self.demands.is_empty()
    }

    /// Returns the nodes of an option, given its index among all options.
    fn option(&self, option: usize) -> &[u32] {
        let from = if option == 0 { 0 } else { self.node_ends[option - 1] };
        &self.nodes[from..self.node_ends[option]]
    }

    fn options(&self, partition: usize) -> std::ops::Range<usize> {
        options_of(&self.ends, partition)
    }

    /// Returns the shares of least ½ Σ (L_j + Q_j)² / S_j.
    pub fn least_squares(&self) -> LoadDirection {
        let mut descent = DescentState::new(self);
        let lower_bound = descent.descend(TOLERANCE_OF_SQUARES);
        let value = self.squares(&self.totals(&descent.shares));
        self.direction(descent.shares, value, lower_bound)
    }

    /// Returns the shares of least max (L_j + Q_j) / S_j.
    pub fn least_maximum(&self) -> LoadDirection {
        let mut descent = DescentState::new(self);
        descent.descend(TOLERANCE_OF_FIRST_SHARES);
        let solved = interior_point::least_maximum(self, &descent.shares, TOLERANCE_OF_MAXIMUM);
        let value = self.maximum(&solved.shares);
        self.direction(solved.shares, value, solved.lower_bound)
    }

    fn direction(&self, shares: Vec<f64>, value: f64, lower_bound: f64) -> LoadDirection {
        let (totals, ends) = (self.totals(&shares), self.ends.clone());
        LoadDirection { shares, ends, totals, value, lower_bound: lower_bound.clamp(0.0, value) }
    }

    /// Returns the problem with only some of the options, at least one of each partition.
    fn with_options(&self, takes_part: &[bool]) -> Self {
        let mut part = Self { queues: self.queues.clone(), rates: self.rates.clone(), ..Self::default() };
        for (partition, demand) in self.demands.iter().enumerate() {
            for option in self.options(partition).filter(|&option| takes_part[option]) {
                part.nodes.extend_from_slice(self.option(option));
                part.node_ends.push(part.nodes.len());
            }
            part.ends.push(part.node_ends.len());
            part.demands.push(*demand);
        }
        part
    }

    /// Adds the cheapest option of each partition, priced at Σ_{j ∈ o} λ_j, to those that take part. Returns whether
    /// any is new.
    fn add_cheaper(&self, lambda: &[f64], takes_part: &mut [bool]) -> bool {
        let price =
            |option: &usize| -> f64 { self.option(*option).iter().map(|&node| lambda[node as usize]).sum() };
        let mut is_added = false;
        for partition in 0..self.len() {
            let cheapest = self.options(partition).min_by(|a, b| price(a).total_cmp(&price(b)));
            if let Some(cheapest) = cheapest {
                is_added |= !std::mem::replace(&mut takes_part[cheapest], true);
            }
        }
        is_added
    }

    /// Returns the shares with which every request is read normally.
    fn normal_shares(&self) -> Vec<f64> {
        let mut shares = vec![0.0; self.node_ends.len()];
        (0..self.len()).for_each(|partition| shares[self.options(partition).start] = 1.0);
        shares
    }

    /// Returns L_j + Q_j of each node (Eq. 2).
    fn totals(&self, shares: &[f64]) -> Vec<f64> {
        let mut totals = self.queues.clone();
        for (partition, demand) in self.demands.iter().enumerate() {
            for option in self.options(partition).filter(|&option| shares[option] > 0.0) {
                let bytes = demand * shares[option];
                self.option(option).iter().for_each(|&node| totals[node as usize] += bytes);
            }
        }
        totals
    }

    /// Returns F with the ℓ2 norm.
    fn squares(&self, totals: &[f64]) -> f64 {
        totals.iter().zip(&self.rates).map(|(total, rate)| total * total / rate / 2.0).sum()
    }

    /// Returns F with the ℓ∞ norm.
    fn maximum(&self, shares: &[f64]) -> f64 {
        self.totals(shares).iter().zip(&self.rates).map(|(total, rate)| total / rate).fold(0.0, f64::max)
    }

    /// Returns a lower bound of the maximum for any shares, valid for every λ ≥ 0 (LP duality): Σ_j λ_j Q_j + Σ_i D_i
    /// min_o Σ_{j ∈ o} λ_j, with λ scaled to Σ_j S_j λ_j = 1. 0 without nodes.
    fn bound_by(&self, lambda: &[f64]) -> f64 {
        let dot = |factors: &[f64]| -> f64 {
            factors.iter().zip(lambda).map(|(factor, lambda)| factor * lambda).sum()
        };
        let price =
            |option: usize| -> f64 { self.option(option).iter().map(|&node| lambda[node as usize]).sum() };
        let least = |partition: usize| {
            self.demands[partition] * self.options(partition).map(price).fold(f64::INFINITY, f64::min)
        };
        let scale = dot(&self.rates);
        if scale > 0.0 { (dot(&self.queues) + (0..self.len()).map(least).sum::<f64>()) / scale } else { 0.0 }
    }
}

impl LoadDirection {
    /// Returns the share of each option of a partition, in order.
    pub fn shares(&self, partition: usize) -> &[f64] {
        &self.shares[options_of(&self.ends, partition)]
    }

    /// Draws an option of a partition, with its share as the probability.
    pub fn draw(&self, partition: usize, rng: &mut dyn RngCore) -> usize {
        draw(self.shares(partition), rng)
    }
}

/// Draws a position in `shares`, which sum to 1, with its share as the probability.
pub fn draw(shares: &[f64], rng: &mut dyn RngCore) -> usize {
    let mut left = rng.random::<f64>();
    for (place, share) in shares.iter().enumerate() {
        left -= share;
        if left < 0.0 {
            return place;
        }
    }
    // The shares may sum to slightly less than 1 due to rounding.
    shares.iter().rposition(|share| *share > 0.0).unwrap_or(0)
}

fn options_of(ends: &[usize], partition: usize) -> std::ops::Range<usize> {
    let from = if partition == 0 { 0 } else { ends[partition - 1] };
    from..ends[partition]
}

#[cfg(test)]
mod tests;

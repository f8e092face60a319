//! The load direction table of Hu et al. (SoCC'17, §2.3): at what proportions the requests for each partition are to be served
//! by the normal read and by each degraded read, so that the loads of all nodes are balanced.
//!
//! Partition i has a demand of D_i bytes and some options, each a set of nodes that it asks for D_i; option o gets the share
//! y_io. Node j has Q_j bytes before them and serves S_j bytes in a second. Problem (1) is
//!
//! ```text
//! minimise F(L + Q)   where   L_j = Σ_i Σ_{o ∋ j} D_i y_io,   Σ_o y_io = 1,   y_io ≥ 0
//! F = ½ Σ_j (L_j + Q_j)² / S_j     least_squares: the ℓ2 norm, a convex quadratic program
//! F = max_j (L_j + Q_j) / S_j      least_maximum: the ℓ∞ norm, a linear program
//! ```
//!
//! With one degraded read beside the normal one, the paper's simplification, each partition has one free share in [0, 1] and
//! the quadratic program has nothing but these boxes for constraints. The paper gives both to MOSEK; here [`descent`] solves the
//! quadratic and [`interior_point`] the linear one.
//!
//! Both answer with a bound that proves how good they are, and look at no clock: they end after a number of steps.

mod descent;
mod interior_point;

use rand::{Rng, RngCore};

use self::descent::Descent;

/// F above its bound, as a share of it, when a solver ends: of the ℓ2 norm,
const TOLERANCE_OF_SQUARES: f64 = 1e-6;
/// of the ℓ2 norm where its shares are a start for the other,
const TOLERANCE_OF_FIRST_SHARES: f64 = 1e-3;
/// and of the ℓ∞ norm.
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
    /// Of each partition the end of its options among all,
    ends: Vec<usize>,
    /// and of each option the end of its nodes.
    node_ends: Vec<usize>,
    nodes: Vec<u32>,
}

/// The shares of a problem's options.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadDirection {
    /// y_io, the options of one partition after those of another.
    shares: Vec<f64>,
    ends: Vec<usize>,
    /// L_j + Q_j: bytes of each node with these shares.
    pub totals: Vec<f64>,
    /// F.
    pub value: f64,
    /// No shares have less. Equal to `value`, but for a hundred-thousandth, if the solver came to its end.
    pub lower_bound: f64,
}

impl DirectionProblem {
    /// Nodes with their Q_j in bytes and S_j in bytes per second, and no partitions.
    ///
    /// # Panics
    /// Unless every Q_j is finite and not negative and every S_j finite and above 0.
    pub fn new(nodes: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let (queues, rates): (Vec<f64>, Vec<f64>) = nodes.into_iter().unzip();
        assert!(queues.iter().all(|queue| queue.is_finite() && *queue >= 0.0), "queues are sizes");
        assert!(rates.iter().all(|rate| rate.is_finite() && *rate > 0.0), "rates are above 0");
        Self { queues, rates, ..Self::default() }
    }

    /// Adds a partition of `demand` bytes (D_i): its options are nonempty sets of nodes, by number, the normal read first.
    ///
    /// # Panics
    /// If there is no option, a node is not known, or the demand is not a size.
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

    /// n: partitions.
    pub fn len(&self) -> usize {
        self.demands.len()
    }

    /// Whether there are no partitions.
    pub fn is_empty(&self) -> bool {
        self.demands.is_empty()
    }

    /// The nodes of an option, which is numbered among all.
    fn option(&self, option: usize) -> &[u32] {
        let from = if option == 0 { 0 } else { self.node_ends[option - 1] };
        &self.nodes[from..self.node_ends[option]]
    }

    fn options(&self, partition: usize) -> std::ops::Range<usize> {
        options_of(&self.ends, partition)
    }

    /// The shares of least ½ Σ (L_j + Q_j)² / S_j.
    pub fn least_squares(&self) -> LoadDirection {
        let mut descent = Descent::new(self);
        let lower_bound = descent.descend(TOLERANCE_OF_SQUARES);
        let value = self.squares(&self.totals(&descent.shares));
        self.direction(descent.shares, value, lower_bound)
    }

    /// The shares of least max (L_j + Q_j) / S_j.
    pub fn least_maximum(&self) -> LoadDirection {
        let mut descent = Descent::new(self);
        descent.descend(TOLERANCE_OF_FIRST_SHARES);
        let solved = interior_point::least_maximum(self, &descent.shares, TOLERANCE_OF_MAXIMUM);
        let value = self.maximum(&solved.shares);
        self.direction(solved.shares, value, solved.lower_bound)
    }

    fn direction(&self, shares: Vec<f64>, value: f64, lower_bound: f64) -> LoadDirection {
        let (totals, ends) = (self.totals(&shares), self.ends.clone());
        LoadDirection { shares, ends, totals, value, lower_bound: lower_bound.clamp(0.0, value) }
    }

    /// The problem with some of the options, at least one of each partition.
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

    /// Adds to the options that take part the cheapest one of each partition, at Σ_{j ∈ o} λ_j, where it is cheaper than those.
    /// Answers whether there is any.
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

    /// The shares with which every request is read normally.
    fn normal_shares(&self) -> Vec<f64> {
        let mut shares = vec![0.0; self.node_ends.len()];
        (0..self.len()).for_each(|partition| shares[self.options(partition).start] = 1.0);
        shares
    }

    /// L_j + Q_j of each node (Eq. 2).
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

    /// F with the ℓ2 norm.
    fn squares(&self, totals: &[f64]) -> f64 {
        totals.iter().zip(&self.rates).map(|(total, rate)| total * total / rate / 2.0).sum()
    }

    /// F with the ℓ∞ norm.
    fn maximum(&self, shares: &[f64]) -> f64 {
        self.totals(shares).iter().zip(&self.rates).map(|(total, rate)| total / rate).fold(0.0, f64::max)
    }

    /// No shares have a maximum below this, whatever λ ≥ 0 is (LP duality): Σ_j λ_j Q_j + Σ_i D_i min_o Σ_{j ∈ o} λ_j, where λ
    /// is scaled to Σ_j S_j λ_j = 1. 0 without nodes.
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
    /// The share of each option of a partition, in their order.
    pub fn shares(&self, partition: usize) -> &[f64] {
        &self.shares[options_of(&self.ends, partition)]
    }

    /// An option of a partition, each as likely as its share is large.
    pub fn draw(&self, partition: usize, rng: &mut dyn RngCore) -> usize {
        draw(self.shares(partition), rng)
    }
}

/// A place in `shares`, which sum to 1, each as likely as its share is large.
pub fn draw(shares: &[f64], rng: &mut dyn RngCore) -> usize {
    let mut left = rng.random::<f64>();
    for (place, share) in shares.iter().enumerate() {
        left -= share;
        if left < 0.0 {
            return place;
        }
    }
    // Rounding: they sum to a little less.
    shares.iter().rposition(|share| *share > 0.0).unwrap_or(0)
}

fn options_of(ends: &[usize], partition: usize) -> std::ops::Range<usize> {
    let from = if partition == 0 { 0 } else { ends[partition - 1] };
    from..ends[partition]
}

#[cfg(test)]
mod tests;

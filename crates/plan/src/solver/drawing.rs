//! Random numbers for problems that are drawn to measure planners with: the same on every machine, from a seed.

use striate_splitmix::SplitMix64;

/// A sequence of random numbers.
pub(crate) struct Drawing(SplitMix64);

impl Drawing {
    /// The sequence of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// Evenly in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.0.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Evenly below a small number.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.unit() * limit as f64) as usize
    }

    /// Standard normal, by Box and Muller.
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// `count` different ones, in random order, at the front of `all`.
    pub(crate) fn choose<'a>(&mut self, all: &'a mut [usize], count: usize) -> &'a [usize] {
        for index in 0..count {
            let other = index + self.below(all.len() - index);
            all.swap(index, other);
        }
        &all[..count]
    }

    /// All in random order.
    pub(crate) fn shuffle(&mut self, all: &mut [usize]) {
        for last in (1..all.len()).rev() {
            let other = self.below(last + 1);
            all.swap(last, other);
        }
    }
}

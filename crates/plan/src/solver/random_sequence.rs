//! Random numbers for problems that measure planners: the same on every machine for the same seed.

use striate_splitmix::SplitMix64;

/// A sequence of random numbers.
pub(crate) struct RandomSequence(SplitMix64);

impl RandomSequence {
    /// Creates the sequence of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// Returns a uniform number in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.0.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a uniform number below a small limit.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.unit() * limit as f64) as usize
    }

    /// Returns a standard normal number, by Box and Muller.
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Moves `count` different random elements to the front of `all`, in random order, and returns them.
    pub(crate) fn choose<'a>(&mut self, all: &'a mut [usize], count: usize) -> &'a [usize] {
        for index in 0..count {
            let other = index + self.below(all.len() - index);
            all.swap(index, other);
        }
        &all[..count]
    }

    /// Shuffles all elements.
    pub(crate) fn shuffle(&mut self, all: &mut [usize]) {
        for last in (1..all.len()).rev() {
            let other = self.below(last + 1);
            all.swap(last, other);
        }
    }
}

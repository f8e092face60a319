//! The EC-Store paper's workload (§VI-B): scans of 1 to 20 neighbouring blocks, with uniformly distributed lengths.
//! Scans start at a uniformly drawn block during the warm-up, and at a block drawn from Zipf with exponent 1, in key
//! order, during the measurement.
//!
//! The paper says “YCSB-E” and a power law with exponent 1. It gives no scan lengths; uniform 1 to 20 yields about
//! the 10 blocks on average that it calls common.

use rand::Rng;
use rand::rngs::SmallRng;

use super::{DEFAULT_SIZE, KeyDistribution, Keys, Operation, Workload};

/// The longest scan.
pub const MAX_SCAN: u64 = 20;

/// Scans over a fixed number of blocks.
#[derive(Clone, Copy, Debug)]
pub struct EcStoreScans {
    starts: Keys,
    size: u64,
}

impl EcStoreScans {
    /// Creates the scans of the warm-up.
    pub fn warm_up(blocks: u64) -> Self {
        Self { starts: Keys::new(KeyDistribution::Uniform, blocks), size: DEFAULT_SIZE }
    }

    /// Creates the measured scans. Their starts are drawn from Zipf with this exponent.
    pub fn measured(blocks: u64, exponent: f64) -> Self {
        Self { starts: Keys::new(KeyDistribution::Zipf { exponent }, blocks), size: DEFAULT_SIZE }
    }

    /// Creates the measured scans, with starts whose popularity is independent of their place in key order.
    pub fn scrambled(blocks: u64, exponent: f64) -> Self {
        let distribution = KeyDistribution::ScrambledZipf { exponent };
        Self { starts: Keys::new(distribution, blocks), size: DEFAULT_SIZE }
    }

    /// Sets the block size, in bytes.
    pub fn with_size(self, size: u64) -> Self {
        Self { size, ..self }
    }
}

impl Workload for EcStoreScans {
    fn objects(&self) -> u64 {
        self.starts.count()
    }

    fn size(&self, _block: u64) -> u64 {
        self.size
    }

    fn next(&mut self, rng: &mut SmallRng) -> Operation {
        let first = self.starts.draw(rng);
        let count = rng.random_range(1..=MAX_SCAN).min(self.starts.count() - first);
        Operation::read_run(first, count)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;
    use crate::Objects;

    #[test]
    fn scans_stay_inside_and_have_every_length() {
        let mut rng = SmallRng::seed_from_u64(1);
        let kinds =
            [EcStoreScans::warm_up(30), EcStoreScans::measured(30, 1.0), EcStoreScans::scrambled(30, 1.0)];
        for mut scans in kinds {
            let mut seen = [false; MAX_SCAN as usize + 1];
            for _ in 0..10_000 {
                let Operation::Read(Objects::Run { first, count }) = scans.next(&mut rng) else {
                    panic!("not a scan")
                };
                assert!(count >= 1 && first + count <= 30);
                seen[count as usize] = true;
            }
            assert_eq!(seen.iter().filter(|seen| **seen).count(), MAX_SCAN as usize);
        }
    }
}

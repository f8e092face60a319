//! Blocks, their popularity, and the places of their splits or copies.

use rand::rngs::SmallRng;
use rand::seq::index::sample;
use rand::{Rng, SeedableRng};
use striate_plan::cache::parities::{flatten, parities};
use striate_plan::{ParityBudget, PopularBlock};

use super::{Scheme, Setting};

/// The cached blocks and their places.
#[derive(Clone, Debug)]
pub struct Catalogue {
    /// Cumulative probability, for each block, that it or an earlier one is read next.
    cumulated: Vec<f64>,
    /// For each block, the servers of its splits and parities, or of its copies. With split copies, the copies of
    /// each split in turn.
    pub places: Vec<Vec<usize>>,
}

impl Catalogue {
    /// Draws places for the setting's popularity. Each block's splits are on distinct servers, as far as there are
    /// enough.
    pub fn draw(setting: &Setting, scheme: Scheme, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let weights: Vec<f64> =
            (1..=setting.blocks).map(|rank| 1.0 / (rank as f64).powf(setting.exponent)).collect();
        let total: f64 = weights.iter().sum();
        let mut sum = 0.0;
        let cumulated = weights
            .iter()
            .map(|weight| {
                sum += weight / total;
                sum
            })
            .collect();
        let mut distinct =
            |count: usize| sample(&mut rng, setting.servers, count.min(setting.servers)).into_vec();
        let places = match scheme {
            Scheme::SelectiveReplication => {
                copies(setting, &weights).into_iter().map(|copies| distinct(1 + copies)).collect()
            }
            Scheme::SplitReplication => {
                let split = |copies: usize| (0..setting.splits).flat_map(|_| distinct(1 + copies)).collect();
                copies(setting, &weights).into_iter().map(split).collect()
            }
            Scheme::EcCache { .. } | Scheme::Ours => {
                let parity_counts = of_parities(setting, &weights);
                parity_counts.into_iter().map(|parities| distinct(setting.splits + parities)).collect()
            }
        };
        Self { cumulated, places }
    }

    /// Draws the block that is read next.
    pub fn next(&self, rng: &mut SmallRng) -> usize {
        let at: f64 = rng.random();
        self.cumulated.partition_point(|sum| *sum < at).min(self.cumulated.len() - 1)
    }

    /// Returns the probability that a block is read next.
    pub fn probability(&self, block: usize) -> f64 {
        self.cumulated[block] - if block == 0 { 0.0 } else { self.cumulated[block - 1] }
    }
}

/// Copies of each block beyond the first one.
fn copies(setting: &Setting, weights: &[f64]) -> Vec<usize> {
    let blocks: Vec<PopularBlock> = weights
        .iter()
        .map(|&popularity| PopularBlock { splits: 1, split_bytes: setting.block_bytes as u64, popularity })
        .collect();
    let mut copies = vec![0; blocks.len()];
    let memory = setting.block_bytes * setting.blocks as f64;
    flatten(&blocks, &mut copies, (memory * setting.overhead) as u64, setting.servers - 1);
    copies
}

/// Parities of each block: one for each, and the rest assigned to flatten the popularity.
fn of_parities(setting: &Setting, weights: &[f64]) -> Vec<usize> {
    let split_bytes = setting.split_bytes() as u64;
    let blocks: Vec<PopularBlock> = weights
        .iter()
        .map(|&popularity| PopularBlock { splits: setting.splits, split_bytes, popularity })
        .collect();
    let all_bytes = (setting.block_bytes * setting.blocks as f64 * setting.overhead) as u64;
    let first_bytes = all_bytes.min(split_bytes * setting.blocks as u64);
    let further_bytes = all_bytes - first_bytes;
    let most = setting.servers - setting.splits;
    parities(&blocks, ParityBudget { first_bytes, further_bytes, most })
}

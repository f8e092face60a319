//! What the paper proves about splits, checked by random draws: how evenly they load servers, and how often a read of
//! many is late.

use serde::Serialize;

use super::catalogue::Catalogue;
use super::{Scheme, Setting, simulation};

/// A drawn value and the value of its formula.
#[derive(Clone, Debug, Serialize)]
pub struct FormulaCheck {
    /// The formula and its parameters.
    pub what: String,
    /// Value from random draws.
    pub drawn: f64,
    /// Value of the formula.
    pub formula: f64,
}

/// Numbers of drawn placements and reads.
const PLACEMENTS: u64 = 300;
const READS: u64 = 20_000;

/// Checks both of the paper's statements.
pub fn all() -> Vec<FormulaCheck> {
    vec![variances(0.0), variances(Setting::PAPER.exponent), late_reads(0.01)]
}

/// Theorem 1: the variance of a server's load with whole blocks over that with k splits, without parities and copies.
/// The theorem draws the server of each split independently and gives k. Here the k splits of a block are on distinct
/// servers out of n, which varies even less: k (n − 1) / (n − k). Blocks are read by Zipf's law with this exponent.
pub fn variances(exponent: f64) -> FormulaCheck {
    let setting = Setting { exponent, blocks: 200, overhead: 0.0, ..Setting::PAPER };
    let (n, k) = (setting.servers as f64, setting.splits as f64);
    FormulaCheck {
        what: format!("Theorem 1, Zipf {exponent}"),
        drawn: variance(&setting, Scheme::SelectiveReplication)
            / variance(&setting, Scheme::EcCache { extra: 0 }),
        formula: k * (n - 1.0) / (n - k),
    }
}

fn variance(setting: &Setting, scheme: Scheme) -> f64 {
    let mean = 1.0 / setting.servers as f64;
    let all: Vec<f64> = (0..PLACEMENTS).flat_map(|seed| loads(setting, scheme, seed)).collect();
    all.iter().map(|load| (load - mean).powi(2)).sum::<f64>() / all.len() as f64
}

/// Load of each server if every block is read in proportion to its popularity, evenly over its copies or splits.
fn loads(setting: &Setting, scheme: Scheme, seed: u64) -> Vec<f64> {
    let catalogue = Catalogue::draw(setting, scheme, seed);
    let mut loads = vec![0.0; setting.servers];
    for (block, places) in catalogue.places.iter().enumerate() {
        let share = catalogue.probability(block) / places.len() as f64;
        places.iter().for_each(|&server| loads[server] += share);
    }
    loads
}

/// §5.2: if each flow stalls with probability `p`, a read of k flows is late with probability 1 − (1 − p)^k. Nothing
/// else delays reads here.
pub fn late_reads(p: f64) -> FormulaCheck {
    let setting = Setting { stalls: p, delay_sigma: 0.0, clients: 1, ..Setting::PAPER };
    FormulaCheck {
        what: format!("late reads, p = {p}, k = {}", setting.splits),
        drawn: simulation::run(&setting, Scheme::EcCache { extra: 0 }, READS, 3).late,
        formula: 1.0 - (1.0 - p).powf(setting.splits as f64),
    }
}

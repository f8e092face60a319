//! Random requests for tests and benchmarks, the same for the same seed everywhere.
//!
//! Random numbers are SplitMix64's, so that tables of results outlive changes of a library.

use super::{AccessOption, AccessProblem};
use crate::solver::random_sequence::RandomSequence;

/// How requests are drawn: a random placement of every block, with o_j lognormal around the paper's 5 (σ = 0.5).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Number of sites.
    pub sites: usize,
    /// Data chunks of each block.
    pub k: usize,
    /// Parity chunks of each block.
    pub r: usize,
    /// Blocks per request.
    pub blocks: usize,
    /// Share of the sites that are hot: their o_j is uniform between the drawn value and 50.
    pub hot: f64,
    /// m_j is uniform between 1 and 1 + this; z_i is 1.
    pub spread: f64,
}

impl Shape {
    /// Draws a request into `problem`.
    pub fn draw(&self, seed: u64, problem: &mut AccessProblem) {
        let mut random = RandomSequence::new(seed);
        problem.reset((0..self.sites).map(|_| {
            let overhead = 5.0 * (0.5 * random.normal()).exp();
            let is_hot = random.unit() < self.hot;
            if is_hot { overhead + random.unit() * (HOTTEST - overhead).max(0.0) } else { overhead }
        }));
        let rates: Vec<f64> = (0..self.sites).map(|_| 1.0 + self.spread * random.unit()).collect();
        let mut sites: Vec<usize> = (0..self.sites).collect();
        for _ in 0..self.blocks {
            let placed = random.choose(&mut sites, self.k + self.r);
            problem
                .push_block(self.k, placed.iter().map(|&site| AccessOption { site, transfer: rates[site] }));
        }
    }
}

/// o_j of the hottest sites.
const HOTTEST: f64 = 50.0;

/// Draws a request of any shape, small enough for any solver: up to 40 sites and 14 blocks with different codes, δ and
/// sizes; m_j that are equal, few or many; sites that cost nothing; and sites that are unreachable.
pub fn draw_any(seed: u64, problem: &mut AccessProblem) {
    let mut random = RandomSequence::new(seed ^ 0x5EED_0F5E_ED50_F5EE);
    let sites = 6 + random.below(35);
    let (kind_of_overhead, kind_of_rate) = (random.below(4), random.below(3));
    problem.reset((0..sites).map(|_| match kind_of_overhead {
        0 => 5.0,
        1 => [0.0, 1.0, 2.0, 5.0][random.below(4)],
        2 => 1.0 + 49.0 * random.unit(),
        _ => 5.0 * (0.5 * random.normal()).exp(),
    }));
    let rates: Vec<f64> = (0..sites)
        .map(|_| match kind_of_rate {
            0 => 1.0,
            1 => [0.5, 1.0, 3.0][random.below(3)],
            _ => 0.5 + 2.0 * random.unit(),
        })
        .collect();
    let is_down: Vec<bool> = (0..sites).map(|_| random.unit() < 0.05).collect();
    let mut all: Vec<usize> = (0..sites).collect();
    for _ in 0..1 + random.below(14) {
        let (k, r) = [(1, 2), (2, 1), (2, 2), (3, 2), (4, 2)][random.below(5)];
        let size = [1.0, 1.0, 0.25, 4.0][random.below(4)];
        let placed = random.choose(&mut all, k + r).iter().filter(|&&site| !is_down[site]);
        let options: Vec<AccessOption> =
            placed.map(|&site| AccessOption { site, transfer: rates[site] * size }).collect();
        let wanted = k + random.below(3).saturating_sub(1);
        problem.push_block(wanted.min(options.len()), options);
    }
}

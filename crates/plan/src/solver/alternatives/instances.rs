//! Random queries for tests and benchmarks, the same for the same seed everywhere.
//!
//! Costs are in transfers of 50 KB. Random numbers are SplitMix64's, so that tables of results outlive changes of a
//! library.

use super::AlternativesProblem;
pub use crate::solver::piece_options::instances::Pieces;
use crate::solver::random_sequence::RandomSequence;

/// How queries are drawn: o_j lognormal around the paper's 5 (σ = 0.5), ten times as much for 15% of the sites.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Number of sites.
    pub sites: usize,
    /// Number of pieces.
    pub count: usize,
    /// Kind of the pieces.
    pub pieces: Pieces,
}

impl Shape {
    /// Draws a query into `problem`.
    pub fn draw(&self, seed: u64, problem: &mut AlternativesProblem) {
        let mut random = RandomSequence::new(seed ^ 0x6B1D_4F0C_93E7_25A8);
        problem.reset((0..self.sites).map(|_| {
            let hot = if random.unit() < 0.15 { 10.0 } else { 1.0 };
            hot * 5.0 * (0.5 * random.normal()).exp()
        }));
        self.pieces.draw(self.count, self.sites, &mut random, &mut problem.pieces);
    }
}

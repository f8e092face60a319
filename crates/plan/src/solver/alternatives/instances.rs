//! Queries to test and to measure with, the same for a seed wherever they are drawn.
//!
//! Costs are in transfers of 50 KB. Random numbers are SplitMix64's, so that tables of results outlive changes of a library.

use super::AlternativesProblem;
use crate::solver::drawing::Drawing;
pub use crate::solver::piece_options::instances::Pieces;

/// How queries are drawn: o_j lognormal around the paper's 5 (σ = 0.5), of 15 in 100 sites ten times as much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// How many sites there are.
    pub sites: usize,
    /// How many pieces.
    pub count: usize,
    /// What they are.
    pub pieces: Pieces,
}

impl Shape {
    /// Draws a query into `problem`.
    pub fn draw(&self, seed: u64, problem: &mut AlternativesProblem) {
        let mut random = Drawing::new(seed ^ 0x6B1D_4F0C_93E7_25A8);
        problem.reset((0..self.sites).map(|_| {
            let hot = if random.unit() < 0.15 { 10.0 } else { 1.0 };
            hot * 5.0 * (0.5 * random.normal()).exp()
        }));
        self.pieces.draw(self.count, self.sites, &mut random, &mut problem.pieces);
    }
}

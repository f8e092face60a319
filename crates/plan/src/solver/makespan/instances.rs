//! Random queries for tests and benchmarks, the same for the same seed everywhere.
//!
//! Times are in transfers of 50 KB. Random numbers are SplitMix64's, so that tables of results outlive changes of a
//! library.

use super::MakespanProblem;
pub use crate::solver::piece_options::instances::Pieces;
use crate::solver::random_sequence::RandomSequence;

/// How queries are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Number of sites.
    pub sites: usize,
    /// Number of pieces.
    pub count: usize,
    /// Kind of the pieces: each reads 1 to 64 KiB of a chunk, log-uniformly distributed.
    pub pieces: Pieces,
    /// Median queue: lognormal with σ = 1, ten times as long at 15% of the sites.
    pub queue: f64,
    /// c.
    pub request: f64,
    /// w.
    pub weight: f64,
}

/// Median queue of most instances.
pub const USUAL_QUEUE: f64 = 5.0;

impl Shape {
    /// Draws a query into `problem`.
    pub fn draw(&self, seed: u64, problem: &mut MakespanProblem) {
        let mut random = RandomSequence::new(seed ^ 0x3A5E_59A2_0D1F_7C64);
        let queues = (0..self.sites).map(|_| {
            let hot = if random.unit() < 0.15 { 10.0 } else { 1.0 };
            hot * self.queue * random.normal().exp()
        });
        let queues: Vec<f64> = queues.collect();
        problem.reset(self.weight, self.request, queues);
        self.pieces.draw(self.count, self.sites, &mut random, &mut problem.pieces);
    }
}

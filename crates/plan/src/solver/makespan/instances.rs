//! Queries to test and to measure with, the same for a seed wherever they are drawn.
//!
//! Times are in transfers of 50 KB. Random numbers are SplitMix64's, so that tables of results outlive changes of a library.

use super::MakespanProblem;
use crate::solver::drawing::Drawing;
pub use crate::solver::piece_options::instances::Pieces;

/// How queries are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// How many sites there are.
    pub sites: usize,
    /// How many pieces.
    pub count: usize,
    /// What they are: 1 to 64 KiB of a chunk, any size as likely as another by its logarithm.
    pub pieces: Pieces,
    /// The median queue: lognormal with σ = 1, of 15 in 100 sites ten times as long.
    pub queue: f64,
    /// c.
    pub request: f64,
    /// w.
    pub weight: f64,
}

/// The median queue of most instances.
pub const USUAL_QUEUE: f64 = 5.0;

impl Shape {
    /// Draws a query into `problem`.
    pub fn draw(&self, seed: u64, problem: &mut MakespanProblem) {
        let mut random = Drawing::new(seed ^ 0x3A5E_59A2_0D1F_7C64);
        let queues = (0..self.sites).map(|_| {
            let hot = if random.unit() < 0.15 { 10.0 } else { 1.0 };
            hot * self.queue * random.normal().exp()
        });
        let queues: Vec<f64> = queues.collect();
        problem.reset(self.weight, self.request, queues);
        self.pieces.draw(self.count, self.sites, &mut random, &mut problem.pieces);
    }
}

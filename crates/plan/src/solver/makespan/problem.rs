//! The problem: sites with queues, and pieces with options.

use crate::solver::piece_options::PieceOptions;

/// w: see the module.
pub const USUAL_WEIGHT: f64 = 0.06;

/// Minimise T + w X over the options of all pieces.
///
/// Times may be in any one unit. [`MakespanProblem::reset`] keeps the memory, so a reused problem allocates nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MakespanProblem {
    /// The pieces: a slot's transfer is the time that its site takes for the bytes.
    pub pieces: PieceOptions,
    pub(super) weight: f64,
    pub(super) request: f64,
    pub(super) queues: Vec<f64>,
}

impl MakespanProblem {
    /// Drops everything, and takes w, c and q_j of every site, all finite and not negative.
    pub fn reset(&mut self, weight: f64, request: f64, queues: impl IntoIterator<Item = f64>) {
        (self.weight, self.request) = (weight, request);
        self.queues.clear();
        self.queues.extend(queues);
        self.pieces.clear();
    }

    /// Returns w.
    pub fn weight(&self) -> f64 {
        self.weight
    }

    /// Returns c.
    pub fn request(&self) -> f64 {
        self.request
    }

    /// Returns q_j of every site.
    pub fn queues(&self) -> &[f64] {
        &self.queues
    }
}

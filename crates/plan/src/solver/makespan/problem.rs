//! The problem: sites with queues, and pieces with options.

use crate::solver::piece_options::PieceOptions;

/// w: see the module.
pub const USUAL_WEIGHT: f64 = 0.06;

/// Minimise T + w X over the options of all pieces.
///
/// Times are in any one unit. Memory is kept by [`MakespanProblem::reset`], so that a problem that is used again allocates
/// nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MakespanProblem {
    /// The pieces: a slot's transfer is the time that the site takes for the bytes.
    pub pieces: PieceOptions,
    pub(super) weight: f64,
    pub(super) request: f64,
    pub(super) queues: Vec<f64>,
}

impl MakespanProblem {
    /// Forgets everything, and takes w, c and q_j of every site, all finite and not negative.
    pub fn reset(&mut self, weight: f64, request: f64, queues: impl IntoIterator<Item = f64>) {
        (self.weight, self.request) = (weight, request);
        self.queues.clear();
        self.queues.extend(queues);
        self.pieces.clear();
    }

    /// w.
    pub fn weight(&self) -> f64 {
        self.weight
    }

    /// c.
    pub fn request(&self) -> f64 {
        self.request
    }

    /// q_j of every site.
    pub fn queues(&self) -> &[f64] {
        &self.queues
    }
}

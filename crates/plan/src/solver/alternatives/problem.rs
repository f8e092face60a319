//! The problem: sites that cost something to ask, and pieces with options.

use crate::solver::piece_options::PieceOptions;

/// Minimise Σ_j o_j·a_j and what is transferred and computed, over the options of all pieces.
///
/// Costs are in any one unit. Memory is kept by [`AlternativesProblem::reset`], so that a problem that is used again allocates
/// nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AlternativesProblem {
    /// The pieces: a slot's transfer is m_j·z.
    pub pieces: PieceOptions,
    overheads: Vec<f64>,
}

impl AlternativesProblem {
    /// Forgets everything, and takes o_j of every site, finite and not negative.
    pub fn reset(&mut self, overheads: impl IntoIterator<Item = f64>) {
        self.overheads.clear();
        self.overheads.extend(overheads);
        self.pieces.clear();
    }

    /// o_j of every site.
    pub fn overheads(&self) -> &[f64] {
        &self.overheads
    }
}

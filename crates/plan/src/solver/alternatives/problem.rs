//! The problem: sites that cost something to ask, and pieces with options.

use crate::solver::piece_options::PieceOptions;

/// Minimise Σ_j o_j·a_j plus transfers and decoding, over the options of all pieces.
///
/// Costs may be in any one unit. [`AlternativesProblem::reset`] keeps the memory, so a reused problem allocates
/// nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AlternativesProblem {
    /// The pieces: a slot's transfer is m_j·z.
    pub pieces: PieceOptions,
    overheads: Vec<f64>,
}

impl AlternativesProblem {
    /// Drops everything, and takes o_j of every site, finite and not negative.
    pub fn reset(&mut self, overheads: impl IntoIterator<Item = f64>) {
        self.overheads.clear();
        self.overheads.extend(overheads);
        self.pieces.clear();
    }

    /// Returns o_j of every site.
    pub fn overheads(&self) -> &[f64] {
        &self.overheads
    }
}

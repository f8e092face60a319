//! Parity updates from the change of one data chunk, without the other data chunks.
//!
//! Parity p is Σ_j coefficient(p, j) · data_j, so when data chunk j changes by δ = old + new, it changes by
//! coefficient(p, j) · δ (ECWide §4.3). The same holds for any range of the chunks.

use crate::code::Code;
use crate::encode::check_lengths;
use crate::error::CodecError;
use crate::kernel::{Coefficients, Kernel};
use crate::partial_sum::accumulate;

impl Code {
    /// Brings parity chunk `parity_index` (k ≤ index < n), or a range of it, up to date after data chunk `data_index`
    /// (or the same range of it) changed from `old` to `new`.
    pub fn parity_delta(
        &self,
        data_index: usize,
        old: &[u8],
        new: &[u8],
        parity_index: usize,
        parity: &mut [u8],
    ) -> Result<(), CodecError> {
        let coefficient = self.delta_coefficient(data_index, parity_index)?;
        check_lengths(parity.len(), [old.len(), new.len()].into_iter())?;
        let coefficients = Coefficients::from_rows(1, 2, &[coefficient; 2]);
        Kernel::best().dot_accumulate(&coefficients, &[old, new], &mut [parity]);
        Ok(())
    }

    /// The same, given δ = old + new (their XOR) instead of both: what is sent to the parities' sites.
    pub fn apply_delta(
        &self,
        data_index: usize,
        delta: &[u8],
        parity_index: usize,
        parity: &mut [u8],
    ) -> Result<(), CodecError> {
        let coefficient = self.delta_coefficient(data_index, parity_index)?;
        check_lengths(parity.len(), std::iter::once(delta.len()))?;
        accumulate(coefficient, delta, parity);
        Ok(())
    }

    fn delta_coefficient(&self, data_index: usize, parity_index: usize) -> Result<u8, CodecError> {
        if data_index >= self.k() {
            return Err(CodecError::ChunkIndex { index: data_index, limit: self.k() });
        }
        if !(self.k()..self.n()).contains(&parity_index) {
            return Err(CodecError::ChunkIndex { index: parity_index, limit: self.n() });
        }
        Ok(self.coefficient(parity_index, data_index))
    }
}

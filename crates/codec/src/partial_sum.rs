//! Sums of coefficient · chunk that may be evaluated in pieces, in any order and grouping.
//!
//! Addition in GF(2^8) is XOR: associative, commutative, exact. A repair equation Σ c_i · chunk_i can therefore be
//! split over racks or sites, each adding what it has, and the partial sums added on the way (design.md §4, idea 2;
//! ECWide §4.1). Also used slice by slice: a sum over a range of the chunks is that range of the sum.

use crate::encode::{check_count, check_lengths};
use crate::error::CodecError;
use crate::kernel::{Coefficients, Kernel};

/// `dst ^= coefficient · src`.
///
/// # Panics
/// If the lengths differ.
pub fn accumulate(coefficient: u8, src: &[u8], dst: &mut [u8]) {
    assert_eq!(src.len(), dst.len(), "a sum has the length of its terms");
    match coefficient {
        0 => {}
        _ => {
            Kernel::best().dot_accumulate(&Coefficients::from_rows(1, 1, &[coefficient]), &[src], &mut [dst])
        }
    }
}

/// A sum of coefficient · chunk under way: starts at zero, takes terms and other sums of the same length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartialSum {
    bytes: Vec<u8>,
}

impl PartialSum {
    /// The empty sum: `len` zero bytes.
    pub fn zero(len: usize) -> PartialSum {
        PartialSum { bytes: vec![0; len] }
    }

    /// Goes on from a sum computed elsewhere.
    pub fn from_bytes(bytes: Vec<u8>) -> PartialSum {
        PartialSum { bytes }
    }

    /// Adds one term.
    pub fn add(&mut self, coefficient: u8, chunk: &[u8]) -> Result<(), CodecError> {
        check_lengths(self.bytes.len(), std::iter::once(chunk.len()))?;
        accumulate(coefficient, chunk, &mut self.bytes);
        Ok(())
    }

    /// Adds many terms in one pass over the sum.
    pub fn add_many(&mut self, coefficients: &[u8], chunks: &[&[u8]]) -> Result<(), CodecError> {
        check_count("terms", coefficients.len(), chunks.len())?;
        check_lengths(self.bytes.len(), chunks.iter().map(|chunk| chunk.len()))?;
        let coefficients = Coefficients::from_rows(1, coefficients.len(), coefficients);
        Kernel::best().dot_accumulate(&coefficients, chunks, &mut [&mut self.bytes]);
        Ok(())
    }

    /// Adds a sum computed elsewhere.
    pub fn merge(&mut self, other: &[u8]) -> Result<(), CodecError> {
        self.add(1, other)
    }

    /// The sum so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The sum.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

//! Sums of coefficient · chunk that may be evaluated in pieces, in any order and grouping.
//!
//! Addition in GF(2^8) is XOR: associative, commutative, exact. A repair equation Σ c_i · chunk_i can therefore be
//! split over racks or sites, each adding up its own terms, and the partial sums are added on the way (design.md §4,
//! idea 2; ECWide §4.1). It also works slice by slice: a sum over a range of the chunks is that range of the sum.

use crate::kernel::{Coefficients, Kernel};

/// Adds a multiple of a chunk: `dst ^= coefficient · src`.
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

//! Errors of the codec: wrong parameters, wrong shapes, and too few chunks.

use thiserror::Error;

/// An error of the codec. None of them depends on chunk contents: the same call with the same shapes gives the same
/// error.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CodecError {
    /// No code exists here for the parameters of a constructor.
    #[error("{code} is not a code this store can make: {reason}")]
    Parameters {
        /// The requested code, e.g. `lrc(7,2,2)`.
        code: String,
        /// The condition that is violated, and what would satisfy it.
        reason: String,
    },
    /// A string does not name a code.
    #[error("`{text}` does not name a code: {reason}; write rs(4,2), lrc(6,2,2), replica(3) or none")]
    Syntax {
        /// The string.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The number of chunks is not the one that the code or plan works on.
    #[error("{what}: {expected} chunks expected, {actual} given")]
    ChunkCount {
        /// The argument.
        what: &'static str,
        /// The number that it must have.
        expected: usize,
        /// The number that it had.
        actual: usize,
    },
    /// The chunks of one call must all have the same length in bytes.
    #[error("all chunks must have the same length: expected {expected} bytes, found one of {actual}")]
    ChunkLength {
        /// The length of the first chunk.
        expected: usize,
        /// The length that differs.
        actual: usize,
    },
    /// A chunk index is outside the stripe.
    #[error("chunk index {index} is outside 0..{limit}")]
    ChunkIndex {
        /// The index that is outside.
        index: usize,
        /// One more than the greatest index allowed there.
        limit: usize,
    },
    /// The available chunks do not determine a wanted chunk.
    #[error("{code}: chunk {wanted} cannot be computed from the {available} chunks available")]
    Insufficient {
        /// The name of the code.
        code: String,
        /// The first wanted chunk that cannot be computed.
        wanted: usize,
        /// Number of distinct chunks that were available.
        available: usize,
    },
    /// A cost is negative or not a number.
    #[error("the cost of chunk {index} is not a non-negative number")]
    Cost {
        /// The chunk with this cost.
        index: usize,
    },
}

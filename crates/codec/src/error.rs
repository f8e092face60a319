//! What can go wrong in the codec: wrong parameters, wrong shapes, and too few chunks.

use thiserror::Error;

/// An error of the codec. None of them depends on chunk contents: the same call with the same shapes gives the same
/// error.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CodecError {
    /// A constructor was given parameters for which no code exists here.
    #[error("{code} is not a code this store can make: {reason}")]
    Parameters {
        /// The code as it was asked for, e.g. `lrc(7,2,2)`.
        code: String,
        /// Which condition does not hold, and what would.
        reason: String,
    },
    /// A string is not the name of a code.
    #[error("`{text}` does not name a code: {reason}; write rs(4,2), lrc(6,2,2), replica(3) or none")]
    Syntax {
        /// What was given.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The caller handed over another number of chunks than the code or plan works on.
    #[error("{what}: {expected} chunks expected, {actual} given")]
    ChunkCount {
        /// Which argument.
        what: &'static str,
        /// How many it must have.
        expected: usize,
        /// How many it had.
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
        /// The index.
        index: usize,
        /// One more than the greatest index allowed there.
        limit: usize,
    },
    /// The available chunks do not determine a wanted chunk.
    #[error("{code}: chunk {wanted} cannot be computed from the {available} chunks available")]
    Insufficient {
        /// The code's name.
        code: String,
        /// The first wanted chunk that cannot be computed.
        wanted: usize,
        /// How many distinct chunks were available.
        available: usize,
    },
    /// A cost is negative or not a number.
    #[error("the cost of chunk {index} is not a non-negative number")]
    Cost {
        /// Whose cost.
        index: usize,
    },
}

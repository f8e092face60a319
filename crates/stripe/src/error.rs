//! Errors of operations on stripes.

use striate_core::StripeId;
use striate_meta::MetaError;
use striate_site::SiteError;

/// Error of the stripe service.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StripeError {
    /// An argument is out of range.
    #[error("{0}")]
    InvalidArgument(String),
    /// Too few sites can take the write. Worth a retry.
    #[error("{available} sites can take a chunk of a write that needs at least {needed}: {reason}")]
    TooFewSites {
        /// Sites that can take a chunk.
        available: usize,
        /// Sites needed.
        needed: usize,
        /// Why the other sites cannot.
        reason: String,
    },
    /// Too few chunks of a stripe can be read now. The message names the missing ones.
    #[error("stripe {stripe} cannot be read: {needed} chunks needed, {available} available; {reason}")]
    Unreadable {
        /// The unreadable stripe.
        stripe: StripeId,
        /// Chunks needed.
        needed: usize,
        /// Chunks that could be read.
        available: usize,
        /// Which chunks and sites are missing, and why.
        reason: String,
    },
    /// The block is not in the memory tier now. It was kept only there, or its durable copy is at another
    /// store.
    #[error("the block is not in the memory tier")]
    NotInMemory,
    /// Disks are full.
    #[error("the store is full: {0}")]
    NoSpace(String),
    /// No memory became free for the request in time. Worth a retry, a little later.
    #[error("too many bytes are under way; try again later")]
    Overloaded,
    /// A queue is full, or concurrent changes of the stripe kept winning.
    #[error("too many requests at once; try again")]
    Busy,
    /// The metadata store failed.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// A site failed in a way that the operation could not work around.
    #[error(transparent)]
    Site(#[from] SiteError),
    /// Metadata is inconsistent: a defect or damage.
    #[error("the metadata of {what} is inconsistent: {reason}")]
    Inconsistent {
        /// The row or object concerned.
        what: String,
        /// The inconsistency found.
        reason: String,
    },
}

//! Why an operation on stripes failed.

use striate_core::StripeId;
use striate_meta::MetaError;
use striate_site::SiteError;

/// The stripe service's error.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StripeError {
    /// An argument is out of its domain.
    #[error("{0}")]
    InvalidArgument(String),
    /// Fewer sites than needed can take the write. Worth a retry.
    #[error("{available} sites can take a chunk of a write that needs at least {needed}: {reason}")]
    TooFewSites {
        /// Sites that can take it.
        available: usize,
        /// Sites needed.
        needed: usize,
        /// What is wrong with the others.
        reason: String,
    },
    /// Too few chunks of a stripe can be read now. Names what is missing.
    #[error("stripe {stripe} cannot be read: {needed} chunks needed, {available} available; {reason}")]
    Unreadable {
        /// The stripe.
        stripe: StripeId,
        /// Chunks needed.
        needed: usize,
        /// Chunks that could be read.
        available: usize,
        /// Which chunks and sites are missing, and why.
        reason: String,
    },
    /// The block was in memory only, or is kept elsewhere, and is not in memory now.
    #[error("the block is not in the memory tier")]
    NotInMemory,
    /// Disks are full.
    #[error("the store is full: {0}")]
    NoSpace(String),
    /// There was no memory for the request in time. Worth a retry, a little later.
    #[error("too many bytes are under way; try again later")]
    Overloaded,
    /// Queue bounds are reached, or others kept changing the stripe.
    #[error("too many requests at once; try again")]
    Busy,
    /// The metadata store failed.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// A site failed in a way that the operation could not work around.
    #[error(transparent)]
    Site(#[from] SiteError),
    /// Metadata is inconsistent; a defect or damage.
    #[error("the metadata of {what} is inconsistent: {reason}")]
    Inconsistent {
        /// The row or object.
        what: String,
        /// What does not fit.
        reason: String,
    },
}

//! Errors of operations on buckets and objects. Each maps to an S3 error code.

use striate_core::StripeId;
use striate_meta::MetaError;
use striate_site::SiteError;
use striate_stripe::StripeError;

/// Error of the client service.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// The bucket does not exist.
    #[error("there is no bucket {0:?}")]
    NoSuchBucket(String),
    /// The bucket exists already. It is the caller's, as every bucket: there is one account, whatever the access key.
    #[error("you already own the bucket {0:?}")]
    BucketAlreadyOwned(String),
    /// The bucket still has objects.
    #[error("the bucket {0:?} is not empty")]
    BucketNotEmpty(String),
    /// The name breaks S3's rules for bucket names.
    #[error("{name:?} is not a bucket name: {reason}")]
    InvalidBucketName {
        /// The name.
        name: String,
        /// The broken rule.
        reason: String,
    },
    /// The object does not exist.
    #[error("there is no object {0:?}")]
    NoSuchKey(String),
    /// The object was in memory only, and was evicted.
    #[error("the object {0:?} was in memory only, and is not there any more: its bucket is volatile")]
    Evicted(String),
    /// The version does not exist.
    #[error("there is no version {0:?}")]
    NoSuchVersion(String),
    /// The key is longer than 1,024 bytes.
    #[error("the key has {0} bytes, 1024 are allowed")]
    KeyTooLong(usize),
    /// The upload does not exist; it may have been completed or aborted.
    #[error("there is no upload {0:?}; it may have been completed or aborted")]
    NoSuchUpload(String),
    /// A part is missing or its ETag differs.
    #[error("part {number}: {reason}")]
    InvalidPart {
        /// Number of the part.
        number: u32,
        /// Reason for the refusal.
        reason: String,
    },
    /// Part numbers do not ascend.
    #[error("the parts are not in ascending order")]
    InvalidPartOrder,
    /// A part other than the last is under 5 MiB.
    #[error("part {number} has {size} bytes; all but the last need 5 MiB")]
    EntityTooSmall {
        /// Number of the part.
        number: u32,
        /// Size of the part in bytes.
        size: u64,
    },
    /// The body is larger than allowed.
    #[error("the body is larger than the {limit} bytes allowed")]
    EntityTooLarge {
        /// The limit in bytes.
        limit: u64,
    },
    /// The body ended before the announced length.
    #[error("the body has {got} bytes, {expected} were announced")]
    IncompleteBody {
        /// Bytes announced.
        expected: u64,
        /// Bytes received.
        got: u64,
    },
    /// The body does not match its Content-MD5 or checksum.
    #[error("the body does not match its {0}")]
    BadDigest(String),
    /// A checksum's text or combination is not valid.
    #[error("{0}")]
    InvalidRequest(String),
    /// A document in a request does not fit the operation.
    #[error("{0}")]
    MalformedDocument(String),
    /// An argument is out of range.
    #[error("{0}")]
    InvalidArgument(String),
    /// The range lies outside the object.
    #[error("the range is outside the object's {size} bytes")]
    InvalidRange {
        /// Size of the object in bytes.
        size: u64,
    },
    /// A condition of the request does not hold (412).
    #[error("the condition {0} does not hold")]
    PreconditionFailed(&'static str),
    /// The caller's copy is current (304).
    #[error("not modified")]
    NotModified(Box<crate::object::ObjectInfo>),
    /// A concurrent operation on the same key got in between (409).
    #[error("a concurrent operation on the same key won; try again")]
    Conflict,
    /// A sub-resource is not set. Carries its S3 error code.
    #[error("the configuration is not set ({0})")]
    NotSet(&'static str),
    /// Receiving the request's body failed, through the sender or a wrong signature. Nothing was stored.
    #[error("the request body failed: {0}")]
    Body(String),
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
    /// The bucket's objects are at an origin, which this process did not know.
    #[error("the objects of {0:?} are in another store; try again")]
    Elsewhere(String),
    /// The origin of a bucket failed, or cannot be reached. Worth a retry.
    #[error("the origin {endpoint} failed: {reason}")]
    Origin {
        /// Endpoint of the origin.
        endpoint: String,
        /// The origin's reply, or why there was none.
        reason: String,
    },
    /// The origin of a bucket denies the bucket's key a read or write.
    #[error("the origin {endpoint} does not allow it: {reason}")]
    OriginDenied {
        /// Endpoint of the origin.
        endpoint: String,
        /// The origin's reply.
        reason: String,
    },
    /// The operation is not supported for a bucket with an origin.
    #[error("{0}")]
    NotForwarded(String),
    /// A block is not in the memory tier.
    #[error("a block is not in the memory tier")]
    NotInMemory,
    /// Disks are full.
    #[error("the store is full: {0}")]
    NoSpace(String),
    /// No memory became free for the request in time (503 SlowDown). Worth a retry, a little later.
    #[error("too many bytes are under way; try again later")]
    Overloaded,
    /// A queue is full (503 SlowDown).
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

impl From<StripeError> for ClientError {
    fn from(error: StripeError) -> Self {
        match error {
            StripeError::InvalidArgument(what) => Self::InvalidArgument(what),
            StripeError::TooFewSites { available, needed, reason } => {
                Self::TooFewSites { available, needed, reason }
            }
            StripeError::Unreadable { stripe, needed, available, reason } => {
                Self::Unreadable { stripe, needed, available, reason }
            }
            StripeError::NotInMemory => Self::NotInMemory,
            StripeError::NoSpace(reason) => Self::NoSpace(reason),
            StripeError::Overloaded => Self::Overloaded,
            StripeError::Busy => Self::Busy,
            StripeError::Meta(error) => Self::Meta(error),
            StripeError::Site(error) => Self::Site(error),
            StripeError::Inconsistent { what, reason } => Self::Inconsistent { what, reason },
        }
    }
}

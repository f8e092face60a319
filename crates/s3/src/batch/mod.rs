//! Many objects in one request: `POST /{bucket}?batch` and its variants, which are Striate's own (docs/src/batch.md).
//!
//! - [`request`]: the JSON that names the items, and its limits.
//! - [`frames`]: the response to a read as frames, in order of completion.
//! - [`archive`]: the response to a read as a TAR, in order of the items.
//! - [`incoming`]: the frames of a put.
//! - [`outcome`]: the response to a put.

pub(crate) mod archive;
pub(crate) mod frames;
pub(crate) mod incoming;
pub(crate) mod outcome;
pub(crate) mod request;

#[cfg(test)]
mod tests;

use striate_client::ClientError;

use crate::failure::code_of;
use crate::refusal::Refusal;

/// Kind of a batch request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `?batch` or `?batch=read`.
    Read,
    /// `?batch=put`.
    Put,
    /// `?batch=exists`.
    Exists,
}

/// What a response must know of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub key: String,
    /// Whether a range was asked for: the item's status is then 206.
    pub is_range: bool,
}

/// Why an item failed, in S3's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub status: u16,
    pub code: &'static str,
    pub message: String,
}

impl From<&ClientError> for Failure {
    fn from(error: &ClientError) -> Self {
        let (status, code) = code_of(error);
        Self { status: status.as_u16(), code, message: error.to_string() }
    }
}

impl From<&Refusal> for Failure {
    fn from(refusal: &Refusal) -> Self {
        Self { status: refusal.status.as_u16(), code: refusal.code, message: refusal.message.clone() }
    }
}

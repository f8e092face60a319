//! The table of operations, and the resolver: which operation a request asks for.
//!
//! S3 has some hundred operations behind six methods: a query parameter such as `?tagging`, or a header such as
//! `x-amz-copy-source`, turns a GET, PUT or DELETE of an object into something else. A gateway that runs the plain
//! operation because it does not know the parameter destroys data: `DELETE k?annotation` must not delete `k`. So
//! [`OPERATIONS`] has a row for every operation of S3's published model, served or not, and [`resolve`] refuses a
//! request unless everything in it that could select another operation belongs to the one that it found. Parameters
//! without any meaning (`foo=bar`) are ignored, as S3 ignores them.
//!
//! Everything that depends on the operation reads its row: who serves the request, whether its body is a document, what
//! may be passed on to another store, the conditions that are evaluated ([`conditions`]), the right that it needs, and
//! its name in the audit log and the metrics. A new operation is a row and a handler.

mod conditions;
mod resolve;
mod table;

#[cfg(test)]
mod tests;

use http::StatusCode;

use crate::batch::Kind;
use crate::refusal::Refusal;

pub(crate) use conditions::{check_conditions, is_condition};
pub(crate) use resolve::{Asked, resolve};
pub(crate) use table::OPERATIONS;
pub use table::RESPONSE_PARAMETERS;

/// HTTP method of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Head,
    Put,
    Post,
    Delete,
    Options,
}

/// What an operation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The account: no bucket is named.
    Service,
    /// A bucket.
    Bucket,
    /// An object.
    Object,
}

/// A query parameter that selects an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selector {
    pub name: &'static str,
    /// Values that select it; empty for any value.
    pub values: &'static [&'static str],
}

/// Who answers an operation in a bucket of this store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// `translate`, by way of s3s.
    Translator,
    /// `translate::unset`: 404 with this code, S3's answer for a configuration that is not set.
    NotSet(&'static str),
    /// `translate::unset`: an empty configuration, S3's answer where it has no code for one that is not set.
    Empty,
    /// `translate::unset`: 204, as for a configuration that has been removed.
    Cleared,
    /// `translate::batch`.
    Batch(Kind),
    /// `form`.
    Form,
    /// The gateway itself, before signatures.
    Gateway,
    /// Nobody: 501.
    Nobody,
    /// Nobody: 405, as S3 answers an operation that it has withdrawn.
    Withdrawn,
}

/// What the body of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestBody {
    /// Absent, or ignored.
    Nothing,
    /// A document, held in memory and parsed.
    Document,
    /// An object's bytes, or frames: streamed.
    Stream,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    /// Name in S3's model, or a name of our own.
    pub name: &'static str,
    /// Older names of the same request in S3's model.
    pub aliases: &'static [&'static str],
    pub verb: Verb,
    pub target: Target,
    /// Parameters that select the operation. All of them must be there.
    pub selectors: &'static [Selector],
    /// Header that selects the operation.
    pub header: Option<&'static str>,
    /// Further parameters that the operation has.
    pub parameters: &'static [&'static str],
    /// Headers that make the operation conditional and that are evaluated. Any other condition is refused.
    pub conditions: &'static [&'static str],
    pub body: RequestBody,
    pub server: Server,
    /// Whether requests for a bucket with an origin are passed on to it.
    pub forwarded: bool,
    /// The right that the operation needs, as IAM names it.
    pub action: &'static str,
}

impl Operation {
    /// Refuses an operation that nobody serves. `is_elsewhere`: the bucket has an origin.
    pub fn check_served(&self, is_elsewhere: bool) -> Result<(), Refusal> {
        if is_elsewhere && self.forwarded {
            return Ok(());
        }
        match self.server {
            Server::Nobody => Err(Refusal::not_implemented(format!("{} is not available.", self.name))),
            Server::Withdrawn => {
                let message = format!("{} is not available any more.", self.name);
                Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message))
            }
            _ => Ok(()),
        }
    }

    /// Returns the kind of a batch request.
    pub fn batch(&self) -> Option<Kind> {
        match self.server {
            Server::Batch(kind) => Some(kind),
            _ => None,
        }
    }

    /// Whether it changes nothing, whatever is asked.
    pub fn is_read(&self) -> bool {
        matches!(self.verb, Verb::Get | Verb::Head | Verb::Options)
    }

    /// Whether `name` is its name or an older name of it.
    pub fn is_named(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }
}

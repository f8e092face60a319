//! Refusals of a store.

use crate::output::printable;
use http::StatusCode;
use striate_s3_client::xml::{self, Answer};

use super::Call;

/// A refusal: its status, its code, and a message for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub status: StatusCode,
    /// S3's code, such as `NoSuchKey`; empty if the store gives none.
    pub code: String,
    message: String,
}

impl Refusal {
    /// Reads the body of an answer with an error status.
    pub fn new(status: StatusCode, body: &[u8]) -> Self {
        // A proxy in between may answer in another format.
        let xml::Error { code, message } = xml::Error::read(body).unwrap_or_default();
        Self { status, code, message }
    }

    /// Describes the object, the cause and the remedy.
    pub fn describe(&self, call: &Call<'_>) -> String {
        let named = match call.key {
            "" => printable(call.bucket),
            key => printable(&format!("s3://{}/{key}", call.bucket)),
        };
        let reason = match self.status {
            _ if !self.code.is_empty() => explain(&self.code, &self.message),
            StatusCode::NOT_FOUND => "there is no such object or bucket".to_owned(),
            StatusCode::PRECONDITION_FAILED => {
                "the object was changed while it was read; try again".to_owned()
            }
            status => format!("the store answers {status}"),
        };
        if named.is_empty() { reason } else { format!("{named}: {reason}") }
    }
}

/// Formats the store's error, with a remedy where there is an obvious one.
pub fn explain(code: &str, message: &str) -> String {
    let way_out = match code {
        "InvalidAccessKeyId" => "; check STRIATE_ACCESS_KEY, or `striate admin keys list`",
        "SignatureDoesNotMatch" => "; check STRIATE_SECRET_KEY",
        "AccessDenied" => "; check STRIATE_ACCESS_KEY and STRIATE_SECRET_KEY",
        "NoSuchBucket" => "; `striate bucket create NAME` makes one",
        "RequestTimeTooSkewed" => "; set this machine's clock",
        _ => "",
    };
    // Messages of S3 end with a full stop.
    let message = if way_out.is_empty() { message } else { message.trim_end_matches('.') };
    format!("{}: {}{way_out}", printable(code), printable(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_the_object_the_cause_and_the_way_out() {
        let call = Call { bucket: "b", key: "k", ..Call::default() };
        let body = b"<Error><Code>NoSuchBucket</Code><Message>there is none</Message></Error>";
        let refusal = Refusal::new(StatusCode::NOT_FOUND, body);
        let text = refusal.describe(&call);
        assert!(
            text.contains("s3://b/k") && text.contains("there is none") && text.contains("bucket create")
        );
        assert_eq!(refusal.code, "NoSuchBucket");
        let forged = b"<Error><Code>X</Code><Message>a\x1b]0;b\nstriate: all is well</Message></Error>";
        let text = Refusal::new(StatusCode::FORBIDDEN, forged).describe(&call);
        assert!(!text.contains(char::is_control), "{text:?}");
        assert!(Refusal::new(StatusCode::BAD_GATEWAY, b"<html>").describe(&call).contains("502"));
    }
}

//! Authentication: AWS Signature Version 4 in the Authorization header, in a presigned URL, and over
//! the chunks of a streamed body.
//!
//! Signatures are verified here, in front of s3s and not by it. s3s takes one secret per key (a rotated key needs two),
//! compares chunk signatures in variable time, holds a whole chunk of any announced size in memory, and accepts
//! presigned URLs of any age and `x-amz-*` headers that were not signed. Nothing is looked up in buckets before a
//! signature is verified.
//!
//! Clock skew is bounded by [`MAX_SKEW_SECONDS`], a presigned URL's lifetime by [`MAX_EXPIRES_SECONDS`]. A scope names
//! the gateway's region (or us-east-1) and the service `s3`. Of Signature Version 2 only presigned URLs and forms are
//! accepted, which some SDKs still make by default ([`version_2`], [`form`]), and those only where the operator allows
//! them ([`SignatureContext::allow_version_2`]).

mod canonical;
mod chunked;
mod date;
mod form;
mod request;
mod version_2;

pub(crate) use chunked::{ChunkDecoder, ChunkError};

pub(crate) use form::{claimed_key_of_form, verify_form};
pub(crate) use request::{Payload, claimed_key, is_signed, verify};

use crate::keys::KeyStore;
use crate::refusal::Refusal;

/// What signatures are verified with.
#[derive(Clone, Copy)]
pub(crate) struct SignatureContext<'a> {
    pub keys: &'a KeyStore,
    pub region: &'a str,
    /// The bucket that the host names.
    pub bucket_host: Option<&'a str>,
    /// In Unix seconds.
    pub now: u64,
    /// Whether presigned URLs and forms may be signed with Version 2.
    pub allow_version_2: bool,
}

impl SignatureContext<'_> {
    /// Checks that Signature Version 2 is allowed.
    fn check_version_2(&self) -> Result<(), Refusal> {
        match self.allow_version_2 {
            true => Ok(()),
            false => Err(Refusal::bad(
                "InvalidRequest",
                "Signature Version 2 is off: sign with AWS4-HMAC-SHA256 (boto3: Config(signature_version='s3v4')), or \
                 start the server with --allow-signature-v2.",
            )),
        }
    }
}

/// Returns the refusal of the signature `claimed`. Its document says what was to be signed, as S3's does, so that the
/// author of a client can compare. All of it comes from the request itself.
fn mismatch(access_key: &str, claimed: &str, string_to_sign: &str) -> Refusal {
    let bytes: Vec<String> = string_to_sign.bytes().map(|byte| format!("{byte:02x}")).collect();
    Refusal::denied(
        "SignatureDoesNotMatch",
        "The request signature we calculated does not match the signature you provided. Check your key and \
         signing method.",
    )
    .with("AWSAccessKeyId", access_key)
    .with("StringToSign", string_to_sign)
    .with("SignatureProvided", claimed)
    .with("StringToSignBytes", bytes.join(" "))
}

/// Refuses a session token: every access key is permanent here.
fn check_token(token: Option<&str>) -> Result<(), Refusal> {
    match token.unwrap_or_default() {
        "" => Ok(()),
        _ => Err(Refusal::bad("InvalidToken", "The provided token is malformed or otherwise invalid.")),
    }
}

/// Maximum difference between a request's date and the server's clock, either way.
pub const MAX_SKEW_SECONDS: u64 = 15 * 60;
/// Maximum lifetime of a presigned URL: seven days.
pub const MAX_EXPIRES_SECONDS: u64 = 7 * 24 * 3_600;

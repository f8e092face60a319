//! Translation between s3s's structures and the client service's: one small function for each operation.
//!
//! Each begins with [`Translator::enter`], which checks that the operation is the one that the front resolved, and
//! authorises it.

mod acl;
mod attributes;
mod batch;
mod bucket;
mod copy;
mod cors;
mod delete;
mod get;
mod list;
mod multipart;
mod operations;
mod put;
mod tagging;
mod unset;

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use s3s::dto::{ETag, ETagCondition, Timestamp, TimestampFormat};
use s3s::{S3Error, S3Request};
use striate_client::{Client, ClientError, MAX_KEY_LEN, Payer, ReadCondition, WriteCondition};
use striate_core::Profile;

use crate::authorize::{ACCOUNT_ID, Identity, Resource, authorize};
use crate::body::Trailers;
use crate::etags::parse_etags;
use crate::operations::Operation;
use crate::refusal::Refusal;
use crate::remote_buckets::RemoteBuckets;
use crate::trace::Trace;

pub(crate) use batch::BatchMark;
pub(crate) use cors::{CorsAnswer, CorsQuestion, CorsRules, METHODS, is_header_name, parse_rules};
pub(crate) use get::content_range;
pub use get::{object_body, range_version};
pub(crate) use tagging::tags_header;

/// The header that names a profile (`rs(4,2)`) for a new bucket, object or upload.
pub const PROFILE_HEADER: &str = "x-striate-profile";
/// The id of an object's only version in listings.
const NULL_VERSION: &str = "null";

/// s3s's S3 service over the client service.
#[derive(Clone)]
pub(crate) struct Translator {
    pub client: Client,
    /// Handles batches for buckets whose objects are in other stores.
    pub remote_buckets: Arc<dyn RemoteBuckets>,
    pub region: String,
}

/// What the front knows of a request; s3s carries it through.
#[derive(Clone)]
pub(crate) struct RequestContext {
    pub trace: Arc<Trace>,
    pub identity: Identity,
    /// The operation that the front resolved.
    pub operation: &'static Operation,
    pub trailers: Option<Trailers>,
    /// Headers that s3s would refuse or misread.
    pub headers: http::HeaderMap,
    /// Whether the request came as a POST form.
    pub by_form: bool,
    /// Bytes of earlier responses that the connection's peer has taken.
    pub taken_bytes: u64,
    /// Who takes the memory for bodies.
    pub payer: Payer,
}

impl RequestContext {
    /// Refuses a request that s3s takes for another operation than the front did, which has checked it as that one.
    fn check_operation(&self, operation: &'static str) -> Result<(), Refusal> {
        if self.operation.name == operation {
            return Ok(());
        }
        tracing::error!(
            resolved = self.operation.name,
            routed = operation,
            request = self.trace.request_id(),
            "a request was routed to another operation than it was checked for; it was refused"
        );
        debug_assert_eq!(self.operation.name, operation);
        Err(not_implemented(format!("The request is ambiguous: it could be {operation} too.")))
    }

    /// Returns the text of a carried header.
    pub fn text(&self, name: &str) -> Option<String> {
        std::str::from_utf8(self.headers.get(name)?.as_bytes()).ok().map(str::to_owned)
    }
}

/// An authorised request.
pub(crate) struct AuthorisedRequest {
    pub trace: Arc<Trace>,
    pub identity: Identity,
    pub carried: RequestContext,
    /// The client service, for memory that the request's sender takes.
    pub client: Client,
}

impl AuthorisedRequest {
    /// Authorises a further action of the same request.
    pub fn also(&self, action: &'static str, resource: Resource<'_>) -> Result<(), S3Error> {
        check_key(resource)?;
        Ok(authorize(action, resource, Some(&self.identity))?)
    }

    /// Converts the client service's error to S3's.
    pub fn fail(&self, error: ClientError) -> S3Error {
        crate::failure::s3_error(error, &self.trace)
    }
}

impl Translator {
    /// Begins an operation: checks that it is the resolved one, and authorises on `resource` the action that its row names.
    fn enter<T>(
        &self,
        request: &S3Request<T>,
        operation: &'static str,
        resource: Resource<'_>,
    ) -> Result<AuthorisedRequest, S3Error> {
        let carried = request.extensions.get::<RequestContext>().cloned();
        let carried = carried.ok_or_else(|| S3Error::from(Refusal::anonymous()))?;
        carried.check_operation(operation)?;
        let identity = carried.identity.clone();
        authorize(carried.operation.action, resource, Some(&identity))?;
        check_key(resource)?;
        check_expected_owner(&request.headers)?;
        let client = self.client.paid_by(carried.payer);
        Ok(AuthorisedRequest { trace: Arc::clone(&carried.trace), identity, carried, client })
    }
}

/// Checks a key: it must not be too long, or contain NUL, which ends keys in the metadata's rows.
fn check_key(resource: Resource<'_>) -> Result<(), S3Error> {
    let Resource::Object(_, key) = resource else { return Ok(()) };
    if key.contains('\0') {
        return Err(Refusal::bad("InvalidArgument", "A key must not contain the character NUL.").into());
    }
    if key.len() > MAX_KEY_LEN {
        return Err(Refusal::bad("KeyTooLongError", "Your key is too long.").into());
    }
    Ok(())
}

/// Checks `x-amz-expected-bucket-owner`, which names the account that the caller believes it is talking to.
fn check_expected_owner(headers: &http::HeaderMap) -> Result<(), S3Error> {
    for name in ["x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner"] {
        if let Some(expected) = headers.get(name)
            && expected != ACCOUNT_ID
        {
            let message = format!("{name} is not this account, which is {ACCOUNT_ID}.");
            return Err(Refusal::denied("AccessDenied", message).into());
        }
    }
    Ok(())
}

/// Converts a time for s3s.
pub(crate) fn timestamp(unix_ms: u64) -> Timestamp {
    Timestamp::from(UNIX_EPOCH + Duration::from_millis(unix_ms))
}

/// Returns the Unix seconds of a time; 0 before 1970.
pub(crate) fn unix_seconds(time: &Timestamp) -> u64 {
    let mut text = Vec::new();
    match time.format(TimestampFormat::EpochSeconds, &mut text) {
        Ok(()) => {
            std::str::from_utf8(&text).ok().and_then(|text| text.parse::<f64>().ok()).map_or(0, |s| s as u64)
        }
        Err(_) => 0,
    }
}

/// Converts an ETag for s3s.
fn etag(text: String) -> ETag {
    ETag::Strong(text)
}

fn etags(condition: ETagCondition) -> Vec<String> {
    match condition {
        ETagCondition::Any => vec!["*".to_owned()],
        ETagCondition::ETag(etag) => vec![etag.into_value()],
    }
}

/// Returns the ETags that the header `name` lists: the one that s3s parsed, or the list that it cannot parse.
fn etags_of(carried: &RequestContext, name: &str, parsed: Option<ETagCondition>) -> Option<Vec<String>> {
    match parsed {
        Some(condition) => Some(etags(condition)),
        None => parse_etags(&carried.text(name)?),
    }
}

fn read_condition(
    if_match: Option<Vec<String>>,
    if_none_match: Option<Vec<String>>,
    if_modified_since: Option<Timestamp>,
    if_unmodified_since: Option<Timestamp>,
) -> ReadCondition {
    ReadCondition {
        if_match,
        if_none_match,
        if_modified_since: if_modified_since.as_ref().map(unix_seconds),
        if_unmodified_since: if_unmodified_since.as_ref().map(unix_seconds),
        if_range: None,
    }
}

/// Converts the conditions of a write: only `If-Match` and `If-None-Match: *` are supported.
fn write_condition(
    if_match: Option<Vec<String>>,
    if_none_match: Option<Vec<String>>,
) -> Result<WriteCondition, Refusal> {
    let if_absent = match if_none_match {
        None => false,
        Some(etags) if etags == ["*"] => true,
        Some(_) => {
            return Err(not_implemented(
                "If-None-Match with an ETag is not implemented for writes; use `*`.",
            ));
        }
    };
    Ok(WriteCondition { if_absent, if_match, ..WriteCondition::default() })
}

/// Returns the profile that a request asks for.
fn profile_of(headers: &http::HeaderMap) -> Result<Option<Profile>, Refusal> {
    let Some(value) = headers.get(PROFILE_HEADER) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let profile = text.parse::<Profile>();
    let profile =
        profile.map_err(|error| Refusal::bad("InvalidArgument", format!("{PROFILE_HEADER}: {error}")))?;
    Ok(Some(profile))
}

/// Accepts only the current version, which is listed as `null`.
fn check_version(version: Option<&str>) -> Result<(), Refusal> {
    match version {
        None | Some(NULL_VERSION | "") => Ok(()),
        Some(version) => Err(Refusal::new(
            http::StatusCode::NOT_FOUND,
            "NoSuchVersion",
            format!("There is no version {version:?}; versioning is not available."),
        )),
    }
}

fn not_implemented(message: impl Into<String>) -> Refusal {
    Refusal::new(http::StatusCode::NOT_IMPLEMENTED, "NotImplemented", message)
}

/// Returns a page size: 1,000 at most and by default.
fn page_size(wish: Option<i32>, name: &str) -> Result<usize, Refusal> {
    match wish {
        None => Ok(1_000),
        Some(wish) => usize::try_from(wish)
            .map(|wish| wish.min(1_000))
            .map_err(|_| Refusal::bad("InvalidArgument", format!("{name} must not be negative."))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_and_the_epoch_is_zero() {
        for seconds in [0, 1, 1_369_353_600, 4_102_444_800] {
            assert_eq!(unix_seconds(&timestamp(seconds * 1_000 + 999)), seconds);
        }
    }

    #[test]
    fn write_conditions_are_absent_match_or_refused() {
        let tag = || Some(vec!["abc".to_owned()]);
        let absent = write_condition(None, Some(vec!["*".to_owned()])).unwrap();
        assert!(absent.if_absent && absent.if_match.is_none());
        assert_eq!(write_condition(tag(), None).unwrap().if_match, Some(vec!["abc".to_owned()]));
        assert_eq!(write_condition(None, tag()).unwrap_err().code, "NotImplemented");
    }

    #[test]
    fn keys_with_nul_or_too_many_bytes_are_refused() {
        let code = |key: &str| check_key(Resource::Object("b", key)).unwrap_err().code().as_str().to_owned();
        assert_eq!(code("a\0b"), "InvalidArgument");
        assert_eq!(code(&"ü".repeat(513)), "KeyTooLongError");
        assert!(check_key(Resource::Object("b", &"ü".repeat(512))).is_ok());
    }

    #[test]
    fn pages_have_at_most_a_thousand_entries_and_may_have_none() {
        assert_eq!((page_size(None, "n"), page_size(Some(0), "n")), (Ok(1_000), Ok(0)));
        assert_eq!(page_size(Some(5_000), "n"), Ok(1_000));
        assert!(page_size(Some(-1), "n").is_err());
    }

    #[test]
    fn a_profile_header_is_parsed_or_named_in_the_error() {
        let with = |text: &'static str| {
            let value = http::HeaderValue::from_static(text);
            profile_of(&http::HeaderMap::from_iter([(PROFILE_HEADER.parse().unwrap(), value)]))
        };
        assert_eq!(with("rs(4,2)").unwrap().unwrap().to_string(), "rs(4,2)");
        assert!(with("raid(5)").unwrap_err().message.contains("x-striate-profile"));
    }
}

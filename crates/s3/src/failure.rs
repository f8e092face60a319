//! Converts the client service's errors to S3 errors.

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use s3s::{Body, S3Error, S3ErrorCode};
use striate_client::{ClientError, ObjectInfo};
use striate_meta::MetaError;

use crate::refusal::{RETRY_AFTER, Refusal, SLOW_DOWN};
use crate::trace::Trace;

/// Converts `error` to an S3 error. An error of the body is reported as what caused it, which `trace` knows.
pub(crate) fn s3_error(error: ClientError, trace: &Trace) -> S3Error {
    if let (ClientError::Body(_), Some(refusal)) = (&error, trace.body_refusal()) {
        return refusal.into_s3_error();
    }
    let (status, code) = code_of(&error);
    if status.is_server_error() {
        tracing::error!(%error, request = trace.request_id(), "a request failed");
    }
    let code = S3ErrorCode::from_bytes(code.as_bytes()).unwrap_or(S3ErrorCode::InternalError);
    let mut answer = S3Error::with_message(code, error.to_string());
    answer.set_status_code(status);
    if let Some(headers) = headers_of(&error) {
        answer.set_headers(headers);
    }
    answer
}

/// Returns the status and S3 code of an error.
pub(crate) fn code_of(error: &ClientError) -> (StatusCode, &'static str) {
    use ClientError as E;
    match error {
        E::NoSuchBucket(_) => (StatusCode::NOT_FOUND, "NoSuchBucket"),
        E::BucketAlreadyOwned(_) => (StatusCode::CONFLICT, "BucketAlreadyOwnedByYou"),
        E::BucketNotEmpty(_) => (StatusCode::CONFLICT, "BucketNotEmpty"),
        E::InvalidBucketName { .. } => (StatusCode::BAD_REQUEST, "InvalidBucketName"),
        E::NoSuchKey(_) | E::Evicted(_) | E::NotInMemory => (StatusCode::NOT_FOUND, "NoSuchKey"),
        E::NoSuchVersion(_) => (StatusCode::NOT_FOUND, "NoSuchVersion"),
        E::KeyTooLong(_) => (StatusCode::BAD_REQUEST, "KeyTooLongError"),
        E::NoSuchUpload(_) => (StatusCode::NOT_FOUND, "NoSuchUpload"),
        E::InvalidPart { .. } => (StatusCode::BAD_REQUEST, "InvalidPart"),
        E::InvalidPartOrder => (StatusCode::BAD_REQUEST, "InvalidPartOrder"),
        E::EntityTooSmall { .. } => (StatusCode::BAD_REQUEST, "EntityTooSmall"),
        E::EntityTooLarge { .. } => (StatusCode::BAD_REQUEST, "EntityTooLarge"),
        E::IncompleteBody { .. } | E::Body(_) => (StatusCode::BAD_REQUEST, "IncompleteBody"),
        E::BadDigest(_) => (StatusCode::BAD_REQUEST, "BadDigest"),
        E::InvalidRequest(_) => (StatusCode::BAD_REQUEST, "InvalidRequest"),
        E::MalformedDocument(_) => (StatusCode::BAD_REQUEST, "MalformedXML"),
        E::InvalidArgument(_) => (StatusCode::BAD_REQUEST, "InvalidArgument"),
        E::InvalidRange { .. } => (StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange"),
        E::PreconditionFailed(_) => (StatusCode::PRECONDITION_FAILED, "PreconditionFailed"),
        E::NotModified(_) => (StatusCode::NOT_MODIFIED, "NotModified"),
        E::Conflict => (StatusCode::CONFLICT, "ConditionalRequestConflict"),
        E::NotSet(code) => (StatusCode::NOT_FOUND, code),
        E::TooFewSites { .. } | E::Unreadable { .. } => {
            (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable")
        }
        E::NoSpace(_) => (StatusCode::INSUFFICIENT_STORAGE, "InsufficientStorage"),
        E::NotForwarded(_) => (StatusCode::NOT_IMPLEMENTED, "NotImplemented"),
        E::Origin { .. } => (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
        E::OriginDenied { .. } => (StatusCode::FORBIDDEN, "AccessDenied"),
        E::Busy | E::Overloaded | E::Elsewhere(_) => (StatusCode::SERVICE_UNAVAILABLE, SLOW_DOWN),
        // Operators raise a quota of the metadata or free space; clients retry meanwhile.
        E::Meta(
            MetaError::Unavailable(_)
            | MetaError::UnknownOutcome(_)
            | MetaError::NoSpace(_)
            | MetaError::Moved(_),
        ) => (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
        E::Meta(_) | E::Site(_) | E::Inconsistent { .. } => {
            (StatusCode::INTERNAL_SERVER_ERROR, "InternalError")
        }
    }
}

/// Returns the response for `error`, to a request for `resource` (its path).
pub(crate) fn response(error: ClientError, trace: &Trace, resource: &str) -> Response<Body> {
    if let (ClientError::Body(_), Some(refusal)) = (&error, trace.body_refusal()) {
        trace.set_error(refusal.code);
        return refusal.into_response(&trace.request_id(), resource);
    }
    let (status, code) = code_of(&error);
    trace.set_error(code);
    if status.is_server_error() {
        tracing::error!(%error, request = trace.request_id(), "a request failed");
    }
    let mut response =
        Refusal::new(status, code, error.to_string()).into_response(&trace.request_id(), resource);
    response.headers_mut().extend(headers_of(&error).unwrap_or_default());
    response
}

fn headers_of(error: &ClientError) -> Option<HeaderMap> {
    match error {
        ClientError::InvalidRange { size } => {
            let value = HeaderValue::try_from(format!("bytes */{size}")).ok()?;
            Some(HeaderMap::from_iter([(header::CONTENT_RANGE, value)]))
        }
        ClientError::NotModified(info) => Some(validators(info)),
        error if code_of(error).1 == SLOW_DOWN => {
            Some(HeaderMap::from_iter([(header::RETRY_AFTER, RETRY_AFTER)]))
        }
        _ => None,
    }
}

/// Returns the headers of the object that a 304 repeats.
fn validators(info: &ObjectInfo) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut date = Vec::new();
    let modified = crate::translate::timestamp(info.modified_unix_ms);
    let formatted = modified.format(s3s::dto::TimestampFormat::HttpDate, &mut date);
    if let (Ok(()), Ok(date)) = (formatted, HeaderValue::from_bytes(&date)) {
        headers.insert(header::LAST_MODIFIED, date);
    }
    if let Ok(etag) = HeaderValue::try_from(format!("\"{}\"", info.etag)) {
        headers.insert(header::ETAG, etag);
    }
    if let (false, Ok(cache)) =
        (info.attributes.cache_control.is_empty(), HeaderValue::try_from(&info.attributes.cache_control))
    {
        headers.insert(header::CACHE_CONTROL, cache);
    }
    headers
}

impl From<Refusal> for S3Error {
    fn from(refusal: Refusal) -> Self {
        refusal.into_s3_error()
    }
}

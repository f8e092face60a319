//! The head of a request: what is read from it before s3s, and what is removed from it.

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use crate::address::percent_decode;
use crate::auth::Payload;
use crate::form;
use crate::refusal::Refusal;

pub(super) fn host_of(parts: &Parts) -> &str {
    let authority = parts.uri.authority().map(http::uri::Authority::as_str);
    text(&parts.headers, header::HOST).or(authority).unwrap_or_default()
}

pub(super) fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

pub(super) fn insert(headers: &mut HeaderMap, name: header::HeaderName, value: &str) {
    if let (false, Ok(value)) = (value.is_empty(), HeaderValue::try_from(value)) {
        headers.insert(name, value);
    }
}

fn http_body_is_absent(parts: &Parts) -> bool {
    !parts.headers.contains_key(header::TRANSFER_ENCODING)
}

/// Removes the aws-chunked framing from the headers. Returns the length of the decoded body.
pub(super) fn unframe(parts: &mut Parts, payload: &Payload) -> Result<u64, Refusal> {
    let is_put = parts.method == Method::PUT;
    let missing = || {
        let message = "You must provide the Content-Length HTTP header.";
        Refusal::new(StatusCode::LENGTH_REQUIRED, "MissingContentLength", message)
    };
    if !matches!(payload, Payload::Chunked { .. }) {
        let has_length = parts.headers.contains_key(header::CONTENT_LENGTH);
        return match has_length || !is_put || http_body_is_absent(parts) {
            true => Ok(0),
            false => Err(missing()),
        };
    }
    let decoded = parts.headers.get("x-amz-decoded-content-length").ok_or_else(missing)?;
    let decoded: u64 =
        decoded.to_str().ok().and_then(|len| len.parse().ok()).ok_or_else(|| {
            Refusal::bad("InvalidArgument", "x-amz-decoded-content-length is not a number.")
        })?;
    parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(decoded));
    let encodings = text(&parts.headers, header::CONTENT_ENCODING).unwrap_or_default();
    let kept: Vec<&str> = encodings.split(',').map(str::trim).filter(|it| *it != "aws-chunked").collect();
    let kept = kept.join(",");
    match kept.is_empty() {
        true => drop(parts.headers.remove(header::CONTENT_ENCODING)),
        false => insert(&mut parts.headers, header::CONTENT_ENCODING, &kept),
    }
    Ok(decoded)
}

/// Removes the signature after it was verified, so that s3s does not look for it again.
pub(super) fn strip_signature(parts: &mut Parts, presigned: bool) {
    parts.headers.remove(header::AUTHORIZATION);
    if !presigned {
        return;
    }
    const AUTH: [&str; 10] = [
        "AWSAccessKeyId",
        "Expires",
        "Signature",
        "X-Amz-Algorithm",
        "X-Amz-Credential",
        "X-Amz-Date",
        "X-Amz-Expires",
        "X-Amz-SignedHeaders",
        "X-Amz-Signature",
        "X-Amz-Security-Token",
    ];
    let query = parts.uri.query().unwrap_or("");
    take_from_query(&mut parts.headers, query);
    let is_kept = |it: &&str| !it.is_empty() && !AUTH.contains(&it.split('=').next().unwrap_or(""));
    let kept: Vec<&str> = query.split('&').filter(is_kept).collect();
    let path = parts.uri.path();
    let rebuilt = if kept.is_empty() { path.to_owned() } else { format!("{path}?{}", kept.join("&")) };
    if let Ok(uri) = rebuilt.parse() {
        parts.uri = uri;
    }
}

/// Copies headers that describe the object from the query, which a presigned URL signs, into the headers.
fn take_from_query(headers: &mut HeaderMap, query: &str) {
    for (name, value) in query.split('&').filter_map(|parameter| parameter.split_once('=')) {
        if !form::describes_object(name) || headers.contains_key(name) {
            continue;
        }
        let value = percent_decode(&value.replace('+', " "));
        let value = value.and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok());
        if let (Ok(name), Some(value)) = (header::HeaderName::try_from(name), value) {
            headers.insert(name, value);
        }
    }
}

/// Removes headers that s3s would refuse or misread. Invalid dates and ranges are dropped, as S3 ignores them; headers
/// that the translation reads itself are returned.
pub(super) fn set_apart(parts: &mut Parts) -> HeaderMap {
    const TEXTS: [&str; 5] = [
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "x-amz-website-redirect-location",
    ];
    let headers = &mut parts.headers;
    if let Some(range) = text(headers, header::RANGE)
        && s3s::dto::Range::parse(range).is_err()
    {
        headers.remove(header::RANGE);
    }
    for name in [header::IF_MODIFIED_SINCE, header::IF_UNMODIFIED_SINCE] {
        let is_date = |date| s3s::dto::Timestamp::parse(s3s::dto::TimestampFormat::HttpDate, date).is_ok();
        if headers.contains_key(&name) && !text(headers, name.clone()).is_some_and(is_date) {
            headers.remove(name);
        }
    }
    let mut apart = HeaderMap::new();
    let mut take = |headers: &mut HeaderMap, name: header::HeaderName| {
        if let Some(value) = headers.remove(&name) {
            apart.insert(name, value);
        }
    };
    take(headers, header::EXPIRES);
    // s3s would take a body of this type for a form, even the empty one of CreateMultipartUpload.
    if parts.method == Method::POST {
        take(headers, header::CONTENT_TYPE);
    }
    for name in TEXTS.map(header::HeaderName::from_static) {
        if headers.get(&name).is_some_and(|value| value.to_str().is_err()) {
            take(headers, name);
        }
    }
    apart
}

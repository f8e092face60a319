//! The head of a request: what is read from it before s3s, and what is removed from it.

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use s3s::dto::ETagCondition;

use crate::address::percent_decode;
pub(super) use crate::address::{host_of, text};
use crate::auth::Payload;
use crate::etags::{CONDITIONS, parse_etags};
use crate::form;
use crate::refusal::Refusal;

pub(super) fn insert(headers: &mut HeaderMap, name: header::HeaderName, value: &str) {
    if let (false, Ok(value)) = (value.is_empty(), HeaderValue::try_from(value)) {
        headers.insert(name, value);
    }
}

/// Removes the aws-chunked framing from the headers. Returns the length of the decoded body; 0 for one without framing.
///
/// # Errors
/// 411 without that length, or with one that is no number.
pub(super) fn unframe(parts: &mut Parts, payload: &Payload) -> Result<u64, Refusal> {
    let missing = || {
        let message = "You must provide the Content-Length HTTP header.";
        Refusal::new(StatusCode::LENGTH_REQUIRED, "MissingContentLength", message)
    };
    if !matches!(payload, Payload::Chunked { .. }) {
        return Ok(0);
    }
    let decoded = parts.headers.get("x-amz-decoded-content-length");
    let decoded = decoded.and_then(|len| len.to_str().ok()?.parse().ok()).ok_or_else(missing)?;
    parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(decoded));
    Ok(decoded)
}

/// Removes `aws-chunked` from Content-Encoding. It describes how the body travels, and some SDKs send it where they
/// frame nothing; a browser could not decode an object with it.
fn strip_framing_encoding(headers: &mut HeaderMap) {
    let Some(encodings) = text(headers, header::CONTENT_ENCODING) else { return };
    let codings = || encodings.split(',').map(str::trim);
    let is_framing = |coding: &str| coding.eq_ignore_ascii_case("aws-chunked");
    if !codings().any(is_framing) {
        return;
    }
    let kept = codings().filter(|coding| !coding.is_empty() && !is_framing(coding));
    let kept = kept.collect::<Vec<_>>().join(",");
    headers.remove(header::CONTENT_ENCODING);
    insert(headers, header::CONTENT_ENCODING, &kept);
}

/// Joins the lines of headers that may come in several (RFC 9110, 5.3); s3s takes one line only.
fn join_lines(headers: &mut HeaderMap) {
    const LISTS: [header::HeaderName; 3] =
        [header::CACHE_CONTROL, header::CONTENT_ENCODING, header::CONTENT_LANGUAGE];
    let is_list = |name: &header::HeaderName| {
        let text = name.as_str();
        LISTS.contains(name) || CONDITIONS.contains(&text) || text.starts_with("x-amz-meta-")
    };
    let repeated: Vec<header::HeaderName> = headers
        .keys()
        .filter(|name| is_list(name) && headers.get_all(*name).iter().nth(1).is_some())
        .cloned()
        .collect();
    for name in repeated {
        let lines: Vec<&[u8]> = headers.get_all(&name).iter().map(HeaderValue::as_bytes).collect();
        // S3 joins metadata with a comma alone.
        let separator = if name.as_str().starts_with("x-amz-meta-") { "," } else { ", " };
        if let Ok(joined) = HeaderValue::from_bytes(&lines.join(separator.as_bytes())) {
            headers.insert(name, joined);
        }
    }
}

/// Rewrites bytes above ASCII where s3s takes none: those of a copy's source, as if percent-encoded, and metadata in
/// ISO 8859-1, as UTF-8.
fn rewrite_bytes(headers: &mut HeaderMap) {
    for (name, value) in headers.iter_mut() {
        let bytes = value.as_bytes();
        let rewritten: String = match name.as_str() {
            "x-amz-copy-source" if !bytes.is_ascii() => bytes
                .iter()
                .map(
                    |byte| {
                        if byte.is_ascii() { char::from(*byte).to_string() } else { format!("%{byte:02X}") }
                    },
                )
                .collect(),
            name if name.starts_with("x-amz-meta-") && std::str::from_utf8(bytes).is_err() => {
                bytes.iter().copied().map(char::from).collect()
            }
            _ => continue,
        };
        if let Ok(rewritten) = HeaderValue::from_bytes(rewritten.as_bytes()) {
            *value = rewritten;
        }
    }
}

/// Clips the ends of a byte range to what s3s takes. No object is that long, so that it stays the same range.
fn clip_range(headers: &mut HeaderMap) {
    const MOST: u64 = i64::MAX as u64;
    let Some(range) = text(headers, header::RANGE) else { return };
    let ends = range.strip_prefix("bytes=").and_then(|ends| ends.split_once('-'));
    let Some((first, last)) = ends else { return };
    let is_number = |end: &str| end.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(first) || !is_number(last) {
        return;
    }
    let clip = |end: &str| match end.parse::<u64>() {
        _ if end.is_empty() => String::new(),
        Ok(end) => end.min(MOST).to_string(),
        Err(_) => MOST.to_string(),
    };
    let clipped = format!("bytes={}-{}", clip(first), clip(last));
    insert(headers, header::RANGE, &clipped);
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

/// Whom a request expects to own its buckets. Presigned URLs may carry it in their query.
const EXPECTED_OWNERS: [&str; 2] = ["x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner"];

/// Copies headers that describe the object, or name its owner, from the query, which a presigned URL signs, into the headers.
fn take_from_query(headers: &mut HeaderMap, query: &str) {
    for (name, value) in query.split('&').filter_map(|parameter| parameter.split_once('=')) {
        let is_taken = form::describes_object(name) || EXPECTED_OWNERS.contains(&name);
        if !is_taken || headers.contains_key(name) {
            continue;
        }
        let value = percent_decode(&value.replace('+', " "));
        let value = value.and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok());
        if let (Ok(name), Some(value)) = (header::HeaderName::try_from(name), value) {
            headers.insert(name, value);
        }
    }
}

/// Removes or rewrites headers that s3s would refuse or misread. Invalid dates and ranges are dropped, as S3 ignores
/// them; headers that the translation reads itself are returned.
pub(super) fn set_apart(parts: &mut Parts) -> HeaderMap {
    const TEXTS: [&str; 6] = [
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-type",
        "x-amz-website-redirect-location",
    ];
    let headers = &mut parts.headers;
    join_lines(headers);
    rewrite_bytes(headers);
    strip_framing_encoding(headers);
    clip_range(headers);
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
    // Those of a delete are s3s's to refuse: it knows one ETag, and no list is dropped.
    if parts.method != Method::DELETE {
        for name in CONDITIONS.map(header::HeaderName::from_static) {
            let Some(value) = text(headers, name.clone()) else { continue };
            let is_for_s3s =
                ETagCondition::parse_http_header(value.as_bytes()).is_ok() && !value.contains(',');
            if !is_for_s3s && parse_etags(value).is_some() {
                take(headers, name);
            }
        }
    }
    for name in TEXTS.map(header::HeaderName::from_static) {
        if headers.get(&name).is_some_and(|value| value.to_str().is_err()) {
            take(headers, name);
        }
    }
    apart
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apart(method: &str, pairs: &[(&str, &str)]) -> (HeaderMap, HeaderMap) {
        let mut request = http::Request::builder().method(method).uri("/b/k");
        for (name, value) in pairs {
            request = request.header(*name, *value);
        }
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        let apart = set_apart(&mut parts);
        (parts.headers, apart)
    }

    #[test]
    fn aws_chunked_is_never_a_content_encoding() {
        for (sent, kept) in [
            ("aws-chunked", None),
            ("AWS-Chunked", None),
            ("gzip, aws-chunked", Some("gzip")),
            ("aws-chunked,gzip , br", Some("gzip,br")),
            ("gzip , br", Some("gzip , br")),
            ("", Some("")),
        ] {
            let (headers, _) = apart("PUT", &[("content-encoding", sent)]);
            assert_eq!(text(&headers, header::CONTENT_ENCODING), kept, "{sent}");
        }
    }

    #[test]
    fn lines_of_one_list_are_joined() {
        let (headers, _) = apart(
            "PUT",
            &[
                ("cache-control", "no-cache"),
                ("cache-control", "max-age=1"),
                ("x-amz-meta-a", "1"),
                ("x-amz-meta-a", "2"),
            ],
        );
        assert_eq!(headers[header::CACHE_CONTROL], "no-cache, max-age=1");
        assert_eq!(headers["x-amz-meta-a"], "1,2");
    }

    #[test]
    fn bytes_above_ascii_are_taken() {
        let mut request = http::Request::builder().uri("/b/k").body(()).unwrap();
        let headers = request.headers_mut();
        headers.insert("x-amz-copy-source", HeaderValue::from_bytes("b/ü%20k".as_bytes()).unwrap());
        headers.insert("x-amz-meta-latin", HeaderValue::from_bytes(b"caf\xe9").unwrap());
        headers.insert("x-amz-meta-utf8", HeaderValue::from_bytes("café".as_bytes()).unwrap());
        let (mut parts, ()) = request.into_parts();
        set_apart(&mut parts);
        assert_eq!(parts.headers["x-amz-copy-source"], "b/%C3%BC%20k");
        for name in ["x-amz-meta-latin", "x-amz-meta-utf8"] {
            assert_eq!(parts.headers[name].as_bytes(), "café".as_bytes());
        }
    }

    #[test]
    fn ranges_end_at_the_longest_object_and_nonsense_is_ignored() {
        for (sent, kept) in [
            ("bytes=2-9223372036854775808", Some("bytes=2-9223372036854775807")),
            ("bytes=2-99999999999999999999999", Some("bytes=2-9223372036854775807")),
            ("bytes=-18446744073709551616", Some("bytes=-9223372036854775807")),
            ("bytes=99999999999999999999-", Some("bytes=9223372036854775807-")),
            ("bytes=0-4", Some("bytes=0-4")),
            ("bytes=a-b", None),
            ("bytes=9-3", None),
        ] {
            assert_eq!(text(&apart("GET", &[("range", sent)]).0, header::RANGE), kept, "{sent}");
        }
    }

    #[test]
    fn lists_of_etags_are_set_apart_and_single_ones_are_not() {
        let (headers, lists) = apart("GET", &[("if-match", "\"a\", \"b\""), ("if-none-match", "\"c\"")]);
        assert_eq!(
            (lists.get("if-match").unwrap(), lists.len()),
            (&HeaderValue::from_static("\"a\", \"b\""), 1)
        );
        assert_eq!(headers["if-none-match"], "\"c\"");
        let (headers, lists) = apart("GET", &[("if-match", "a"), ("if-match", "b")]);
        assert_eq!((lists["if-match"].to_str().unwrap(), headers.len()), ("a, b", 0));
        assert!(apart("DELETE", &[("if-match", "a, b")]).1.is_empty());
    }
}

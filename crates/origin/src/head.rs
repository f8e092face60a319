//! What an origin reports of an object.

use std::time::UNIX_EPOCH;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use striate_client::{ObjectAttributes, ObjectInfo};

/// An object's description, stored compactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The ETag as received, quotes included.
    pub(crate) etag: String,
    pub(crate) size: u64,
    pub(crate) modified_unix_ms: u64,
    /// Whether it came with a part of the object, and so without the checksums of the whole.
    pub(crate) is_of_part: bool,
    /// Headers that a response repeats, encoded as name, NUL, value, NUL and so on.
    pub(crate) headers: Bytes,
}

/// Whether a header describes the object, and not one response. Checksums are handled separately: they apply to the
/// whole object only.
fn describes(name: &HeaderName) -> bool {
    const NAMES: [HeaderName; 8] = [
        header::CONTENT_TYPE,
        header::CONTENT_ENCODING,
        header::CONTENT_DISPOSITION,
        header::CONTENT_LANGUAGE,
        header::CACHE_CONTROL,
        header::EXPIRES,
        header::ETAG,
        header::LAST_MODIFIED,
    ];
    const OF_S3: [&str; 11] = [
        "x-amz-meta-",
        "x-amz-checksum-",
        "x-amz-expiration",
        "x-amz-object-lock-",
        "x-amz-replication-status",
        "x-amz-restore",
        "x-amz-server-side-encryption",
        "x-amz-storage-class",
        "x-amz-tagging-count",
        "x-amz-version-id",
        "x-amz-website-redirect-location",
    ];
    NAMES.contains(name) || OF_S3.iter().any(|prefix| name.as_str().starts_with(prefix))
}

/// Whether a header is a checksum of the whole object.
fn is_checksum(name: &HeaderName) -> bool {
    name.as_str().starts_with("x-amz-checksum-")
}

/// Returns a strong ETag, which identifies the object's bytes; quotes included.
pub(crate) fn strong_etag(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::ETAG)?.to_str().ok().filter(|etag| !etag.starts_with("W/"))
}

/// Returns the length that a response announces.
pub(crate) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

impl Head {
    /// Builds a head from a response to GET or HEAD. Returns `None` if it lacks the length or a strong ETag.
    pub(crate) fn of(status: StatusCode, headers: &HeaderMap) -> Option<Self> {
        let text = |name: HeaderName| headers.get(name)?.to_str().ok();
        let etag = strong_etag(headers)?.to_owned();
        let size = match status {
            StatusCode::OK => content_length(headers)?,
            StatusCode::PARTIAL_CONTENT => text(header::CONTENT_RANGE)?.rsplit_once('/')?.1.parse().ok()?,
            _ => return None,
        };
        let modified = text(header::LAST_MODIFIED).and_then(|date| httpdate::parse_http_date(date).ok());
        let modified = modified.and_then(|date| date.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        let (mut kept, is_of_part) = (BytesMut::new(), status == StatusCode::PARTIAL_CONTENT);
        // In a partial response, the checksum is that of the part.
        let is_kept = |name: &HeaderName| describes(name) && !(is_of_part && is_checksum(name));
        for (name, value) in headers.iter().filter(|(name, _)| is_kept(name)) {
            kept.put_slice(name.as_str().as_bytes());
            kept.put_u8(0);
            kept.put_slice(value.as_bytes());
            kept.put_u8(0);
        }
        let modified_unix_ms = modified.as_millis() as u64;
        Some(Self { etag, size, modified_unix_ms, is_of_part, headers: kept.freeze() })
    }

    /// Returns the headers of a response. `with_checksums` is for responses with the whole object whose client wants
    /// checksums.
    pub(crate) fn headers(&self, with_checksums: bool) -> HeaderMap {
        let mut rest = self.headers.clone();
        let mut next = || {
            let end = rest.iter().position(|byte| *byte == 0)?;
            let text = rest.split_to(end);
            let _ = rest.split_to(1);
            Some(text)
        };
        let mut headers = HeaderMap::new();
        while let (Some(name), Some(value)) = (next(), next()) {
            let (Ok(name), Ok(value)) =
                (HeaderName::from_bytes(&name), HeaderValue::from_maybe_shared(value))
            else {
                continue;
            };
            if with_checksums || !is_checksum(&name) {
                headers.append(name, value);
            }
        }
        headers
    }

    /// The description that conditions and ranges are checked against.
    pub(crate) fn info(&self, key: &str) -> ObjectInfo {
        ObjectInfo {
            key: key.to_owned(),
            version: [0; 16],
            size: self.size,
            modified_unix_ms: self.modified_unix_ms,
            etag: self.etag.trim_matches('"').to_owned(),
            attributes: ObjectAttributes::default(),
            checksums: Vec::new(),
            parts: Vec::new(),
            profile: None,
        }
    }

    /// The description in responses to batches.
    pub(crate) fn described(&self, key: &str) -> ObjectInfo {
        let headers = self.headers(false);
        let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let mut info = self.info(key);
        info.attributes.content_type = content_type.unwrap_or_default().to_owned();
        info
    }

    /// Approximate memory of the head in bytes.
    pub(crate) fn footprint(&self) -> u64 {
        (self.headers.len() + self.etag.len()) as u64 + 200
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn a_head_says_again_what_describes_the_object_and_nothing_else() {
        let came = headers(&[
            ("etag", "\"abc\""),
            ("content-length", "10"),
            ("last-modified", "Tue, 25 Nov 2025 10:00:00 GMT"),
            ("x-amz-meta-a", "b"),
            ("x-amz-checksum-crc32", "AAAAAA=="),
            ("content-type", "text/plain"),
            ("x-amz-request-id", "1"),
            ("connection", "close"),
        ]);
        let head = Head::of(StatusCode::OK, &came).unwrap();
        assert_eq!((head.size, head.modified_unix_ms), (10, 1_764_064_800_000));
        assert_eq!(head.info("k").etag, "abc");
        let told = head.headers(true);
        let mut names: Vec<&str> = told.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        let expected = ["content-type", "etag", "last-modified", "x-amz-checksum-crc32", "x-amz-meta-a"];
        assert_eq!(names, expected);
        assert!(!head.headers(false).contains_key("x-amz-checksum-crc32"));
    }

    #[test]
    fn a_head_says_again_the_state_that_s3_reports_of_an_object() {
        let state = [
            ("x-amz-version-id", "v1"),
            ("x-amz-object-lock-mode", "GOVERNANCE"),
            ("x-amz-object-lock-retain-until-date", "2030-01-01T00:00:00Z"),
            ("x-amz-object-lock-legal-hold", "OFF"),
            ("x-amz-expiration", "expiry-date=\"Fri, 21 Dec 2029 00:00:00 GMT\", rule-id=\"a\""),
            ("x-amz-restore", "ongoing-request=\"true\""),
            ("x-amz-replication-status", "COMPLETED"),
        ];
        let mut came = headers(&state);
        came.extend(headers(&[("etag", "\"abc\""), ("content-range", "bytes 2-4/10")]));
        let told = Head::of(StatusCode::PARTIAL_CONTENT, &came).unwrap().headers(true);
        for (name, value) in state {
            assert_eq!(told[name], value);
        }
    }

    #[test]
    fn a_part_tells_the_size_of_the_whole_and_no_checksum() {
        let came = headers(&[
            ("etag", "\"abc\""),
            ("content-length", "3"),
            ("content-range", "bytes 2-4/10"),
            ("x-amz-checksum-crc32", "AAAAAA=="),
        ]);
        let head = Head::of(StatusCode::PARTIAL_CONTENT, &came).unwrap();
        assert_eq!((head.size, head.headers(true).len()), (10, 1));
        assert_eq!(Head::of(StatusCode::OK, &headers(&[("content-length", "3")])), None, "no ETag");
        let weak = headers(&[("etag", "W/\"abc\""), ("content-length", "3")]);
        assert_eq!(Head::of(StatusCode::OK, &weak), None, "it does not stand for the bytes");
        assert_eq!(Head::of(StatusCode::NOT_FOUND, &came), None);
    }
}

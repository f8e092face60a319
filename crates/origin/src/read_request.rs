//! A read request for an object.

use http::{HeaderMap, HeaderValue, Method, header};
use striate_client::{ReadCondition, ReadRange, wanted_range};
use striate_s3::{RESPONSE_PARAMETERS, RemoteRequest, range_version};

use crate::head::Head;
use crate::upstream::decode;

/// Request headers that the origin must see: the expected owner of its bucket, and the requester's consent to pay.
const OF_ORIGIN: [&str; 2] = ["x-amz-expected-bucket-owner", "x-amz-request-payer"];

/// Header, or parameter of a presigned URL, that asks for the object's checksums.
const CHECKSUM_MODE: &str = "x-amz-checksum-mode";

/// Parameters that SDKs put into URLs, presigned ones above all, and that do not change the response.
const OF_URL: [&str; 3] = ["x-id", "x-amz-content-sha256", "x-amz-user-agent"];

/// A parsed read request for an object.
pub(crate) struct ReadRequest {
    pub(crate) is_head: bool,
    pub(crate) range: ReadRange,
    pub(crate) condition: ReadCondition,
    pub(crate) wants_checksums: bool,
    /// Headers that replace the object's own in the response.
    pub(crate) instead: HeaderMap,
}

impl ReadRequest {
    /// Parses a request. Returns `None` if it cannot be answered from memory.
    pub(crate) fn of(request: &RemoteRequest) -> Option<Self> {
        let headers = &request.headers;
        let has_key_of_customer =
            headers.keys().any(|name| name.as_str().starts_with("x-amz-server-side-encryption-customer"));
        if has_key_of_customer || OF_ORIGIN.iter().any(|name| headers.contains_key(*name)) {
            return None;
        }
        let (mut instead, mut wants_checksums) = (HeaderMap::new(), wants_checksums(headers));
        for parameter in request.query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match name.strip_prefix("response-") {
                // Other parameters would change how the response is read.
                Some(header) if RESPONSE_PARAMETERS.contains(&name) => {
                    let name = http::HeaderName::try_from(header).ok()?;
                    instead.insert(name, HeaderValue::try_from(decode(value)).ok()?);
                }
                None if name.eq_ignore_ascii_case(CHECKSUM_MODE) => wants_checksums |= is_enabled(value),
                None if OF_URL.iter().any(|of_url| name.eq_ignore_ascii_case(of_url)) => {}
                _ => return None,
            }
        }
        let text = |name: header::HeaderName| headers.get(name)?.to_str().ok();
        let range = match text(header::RANGE) {
            None => ReadRange::Whole,
            Some(text) => match s3s::dto::Range::parse(text) {
                Ok(s3s::dto::Range::Int { first, last }) => ReadRange::Bytes { first, last },
                Ok(s3s::dto::Range::Suffix { length }) => ReadRange::Suffix { len: length },
                Err(_) => ReadRange::Whole,
            },
        };
        let date = |name| {
            let date = httpdate::parse_http_date(text(name)?).ok()?;
            Some(date.duration_since(std::time::UNIX_EPOCH).ok()?.as_secs())
        };
        let condition = ReadCondition {
            if_match: text(header::IF_MATCH).map(etags),
            if_none_match: text(header::IF_NONE_MATCH).map(etags),
            if_modified_since: date(header::IF_MODIFIED_SINCE),
            if_unmodified_since: date(header::IF_UNMODIFIED_SINCE),
            if_range: range_version(headers),
        };
        let is_head = request.method == Method::HEAD;
        Some(Self { is_head, range, condition, wants_checksums, instead })
    }

    /// The read that an item of a batch requests.
    pub(crate) fn of_item(range: ReadRange, condition: ReadCondition) -> Self {
        Self { is_head: false, range, condition, wants_checksums: false, instead: HeaderMap::new() }
    }

    /// A read of the object's head alone.
    pub(crate) fn head() -> Self {
        Self { is_head: true, ..Self::of_item(ReadRange::Whole, ReadCondition::default()) }
    }

    /// The range that is wanted of an object: the whole of it if `If-Range` names another version.
    pub(crate) fn range_of(&self, head: &Head) -> ReadRange {
        wanted_range(self.range, self.condition.if_range.as_ref(), &head.info(""))
    }

    /// Whether the response has the checksums of the whole object.
    pub(crate) fn answers_checksums(&self) -> bool {
        self.wants_checksums && self.range == ReadRange::Whole
    }

    /// Whether it reads the whole object, described as the origin describes it.
    pub(crate) fn is_plain(&self) -> bool {
        self.range == ReadRange::Whole && self.instead.is_empty()
    }

    /// Byte range that a GET of an unknown object requests, from the start of a block; `None` if the object's head must
    /// be known first.
    pub(crate) fn first_range(&self, block_len: u64) -> Option<(u64, Option<u64>)> {
        if self.is_head || self.condition != ReadCondition::default() {
            return None;
        }
        match self.range {
            ReadRange::Whole => Some((0, None)),
            ReadRange::Bytes { first, last } => {
                let end = |last: u64| (last / block_len + 1).saturating_mul(block_len);
                Some((first / block_len * block_len, last.map(end)))
            }
            ReadRange::Suffix { .. } | ReadRange::Part(_) => None,
        }
    }
}

fn wants_checksums(headers: &HeaderMap) -> bool {
    headers.get(CHECKSUM_MODE).and_then(|mode| mode.to_str().ok()).is_some_and(is_enabled)
}

fn is_enabled(mode: &str) -> bool {
    mode.eq_ignore_ascii_case("enabled")
}

/// The ETags of a condition, without quotes.
fn etags(text: &str) -> Vec<String> {
    let etag = |etag: &str| etag.trim().trim_start_matches("W/").trim_matches('"').to_owned();
    text.split(',').map(etag).collect()
}

#[cfg(test)]
mod tests {
    use striate_s3::RemoteBody;

    use super::*;

    fn asked(query: &str, headers: &[(&'static str, &'static str)]) -> Option<ReadRequest> {
        let headers = headers
            .iter()
            .map(|&(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value)));
        ReadRequest::of(&RemoteRequest {
            bucket: "b".to_owned(),
            key: "k".to_owned(),
            method: Method::GET,
            query: query.to_owned(),
            headers: headers.collect(),
            body: RemoteBody::Held(bytes::Bytes::new()),
        })
    }

    #[test]
    fn what_memory_cannot_answer_passes_by() {
        assert!(asked("", &[]).is_some() && asked("x-id=GetObject", &[]).is_some());
        for query in ["versionId=1", "partNumber=2", "tagging", "response-content-length=5", "response-x=y"] {
            assert!(asked(query, &[]).is_none(), "{query}");
        }
        assert!(asked("", &[("x-amz-server-side-encryption-customer-key", "k")]).is_none());
        assert!(asked("", &[("x-amz-request-payer", "requester")]).is_none(), "the origin asks who pays");
        let presigned = "X-Amz-Content-Sha256=UNSIGNED-PAYLOAD&x-amz-checksum-mode=ENABLED&x-id=GetObject";
        assert!(asked(presigned, &[]).unwrap().wants_checksums, "as SDKs presign URLs");
        assert!(!asked("x-id=GetObject", &[]).unwrap().wants_checksums);
        let overridden = asked("response-content-type=text%2Fplain", &[]).unwrap();
        assert_eq!(overridden.instead["content-type"], "text/plain");
    }

    #[test]
    fn a_first_read_asks_for_whole_blocks() {
        let first = |range| asked("", &[("range", range)]).unwrap().first_range(100);
        assert_eq!(asked("", &[]).unwrap().first_range(100), Some((0, None)));
        assert_eq!(first("bytes=150-160"), Some((100, Some(200))));
        assert_eq!(first("bytes=99-100"), Some((0, Some(200))));
        assert_eq!(first("bytes=250-"), Some((200, None)));
        assert_eq!(first("bytes=-5"), None, "where it is depends on the size");
        assert_eq!(asked("", &[("if-none-match", "\"a\"")]).unwrap().first_range(100), None);
        let resumed = asked("", &[("range", "bytes=150-"), ("if-range", "\"a\"")]).unwrap();
        assert_eq!(resumed.first_range(100), None, "it depends on the version");
    }

    #[test]
    fn etags_of_conditions_lose_their_quotes() {
        assert_eq!(etags("\"a\", W/\"b\",*"), ["a", "b", "*"]);
    }
}

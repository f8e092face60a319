//! Reads of objects: GET and HEAD.
//!
//! What is known of an object and still holds answers them; otherwise its origin is asked. Of an object of which nothing is known a GET asks
//! for the bytes at once; what is in memory all the same is read there.

use std::ops::Range;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use hyper::body::Incoming;
use s3s::Body;
use striate_client::{ClientError, ReadCondition, ReadRange, check_read, resolve_range};
use striate_runtime::Instant;
use striate_s3::{ElsewhereBody, ElsewhereRequest, object_body};

use crate::counts::add;
use crate::fences::Standing;
use crate::forward::answer_of;
use crate::head::Head;
use crate::known::{Known, ObjectName, Turn};
use crate::opened::Opened;
use crate::reading::{Object, ReadError, Reading, Run};
use crate::service::Shared;
use crate::upstream::{Ask, decode};

/// How often a read begins anew because the object was replaced under it.
const MAX_RESTARTS: usize = 4;
/// Says where an answer came from.
const CACHE_HEADER: &str = "x-striate-cache";

/// What a request wants of an object.
struct Asked {
    is_head: bool,
    range: ReadRange,
    condition: ReadCondition,
    wants_checksums: bool,
    /// Headers that the answer is to have instead of the object's.
    instead: HeaderMap,
}

/// What an origin was found to have.
enum Learned {
    /// This, and perhaps its bytes on their way.
    Object(Arc<Head>, Option<Run>),
    /// Something that cannot be cached: an error, or an answer without an ETag. Said whether it answers the request itself.
    Answer(Response<Incoming>, bool),
}

impl Asked {
    /// `None` for what cannot be answered from memory.
    fn of(request: &ElsewhereRequest) -> Option<Self> {
        let headers = &request.headers;
        let has_key_of_customer =
            headers.keys().any(|name| name.as_str().starts_with("x-amz-server-side-encryption-customer"));
        if has_key_of_customer || headers.contains_key("x-amz-expected-bucket-owner") {
            return None;
        }
        let mut instead = HeaderMap::new();
        for parameter in request.query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match name.strip_prefix("response-") {
                Some(name) => {
                    let name = http::HeaderName::try_from(name).ok()?;
                    instead.insert(name, HeaderValue::try_from(decode(value)).ok()?);
                }
                None if name == "x-id" => {}
                None => return None,
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
        };
        let mode = headers.get("x-amz-checksum-mode").and_then(|mode| mode.to_str().ok());
        let wants_checksums = mode.is_some_and(|mode| mode.eq_ignore_ascii_case("enabled"));
        Some(Self { is_head: request.method == Method::HEAD, range, condition, wants_checksums, instead })
    }

    /// What a GET of an object of which nothing is known asks for, from the start of a block on; `None` if its head must be known first.
    fn first_range(&self, block_len: u64) -> Option<(u64, Option<u64>)> {
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

/// The ETags of a condition, without quotes.
fn etags(text: &str) -> Vec<String> {
    let etag = |etag: &str| etag.trim().trim_start_matches("W/").trim_matches('"').to_owned();
    text.split(',').map(etag).collect()
}

impl Shared {
    /// Answers a GET or HEAD of an object.
    ///
    /// # Errors
    /// Those of conditions and ranges; [`ClientError::Origin`].
    pub(crate) async fn get(
        self: &Arc<Self>,
        origin: &Arc<Opened>,
        request: ElsewhereRequest,
        mut standing: Standing,
    ) -> Result<Response<Body>, ClientError> {
        let Some(asked) = Asked::of(&request) else { return self.pass_by(origin, request).await };
        let name = ObjectName::new(origin, &request.key);
        for _ in 0..MAX_RESTARTS {
            if standing.is_written {
                return self.pass_by(origin, request).await;
            }
            let (head, run) = match self.learn(origin, &request.key, &name, standing.epoch, &asked).await? {
                Learned::Object(head, run) => (head, run),
                Learned::Answer(answer, true) => return Ok(answer_of(answer)),
                Learned::Answer(_, false) => return self.pass_by(origin, request).await,
            };
            let info = head.info(&request.key);
            check_read(&asked.condition, &info)?;
            let range = resolve_range(asked.range, &info)?;
            if asked.is_head {
                return Ok(answer(&asked, &head, &range, Body::empty(), None));
            }
            let blocks = origin.blocks(&request.key, &head);
            let object = Object {
                origin: origin.clone(),
                key: request.key.as_str().into(),
                head: head.clone(),
                blocks,
            };
            match Reading::new(self.clone(), object, range.clone(), run).open().await {
                Ok((bytes, is_hit)) => {
                    let body = object_body(bytes, range.end - range.start);
                    return Ok(answer(&asked, &head, &range, body, Some(is_hit)));
                }
                Err(ReadError::Failed(error)) => return Err(error),
                Err(ReadError::Changed) => {
                    add(&self.upstream.counts.changes, 1);
                    self.known.forget(&name);
                    standing = self.fences.look(&request.bucket, &request.key).await?.1;
                }
            }
        }
        Err(ClientError::Busy)
    }

    /// What is known of an object, or its origin says.
    async fn learn(
        self: &Arc<Self>,
        origin: &Arc<Opened>,
        key: &str,
        name: &ObjectName,
        epoch: u64,
        asked: &Asked,
    ) -> Result<Learned, ClientError> {
        let runtime = self.client.runtime();
        let mut has_waited = false;
        let _asker = loop {
            let now = runtime.now();
            let holds = |known: &Known| {
                known.epoch == epoch && now.saturating_duration_since(known.asked_at) < origin.ttl
            };
            if let Some(known) = self.known.get(name).filter(holds) {
                return Ok(Learned::Object(known.head, None));
            }
            // With a ttl of zero every request asks for itself.
            if origin.ttl.is_zero() {
                break None;
            }
            match self.known.turn(name, epoch) {
                Turn::Ask(asker) => break Some(asker),
                Turn::Wait(_) if has_waited => break None,
                Turn::Wait(mut done) => {
                    has_waited = true;
                    // The sender never sends: this ends when it is dropped.
                    let _ = done.changed().await;
                }
            }
        };
        let (stale, asked_at) = (self.known.get(name), runtime.now());
        let first = asked.first_range(origin.block_len).filter(|_| stale.is_none());
        let answer = self.ask_head(origin, key, first).await?;
        if stale.is_some() {
            add(&self.upstream.counts.revalidations, 1);
        }
        let (status, headers) = (answer.status(), answer.headers());
        let Some(head) = Head::of(status, headers).map(Arc::new) else {
            // A range that is outside, or no object, or nothing that can be cached.
            self.known.forget(name);
            return match first {
                Some(_) if status == StatusCode::RANGE_NOT_SATISFIABLE => self.learn_head(origin, key).await,
                Some(_) => Ok(Learned::Answer(answer, !status.is_success())),
                None => Ok(Learned::Answer(answer, asked.is_head)),
            };
        };
        if stale.is_some_and(|stale| stale.head.etag != head.etag) {
            add(&self.upstream.counts.changes, 1);
        }
        let run = match first {
            Some((from, _)) => self.first_run(origin, key, &head, from, answer).await,
            None => None,
        };
        self.note(name, &head, epoch, asked_at);
        Ok(Learned::Object(head, run))
    }

    fn note(&self, name: &ObjectName, head: &Arc<Head>, epoch: u64, asked_at: Instant) {
        self.known.learn(name.clone(), Known { head: head.clone(), epoch, asked_at });
    }

    /// Asks for an object's head, or for its bytes from the start of a block on.
    async fn ask_head(
        &self,
        origin: &Opened,
        key: &str,
        first: Option<(u64, Option<u64>)>,
    ) -> Result<Response<Incoming>, ClientError> {
        let mut headers = HeaderMap::new();
        headers.insert("x-amz-checksum-mode", HeaderValue::from_static("ENABLED"));
        let range = match first {
            Some((from, Some(until))) => Some(format!("bytes={from}-{}", until - 1)),
            Some((from, None)) if from > 0 => Some(format!("bytes={from}-")),
            _ => None,
        };
        if let Some(Ok(range)) = range.map(HeaderValue::try_from) {
            headers.insert(header::RANGE, range);
        }
        let method = if first.is_some() { Method::GET } else { Method::HEAD };
        self.upstream.read(origin, Ask { method, key, query: "", headers }).await
    }

    /// An object's head alone, to say that a range is outside.
    async fn learn_head(&self, origin: &Opened, key: &str) -> Result<Learned, ClientError> {
        let answer = self.ask_head(origin, key, None).await?;
        Ok(match Head::of(answer.status(), answer.headers()) {
            Some(head) => Learned::Object(Arc::new(head), None),
            None => Learned::Answer(answer, false),
        })
    }

    /// The bytes that came with the first answer, unless memory has them or somebody fetches them already.
    async fn first_run(
        self: &Arc<Self>,
        origin: &Arc<Opened>,
        key: &str,
        head: &Arc<Head>,
        from: u64,
        answer: Response<Incoming>,
    ) -> Option<Run> {
        let from = if answer.status() == StatusCode::OK { 0 } else { from };
        let sent = answer.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse::<u64>().ok()?;
        let object = Object {
            origin: origin.clone(),
            key: key.into(),
            head: head.clone(),
            blocks: origin.blocks(key, head),
        };
        Run::new(answer.into_body(), from..from + sent).settle(self, &object).await
    }

    /// Answers a read from the origin, beside the cache.
    pub(crate) async fn pass_by(
        &self,
        origin: &Opened,
        mut request: ElsewhereRequest,
    ) -> Result<Response<Body>, ClientError> {
        add(&self.upstream.counts.passed_by, 1);
        request.body = ElsewhereBody::Held(bytes::Bytes::new());
        let answer = self.forward_once(origin, request).await?;
        let len =
            answer.headers().get(header::CONTENT_LENGTH).and_then(|len| len.to_str().ok()?.parse().ok());
        self.cache.passed_by(len.unwrap_or(0));
        let mut answer = answer_of(answer);
        answer.headers_mut().insert(CACHE_HEADER, HeaderValue::from_static("bypass"));
        Ok(answer)
    }
}

/// The answer to a read.
fn answer(
    asked: &Asked,
    head: &Head,
    range: &Range<u64>,
    body: Body,
    is_hit: Option<bool>,
) -> Response<Body> {
    let is_whole = *range == (0..head.size);
    let mut response = Response::new(body);
    *response.headers_mut() = head.headers(asked.wants_checksums && is_whole);
    let headers = response.headers_mut();
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(range.end - range.start));
    for (name, value) in &asked.instead {
        headers.insert(name, value.clone());
    }
    if let Some(is_hit) = is_hit {
        headers.insert(CACHE_HEADER, HeaderValue::from_static(if is_hit { "hit" } else { "miss" }));
    }
    if asked.range != ReadRange::Whole && !range.is_empty() {
        let text = format!("bytes {}-{}/{}", range.start, range.end - 1, head.size);
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(header::CONTENT_RANGE, value);
        }
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(query: &str, headers: &[(&'static str, &'static str)]) -> Option<Asked> {
        let headers = headers
            .iter()
            .map(|&(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value)));
        Asked::of(&ElsewhereRequest {
            bucket: "b".to_owned(),
            key: "k".to_owned(),
            method: Method::GET,
            query: query.to_owned(),
            headers: headers.collect(),
            body: ElsewhereBody::Held(bytes::Bytes::new()),
        })
    }

    #[test]
    fn what_memory_cannot_answer_passes_by() {
        assert!(asked("", &[]).is_some() && asked("x-id=GetObject", &[]).is_some());
        for query in ["versionId=1", "partNumber=2", "tagging"] {
            assert!(asked(query, &[]).is_none(), "{query}");
        }
        assert!(asked("", &[("x-amz-server-side-encryption-customer-key", "k")]).is_none());
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
    }

    #[test]
    fn etags_of_conditions_lose_their_quotes() {
        assert_eq!(etags("\"a\", W/\"b\",*"), ["a", "b", "*"]);
    }
}

//! Reads of objects: GET and HEAD.

use std::ops::Range;
use std::sync::Arc;

use http::{HeaderValue, Method, Response, StatusCode, header};
use hyper::body::Incoming;
use s3s::Body;
use striate_cache::ReadOutcome;
use striate_client::{ClientError, ReadRange};
use striate_s3::{RemoteRequest, object_body};

use crate::counts::add;
use crate::fences::FenceState;
use crate::finding::{FindResult, OriginObject};
use crate::forward::{answer_of, ask};
use crate::head::{Head, content_length};
use crate::origin_bucket::OriginBucket;
use crate::read_request::ReadRequest;
use crate::service::Shared;

/// Response header that names the source of the bytes.
const CACHE_HEADER: &str = "x-striate-cache";

impl Shared {
    /// Answers a GET or HEAD of an object.
    ///
    /// # Errors
    /// Those of conditions and ranges; [`ClientError::Origin`].
    pub(crate) async fn get(
        self: &Arc<Self>,
        origin: &Arc<OriginBucket>,
        request: RemoteRequest,
        fence_state: FenceState,
    ) -> Result<Response<Body>, ClientError> {
        let Some(read_request) = ReadRequest::of(&request) else {
            return self.pass_by(origin, request).await;
        };
        let origin_object = OriginObject::of(origin, &request);
        match self.find(&origin_object, &read_request, fence_state, None, None).await? {
            FindResult::Object { head, range, bytes, outcome } => {
                let body = match outcome {
                    Some(_) => object_body(bytes, range.end - range.start),
                    None => Body::empty(),
                };
                Ok(answer(&read_request, &head, &range, body, outcome))
            }
            FindResult::Answer(answer, true) if answer.status().is_success() => {
                Ok(self.passed_by(origin, &request.method, answer))
            }
            FindResult::Answer(answer, true) => Ok(answer_of(answer)),
            // GET sets no limit, so nothing is larger.
            FindResult::Answer(_, false) | FindResult::PassBy | FindResult::Larger(_) => {
                self.pass_by(origin, request).await
            }
        }
    }

    /// Answers a read from the origin, past the cache.
    pub(crate) async fn pass_by(
        &self,
        origin: &Arc<OriginBucket>,
        request: RemoteRequest,
    ) -> Result<Response<Body>, ClientError> {
        let answer = self.upstream.read(origin, ask(&request)).await?;
        Ok(self.passed_by(origin, &request.method, answer))
    }

    /// The origin's answer to a read past the cache, passed on.
    fn passed_by(
        &self,
        origin: &Arc<OriginBucket>,
        method: &Method,
        answer: Response<Incoming>,
    ) -> Response<Body> {
        add(&self.upstream.counts.passed_by, 1);
        let mut answer = if method == Method::GET && answer.status().is_success() {
            self.cache.passed_by(content_length(answer.headers()).unwrap_or(0));
            answer_of(answer.map(|body| self.upstream.counted(origin, body)))
        } else {
            answer_of(answer)
        };
        answer.headers_mut().insert(CACHE_HEADER, HeaderValue::from_static(ReadOutcome::Bypass.name()));
        answer
    }
}

/// Builds the response to a read.
fn answer(
    read_request: &ReadRequest,
    head: &Head,
    range: &Range<u64>,
    body: Body,
    outcome: Option<ReadOutcome>,
) -> Response<Body> {
    let is_whole = *range == (0..head.size);
    let mut response = Response::new(body);
    *response.headers_mut() = head.headers(read_request.wants_checksums && is_whole);
    let headers = response.headers_mut();
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(range.end - range.start));
    for (name, value) in &read_request.instead {
        headers.insert(name, value.clone());
    }
    if let Some(outcome) = outcome {
        headers.insert(CACHE_HEADER, HeaderValue::from_static(outcome.name()));
    }
    if read_request.range_of(head) != ReadRange::Whole && !range.is_empty() {
        let text = format!("bytes {}-{}/{}", range.start, range.end - 1, head.size);
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(header::CONTENT_RANGE, value);
        }
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    response
}

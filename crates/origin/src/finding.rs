//! Finding an object and its bytes: uses what is known while it holds, and otherwise asks the origin.
//!
//! GET, HEAD and the items of batches are all answered from here. For an unknown object, a read requests the bytes from
//! the origin at once; blocks that turn out to be in memory are read there.

use std::ops::Range;
use std::sync::Arc;

use futures::stream::{self, StreamExt};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use hyper::body::Incoming;
use striate_cache::ReadOutcome;
use striate_client::{ClientError, ObjectStream, check_read, resolve_range};
use striate_runtime::Instant;
use striate_s3::RemoteRequest;

use crate::counts::add;
use crate::fences::FenceState;
use crate::head::{Head, content_length};
use crate::known_objects::{CachedHead, LookupGuard, LookupTurn, ObjectName};
use crate::origin_bucket::OriginBucket;
use crate::read_request::ReadRequest;
use crate::reading::{Object, ReadError, ReadState, begins_at};
use crate::run::Run;
use crate::service::Shared;
use crate::upstream::OriginRequest;

/// Maximum number of attempts of a read whose object is replaced meanwhile.
const MAX_RESTARTS: usize = 4;

/// An object of a bucket that has an origin.
#[derive(Clone)]
pub(crate) struct OriginObject {
    pub(crate) origin: Arc<OriginBucket>,
    /// Name of the bucket in this store.
    pub(crate) bucket: Arc<str>,
    pub(crate) key: Arc<str>,
}

impl OriginObject {
    /// The object that a request is about.
    pub(crate) fn of(origin: &Arc<OriginBucket>, request: &RemoteRequest) -> Self {
        let (bucket, key) = (request.bucket.as_str().into(), request.key.as_str().into());
        Self { origin: origin.clone(), bucket, key }
    }
}

/// The head of an object whose bytes are yet to be read, and perhaps a response that carries bytes.
pub(crate) type BegunRead = (Arc<Head>, Option<Run>);

/// Result of finding an object.
pub(crate) enum FindResult {
    Object {
        head: Arc<Head>,
        /// The requested bytes.
        range: Range<u64>,
        bytes: ObjectStream,
        /// How the first bytes were served; `None` if only the head was requested.
        outcome: Option<ReadOutcome>,
    },
    /// More bytes than the caller takes at once.
    Larger(BegunRead),
    /// A response that cannot be cached: an error, or one without an ETag. The flag says whether it answers the GET or
    /// HEAD itself.
    Answer(Response<Incoming>, bool),
    /// The object is being written or cannot be cached: the caller must ask the origin, past the cache.
    PassBy,
}

/// What the origin has of an object.
enum OriginAnswer {
    /// The head, and perhaps a response that carries bytes.
    Object(Arc<Head>, Option<Run>),
    /// Nothing that can be cached.
    Other(FindResult),
}

/// Whether what is known of an object answers a request.
enum Knowledge {
    Holds(Arc<Head>),
    /// The request asks the origin. Others wait for it while it holds its turn, if it has one.
    Asks(Option<LookupGuard>),
}

impl Shared {
    /// Finds an object, continuing from `begun` if given. Reads nothing if more than `most` bytes are wanted.
    ///
    /// # Errors
    /// Those of conditions and ranges; [`ClientError::Origin`].
    pub(crate) async fn find(
        self: &Arc<Self>,
        origin_object: &OriginObject,
        read_request: &ReadRequest,
        mut fence_state: FenceState,
        mut begun: Option<BegunRead>,
        most: Option<u64>,
    ) -> Result<FindResult, ClientError> {
        let OriginObject { origin, bucket, key } = origin_object;
        let name = ObjectName::new(origin, key);
        for _ in 0..MAX_RESTARTS {
            if fence_state.is_written {
                return Ok(FindResult::PassBy);
            }
            let answer = match begun.take() {
                Some((head, run)) => OriginAnswer::Object(head, run),
                None => self.known_or_asked(origin, key, &name, fence_state.epoch, read_request).await?,
            };
            let (head, run) = match answer {
                OriginAnswer::Object(head, run) => (head, run),
                OriginAnswer::Other(result) => return Ok(result),
            };
            let info = head.info(key);
            check_read(&read_request.condition, &info)?;
            let range = resolve_range(read_request.range_of(&head), &info)?;
            if read_request.is_head {
                return Ok(FindResult::Object { head, range, bytes: stream::empty().boxed(), outcome: None });
            }
            if most.is_some_and(|most| range.end - range.start > most) {
                return Ok(FindResult::Larger((head, run)));
            }
            let object = Object::new(origin, key.clone(), &head);
            match ReadState::new(self.clone(), object, range.clone(), run).open().await {
                Ok((bytes, outcome)) => {
                    return Ok(FindResult::Object { head, range, bytes, outcome: Some(outcome) });
                }
                Err(ReadError::Failed(error)) => return Err(error),
                Err(ReadError::Changed) => {
                    add(&self.upstream.counts.changes, 1);
                    self.known_objects.forget(&name);
                    fence_state = self.fences.state_of(bucket, key).await?.1;
                }
            }
        }
        Err(ClientError::Busy)
    }

    /// Returns what is known of an object, or asks the origin.
    async fn known_or_asked(
        self: &Arc<Self>,
        origin: &Arc<OriginBucket>,
        key: &str,
        name: &ObjectName,
        epoch: u64,
        read_request: &ReadRequest,
    ) -> Result<OriginAnswer, ClientError> {
        let _asker = match self.known_or_turn(origin, name, epoch, read_request).await {
            Knowledge::Holds(head) => return Ok(OriginAnswer::Object(head, None)),
            Knowledge::Asks(asker) => asker,
        };
        let (stale, asked_at) = (self.known_objects.get(name), self.client.runtime().now());
        if self.known_objects.is_uncacheable(name, asked_at) {
            return Ok(OriginAnswer::Other(FindResult::PassBy));
        }
        // Blocks of an object that was known may be in memory.
        let is_new = stale.is_none() && !self.known_objects.was_evicted(name);
        let first = read_request.first_range(origin.block_len).filter(|_| is_new);
        let answer = self.ask_head(origin, key, first).await?;
        if let Some(stale) = &stale {
            add(&self.upstream.counts.revalidations, 1);
            add(&self.upstream.counts.fenced, u64::from(stale.epoch != epoch));
        }
        let Some(head) = Head::of(answer.status(), answer.headers()).map(Arc::new) else {
            self.known_objects.forget(name);
            if answer.status().is_success() {
                self.known_objects.note_uncacheable(name, asked_at);
            }
            return self.uncached_answer(origin, key, read_request, first.is_some(), answer).await;
        };
        if stale.is_some_and(|stale| stale.head.etag != head.etag) {
            add(&self.upstream.counts.changes, 1);
        }
        let run = match first {
            Some((from, _)) => self.first_run(origin, key, &head, from, answer).await,
            None => None,
        };
        self.note(name, &head, epoch, asked_at);
        Ok(OriginAnswer::Object(head, run))
    }

    /// Handles the response to a HEAD or GET that describes no object to cache: the range is out of bounds, no object
    /// exists, or its ETag is not strong.
    async fn uncached_answer(
        &self,
        origin: &OriginBucket,
        key: &str,
        read_request: &ReadRequest,
        is_get: bool,
        answer: Response<Incoming>,
    ) -> Result<OriginAnswer, ClientError> {
        let status = answer.status();
        if is_get && status == StatusCode::RANGE_NOT_SATISFIABLE {
            return self.head_answer(origin, key).await;
        }
        let is_final = match is_get {
            true => !status.is_success() || read_request.is_plain(),
            false => read_request.is_head,
        };
        Ok(OriginAnswer::Other(FindResult::Answer(answer, is_final)))
    }

    /// Returns what is known of an object while it holds, or the turn to ask. Waits at most once for another request
    /// that asks already.
    async fn known_or_turn(
        &self,
        origin: &OriginBucket,
        name: &ObjectName,
        epoch: u64,
        read_request: &ReadRequest,
    ) -> Knowledge {
        let runtime = self.client.runtime();
        let mut has_waited = false;
        loop {
            let now = runtime.now();
            let holds = |cached_head: &CachedHead| {
                cached_head.epoch == epoch
                    && now.saturating_duration_since(cached_head.asked_at) < origin.ttl
                    && !(cached_head.head.is_of_part && read_request.answers_checksums())
            };
            if let Some(cached_head) = self.known_objects.get(name).filter(holds) {
                return Knowledge::Holds(cached_head.head);
            }
            // With a ttl of zero, every request asks the origin.
            if origin.ttl.is_zero() {
                return Knowledge::Asks(None);
            }
            match self.known_objects.turn(name, epoch) {
                LookupTurn::Ask(asker) => return Knowledge::Asks(Some(asker)),
                LookupTurn::Wait(_) if has_waited => return Knowledge::Asks(None),
                LookupTurn::Wait(mut done) => {
                    has_waited = true;
                    // The sender never sends. This returns when it is dropped.
                    let _ = done.changed().await;
                }
            }
        }
    }

    fn note(&self, name: &ObjectName, head: &Arc<Head>, epoch: u64, asked_at: Instant) {
        self.known_objects.follow_tier(self.cache.capacity_bytes());
        self.known_objects.insert(name.clone(), CachedHead { head: head.clone(), epoch, asked_at });
    }

    /// Requests an object's head, or its bytes from the start of a block on.
    pub(crate) async fn ask_head(
        &self,
        origin: &OriginBucket,
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
        self.upstream.read(origin, OriginRequest { method, key, query: "", headers }).await
    }

    /// Requests an object's head alone, to report that a range is out of bounds.
    async fn head_answer(&self, origin: &OriginBucket, key: &str) -> Result<OriginAnswer, ClientError> {
        let answer = self.ask_head(origin, key, None).await?;
        Ok(match Head::of(answer.status(), answer.headers()) {
            Some(head) => OriginAnswer::Object(Arc::new(head), None),
            None => OriginAnswer::Other(FindResult::Answer(answer, false)),
        })
    }

    /// The bytes that came with the first response, unless they are in memory or already being fetched.
    async fn first_run(
        self: &Arc<Self>,
        origin: &Arc<OriginBucket>,
        key: &str,
        head: &Arc<Head>,
        from: u64,
        answer: Response<Incoming>,
    ) -> Option<Run> {
        let from = if answer.status() == StatusCode::OK { 0 } else { from };
        if answer.status() == StatusCode::PARTIAL_CONTENT && !begins_at(answer.headers(), from) {
            return None;
        }
        let sent = content_length(answer.headers())?;
        let object = Object::new(origin, key.into(), head);
        Run::new(answer.into_body(), from..from + sent).settle(self, &object).await
    }
}

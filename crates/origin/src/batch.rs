//! Many objects in one request: reads of them, and queries which exist.
//!
//! Each item is found as a GET finds it, after a check of its fence, and fails on its own. Fences are read in windows,
//! just before their items. A few concurrent tasks read small items to their end. Of a larger item they find only the
//! head, and perhaps open a request to the origin; its bytes are read when its turn comes, as the receiver takes them.
//!
//! So requests cannot wait for each other's memory in a circle: what is read ahead is small and holds no share of the
//! budget once it has arrived, and a larger item holds one only for the bytes that it hands out next.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt, TryStreamExt};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use http_body::Body;
use http_body_util::BodyExt;
use striate_client::{
    ClientError, GetRequest, ObjectHead, ObjectPart, ObjectStream, PartStream, ReadOrder, ReadRange,
    check_key, check_read, resolve_range,
};
use tokio::task::AbortHandle;

use crate::counts::add;
use crate::fences::FenceState;
use crate::finding::{BegunRead, FindResult, OriginObject};
use crate::head::{Head, content_length};
use crate::read_request::ReadRequest;
use crate::service::Shared;
use crate::upstream::{OriginRequest, explanation, failed};

/// Number of items whose fences are read together.
const LOOKED_AT_ONCE: usize = 128;
/// Number of items that are found concurrently.
const FOUND_AT_ONCE: usize = 16;
/// Maximum size in bytes of an item that is read as soon as it is found.
const SMALL: u64 = 128 << 10;
/// Maximum number of larger items read concurrently where order does not matter; the budget may allow fewer.
const LARGE_AT_ONCE: u64 = 4;

/// An item with its position and the state of its object's fence.
pub(crate) struct Item<T> {
    position: usize,
    pub(crate) input: T,
    pub(crate) lookup: Result<(OriginObject, FenceState), ClientError>,
}

/// An item whose bytes are read when its turn comes.
enum DeferredItem {
    Found {
        origin_object: OriginObject,
        read_request: ReadRequest,
        fence_state: FenceState,
        begun: BegunRead,
    },
    Open(OpenItem),
}

/// The head of an item, and its bytes as they arrive.
type OpenItem = (ObjectHead, ObjectStream);

/// Result of finding an item.
enum Step {
    /// The whole item, or its error.
    Done(Result<ObjectPart, ClientError>),
    Later(Box<DeferredItem>),
}

/// A task that is aborted when its waiter is dropped.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Shared {
    /// Reads many objects or ranges of a bucket, each as a GET does. See [`striate_client::Client::read_many`].
    pub(crate) fn read_many(
        self: Arc<Self>,
        bucket: &str,
        requests: Vec<GetRequest>,
        order: ReadOrder,
    ) -> PartStream {
        let at_once = self.large_at_once(bucket);
        let items = self.clone().look_up_items(bucket, requests, |request| &request.key);
        let shared = self.clone();
        let steps = items.map(move |item| {
            let shared = shared.clone();
            async move {
                let step = shared.clone().in_task(shared.step(item.input, item.lookup)).await;
                (item.position, step.unwrap_or_else(|error| Step::Done(Err(error))))
            }
        });
        let parts = move |(position, step)| match step {
            Step::Done(part) => stream::iter([part]).map(move |part| (position, part)).boxed(),
            Step::Later(later) => self.clone().take_later(*later).map(move |part| (position, part)).boxed(),
        };
        match order {
            ReadOrder::Requests => steps.buffered(FOUND_AT_ONCE).flat_map(parts).boxed(),
            ReadOrder::Completion => {
                steps.buffer_unordered(FOUND_AT_ONCE).flat_map_unordered(at_once, parts).boxed()
            }
        }
    }

    /// Returns the size of each key's object, `None` for a key without a readable object. With `until_gap`, the result
    /// ends before the first `None`.
    ///
    /// # Errors
    /// [`ClientError::NoSuchBucket`]; [`ClientError::Origin`].
    pub(crate) async fn sizes_of(
        self: Arc<Self>,
        bucket: &str,
        keys: Vec<String>,
        until_gap: bool,
    ) -> Result<Vec<Option<u64>>, ClientError> {
        let items = self.clone().look_up_items(bucket, keys, |key| key);
        let sizes = items.map(|item| {
            let shared = self.clone();
            async move {
                match item.lookup {
                    Ok((origin_object, fence_state)) => shared.size_of(&origin_object, fence_state).await,
                    Err(ClientError::KeyTooLong(_) | ClientError::InvalidArgument(_)) => Ok(None),
                    Err(error) => Err(error),
                }
            }
        });
        let sizes = sizes.buffered(FOUND_AT_ONCE);
        sizes.try_take_while(|size| std::future::ready(Ok(size.is_some() || !until_gap))).try_collect().await
    }

    /// Returns the size of an object, `None` if no readable object exists.
    pub(crate) async fn size_of(
        self: &Arc<Self>,
        origin_object: &OriginObject,
        fence_state: FenceState,
    ) -> Result<Option<u64>, ClientError> {
        let OriginObject { origin, key, .. } = origin_object;
        let answer = match self.find(origin_object, &ReadRequest::head(), fence_state, None, None).await? {
            FindResult::Object { head, .. } | FindResult::Larger((head, _)) => return Ok(Some(head.size)),
            FindResult::Answer(answer, _) => answer,
            FindResult::PassBy => {
                add(&self.upstream.counts.passed_by, 1);
                self.ask_head(origin, key, None).await?
            }
        };
        let status = answer.status();
        match content_length(answer.headers()) {
            Some(size) if status.is_success() => Ok(Some(size)),
            _ if matches!(status, StatusCode::NOT_FOUND | StatusCode::FORBIDDEN) => Ok(None),
            _ => Err(failed(origin, explanation(answer).await)),
        }
    }

    /// Looks up the bucket and the fences of items, in windows, before anything of an item is used.
    pub(crate) fn look_up_items<T: Send + 'static>(
        self: Arc<Self>,
        bucket: &str,
        items: Vec<T>,
        key_of: fn(&T) -> &String,
    ) -> impl Stream<Item = Item<T>> + Send + 'static {
        let (bucket, mut items) = (Arc::<str>::from(bucket), items.into_iter().enumerate());
        let windows = std::iter::from_fn(move || {
            let window: Vec<_> = items.by_ref().take(LOOKED_AT_ONCE).collect();
            (!window.is_empty()).then_some(window)
        });
        let lookups = stream::iter(windows).then(move |window| {
            let (shared, bucket) = (self.clone(), bucket.clone());
            async move { stream::iter(shared.look_up_window(&bucket, window, key_of).await) }
        });
        lookups.flatten()
    }

    async fn look_up_window<T: Send>(
        &self,
        bucket: &Arc<str>,
        window: Vec<(usize, T)>,
        key_of: fn(&T) -> &String,
    ) -> Vec<Item<T>> {
        let keys: Vec<Arc<str>> = window.iter().map(|(_, input)| key_of(input).as_str().into()).collect();
        let lookup = self.fences.states_of(bucket, keys.iter().map(|key| &**key)).await;
        let lookup = lookup.and_then(|(origin, fence_states)| {
            let origin = self.buckets.note(bucket, origin.as_ref())?;
            // The bucket was recreated, here. The next request finds it there.
            Ok((origin.ok_or(ClientError::Busy)?, fence_states))
        });
        let item = |(number, ((position, input), key)): (usize, ((usize, T), Arc<str>))| {
            let lookup = check_key(&key).and_then(|()| {
                let (origin, fence_states) = lookup.as_ref().map_err(ClientError::clone)?;
                let origin_object = OriginObject { origin: origin.clone(), bucket: bucket.clone(), key };
                Ok((origin_object, fence_states[number]))
            });
            Item { position, input, lookup }
        };
        window.into_iter().zip(keys).enumerate().map(item).collect()
    }

    /// Finds an item, and reads it if it is small.
    async fn step(
        self: Arc<Self>,
        request: GetRequest,
        lookup: Result<(OriginObject, FenceState), ClientError>,
    ) -> Step {
        match self.find_item(request, lookup).await {
            Ok(DeferredItem::Open((head, bytes))) if head.range.end - head.range.start <= SMALL => {
                let (head, pieces) = (Some(Box::new(head)), bytes.try_collect().await);
                Step::Done(pieces.map(|pieces| ObjectPart { head, pieces, is_last: true }))
            }
            Ok(later) => Step::Later(Box::new(later)),
            Err(error) => Step::Done(Err(error)),
        }
    }

    async fn find_item(
        self: &Arc<Self>,
        request: GetRequest,
        lookup: Result<(OriginObject, FenceState), ClientError>,
    ) -> Result<DeferredItem, ClientError> {
        let (origin_object, fence_state) = lookup?;
        let read_request = ReadRequest::of_item(request.range, request.condition);
        Ok(match self.find(&origin_object, &read_request, fence_state, None, Some(SMALL)).await? {
            FindResult::Larger(begun) => {
                DeferredItem::Found { origin_object, read_request, fence_state, begun }
            }
            found => DeferredItem::Open(self.opened(&origin_object, &read_request, found).await?),
        })
    }

    /// Opens the bytes of an object that was found, wherever they come from.
    async fn opened(
        self: &Arc<Self>,
        origin_object: &OriginObject,
        read_request: &ReadRequest,
        found: FindResult,
    ) -> Result<OpenItem, ClientError> {
        match found {
            FindResult::Object { head, range, bytes, .. } => {
                Ok((ObjectHead { info: head.described(&origin_object.key), range }, bytes))
            }
            FindResult::Answer(answer, _) if !answer.status().is_success() => {
                Err(refused(origin_object, answer).await)
            }
            FindResult::Answer(..) | FindResult::PassBy | FindResult::Larger(_) => {
                self.open_past(origin_object, read_request).await
            }
        }
    }

    /// Requests an item from the origin, past the cache.
    async fn open_past(
        &self,
        origin_object: &OriginObject,
        read_request: &ReadRequest,
    ) -> Result<OpenItem, ClientError> {
        let OriginObject { origin, key, .. } = origin_object;
        add(&self.upstream.counts.passed_by, 1);
        let mut headers = HeaderMap::new();
        let range = match read_request.range {
            ReadRange::Bytes { first, last } => {
                let last = last.map(|last| last.to_string()).unwrap_or_default();
                Some(format!("bytes={first}-{last}"))
            }
            ReadRange::Suffix { len } => Some(format!("bytes=-{len}")),
            ReadRange::Whole | ReadRange::Part(_) => None,
        };
        if let Some(Ok(range)) = range.map(HeaderValue::try_from) {
            headers.insert(header::RANGE, range);
        }
        let answer = self
            .upstream
            .read(origin, OriginRequest { method: Method::GET, key, query: "", headers })
            .await?;
        let Some(head) = Head::of(answer.status(), answer.headers()) else {
            return Err(refused(origin_object, answer).await);
        };
        let info = head.described(key);
        check_read(&read_request.condition, &info)?;
        let range = resolve_range(read_request.range, &info)?;
        if answer.status() == StatusCode::OK && range != (0..head.size) {
            return Err(failed(origin, "it does not answer ranges".to_owned()));
        }
        self.cache.passed_by(range.end - range.start);
        let bytes = self.upstream.counted(origin, answer.into_body()).into_data_stream();
        Ok((ObjectHead { info, range }, bytes.boxed()))
    }

    /// Hands out the parts of an item whose turn has come.
    fn take_later(
        self: Arc<Self>,
        later: DeferredItem,
    ) -> impl Stream<Item = Result<ObjectPart, ClientError>> + Send + 'static {
        let opening = async move {
            match later {
                DeferredItem::Open(item) => Ok(item),
                DeferredItem::Found { origin_object, read_request, fence_state, begun } => {
                    let found =
                        self.find(&origin_object, &read_request, fence_state, Some(begun), None).await?;
                    self.opened(&origin_object, &read_request, found).await
                }
            }
        };
        stream::once(opening).flat_map(|opened| match opened {
            Ok((head, bytes)) => parts(head, bytes).boxed(),
            Err(error) => stream::iter([Err(error)]).boxed(),
        })
    }

    /// Runs work in a task of its own, so that it continues while the receiver pauses, and is aborted when its waiter
    /// is dropped.
    pub(crate) async fn in_task<T: Send + 'static>(
        self: Arc<Self>,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, ClientError> {
        let task = self.client.runtime().spawn(work);
        let _awaited = AbortOnDrop(task.abort_handle());
        task.await.map_err(|_| ClientError::Busy)
    }

    /// Number of larger items read concurrently. Together they hold a quarter of the budget for the bytes that they
    /// hand out next.
    fn large_at_once(&self, bucket: &str) -> usize {
        let block_len = self.buckets.get(bucket).map_or(1, |origin| origin.block_len.max(1));
        let budget = self.client.stripes().budget().total() as u64;
        (budget / 4 / block_len).clamp(1, LARGE_AT_ONCE) as usize
    }
}

/// The bytes of an object as they arrive; the first part carries the head.
fn parts(
    head: ObjectHead,
    bytes: ObjectStream,
) -> impl Stream<Item = Result<ObjectPart, ClientError>> + Send {
    let left = head.range.end - head.range.start;
    stream::unfold(Some((Some(Box::new(head)), bytes, left)), |state| async move {
        let (head, mut bytes, left) = state?;
        let piece = match bytes.next().await {
            Some(Ok(piece)) => piece,
            Some(Err(error)) => return Some((Err(error), None)),
            None => Bytes::new(),
        };
        let Some(left) = left.checked_sub(piece.len() as u64).filter(|left| *left == 0 || !piece.is_empty())
        else {
            let reason = "an object does not have the length that its origin announced".to_owned();
            return Some((Err(ClientError::Inconsistent { what: "an answer".to_owned(), reason }), None));
        };
        let part = ObjectPart { head, pieces: vec![piece], is_last: left == 0 };
        Some((Ok(part), (left > 0).then_some((None, bytes, left))))
    })
}

/// The error of an item that the origin refused.
pub(crate) async fn refused<B>(origin_object: &OriginObject, answer: Response<B>) -> ClientError
where
    B: Body<Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
{
    let OriginObject { origin, key, .. } = origin_object;
    let (status, headers) = (answer.status(), answer.headers());
    let size = headers.get(header::CONTENT_RANGE).and_then(|range| range.to_str().ok()?.rsplit_once('/'));
    let size = size.and_then(|(_, size)| size.parse().ok()).unwrap_or(0);
    match status {
        StatusCode::PRECONDITION_FAILED => return ClientError::PreconditionFailed("If-Match"),
        StatusCode::RANGE_NOT_SATISFIABLE => return ClientError::InvalidRange { size },
        _ => {}
    }
    let reason = explanation(answer).await;
    match status {
        StatusCode::NOT_FOUND if !reason.contains("NoSuchBucket") => ClientError::NoSuchKey(key.to_string()),
        StatusCode::FORBIDDEN => ClientError::OriginDenied { endpoint: origin.endpoint.clone(), reason },
        _ => failed(origin, reason),
    }
}

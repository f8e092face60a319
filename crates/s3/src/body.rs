//! Request bodies, verified and paced while they stream, and response bodies, counted while they stream.
//!
//! A request body ends with an error if its hash, a chunk's signature or its length is wrong, so a consumer must commit
//! only after the end. A sender that is too slow ([`crate::peers`]) times out.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use http::{HeaderMap, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;
use s3s::StdError;
use s3s::stream::{ByteStream, RemainingLength};
use sha2::{Digest, Sha256};
use striate_runtime::Runtime;
use subtle::ConstantTimeEq;

use crate::auth::{ChunkDecoder, ChunkError, Payload};
use crate::documents::Hold;
use crate::peers::{InFlight, Peer, PeerWait};
use crate::refusal::Refusal;
use crate::trace::Trace;

/// The trailers of a chunked body, set once it has ended.
pub(crate) type Trailers = Arc<Mutex<Option<HeaderMap>>>;

/// Maximum number of unread bytes of a body that are discarded so that its connection can be reused.
const READ_OUT_BYTES: u64 = 1 << 20;
/// Maximum time that the response waits for them.
const READ_OUT_FOR: Duration = Duration::from_secs(2);

/// The unread rest of a request body when its response is ready.
///
/// A connection can serve another request only if this one's body was read to its end. Whether it was must be known
/// before the head of the response is sent, because the head has to say so.
#[derive(Clone, Default)]
pub(crate) struct BodyRest(Arc<Mutex<RestState>>);

#[derive(Default)]
enum RestState {
    /// The body is still being read.
    #[default]
    Unknown,
    Nothing,
    /// The unread part, for [`BodyRest::read_out`].
    Some(Incoming),
    /// The rest will not arrive, or not soon: its sender stalls, or waits for `100 Continue`.
    Lost,
}

impl BodyRest {
    /// Discards the rest if it is short. Returns whether the whole body was read.
    pub async fn read_out(&self, runtime: &Runtime) -> bool {
        let mut incoming = match std::mem::take(&mut *self.0.lock()) {
            RestState::Nothing => return true,
            RestState::Unknown | RestState::Lost => return false,
            RestState::Some(incoming) => incoming,
        };
        if Body::size_hint(&incoming).exact().is_some_and(|left| left > READ_OUT_BYTES) {
            return false;
        }
        let read = async move {
            let mut read = 0;
            while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut incoming).poll_frame(cx)).await {
                let Ok(frame) = frame else { return false };
                read += frame.data_ref().map_or(0, Bytes::len) as u64;
                if read > READ_OUT_BYTES {
                    return false;
                }
            }
            true
        };
        runtime.timeout(READ_OUT_FOR, read).await.unwrap_or(false)
    }
}

/// A body as it arrives. If dropped before its end, it leaves the unread part to its [`BodyRest`].
pub(crate) struct ArrivingBody {
    incoming: Option<Incoming>,
    rest: BodyRest,
    /// Whether the sender waits for `100 Continue`, which the first poll would send.
    held_back: bool,
    /// Whether the sender was too slow.
    stalled: bool,
}

impl ArrivingBody {
    pub fn new(incoming: Incoming, headers: &HeaderMap) -> Self {
        let held_back = headers.contains_key(http::header::EXPECT);
        Self { incoming: Some(incoming), rest: BodyRest::default(), held_back, stalled: false }
    }

    pub fn rest(&self) -> BodyRest {
        self.rest.clone()
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.held_back = false;
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(incoming).poll_frame(cx));
        match &frame {
            Some(Ok(_)) => return Poll::Ready(frame),
            Some(Err(_)) => *self.rest.0.lock() = RestState::Lost,
            None => *self.rest.0.lock() = RestState::Nothing,
        }
        self.incoming = None;
        Poll::Ready(frame)
    }
}

impl Drop for ArrivingBody {
    fn drop(&mut self) {
        let Some(incoming) = self.incoming.take() else { return };
        *self.rest.0.lock() = if incoming.is_end_stream() {
            RestState::Nothing
        } else if self.held_back || self.stalled {
            RestState::Lost
        } else {
            RestState::Some(incoming)
        };
    }
}

/// A request's body, verified as it streams.
pub(crate) struct RequestBody {
    incoming: ArrivingBody,
    proof: PayloadCheck,
    peer: Arc<Peer>,
    trace: Arc<Trace>,
    trailers: Trailers,
    ended: bool,
}

enum PayloadCheck {
    None,
    Sha256 { hasher: Sha256, expected: [u8; 32] },
    Chunked { decoder: Box<ChunkDecoder>, undecoded: Bytes },
}

/// Error of a refused body; [`Trace::body_refusal`] has the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BodyError(pub String);

impl RequestBody {
    /// Creates a body. `decoded_len` and `announced_trailers` apply to chunked bodies.
    pub fn new(
        incoming: ArrivingBody,
        payload: Payload,
        decoded_len: u64,
        announced_trailers: Vec<String>,
        peer: Arc<Peer>,
        trace: Arc<Trace>,
    ) -> Self {
        let proof = match payload {
            Payload::Unsigned => PayloadCheck::None,
            Payload::Sha256(expected) => PayloadCheck::Sha256 { hasher: Sha256::new(), expected },
            Payload::Chunked { signer, .. } => PayloadCheck::Chunked {
                decoder: Box::new(ChunkDecoder::new(signer, decoded_len, announced_trailers)),
                undecoded: Bytes::new(),
            },
        };
        Self { incoming, proof, peer, trace, trailers: Trailers::default(), ended: false }
    }

    pub fn trailers(&self) -> Trailers {
        Arc::clone(&self.trailers)
    }

    /// Returns the next data, verified as far as possible; `None` at the end.
    ///
    /// # Errors
    /// The reason for which the body was refused.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        match std::future::poll_fn(|cx| self.poll_data(cx)).await {
            None => Ok(None),
            Some(Ok(data)) => Ok(Some(data)),
            Some(Err(error)) => {
                let refusal = self.trace.body_refusal();
                Err(refusal.unwrap_or_else(|| Refusal::bad("IncompleteBody", error.0)))
            }
        }
    }

    fn refuse(&mut self, refusal: Refusal) -> Poll<Option<Result<Bytes, BodyError>>> {
        self.ended = true;
        let error = BodyError(refusal.message.clone());
        self.trace.set_body_refusal(refusal);
        Poll::Ready(Some(Err(error)))
    }

    /// Polls for the next data, verified as far as possible.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        loop {
            if self.ended {
                return Poll::Ready(None);
            }
            if let PayloadCheck::Chunked { decoder, undecoded } = &mut self.proof {
                match decoder.decode(undecoded) {
                    Ok(Some(data)) => return Poll::Ready(Some(Ok(data))),
                    Ok(None) => {}
                    Err(error) => return self.refuse(chunk_refusal(&error)),
                }
            }
            let arrived = match ready!(self.poll_incoming(cx)) {
                None => return self.end(),
                Some(Err(refusal)) => return self.refuse(refusal),
                Some(Ok(arrived)) => arrived,
            };
            match &mut self.proof {
                PayloadCheck::Chunked { undecoded, .. } => *undecoded = arrived,
                PayloadCheck::Sha256 { hasher, .. } => {
                    hasher.update(&arrived);
                    return Poll::Ready(Some(Ok(arrived)));
                }
                PayloadCheck::None => return Poll::Ready(Some(Ok(arrived))),
            }
        }
    }

    fn poll_incoming(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Refusal>>> {
        loop {
            let Poll::Ready(frame) = self.incoming.poll_frame(cx) else {
                if !self.peer.await_body(cx) {
                    return Poll::Pending;
                }
                self.incoming.stalled = true;
                return Poll::Ready(Some(Err(Refusal::bad(
                    "RequestTimeout",
                    "Your socket connection to the server was not read from or written to within the timeout period.",
                ))));
            };
            match frame {
                None => return Poll::Ready(None),
                Some(Err(error)) => {
                    let message = format!("The request body broke off: {error}");
                    return Poll::Ready(Some(Err(Refusal::bad("IncompleteBody", message))));
                }
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    self.peer.sent(data.len());
                    self.trace.bytes_in.fetch_add(data.len() as u64, Ordering::Relaxed);
                    if !data.is_empty() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
            }
        }
    }

    fn end(&mut self) -> Poll<Option<Result<Bytes, BodyError>>> {
        self.ended = true;
        match &mut self.proof {
            PayloadCheck::None => {}
            PayloadCheck::Sha256 { hasher, expected } => {
                let hash: [u8; 32] = hasher.finalize_reset().into();
                if !bool::from(hash.ct_eq(expected)) {
                    let refusal = Refusal::bad(
                        "XAmzContentSHA256Mismatch",
                        "The provided 'x-amz-content-sha256' header does not match what was computed.",
                    );
                    let refusal = refusal.with("ClientComputedContentSHA256", hex::encode(*expected));
                    return self.refuse(refusal.with("S3ComputedContentSHA256", hex::encode(hash)));
                }
            }
            PayloadCheck::Chunked { decoder, .. } => match decoder.finish() {
                Ok(trailers) => *self.trailers.lock() = Some(trailers),
                Err(error) => return self.refuse(chunk_refusal(&error)),
            },
        }
        Poll::Ready(None)
    }
}

fn chunk_refusal(error: &ChunkError) -> Refusal {
    match error {
        ChunkError::Signature => Refusal::denied("SignatureDoesNotMatch", error.to_string()),
        ChunkError::MissingTrailer(_) | ChunkError::Trailer(_) => {
            Refusal::bad("MalformedTrailerError", error.to_string())
        }
        // S3 has one code for whatever is wrong with the frames.
        ChunkError::Framing(_) | ChunkError::Length { .. } | ChunkError::Truncated => {
            Refusal::bad("IncompleteBody", error.to_string())
        }
    }
}

impl Drop for RequestBody {
    /// Stops the measurement of the sender's pace: the body is read no further.
    fn drop(&mut self) {
        self.peer.stop_waiting(PeerWait::ForBody);
    }
}

impl Stream for RequestBody {
    type Item = Result<Bytes, StdError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_data(cx).map(|data| data.map(|data| data.map_err(StdError::from)))
    }
}

impl ByteStream for RequestBody {
    fn remaining_length(&self) -> RemainingLength {
        RemainingLength::unknown()
    }
}

/// Collects a small body. `reserve` is called with the number of bytes so far as they arrive, to reserve memory.
///
/// # Errors
/// The body's own refusal, MaxMessageLengthExceeded, or that of `reserve`.
pub(crate) async fn collect(
    mut body: RequestBody,
    limit: usize,
    mut reserve: impl FnMut(usize) -> Result<(), Refusal>,
) -> Result<Bytes, Refusal> {
    let mut first = Bytes::new();
    let mut all = Vec::new();
    while let Some(data) = body.next().await? {
        reserve(first.len() + all.len() + data.len())?;
        if first.len() + all.len() + data.len() > limit {
            let status = StatusCode::BAD_REQUEST;
            let message = format!("The request body is larger than the {limit} bytes allowed here.");
            return Err(Refusal::new(status, "MaxMessageLengthExceeded", message));
        }
        match first.is_empty() && all.is_empty() {
            true => first = data,
            false => {
                all.extend_from_slice(&std::mem::take(&mut first));
                all.extend_from_slice(&data);
            }
        }
    }
    Ok(if all.is_empty() { first } else { all.into() })
}

/// A response's body. Notifies the trace when it ends or is dropped.
pub(crate) struct AnswerBody {
    inner: s3s::Body,
    sent: u64,
    trace: Option<Arc<Trace>>,
    peer: Arc<Peer>,
    _held: RequestPermits,
}

/// What a request holds until its response has ended: memory for its document or for a form's fields, and its place
/// among its key's requests.
pub(crate) type RequestPermits = (Option<Hold>, Option<InFlight>);

impl AnswerBody {
    pub fn new(inner: s3s::Body, trace: Arc<Trace>, peer: Arc<Peer>, held: RequestPermits) -> Self {
        Self { inner, sent: 0, trace: Some(trace), peer, _held: held }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => self.sent += frame.data_ref().map_or(0, Bytes::len) as u64,
            Some(Err(error)) => {
                tracing::warn!(%error, "an answer broke off");
                if let Some(trace) = self.trace.take() {
                    trace.set_error("InternalError");
                    trace.ended(self.sent, false);
                }
            }
            None => {
                if let Some(trace) = self.trace.take() {
                    trace.ended(self.sent, true);
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        Body::size_hint(&self.inner)
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        if let Some(trace) = self.trace.take() {
            // The server does not poll again once it has as many bytes as the head announced.
            let complete = self.inner.is_end_stream() || Body::size_hint(&self.inner).exact() == Some(0);
            trace.ended(self.sent, complete);
        }
        self.peer.end_request();
    }
}

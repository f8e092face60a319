//! A small S3 store that counts requests and injects faults.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream;
use http::{HeaderName, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use striate_runtime::Runtime;
use tokio::net::TcpListener;

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// Bytes per frame of a response.
const FRAME: usize = 64 << 10;

/// The store. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    pub endpoint: String,
    state: Arc<State>,
}

struct State {
    runtime: Runtime,
    objects: Mutex<HashMap<String, Bytes>>,
    faults: Mutex<Faults>,
    gets: AtomicU64,
    heads: AtomicU64,
    sent: AtomicU64,
    /// Requests in progress, and the maximum so far.
    open: AtomicU64,
    most_open: AtomicU64,
}

/// Faults to inject.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    /// Delay before each frame of a response.
    pub pause: Duration,
    /// Break off the next response after this many bytes.
    pub break_after: Option<usize>,
    /// Break off every response after this many bytes.
    pub break_every: Option<usize>,
    /// Number of requests to answer with 503.
    pub unavailable: u32,
    /// Delay before a write happens.
    pub slow_write: Duration,
    /// Break the connection after this many bytes of a write.
    pub cut_write: Option<usize>,
    /// ETag in responses to writes, instead of the object's; empty for none.
    pub etag_of_writes: Option<&'static str>,
    /// ETag in responses to reads, instead of the object's.
    pub etag_of_reads: Option<&'static str>,
    /// Delay before any response.
    pub slow: Duration,
    /// Size in bytes of an extra header in every response to a read.
    pub header_len: usize,
    /// Answer requests for keys with this prefix with 403.
    pub denied: Option<&'static str>,
}

impl Store {
    pub async fn start(runtime: &Runtime) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let state = State {
            runtime: runtime.clone(),
            objects: Mutex::default(),
            faults: Mutex::default(),
            gets: AtomicU64::new(0),
            heads: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            open: AtomicU64::new(0),
            most_open: AtomicU64::new(0),
        };
        let this = Self { endpoint, state: Arc::new(state) };
        runtime.spawn(this.clone().serve(listener));
        this
    }

    async fn serve(self, listener: TcpListener) {
        while let Ok((stream, _)) = listener.accept().await {
            let this = self.clone();
            let service = service_fn(move |request| {
                let this = this.clone();
                async move { this.answer(request).await }
            });
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            self.state.runtime.spawn(async move { drop(connection.await) });
        }
    }

    pub fn put(&self, key: &str, bytes: impl Into<Bytes>) {
        self.state.objects.lock().insert(key.to_owned(), bytes.into());
    }

    pub fn get(&self, key: &str) -> Option<Bytes> {
        self.state.objects.lock().get(key).cloned()
    }

    pub fn set_faults(&self, faults: Faults) {
        *self.state.faults.lock() = faults;
    }

    /// Numbers of GETs and HEADs so far.
    pub fn asked(&self) -> (u64, u64) {
        (self.state.gets.load(Ordering::Relaxed), self.state.heads.load(Ordering::Relaxed))
    }

    /// Bytes of objects sent so far.
    pub fn sent(&self) -> u64 {
        self.state.sent.load(Ordering::Relaxed)
    }

    /// Maximum number of concurrent requests so far.
    pub fn most_open(&self) -> u64 {
        self.state.most_open.load(Ordering::Relaxed)
    }

    /// An error breaks the connection.
    async fn answer(&self, request: Request<Incoming>) -> std::io::Result<Response<Body>> {
        let open = self.state.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.state.most_open.fetch_max(open, Ordering::Relaxed);
        let slow = self.state.faults.lock().slow;
        self.state.runtime.sleep(slow).await;
        let answer = self.answer_now(request).await;
        self.state.open.fetch_sub(1, Ordering::Relaxed);
        answer
    }

    async fn answer_now(&self, request: Request<Incoming>) -> std::io::Result<Response<Body>> {
        let key = request.uri().path().trim_start_matches("/theirs").trim_start_matches('/').to_owned();
        {
            let mut faults = self.state.faults.lock();
            if faults.unavailable > 0 {
                faults.unavailable -= 1;
                return Ok(status(StatusCode::SERVICE_UNAVAILABLE));
            }
            if faults.denied.is_some_and(|prefix| key.starts_with(prefix)) {
                return Ok(status(StatusCode::FORBIDDEN));
            }
        }
        Ok(match *request.method() {
            Method::PUT => self.write(request, key).await?,
            Method::DELETE => {
                self.state.objects.lock().remove(&key);
                status(StatusCode::NO_CONTENT)
            }
            // A listing.
            Method::GET if key.is_empty() => status(StatusCode::OK),
            _ => self.read(&request, &key),
        })
    }

    async fn write(&self, request: Request<Incoming>, key: String) -> std::io::Result<Response<Body>> {
        let faults = *self.state.faults.lock();
        let only_creates = request.headers().contains_key(header::IF_NONE_MATCH);
        let copied = request.headers().contains_key("x-amz-copy-source");
        let (mut body, mut bytes) = (request.into_body(), BytesMut::new());
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return Ok(status(StatusCode::BAD_REQUEST)) };
            bytes.extend_from_slice(&frame.into_data().unwrap_or_default());
            if faults.cut_write.is_some_and(|most| bytes.len() >= most) {
                return Err(std::io::Error::other("cut"));
            }
        }
        self.state.runtime.sleep(faults.slow_write).await;
        let body = if copied { Bytes::from_static(b"a copy") } else { bytes.freeze() };
        let mut answer = status(StatusCode::OK);
        let etag = faults.etag_of_writes.map_or_else(|| etag_of(&body), str::to_owned);
        if !etag.is_empty() {
            answer.headers_mut().insert(header::ETAG, etag.parse().unwrap());
        }
        let mut objects = self.state.objects.lock();
        if only_creates && objects.contains_key(&key) {
            *answer.status_mut() = StatusCode::PRECONDITION_FAILED;
            return Ok(answer);
        }
        objects.insert(key, body);
        Ok(answer)
    }

    fn read(&self, request: &Request<Incoming>, key: &str) -> Response<Body> {
        let is_head = request.method() == Method::HEAD;
        let counter = if is_head { &self.state.heads } else { &self.state.gets };
        counter.fetch_add(1, Ordering::Relaxed);
        let Some(bytes) = self.get(key) else { return status(StatusCode::NOT_FOUND) };
        let etag_of_reads = self.state.faults.lock().etag_of_reads;
        let etag = etag_of_reads.map_or_else(|| etag_of(&bytes), str::to_owned);
        let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
        if text(header::IF_MATCH).is_some_and(|wanted| wanted != etag) {
            return status(StatusCode::PRECONDITION_FAILED);
        }
        let mut response = Response::builder().header(header::ETAG, &etag);
        let range = match text(header::RANGE).and_then(|range| range.strip_prefix("bytes=")?.split_once('-'))
        {
            None => 0..bytes.len(),
            Some((from, to)) => {
                let from: usize = from.parse().unwrap();
                let to = to.parse().map_or(bytes.len(), |to: usize| (to + 1).min(bytes.len()));
                if from >= to {
                    return status(StatusCode::RANGE_NOT_SATISFIABLE);
                }
                let range = format!("bytes {from}-{}/{}", to - 1, bytes.len());
                response = response.status(StatusCode::PARTIAL_CONTENT).header(header::CONTENT_RANGE, range);
                from..to
            }
        };
        let mut response = response.header(header::CONTENT_LENGTH, range.len()).header("x-amz-meta-a", "b");
        if text(HeaderName::from_static("x-amz-checksum-mode")).is_some() {
            response = response.header("x-amz-checksum-crc32", "AAAAAA==");
        }
        let header_len = self.state.faults.lock().header_len;
        if header_len > 0 {
            response = response.header("x-amz-meta-long", "v".repeat(header_len));
        }
        let body = if is_head { empty() } else { self.frames(bytes.slice(range)) };
        response.body(body).unwrap()
    }

    fn frames(&self, bytes: Bytes) -> Body {
        let break_after = {
            let mut faults = self.state.faults.lock();
            faults.break_after.take().or(faults.break_every)
        };
        let this = self.clone();
        let frames = stream::unfold((bytes, 0), move |(mut rest, sent)| {
            let this = this.clone();
            async move {
                if rest.is_empty() {
                    return None;
                }
                let pause = this.state.faults.lock().pause;
                this.state.runtime.sleep(pause).await;
                if break_after.is_some_and(|most| sent >= most) {
                    return Some((Err(std::io::Error::other("broken")), (Bytes::new(), sent)));
                }
                let frame = rest.split_to(rest.len().min(FRAME));
                this.state.sent.fetch_add(frame.len() as u64, Ordering::Relaxed);
                let sent = sent + frame.len();
                Some((Ok(Frame::data(frame)), (rest, sent)))
            }
        });
        StreamBody::new(frames).boxed_unsync()
    }
}

fn etag_of(bytes: &[u8]) -> String {
    let mix = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("\"{:016x}\"", bytes.iter().fold(bytes.len() as u64, mix))
}

fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

fn status(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(empty());
    *response.status_mut() = status;
    response
}

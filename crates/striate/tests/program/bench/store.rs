//! A minimal S3 store: buckets, whole objects, listings in short pages, and faults on request.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use striate_runtime::{Runtime, Timer};
use tokio::net::TcpListener;

/// Objects per page of a listing.
const PAGE: usize = 7;

/// A fault of a GET.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// One byte is wrong.
    Damage,
    /// The last byte is missing, and the length agrees.
    Short,
    /// The answer is 503, in the form of S3.
    Busy,
    /// The connection breaks in the middle.
    BreakOff,
    /// There is no answer.
    Silence,
}

/// A store in memory.
pub struct Store {
    runtime: Runtime,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    buckets: BTreeSet<String>,
    /// Objects by bucket/key.
    objects: BTreeMap<String, Bytes>,
    gets: u64,
    fault: Option<(u64, Fault)>,
    stall: Option<Duration>,
}

type Answer = Response<UnsyncBoxBody<Bytes, std::io::Error>>;

impl Store {
    /// Serves on a free port; also returns its URL.
    pub async fn start(runtime: &Runtime) -> (Arc<Self>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let store = Arc::new(Self { runtime: runtime.clone(), state: Mutex::default() });
        let served = Arc::clone(&store);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let store = Arc::clone(&served);
                let service = service_fn(move |request| {
                    let store = Arc::clone(&store);
                    async move { Ok::<_, Infallible>(store.answer(request).await) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                served.runtime.spawn(async move { drop(connection.await) });
            }
        });
        (store, url)
    }

    pub fn put(&self, bucket: &str, key: &str, body: &[u8]) {
        self.state.lock().objects.insert(format!("{bucket}/{key}"), Bytes::copy_from_slice(body));
    }

    pub fn remove(&self, bucket: &str, key: &str) {
        self.state.lock().objects.remove(&format!("{bucket}/{key}"));
    }

    pub fn keys(&self) -> Vec<String> {
        self.state.lock().objects.keys().cloned().collect()
    }

    /// Returns the number of GETs.
    pub fn gets(&self) -> u64 {
        self.state.lock().gets
    }

    /// Makes every n-th GET fail; 0 for none.
    pub fn fail_every(&self, n: u64, fault: Fault) {
        let mut state = self.state.lock();
        state.gets = 0;
        state.fault = (n > 0).then_some((n, fault));
    }

    /// Holds the next GET for this long.
    pub fn stall_once(&self, time: Duration) {
        self.state.lock().stall = Some(time);
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let (head, body) = request.into_parts();
        let path =
            percent_decode_str(head.uri.path().trim_start_matches('/')).decode_utf8_lossy().into_owned();
        let Ok(body) = body.collect().await else { return plain(StatusCode::BAD_REQUEST, Bytes::new()) };
        match (head.method, path.split_once('/')) {
            (Method::HEAD, None) => {
                let is_there = self.state.lock().buckets.contains(&path);
                plain(if is_there { StatusCode::OK } else { StatusCode::NOT_FOUND }, Bytes::new())
            }
            (Method::PUT, None) => {
                self.state.lock().buckets.insert(path);
                plain(StatusCode::OK, Bytes::new())
            }
            (Method::GET, None) => self.list(&path, head.uri.query().unwrap_or("")),
            (Method::PUT, Some(_)) => {
                self.state.lock().objects.insert(path, body.to_bytes());
                plain(StatusCode::OK, Bytes::new())
            }
            (Method::DELETE, Some(_)) => {
                self.state.lock().objects.remove(&path);
                plain(StatusCode::NO_CONTENT, Bytes::new())
            }
            (Method::GET, Some(_)) => {
                let range = head.headers.get(http::header::RANGE).and_then(|range| range.to_str().ok());
                self.get(&path, range).await
            }
            _ => plain(StatusCode::METHOD_NOT_ALLOWED, Bytes::new()),
        }
    }

    async fn get(&self, path: &str, range: Option<&str>) -> Answer {
        let (object, fault, stall) = {
            let mut state = self.state.lock();
            state.gets += 1;
            let fault = state.fault.filter(|(n, _)| state.gets.is_multiple_of(*n));
            (state.objects.get(path).cloned(), fault, state.stall.take())
        };
        if let Some(time) = stall {
            self.runtime.sleep(time).await;
        }
        let Some(object) = object else {
            return error(StatusCode::NOT_FOUND, "NoSuchKey", "there is none");
        };
        match fault.map(|(_, fault)| fault) {
            None => match range.map(parse_range) {
                None => plain(StatusCode::OK, object),
                Some(Some((first, last))) if last < object.len() => {
                    plain(StatusCode::PARTIAL_CONTENT, object.slice(first..=last))
                }
                Some(_) => error(StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange", "it has other bytes"),
            },
            Some(Fault::Short) => plain(StatusCode::OK, object.slice(..object.len() - 1)),
            Some(Fault::Busy) => error(StatusCode::SERVICE_UNAVAILABLE, "SlowDown", "reduce your rate"),
            Some(Fault::Silence) => std::future::pending().await,
            Some(Fault::Damage) => {
                let mut damaged = object.to_vec();
                damaged[1_234] ^= 1;
                plain(StatusCode::OK, damaged.into())
            }
            Some(Fault::BreakOff) => {
                let wait = self.runtime.timer(self.runtime.now() + Duration::from_millis(50));
                let half = Some(object.slice(..object.len() / 2));
                let body = BrokenOff { len: object.len() as u64, half, wait };
                Response::new(UnsyncBoxBody::new(body))
            }
        }
    }

    fn list(&self, bucket: &str, query: &str) -> Answer {
        let parameter = |name: &str| {
            let pair = query.split('&').find_map(|pair| pair.strip_prefix(&format!("{name}=")));
            percent_decode_str(pair.unwrap_or("")).decode_utf8_lossy().into_owned()
        };
        let (prefix, after) = (format!("{bucket}/{}", parameter("prefix")), parameter("continuation-token"));
        let state = self.state.lock();
        let found = state.objects.iter().filter(|(path, _)| path.starts_with(&prefix) && **path > after);
        let mut page: Vec<_> = found.take(PAGE + 1).collect();
        let is_truncated = page.len() > PAGE;
        page.truncate(PAGE);
        let mut text = format!("<ListBucketResult><IsTruncated>{is_truncated}</IsTruncated>");
        for (path, object) in &page {
            let key = &path[bucket.len() + 1..];
            write!(text, "<Contents><Key>{key}</Key><Size>{}</Size></Contents>", object.len()).unwrap();
        }
        if let Some((last, _)) = page.last() {
            write!(text, "<NextContinuationToken>{last}</NextContinuationToken>").unwrap();
        }
        plain(StatusCode::OK, (text + "</ListBucketResult>").into())
    }
}

/// Returns the first and last byte of `bytes=FIRST-LAST`.
fn parse_range(header: &str) -> Option<(usize, usize)> {
    let (first, last) = header.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

fn plain(status: StatusCode, body: Bytes) -> Answer {
    let body = UnsyncBoxBody::new(http_body_util::Full::new(body).map_err(|never| match never {}));
    Response::builder().status(status).body(body).unwrap()
}

fn error(status: StatusCode, code: &str, message: &str) -> Answer {
    plain(status, format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>").into())
}

/// A body that fails after its first half, once that has had time to leave.
struct BrokenOff {
    len: u64,
    half: Option<Bytes>,
    wait: Timer,
}

impl Body for BrokenOff {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        match self.half.take() {
            Some(half) => Poll::Ready(Some(Ok(Frame::data(half)))),
            None => Pin::new(&mut self.wait)
                .poll(context)
                .map(|()| Some(Err(std::io::Error::other("by the test")))),
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.len)
    }
}

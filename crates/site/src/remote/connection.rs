//! Pooled connections to a site, past their hello.
//!
//! A connection carries one exchange at a time and returns to the pool when its reply was read to the end. Dropping an
//! exchange earlier closes the connection, which cancels the request at the site.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use striate_core::{ClusterId, SiteId};
use striate_runtime::{Instant, JoinHandle, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::RemoteOptions;
use crate::api::SiteError;
use crate::filesystem::is_of_process;
use crate::protocol::HELLO_PATH;
use crate::protocol::hello::{HelloReply, MAX_WELCOME_LEN, encode_hello};
use crate::protocol::limits::MAX_ERROR_LEN;
use crate::transport::{ByteStream, Connector};

/// An address, and what is needed to talk to the site there.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) runtime: Runtime,
    pub(super) connector: Arc<dyn Connector>,
    pub(super) address: String,
    pub(super) cluster: ClusterId,
    /// Number of the site that must reply there, if it is known.
    pub(super) expected: Option<SiteId>,
    pub(super) options: RemoteOptions,
}

impl Endpoint {
    /// Creates an error that names the site.
    pub(super) fn unavailable(&self, reason: impl fmt::Display) -> SiteError {
        SiteError::Unavailable(match self.expected {
            Some(site) => format!("site {site} at {}: {reason}", self.address),
            None => format!("{}: {reason}", self.address),
        })
    }

    /// Runs one step within `limit`.
    pub(super) async fn within<T, E: fmt::Display>(
        &self,
        limit: Duration,
        step: impl Future<Output = Result<T, E>>,
    ) -> Result<T, SiteError> {
        match self.runtime.timeout(limit, step).await {
            Ok(result) => result.map_err(|error| self.unavailable(error)),
            Err(_) => Err(self.unavailable(format!("no answer within {limit:?}"))),
        }
    }

    pub(super) async fn open_stream(&self) -> Result<TokioIo<Box<dyn ByteStream>>, SiteError> {
        let connecting = self.connector.connect(&self.address);
        let limit = self.options.connect_timeout;
        match self.runtime.timeout(limit, connecting).await {
            Ok(Ok(stream)) => Ok(TokioIo::new(stream)),
            // This process is short of descriptors or memory, which says nothing about the site.
            Ok(Err(error)) if is_of_process(&error) => Err(SiteError::Busy),
            Ok(Err(error)) => Err(self.unavailable(error)),
            Err(_) => Err(self.unavailable(format!("no answer within {limit:?}"))),
        }
    }

    /// Says hello through `send` and checks the welcome.
    pub(super) async fn greet<F, E>(
        &self,
        uri: &str,
        send: impl FnOnce(Request<RequestPieces>) -> F,
    ) -> Result<HelloReply, SiteError>
    where
        F: Future<Output = Result<Response<Incoming>, E>>,
        E: fmt::Display,
    {
        let body = RequestPieces::new(encode_hello(self.cluster), Bytes::new());
        let request = Request::builder().method(Method::POST).uri(uri).body(body).expect("a fixed request");
        let response = self.within(self.options.connect_timeout, send(request)).await?;
        let response = self.check_status(response).await?;
        let bytes = self.collect(response.into_body(), MAX_WELCOME_LEN).await?;
        let welcome =
            HelloReply::accept(&bytes, self.cluster).map_err(|refusal| self.unavailable(refusal))?;
        let site = welcome.identity.site;
        if self.expected.is_some_and(|expected| expected != site) {
            return Err(self.unavailable(format!("site {site} answers there: check the list of sites")));
        }
        Ok(welcome)
    }

    async fn collect(&self, body: Incoming, limit: usize) -> Result<Bytes, SiteError> {
        let collecting = Limited::new(body, limit).collect();
        Ok(self.within(self.options.reply_timeout, collecting).await?.to_bytes())
    }

    /// Returns a successful reply, or converts a refusal to an error.
    pub(super) async fn check_status(
        &self,
        response: Response<Incoming>,
    ) -> Result<Response<Incoming>, SiteError> {
        let status = response.status();
        if status == StatusCode::OK {
            return Ok(response);
        }
        let text = self.collect(response.into_body(), MAX_ERROR_LEN).await.unwrap_or_default();
        let reason = format!("refused ({status}): {}", String::from_utf8_lossy(&text));
        Err(match status {
            StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE => SiteError::BadRequest(reason),
            _ => self.unavailable(reason),
        })
    }

    async fn open(&self) -> Result<(Connection, HelloReply), SiteError> {
        let stream = self.open_stream().await?;
        let handshake = http1::Builder::new().handshake(stream);
        let (mut sender, driver) = self.within(self.options.connect_timeout, handshake).await?;
        let task = Task(self.runtime.spawn(async move {
            // Its errors reach the exchange through the sender and the body.
            let _ = driver.await;
        }));
        let welcome = self.greet(HELLO_PATH, |request| sender.send_request(request)).await?;
        let used_at = self.runtime.now();
        Ok((Connection { sender, _task: task, used_at, reused: false }, welcome))
    }
}

/// The task of a connection. Dropping the handle ends it, which closes the connection.
#[derive(Debug)]
pub(super) struct Task(pub(super) JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The body of a request: a head and possibly a chunk's bytes, neither of which is copied.
#[derive(Clone, Debug)]
pub(super) struct RequestPieces {
    pieces: [Bytes; 2],
}

impl RequestPieces {
    pub(super) fn new(head: Bytes, payload: Bytes) -> Self {
        Self { pieces: [head, payload] }
    }

    fn len(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }
}

impl Body for RequestPieces {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let piece = self.pieces.iter_mut().find(|piece| !piece.is_empty()).map(std::mem::take);
        Poll::Ready(piece.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.len() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.len())
    }
}

struct Connection {
    sender: http1::SendRequest<RequestPieces>,
    _task: Task,
    used_at: Instant,
    reused: bool,
}

/// The request of one exchange.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) method: Method,
    pub(super) path: &'static str,
    /// Bytes before the chunk's bytes.
    pub(super) head: Bytes,
    /// Bytes of the chunk.
    pub(super) payload: Bytes,
    /// Whether it may be sent again when its outcome is unknown.
    pub(super) is_read: bool,
    /// Time that the site may take for its work before the reply, in addition to the usual timeout.
    pub(super) work: Duration,
}

/// Connections to one site.
pub(super) struct Pool {
    endpoint: Arc<Endpoint>,
    idle: Mutex<Vec<Connection>>,
    in_flight: Arc<Semaphore>,
}

/// An exchange in progress: the connection that its reply arrives on.
pub(super) struct Exchange {
    pool: Arc<Pool>,
    connection: Connection,
    _place: OwnedSemaphorePermit,
}

impl Exchange {
    /// Returns the connection to the pool after the reply was read to its end.
    pub(super) fn finish(self) {
        let Self { pool, mut connection, .. } = self;
        connection.used_at = pool.endpoint.runtime.now();
        connection.reused = true;
        pool.keep(connection);
    }
}

impl Pool {
    pub(super) fn new(endpoint: Arc<Endpoint>) -> Self {
        let in_flight = Arc::new(Semaphore::new(endpoint.options.max_in_flight));
        Self { endpoint, idle: Mutex::default(), in_flight }
    }

    pub(super) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// Returns whether another exchange could begin now.
    pub(super) fn has_place(&self) -> bool {
        self.in_flight.available_permits() > 0
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle.lock();
        if idle.len() < self.endpoint.options.max_idle {
            idle.push(connection);
        }
    }

    /// Opens a connection and keeps it, to learn which site replies.
    pub(super) async fn greet(&self) -> Result<HelloReply, SiteError> {
        let (connection, welcome) = self.endpoint.open().await?;
        self.keep(connection);
        Ok(welcome)
    }

    /// Returns the most recently used connection that is still good. Closes those that have idled too long.
    fn take_idle(&self) -> Option<Connection> {
        let (now, limit) = (self.endpoint.runtime.now(), self.endpoint.options.idle_timeout);
        let mut idle = self.idle.lock();
        idle.retain(|connection| !connection.sender.is_closed() && now - connection.used_at < limit);
        idle.pop()
    }

    /// Sends `call` and waits for the beginning of its reply. `welcomed` is called for new connections.
    ///
    /// The site may just have closed a pooled connection. Then the call is sent once more on a new one, if none of it
    /// had been sent or it only reads.
    pub(super) async fn exchange(
        self: &Arc<Self>,
        call: &Call,
        welcomed: impl Fn(HelloReply),
    ) -> Result<(Exchange, Incoming), SiteError> {
        let endpoint = &self.endpoint;
        let waiting = Arc::clone(&self.in_flight).acquire_owned();
        let place = endpoint.runtime.timeout(endpoint.options.connect_timeout, waiting).await;
        let place = place.map_err(|_| SiteError::Busy)?.expect("the semaphore is never closed");
        let mut idle_connection = self.take_idle();
        loop {
            let connection = match idle_connection.take() {
                Some(connection) => connection,
                None => {
                    let (connection, welcome) = endpoint.open().await?;
                    welcomed(welcome);
                    connection
                }
            };
            match self.send(connection, call).await? {
                SendOutcome::Answered(connection, response) => {
                    let response = endpoint.check_status(response).await?;
                    let exchange =
                        Exchange { pool: Arc::clone(self), connection: *connection, _place: place };
                    return Ok((exchange, response.into_body()));
                }
                // The next iteration opens a new connection, whose failure is final.
                SendOutcome::Stale => {}
            }
        }
    }

    async fn send(&self, mut connection: Connection, call: &Call) -> Result<SendOutcome, SiteError> {
        let endpoint = &self.endpoint;
        let body = RequestPieces::new(call.head.clone(), call.payload.clone());
        let request = Request::builder().method(&call.method).uri(call.path);
        let request = request.body(body).expect("a request of fixed parts");
        let limit = endpoint.options.reply_timeout + call.work;
        let sending = async {
            if let Err(error) = connection.sender.ready().await {
                return Err((error.to_string(), true));
            }
            let response = connection.sender.try_send_request(request).await;
            response.map_err(|mut error| {
                let unsent = error.take_message().is_some();
                (error.into_error().to_string(), unsent)
            })
        };
        match endpoint.runtime.timeout(limit, sending).await {
            Ok(Ok(response)) => Ok(SendOutcome::Answered(Box::new(connection), response)),
            Ok(Err((_, unsent))) if connection.reused && (unsent || call.is_read) => Ok(SendOutcome::Stale),
            Ok(Err((reason, _))) => Err(endpoint.unavailable(reason)),
            Err(_) => Err(endpoint.unavailable(format!("no answer within {limit:?}"))),
        }
    }
}

enum SendOutcome {
    Answered(Box<Connection>, Response<Incoming>),
    /// The connection was closed while it idled.
    Stale,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

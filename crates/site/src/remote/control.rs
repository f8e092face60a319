//! The control connection: one HTTP/2 connection for all requests, or one for pushed reports.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::TokioTimer;
use tokio::sync::Mutex;

use super::connection::{Endpoint, RequestPieces, Task};
use super::watch::{PING_INTERVAL, WINDOW};
use crate::api::SiteError;
use crate::protocol::control::messages::site_control_client::SiteControlClient;
use crate::protocol::limits::{MAX_CONTROL_REPLY_LEN, MAX_REQUEST_LEN};
use crate::transport::RuntimeExecutor;

/// Opens the connection on demand, and again after it was closed. Cheap to clone.
#[derive(Clone)]
pub(super) struct ControlChannel {
    endpoint: Arc<Endpoint>,
    is_for_reports: bool,
    current: Arc<Mutex<Option<Arc<Connection>>>>,
}

struct Connection {
    sender: http2::SendRequest<RequestPieces>,
    _task: Task,
}

/// HTTP/2 requests name an authority; the connection determines the site.
const ORIGIN: &str = "http://site";

impl ControlChannel {
    pub(super) fn new(endpoint: Arc<Endpoint>) -> Self {
        Self { endpoint, is_for_reports: false, current: Arc::default() }
    }

    /// Creates a channel for the reports that a site pushes; see [`super::watch`].
    pub(super) fn for_reports(endpoint: Arc<Endpoint>) -> Self {
        Self { endpoint, is_for_reports: true, current: Arc::default() }
    }

    /// Returns the generated client over this channel.
    pub(super) fn client(&self) -> SiteControlClient<Self> {
        SiteControlClient::with_origin(self.clone(), Uri::from_static(ORIGIN))
            .max_decoding_message_size(MAX_CONTROL_REPLY_LEN)
    }

    async fn connection(&self) -> Result<Arc<Connection>, SiteError> {
        let mut current = self.current.lock().await;
        if let Some(connection) = current.as_ref().filter(|connection| !connection.sender.is_closed()) {
            return Ok(Arc::clone(connection));
        }
        let endpoint = &self.endpoint;
        let stream = endpoint.open_stream().await?;
        let handshake = self.builder().handshake(stream);
        let (mut sender, driver) = endpoint.within(endpoint.options.connect_timeout, handshake).await?;
        let task = Task(endpoint.runtime.spawn(async move {
            // Its errors reach the requests through the sender.
            let _ = driver.await;
        }));
        let uri = format!("{ORIGIN}{}", crate::protocol::HELLO_PATH);
        endpoint.greet(&uri, |request| sender.send_request(request)).await?;
        let connection = Arc::new(Connection { sender, _task: task });
        *current = Some(Arc::clone(&connection));
        Ok(connection)
    }

    fn builder(&self) -> http2::Builder<RuntimeExecutor> {
        let options = &self.endpoint.options;
        let mut builder = http2::Builder::new(RuntimeExecutor(self.endpoint.runtime.clone()));
        builder.timer(TokioTimer::new());
        match self.is_for_reports {
            true => builder
                .initial_stream_window_size(WINDOW)
                .keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_INTERVAL),
            false => {
                builder.keep_alive_interval(options.idle_timeout).keep_alive_timeout(options.reply_timeout)
            }
        };
        builder
    }

    async fn send(&self, request: Request<tonic::body::Body>) -> Result<Response<Incoming>, SiteError> {
        let endpoint = &self.endpoint;
        let (parts, body) = request.into_parts();
        let collected = Limited::new(body, MAX_REQUEST_LEN).collect().await;
        let body = collected.map_err(|error| SiteError::BadRequest(error.to_string()))?.to_bytes();
        let connection = self.connection().await?;
        let request = Request::from_parts(parts, RequestPieces::new(body, Bytes::new()));
        let sent = connection.sender.clone().send_request(request);
        let response = endpoint.within(endpoint.options.reply_timeout, sent).await?;
        endpoint.check_status(response).await
    }
}

impl tower_service::Service<Request<tonic::body::Body>> for ControlChannel {
    type Response = Response<Incoming>;
    type Error = SiteError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, SiteError>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), SiteError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        let channel = self.clone();
        Box::pin(async move { channel.send(request).await })
    }
}

/// Returns the site's error behind a failed call.
pub(super) fn error_of(status: tonic::Status, endpoint: &Endpoint) -> SiteError {
    let mut source = std::error::Error::source(&status);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<SiteError>() {
            return error.clone();
        }
        source = error.source();
    }
    endpoint.unavailable(status.message())
}

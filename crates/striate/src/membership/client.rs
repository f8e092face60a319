//! The calling end: one connection per request, to the first control process that answers.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::join_all;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use striate_commands::args::HostPort;
use striate_runtime::Runtime;
use striate_site::RuntimeExecutor;
use striate_trust::{ExpectedPeer, Role, Trust};
use tokio::net::TcpStream;
use tonic::Status;

use super::MAX_MESSAGE_LEN;
use super::messages::cluster_control_client::ClusterControlClient;

/// Timeout for a connection and its handshake.
const CONNECT: Duration = Duration::from_secs(3);
/// Timeout for an answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Timeout for answers that read many rows of the metadata, a little less than the lifetime of a connection.
const LONG_ANSWER: Duration = Duration::from_secs(50);
/// HTTP/2 requests must name an authority; the connection is already the right one.
const ORIGIN: &str = "http://control";

/// A client of the control processes.
#[derive(Clone)]
pub struct ControlClient {
    runtime: Runtime,
    trust: Trust,
    addresses: Vec<HostPort>,
    answer_within: Duration,
}

/// A request that got no answer, or was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// No control process answers.
    #[error("no control process answers: {0}")]
    Unreachable(String),
    /// One of them refused it; any other would, too.
    #[error("{0}")]
    Refused(String),
}

/// One connection, in the form that the generated client needs.
pub struct Channel(http2::SendRequest<tonic::body::Body>);

impl tower_service::Service<Request<tonic::body::Body>> for Channel {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

impl ControlClient {
    /// Creates a client of the processes at `addresses`.
    pub fn new(runtime: Runtime, trust: Trust, addresses: Vec<HostPort>) -> Self {
        Self { runtime, trust, addresses, answer_within: ANSWER }
    }

    /// Returns a client with a longer timeout, for requests that take long.
    pub fn patient(self) -> Self {
        Self { answer_within: LONG_ANSWER, ..self }
    }

    /// Asks one process after the other until one answers. `ask` must be idempotent, because an answer may get lost.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn ask<T, F>(&self, ask: impl Fn(ClusterControlClient<Channel>) -> F) -> Result<T, ControlError>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let mut reasons = Vec::new();
        for address in &self.addresses {
            match self.ask_one(address, &ask).await {
                Ok(reply) => return Ok(reply),
                Err(status) if is_refusal(&status) => {
                    return Err(ControlError::Refused(status.message().to_owned()));
                }
                Err(status) => reasons.push(format!("{address}: {}", status.message())),
            }
        }
        Err(ControlError::Unreachable(reasons.join("; ")))
    }

    /// Sends a request to every process. Returns address and reason for each one that failed.
    pub async fn tell_all<T, F>(&self, tell: impl Fn(ClusterControlClient<Channel>) -> F) -> Vec<String>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let calls = self.addresses.iter().map(async |address| {
            let reply = self.ask_one(address, &tell).await;
            reply.err().map(|status| format!("{address}: {}", status.message()))
        });
        join_all(calls).await.into_iter().flatten().collect()
    }

    async fn ask_one<T, F>(
        &self,
        address: &HostPort,
        ask: impl Fn(ClusterControlClient<Channel>) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let client = self.connect(address).await.map_err(Status::unavailable)?;
        let late = |_| Status::unavailable(format!("no answer within {:?}", self.answer_within));
        let answer = self.runtime.timeout(self.answer_within, ask(client)).await.map_err(late)?;
        answer.map(tonic::Response::into_inner)
    }

    async fn connect(&self, address: &HostPort) -> Result<ClusterControlClient<Channel>, String> {
        let connecting = async {
            let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
            stream.set_nodelay(true)?;
            let stream = self.trust.connect(stream, &ExpectedPeer::any(Role::Control)).await?;
            let mut builder = http2::Builder::new(RuntimeExecutor(self.runtime.clone()));
            let handshake = builder.timer(TokioTimer::new()).handshake(TokioIo::new(stream));
            handshake.await.map_err(std::io::Error::other)
        };
        let connected = self.runtime.timeout(CONNECT, connecting).await;
        let connected = connected.map_err(|_| format!("no connection within {CONNECT:?}"))?;
        let (sender, driver) = connected.map_err(|error: std::io::Error| error.to_string())?;
        self.runtime.spawn(async move {
            // Its errors reach the request through the sender, and it ends with the sender.
            let _ = driver.await;
        });
        Ok(ClusterControlClient::with_origin(Channel(sender), Uri::from_static(ORIGIN))
            .max_decoding_message_size(MAX_MESSAGE_LEN))
    }
}

fn is_refusal(status: &Status) -> bool {
    use tonic::Code::{FailedPrecondition, InvalidArgument, PermissionDenied};
    matches!(status.code(), FailedPrecondition | InvalidArgument | PermissionDenied)
}

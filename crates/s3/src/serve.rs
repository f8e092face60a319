//! Listeners and connections: what an unknown peer may occupy, and for how long.
//!
//! Connections are bounded in number, in total and for each address. Each is also bounded in the time for a handshake,
//! for a request's head and between requests, and in the size of a head. [`crate::peers`] decides how fast a peer must
//! send its body and take its response, and which connections are closed first. A shutdown stops accepting, lets
//! requests in flight finish, and breaks off the rest after the drain time.
//!
//! A request in plain HTTP to a port with TLS is answered with 400, in plain HTTP, and why.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use futures::future::BoxFuture;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;
use striate_listen::next_connection;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::address::OverTls;
use crate::gateway::Gateway;
use crate::peers::{AdmittedPeer, Peer};
use crate::tls::Certificates;
use crate::wire::{Socket, Wire};

/// Idle time of a peer after which memory held for it is released, even if no request waits for memory.
const IDLE: Duration = Duration::from_secs(5);
/// Response to a connection above the limit.
const TOO_MANY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 1\r\nconnection: close\r\n\r\n";

/// Response to a request in plain HTTP on a port with TLS.
const PLAIN_TO_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 64\r\n\
    connection: close\r\n\r\nThis port speaks HTTPS only: write https:// instead of http://.\n";

/// Progress of a shutdown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    Draining,
    Over,
}

/// What every connection gets.
#[derive(Clone)]
struct Connections {
    gateway: Gateway,
    tls: Option<Certificates>,
    phase: watch::Receiver<Phase>,
    /// Dropped with the connection, so that the listener knows when all have ended.
    alive: mpsc::Sender<()>,
}

/// Serves a listener until `shutdown` completes, then finishes the requests in flight (for at most
/// `Limits::drain`) and returns.
///
/// # Errors
/// When the listener fails permanently. Errors of single connections are not the listener's.
// Boxed, so that the HTTP server is compiled once, here, with full optimisation, and not again
// in every crate that awaits it.
pub fn serve(
    gateway: Gateway,
    listener: TcpListener,
    certificates: Option<Certificates>,
    shutdown: BoxFuture<'static, ()>,
) -> BoxFuture<'static, io::Result<()>> {
    Box::pin(serve_until(gateway, listener, certificates, shutdown))
}

async fn serve_until(
    gateway: Gateway,
    listener: TcpListener,
    certificates: Option<Certificates>,
    shutdown: BoxFuture<'static, ()>,
) -> io::Result<()> {
    let runtime = gateway.shared.runtime.clone();
    let drain = gateway.shared.options.limits.drain;
    let (phases, phase) = watch::channel(Phase::Serving);
    let (alive, mut ended) = mpsc::channel(1);
    let reload = certificates.clone().map(|certificates| {
        let runtime = runtime.clone();
        let watch = async move { certificates.watch(&runtime).await };
        gateway.shared.runtime.spawn(watch)
    });
    let sweep = {
        let (shared, runtime) = (Arc::clone(&gateway.shared), runtime.clone());
        gateway.shared.runtime.spawn(async move {
            let is_pressed = || {
                let memory = shared.client.stripes().budget();
                memory.release_idle(IDLE);
                memory.view().waiting > 0
            };
            shared.peers.watch(&runtime, is_pressed).await
        })
    };
    let connections = Connections { gateway, tls: certificates, phase, alive };
    let outcome = accept(listener, connections, shutdown).await;
    phases.send_replace(Phase::Draining);
    if runtime.timeout(drain, ended.recv()).await.is_err() {
        tracing::warn!(
            ?drain,
            "requests were still running at the end of the drain time; they are broken off"
        );
    }
    phases.send_replace(Phase::Over);
    sweep.abort();
    if let Some(reload) = reload {
        reload.abort();
    }
    outcome
}

async fn accept(
    listener: TcpListener,
    connections: Connections,
    mut shutdown: BoxFuture<'static, ()>,
) -> io::Result<()> {
    let shared = Arc::clone(&connections.gateway.shared);
    loop {
        let (stream, remote) = tokio::select! {
            biased;
            () = &mut shutdown => return Ok(()),
            accepted = next_connection(&shared.runtime, "s3", || listener.accept()) => accepted,
        };
        match shared.peers.admit(remote.ip()) {
            Ok(admitted) => {
                drop(shared.runtime.spawn(connections.clone().run(stream, remote, admitted)));
            }
            Err(full) => {
                shared.hooks.metrics.refused(full.reason());
                if connections.tls.is_none() {
                    send_at_once(stream, TOO_MANY);
                }
            }
        }
    }
}

/// Sends a response, as far as the socket takes it at once, and closes the connection.
fn send_at_once(mut stream: TcpStream, response: &[u8]) {
    let write = pin!(stream.write_all(response));
    let _ = write.poll(&mut Context::from_waker(std::task::Waker::noop()));
}

/// Returns whether the peer speaks plain HTTP: a method comes first, and not a handshake.
async fn is_plain_http(stream: &TcpStream) -> bool {
    let mut first = [0];
    matches!(stream.peek(&mut first).await, Ok(1) if first[0].is_ascii_uppercase())
}

/// What became of a TLS handshake.
enum Handshake {
    Done(Box<TlsStream<TcpStream>>),
    Plain(TcpStream),
    Failed(io::Error),
}

async fn shake_hands(acceptor: TlsAcceptor, stream: TcpStream) -> Handshake {
    if is_plain_http(&stream).await {
        return Handshake::Plain(stream);
    }
    match acceptor.accept(stream).await {
        Ok(stream) => Handshake::Done(Box::new(stream)),
        Err(error) => Handshake::Failed(error),
    }
}

impl Connections {
    async fn run(self, stream: TcpStream, remote: SocketAddr, admitted: AdmittedPeer) {
        let metrics = Arc::clone(&self.gateway.shared.hooks.metrics);
        metrics.connection(true);
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, %remote, "TCP_NODELAY cannot be set");
        }
        let peer = &admitted.peer;
        tokio::select! {
            () = self.converse(stream, remote, peer) => {}
            () = peer.broken_off() => {}
        }
        metrics.connection(false);
        drop((admitted, self.alive));
    }

    /// Shakes hands, if the port has TLS, and serves the connection.
    async fn converse(&self, stream: TcpStream, remote: SocketAddr, peer: &Arc<Peer>) {
        let Some(certificates) = &self.tls else { return self.serve(stream, remote, peer).await };
        let shared = &self.gateway.shared;
        let metrics = &shared.hooks.metrics;
        let acceptor = TlsAcceptor::from(certificates.server_config());
        let limit = shared.options.limits.handshake_timeout;
        let handshake = shared.runtime.timeout(limit, shake_hands(acceptor, stream));
        // A connection that must make room cannot wait until its handshake is over.
        let outcome = tokio::select! {
            outcome = handshake => outcome.ok(),
            () = peer.evicted() => None,
        };
        match outcome {
            Some(Handshake::Done(stream)) => self.serve(*stream, remote, peer).await,
            Some(Handshake::Plain(stream)) => {
                metrics.refused("plain");
                send_at_once(stream, PLAIN_TO_TLS);
            }
            Some(Handshake::Failed(error)) => {
                tracing::debug!(%error, %remote, "a TLS handshake failed");
                metrics.refused("handshake");
            }
            None => metrics.refused("handshake"),
        }
    }

    async fn serve<S>(&self, stream: S, remote: SocketAddr, peer: &Arc<Peer>)
    where
        S: Socket + Unpin + Send + 'static,
    {
        let shared = &self.gateway.shared;
        let limits = &shared.options.limits;
        let io = Wire::new(stream, Arc::clone(peer), shared.runtime.clone());
        let (gateway, peer) = (self.gateway.clone(), Arc::clone(peer));
        let over_tls = self.tls.is_some();
        let service = service_fn(move |mut request: Request<Incoming>| {
            let (gateway, peer) = (gateway.clone(), Arc::clone(&peer));
            if over_tls {
                request.extensions_mut().insert(OverTls);
            }
            async move { Ok::<_, Infallible>(gateway.handle(request, remote, &peer).await) }
        });
        let connection = http1::Builder::new()
            // Without a timer hyper silently ignores the timeout.
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_timeout)
            .max_buf_size(limits.header_bytes.max(8 << 10))
            // A client that sends its request and closes its half still gets a response.
            .half_close(true)
            // One more than is allowed, so that the gateway can refuse with S3's error.
            .max_headers(limits.header_count + 1)
            .serve_connection(io, service);
        let mut connection = pin!(connection);
        let mut phase = self.phase.clone();
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        self.note(&error, remote);
                    }
                    return;
                }
                changed = phase.changed() => match changed.map(|()| *phase.borrow_and_update()) {
                    Ok(Phase::Serving) => {}
                    Ok(Phase::Draining) => connection.as_mut().graceful_shutdown(),
                    Ok(Phase::Over) | Err(_) => return,
                },
            }
        }
    }

    fn note(&self, error: &hyper::Error, remote: SocketAddr) {
        if error.is_timeout() || error.is_parse() {
            self.gateway.shared.hooks.metrics.refused("headers");
        }
        tracing::debug!(%error, %remote, "a connection ended early");
    }
}

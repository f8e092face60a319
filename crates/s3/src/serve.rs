//! Listeners and connections: what a stranger may occupy, and for how long.
//!
//! Connections are bounded in number, in all and of one address; each in the time for a handshake, for a request's
//! head and between requests, and in the size of a head. How fast a peer must send its body and take its answer,
//! and which connections go first, is [`crate::peers`]'s. What the kernel holds of an answer is bounded too
//! ([`UNSENT_BYTES`]), so that what was written tells what the peer took. A shutdown stops accepting, lets requests
//! in flight finish, and breaks off what is left after the drain time.
//!
//! A connection whose last answer was given before the request's body had come *lingers* ([`Lingering`]):
//! closed at once over bytes that nobody read it would be reset, and the reset can overtake the answer.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use striate_runtime::{Runtime, Timer};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;

use crate::gateway::Gateway;
use crate::peers::{Admitted, Peer};
use crate::tls::Certificates;

/// How long to wait before accepting again when the system has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long a connection lingers at most.
const LINGER: Duration = Duration::from_secs(30);
/// How long a lingering connection's peer may say nothing.
const LINGER_SILENCE: Duration = Duration::from_secs(5);
/// Bytes that are thrown away at once.
const LINGER_BUFFER: usize = 16 << 10;
/// Bytes of an answer that the kernel takes before it has sent them. It takes more when half of them have gone, so a
/// receiver that is slow is seen to move in lumps of 64 KiB.
const UNSENT_BYTES: u32 = 128 << 10;
/// For how long a peer has done nothing when the memory that is held for it is taken back, also where nobody waits.
const IDLE: Duration = Duration::from_secs(5);
/// What a connection above the limit is told.
const TOO_MANY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 1\r\nconnection: close\r\n\r\n";

/// How far a shutdown has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    Draining,
    Over,
}

/// What every connection is given.
#[derive(Clone)]
struct Connections {
    gateway: Gateway,
    tls: Option<Certificates>,
    phase: watch::Receiver<Phase>,
    /// Dropped with the connection, so that the listener sees when all have ended.
    alive: mpsc::Sender<()>,
}

/// Serves a listener until `shutdown` completes, then finishes the requests in flight (at most
/// `Limits::drain`) and returns.
///
/// # Errors
/// When the listener fails for good. Errors of single connections are not the listener's.
// Boxed, so that the HTTP server is compiled here, once and as fast code, and not again by whoever awaits it.
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
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => return Ok(()),
            accepted = listener.accept() => accepted,
        };
        let (stream, remote) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if is_of_one_connection(&error) => continue,
            Err(error) => {
                tracing::error!(%error, "a connection cannot be accepted");
                shared.runtime.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match shared.peers.admit(remote.ip()) {
            Ok(admitted) => {
                drop(shared.runtime.spawn(connections.clone().run(stream, remote, admitted)));
            }
            Err(full) => {
                shared.hooks.metrics.refused(full.reason());
                if connections.tls.is_none() {
                    refuse(stream);
                }
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Says why, as far as the socket takes it at once, and closes.
fn refuse(stream: TcpStream) {
    let mut stream = stream;
    let write = pin!(stream.write_all(TOO_MANY));
    let _ = write.poll(&mut Context::from_waker(std::task::Waker::noop()));
}

impl Connections {
    async fn run(self, stream: TcpStream, remote: SocketAddr, admitted: Admitted) {
        let hooks = self.gateway.shared.hooks.clone();
        hooks.metrics.connection(true);
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, %remote, "TCP_NODELAY cannot be set");
        }
        if let Err(error) = socket2::SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES) {
            tracing::debug!(%error, %remote, "TCP_NOTSENT_LOWAT cannot be set");
        }
        let peer = &admitted.peer;
        match &self.tls {
            None => self.serve(stream, remote, peer).await,
            Some(certificates) => {
                let acceptor = TlsAcceptor::from(certificates.server_config());
                let shared = &self.gateway.shared;
                let limit = shared.options.limits.handshake_timeout;
                match shared.runtime.timeout(limit, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => self.serve(stream, remote, peer).await,
                    Ok(Err(error)) => {
                        tracing::debug!(%error, %remote, "a TLS handshake failed");
                        hooks.metrics.refused("handshake");
                    }
                    Err(_) => hooks.metrics.refused("handshake"),
                }
            }
        }
        hooks.metrics.connection(false);
        drop((admitted, self.alive));
    }

    async fn serve<S>(&self, stream: S, remote: SocketAddr, peer: &Arc<Peer>)
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let shared = &self.gateway.shared;
        let limits = &shared.options.limits;
        let io = Wire {
            inner: TokioIo::new(stream),
            peer: Arc::clone(peer),
            runtime: shared.runtime.clone(),
            lingering: None,
        };
        let (gateway, peer) = (self.gateway.clone(), Arc::clone(peer));
        let service = service_fn(move |request| {
            let (gateway, peer) = (gateway.clone(), Arc::clone(&peer));
            async move { Ok::<_, Infallible>(gateway.handle(request, remote, &peer).await) }
        });
        let connection = http1::Builder::new()
            // Without a timer hyper ignores the time-out silently.
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_timeout)
            .max_buf_size(limits.header_bytes.max(8 << 10))
            // A client that sends its request and closes its half still gets an answer.
            .half_close(true)
            // One more than is allowed, so that the gateway can refuse with S3's words.
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

/// A connection that tells its [`Peer`] what it waits for and what moves, and ends with an error when the peer is
/// given up.
struct Wire<T> {
    inner: T,
    peer: Arc<Peer>,
    runtime: Runtime,
    /// Set when our half is closed and the peer may still be sending.
    lingering: Option<Lingering>,
}

/// The end of a connection whose peer may still be sending: our half is closed, and what arrives is thrown
/// away until the peer closes too, says nothing for [`LINGER_SILENCE`], or [`LINGER`] is over.
struct Lingering {
    runtime: Runtime,
    over: Timer,
    silence: Timer,
}

impl Lingering {
    fn begin(runtime: &Runtime) -> Self {
        let after = |duration| runtime.timer(runtime.now() + duration);
        Self { over: after(LINGER), silence: after(LINGER_SILENCE), runtime: runtime.clone() }
    }

    /// Reads and throws away. An error is an end like any other: the answer was sent.
    fn poll(&mut self, cx: &mut Context<'_>, inner: &mut (impl Read + Unpin)) -> Poll<()> {
        loop {
            let mut space = [MaybeUninit::uninit(); LINGER_BUFFER];
            let mut buffer = ReadBuf::uninit(&mut space);
            if Pin::new(&mut self.over).poll(cx).is_ready() {
                return Poll::Ready(());
            }
            match Pin::new(&mut *inner).poll_read(cx, buffer.unfilled()) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.silence = self.runtime.timer(self.runtime.now() + LINGER_SILENCE);
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return Pin::new(&mut self.silence).poll(cx),
            }
        }
    }
}

impl<T> Wire<T> {
    /// What was written, or not: an error when the receiver is given up.
    fn judge<R>(
        &self,
        cx: &Context<'_>,
        written: Poll<io::Result<R>>,
        len: impl Fn(&R) -> usize,
    ) -> Poll<io::Result<R>> {
        match &written {
            Poll::Pending if self.peer.await_receiver(cx) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Ready(Ok(value)) => {
                self.peer.took(len(value));
                written
            }
            _ => written,
        }
    }
}

impl<T: Read + Unpin> Read for Wire<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.inner).poll_read(cx, buf) {
            Poll::Pending if self.peer.await_request(cx) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            read => read,
        }
    }
}

impl<T: Read + Write + Unpin> Write for Wire<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.judge(cx, written, |len| *len)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.judge(cx, flushed, |()| 0)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wire = &mut *self;
        if wire.lingering.is_none() {
            ready!(Pin::new(&mut wire.inner).poll_shutdown(cx))?;
            if !wire.peer.lingers() {
                return Poll::Ready(Ok(()));
            }
        }
        let lingering = wire.lingering.get_or_insert_with(|| Lingering::begin(&wire.runtime));
        lingering.poll(cx, &mut wire.inner).map(Ok)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.judge(cx, written, |len| *len)
    }
}

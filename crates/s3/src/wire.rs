//! The bytes of one connection: what its peer has received of a response, and how the connection ends.
//!
//! Bytes written to a socket have not yet reached the peer: for connections whose receiver is waited for, the sweeper
//! asks the socket how many bytes the peer has not acknowledged. The kernel takes at most [`UNSENT_BYTES`] of a
//! response that it has not sent. Without a bound, two hundred receivers that stop make it hold a gigabyte, and then it
//! drops everyone's packets. But for longer responses a bound costs a tenth of their processor time, because the kernel
//! then sends more of them from acknowledgements. So the bound is removed once a connection was given
//! [`EARNING_BYTES`], which is more than receivers' buffers usually hold. Receivers that the sweeper finds slow get
//! [`UNSENT_OF_SLOW`].
//!
//! A connection whose last response was sent before the request's body had arrived *lingers* ([`LingeringClose`]): if
//! it were closed at once with unread bytes, it would be reset, and the reset can overtake the response.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustix::ioctl::{Getter, Opcode, ioctl};
use striate_runtime::{Runtime, Timer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::peers::{Peer, SendBuffer};

/// Bytes of a response that the kernel takes before it has sent them.
const UNSENT_BYTES: u32 = 1 << 20;
/// As `UNSENT_BYTES`, for a slow receiver.
const UNSENT_OF_SLOW: u32 = 128 << 10;
/// As `UNSENT_BYTES`, for a receiver that was given [`EARNING_BYTES`].
const UNBOUNDED: u32 = u32::MAX;
const EARNING_BYTES: u64 = 16 << 20;
/// Maximum time that a connection lingers.
const LINGER: Duration = Duration::from_secs(30);
/// Maximum time that the peer of a lingering connection may stay silent.
const LINGER_SILENCE: Duration = Duration::from_secs(5);
/// Bytes discarded at a time.
const LINGER_BUFFER: usize = 16 << 10;
/// The ioctl for the bytes that were written and not acknowledged (tcp(7)).
const SIOCOUTQ: Opcode = 0x5411;

/// The stream of a connection over TCP.
pub(crate) trait Socket: AsyncRead + AsyncWrite {
    /// Returns the underlying TCP stream.
    fn tcp(&self) -> &TcpStream;
}

impl Socket for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl Socket for TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

/// The sweeper's access to a socket, until the connection takes it away before it closes the socket. A descriptor of its
/// own would be one more of each connection, just when there are many.
#[derive(Clone, Default)]
struct SharedDescriptor(Arc<Mutex<Option<RawFd>>>);

impl SharedDescriptor {
    /// Calls `look` with the socket, unless it is closed. The connection cannot close it meanwhile.
    fn with<T>(&self, look: impl FnOnce(BorrowedFd<'_>) -> T) -> Option<T> {
        let descriptor = self.0.lock();
        // SAFETY: a connection takes its descriptor away, under this lock, before it closes it.
        descriptor.map(|descriptor| look(unsafe { BorrowedFd::borrow_raw(descriptor) }))
    }
}

impl SendBuffer for SharedDescriptor {
    fn unacknowledged(&self) -> u64 {
        // SAFETY: SIOCOUTQ is one of the system's ioctl numbers, and writes an int.
        let getter = unsafe { Getter::<SIOCOUTQ, std::ffi::c_int>::new() };
        // SAFETY: as above; the descriptor stays open while it is borrowed.
        let held = self.with(|socket| unsafe { ioctl(socket, getter) });
        held.and_then(Result::ok).map_or(0, |held| u64::try_from(held).unwrap_or(0))
    }

    fn bound(&self) {
        self.with(|socket| bound_unsent(&socket, UNSENT_OF_SLOW));
    }
}

/// Bounds the bytes that the kernel takes of responses before it has sent them.
fn bound_unsent(socket: &impl AsFd, bytes: u32) {
    if let Err(error) = socket2::SockRef::from(socket).set_tcp_notsent_lowat(bytes) {
        tracing::debug!(%error, "TCP_NOTSENT_LOWAT cannot be set");
    }
}

/// Makes the connection end with a reset. After an orderly end, the kernel would keep the bytes for a receiver that
/// takes nothing for minutes.
fn reset_at_end(stream: &TcpStream) {
    if let Err(error) = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)) {
        tracing::debug!(%error, "SO_LINGER cannot be set");
    }
}

/// A connection that reports to its [`Peer`] what it waits for and how many bytes move, and that
/// fails when the peer times out.
pub(crate) struct Wire<S> {
    inner: TokioIo<S>,
    peer: Arc<Peer>,
    runtime: Runtime,
    /// Whether the bound is removed: the kernel takes what its send buffer holds, until the
    /// sweeper finds the peer slow.
    is_unbounded: bool,
    /// Set when our half is closed and the peer may still be sending.
    lingering: Option<LingeringClose>,
    /// What the sweeper sees of the socket.
    shared: SharedDescriptor,
}

impl<S> Drop for Wire<S> {
    fn drop(&mut self) {
        // Before the socket is closed and its number given to another.
        self.shared.0.lock().take();
    }
}

/// The end of a connection whose peer may still be sending. Our half is closed, and what arrives is discarded until the
/// peer closes too, stays silent for [`LINGER_SILENCE`], or [`LINGER`] is over.
struct LingeringClose {
    runtime: Runtime,
    over: Timer,
    silence: Timer,
}

impl LingeringClose {
    fn begin(runtime: &Runtime) -> Self {
        let after = |duration| runtime.timer(runtime.now() + duration);
        Self { over: after(LINGER), silence: after(LINGER_SILENCE), runtime: runtime.clone() }
    }

    /// Reads and discards. An error is an end like any other: the response was sent.
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

impl<S: Socket> Wire<S> {
    /// Creates the wire of a connection to `peer`.
    pub fn new(stream: S, peer: Arc<Peer>, runtime: Runtime) -> Self {
        bound_unsent(stream.tcp(), UNSENT_BYTES);
        let shared = SharedDescriptor(Arc::new(Mutex::new(Some(stream.tcp().as_raw_fd()))));
        Self { inner: TokioIo::new(stream), peer, runtime, is_unbounded: false, lingering: None, shared }
    }

    /// Records that the kernel took bytes of a response.
    fn wrote(&mut self, len: usize) {
        self.peer.wrote(len);
        if !self.is_unbounded && self.peer.has_earned(EARNING_BYTES) {
            self.is_unbounded = true;
            bound_unsent(self.inner.inner().tcp(), UNBOUNDED);
        }
    }

    /// Records the outcome of a write; fails if the receiver has timed out.
    fn judge<R>(
        &mut self,
        cx: &Context<'_>,
        written: Poll<io::Result<R>>,
        len: impl Fn(&R) -> usize,
    ) -> Poll<io::Result<R>> {
        match &written {
            Poll::Pending => {
                self.peer.is_buffered_by(|| Box::new(self.shared.clone()));
                match self.peer.await_receiver(cx) {
                    true => {
                        reset_at_end(self.inner.inner().tcp());
                        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
                    }
                    false => written,
                }
            }
            Poll::Ready(Ok(value)) => {
                self.wrote(len(value));
                written
            }
            Poll::Ready(Err(_)) => written,
        }
    }
}

impl<S: Socket + Unpin> Read for Wire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // SAFETY: a buffer for reading only gains initialised bytes.
        let mut unfilled = ReadBuf::uninit(unsafe { buf.as_mut() });
        let read = Pin::new(&mut self.inner).poll_read(cx, unfilled.unfilled());
        let len = unfilled.filled().len();
        let has_memory = self.peer.receive_head(unfilled.filled());
        // SAFETY: the socket has filled them.
        unsafe { buf.advance(len) };
        match read {
            Poll::Pending if self.peer.await_request(cx) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Ready(Ok(())) if !has_memory => Poll::Ready(Err(io::ErrorKind::OutOfMemory.into())),
            read => read,
        }
    }
}

impl<S: Socket + Unpin> Write for Wire<S> {
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
        let lingering = wire.lingering.get_or_insert_with(|| LingeringClose::begin(&wire.runtime));
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

//! Closes connections whose peer stops taking bytes, so that replies do not pile up for it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use striate_runtime::Runtime;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::transport::ByteStream;

/// A stream whose writes fail when the peer takes none of their bytes for `patience`.
pub(super) struct StallGuard {
    stream: Box<dyn ByteStream>,
    runtime: Runtime,
    patience: Duration,
    /// Runs while a write is pending.
    alarm: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl StallGuard {
    pub(super) fn new(stream: Box<dyn ByteStream>, runtime: Runtime, patience: Duration) -> Self {
        Self { stream, runtime, patience, alarm: None }
    }

    /// Returns the outcome of a write, or a timeout error if it has been pending for too long.
    fn watch<T>(&mut self, context: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.alarm = None;
            return outcome;
        }
        let (runtime, patience) = (&self.runtime, self.patience);
        let alarm = self.alarm.get_or_insert_with(|| {
            let runtime = runtime.clone();
            Box::pin(async move { runtime.sleep(patience).await })
        });
        ready!(alarm.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes no more bytes")))
    }
}

impl AsyncRead for StallGuard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for StallGuard {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.watch(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(context, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch(context, outcome)
    }
}

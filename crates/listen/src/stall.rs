//! Connections whose peer takes no bytes.
//!
//! An HTTP server waits for as long as a peer likes to take a response. A connection under this guard fails instead, so
//! that neither memory nor a place is held for a peer that has stopped.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use striate_runtime::Runtime;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream whose writes fail when the peer takes none of their bytes for `patience`.
pub struct StallGuard<S> {
    stream: S,
    runtime: Runtime,
    patience: Duration,
    /// Runs while a write is pending.
    alarm: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<S> StallGuard<S> {
    /// Guards `stream`.
    pub fn new(stream: S, runtime: Runtime, patience: Duration) -> Self {
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

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn a_write_fails_when_nothing_is_taken_for_the_whole_time_and_not_earlier() {
        const PATIENCE: Duration = Duration::from_secs(5);
        let outcome = striate_runtime::run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let (ours, mut theirs) = tokio::io::duplex(10);
            let mut guarded = StallGuard::new(ours, runtime.clone(), PATIENCE);
            let taker = runtime.clone();
            runtime.spawn(async move {
                // Takes a little, late, twice, and then nothing more.
                for _ in 0..2 {
                    taker.sleep(PATIENCE - Duration::from_secs(1)).await;
                    theirs.read_exact(&mut [0; 10]).await.unwrap();
                }
                std::future::pending::<()>().await;
                drop(theirs);
            });
            let began = runtime.now();
            let failed = guarded.write_all(&[0; 100]).await.unwrap_err();
            (failed.kind(), runtime.now() - began)
        });
        assert_eq!(outcome, (io::ErrorKind::TimedOut, 3 * PATIENCE - Duration::from_secs(2)));
    }
}

//! Tasks that are cancelled on drop, or that run regardless.

use std::pin::Pin;
use std::task::{Context, Poll};

use striate_runtime::{JoinHandle, Runtime};
use tokio::task::JoinError;

use crate::{Client, ClientError};

/// Returns the result of a task. Resumes a panic of the task; a task that was stopped because the runtime shuts down
/// yields [`ClientError::Busy`].
pub(crate) fn joined<T>(result: Result<Result<T, ClientError>, JoinError>) -> Result<T, ClientError> {
    result.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Err(ClientError::Busy),
    })
}

/// A task that is cancelled when this is dropped.
pub(crate) struct Task<T>(JoinHandle<Result<T, ClientError>>);

impl<T: Send + 'static> Task<T> {
    pub(crate) fn spawn(
        runtime: &Runtime,
        work: impl Future<Output = Result<T, ClientError>> + Send + 'static,
    ) -> Self {
        Self(runtime.spawn(work))
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, ClientError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(joined)
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Client {
    /// Runs `work` to its end, even if the caller goes away. For commits: one that is dropped halfway has an unknown
    /// outcome, and what it names would be left to the collector.
    pub(crate) async fn finish_regardless<T, F>(&self, work: F) -> Result<T, ClientError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ClientError>> + Send + 'static,
    {
        joined(self.inner.runtime.spawn(work).await)
    }
}

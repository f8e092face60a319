//! Work in tasks of its own.

use tokio::task::JoinError;

use crate::{Client, ClientError};

/// What a task answered. A panic of the task goes on here; a task that was stopped because the runtime shuts
/// down answers [`ClientError::Busy`].
pub(crate) fn joined<T>(result: Result<Result<T, ClientError>, JoinError>) -> Result<T, ClientError> {
    result.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Err(ClientError::Busy),
    })
}

impl Client {
    /// Runs `work` to its end, also when the caller goes away meanwhile. For commits: one that is dropped
    /// half-way has an unknown outcome, and what it names would be left to the collector.
    pub(crate) async fn finish_regardless<T, F>(&self, work: F) -> Result<T, ClientError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ClientError>> + Send + 'static,
    {
        joined(self.inner.runtime.spawn(work).await)
    }
}

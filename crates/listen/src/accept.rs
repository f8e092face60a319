//! Accepting connections when the system may refuse.

use std::future::Future;
use std::io;
use std::time::Duration;

use striate_runtime::Runtime;

/// Pause before the next accept when the system cannot give a connection. It keeps a process that is out of descriptors
/// from doing nothing but ask for them.
const PAUSE: Duration = Duration::from_millis(50);

/// Accepts the next connection, and tries again for as long as the system has no descriptor for it. Errors of one
/// connection, which was gone before it was accepted, are skipped.
///
/// `port` names the listener in the log.
pub async fn next_connection<T, F>(runtime: &Runtime, port: &'static str, mut accept: impl FnMut() -> F) -> T
where
    F: Future<Output = io::Result<T>>,
{
    loop {
        match accept().await {
            Ok(accepted) => return accepted,
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, port, "a connection cannot be accepted");
                runtime.sleep(PAUSE).await;
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_waits_out_a_want_of_descriptors_and_skips_connections_that_are_gone() {
        let outcome = striate_runtime::run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let mut answers = vec![
                Ok(7),
                Err(io::Error::from_raw_os_error(24)),
                Err(io::ErrorKind::ConnectionAborted.into()),
            ];
            let began = runtime.now();
            let accepted =
                next_connection(&runtime, "test", || std::future::ready(answers.pop().unwrap())).await;
            (accepted, runtime.now() - began)
        });
        assert_eq!(outcome, (7, PAUSE));
    }
}

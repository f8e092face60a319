//! Ctrl-C: a command ends cleanly. A transfer starts no further request, abandons those in flight, and fails as usual,
//! which removes partial files and aborts unfinished uploads; a benchmark prints its measurements so far. A second
//! Ctrl-C ends the program at once.

use striate_runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::failure::Failure;

/// The state of interruption by the user. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Interruption(watch::Receiver<bool>);

impl Interruption {
    /// Listens for Ctrl-C and SIGTERM from now on.
    pub fn listen(runtime: &Runtime) -> Self {
        let (tell, receiver) = watch::channel(false);
        runtime.spawn(async move {
            let (Ok(mut interrupt), Ok(mut terminate)) =
                (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
            else {
                // The signals keep their default effect, which is to end the program.
                return std::future::pending().await;
            };
            for is_first in [true, false] {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if is_first {
                    tell.send_replace(true);
                }
            }
            std::process::exit(130)
        });
        Self(receiver)
    }

    /// Returns true if the user has interrupted the command.
    pub fn has_happened(&self) -> bool {
        *self.0.borrow()
    }

    /// Completes when the user interrupts the command.
    pub async fn happens(&self) {
        let mut receiver = self.0.clone();
        if receiver.wait_for(|&interrupted| interrupted).await.is_err() {
            // No task listens to signals, so it never happens.
            std::future::pending().await
        }
    }

    /// Returns the failure of an interrupted command.
    pub fn failure() -> Failure {
        Failure::interrupted("interrupted; what was complete by then stays, the rest was given up")
    }

    /// Creates an interruption that the test controls.
    #[cfg(test)]
    pub fn by(receiver: watch::Receiver<bool>) -> Self {
        Self(receiver)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_happens_once_for_everybody_and_never_when_nobody_listens() {
        let (tell, receiver) = watch::channel(false);
        let interruption = Interruption::by(receiver);
        let other = interruption.clone();
        let mut waiting = Box::pin(other.happens());
        assert!(!interruption.has_happened() && futures::poll!(&mut waiting).is_pending());
        tell.send_replace(true);
        waiting.await;
        interruption.happens().await;
        assert!(interruption.has_happened());
        let (tell, receiver) = watch::channel(false);
        drop(tell);
        let never = Interruption::by(receiver);
        assert!(futures::FutureExt::now_or_never(never.happens()).is_none());
    }
}

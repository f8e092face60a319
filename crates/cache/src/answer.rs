//! A home's answer to a gateway. The answer may grant fills to a reader that is gone by then. Such grants are returned
//! at once; otherwise other readers would wait until they expire.

use std::sync::Arc;
use std::time::Duration;

use striate_runtime::Runtime;
use striate_site::{CachedBlockState, Site, SiteError, Tend, TendEvent, Tended};
use tokio::sync::oneshot;

/// Grants expire after this time, so a later answer is useless.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A home's answer. Dropped without [`Answer::take`], it returns the grants in it.
pub(crate) struct Answer {
    runtime: Runtime,
    site: Arc<dyn Site>,
    tends: Vec<Tend>,
    tended: Vec<Tended>,
}

impl Answer {
    /// Asks a home. A task waits for the answer even if the caller stops waiting.
    pub(crate) fn wait_for(
        runtime: Runtime,
        site: Arc<dyn Site>,
        tends: Vec<Tend>,
    ) -> oneshot::Receiver<Result<Self, SiteError>> {
        let (answer, answered) = oneshot::channel();
        let within = runtime.clone();
        runtime.clone().spawn(async move {
            let Ok(tended) = within.timeout(ANSWER_WITHIN, site.tend(tends.clone())).await else { return };
            // Without a receiver, the answer is dropped here.
            let _ = answer.send(tended.map(|tended| Self { runtime, site, tends, tended }));
        });
        answered
    }

    /// Returns the answer and passes its grants to the caller.
    pub(crate) fn take(mut self) -> Vec<Tended> {
        std::mem::take(&mut self.tended)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let is_granted = |(_, tended): &(&Tend, &Tended)| tended.standing == CachedBlockState::Granted;
        let given_up = |(tend, tended): (&Tend, &Tended)| Tend {
            reads: 0,
            matter: TendEvent::GaveUp,
            grant: tended.grant,
            ..*tend
        };
        let granted: Vec<Tend> =
            self.tends.iter().zip(&self.tended).filter(is_granted).map(given_up).collect();
        if !granted.is_empty() {
            let (site, within) = (Arc::clone(&self.site), self.runtime.clone());
            self.runtime.spawn(async move { within.timeout(ANSWER_WITHIN, site.tend(granted)).await });
        }
    }
}

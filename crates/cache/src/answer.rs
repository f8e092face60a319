//! A home's answer to a gateway. It may grant the right to fill blocks, and the reader that asked may be gone by then. Such a grant is
//! given up at once: otherwise other readers would wait until it expires.

use std::sync::Arc;
use std::time::Duration;

use striate_runtime::Runtime;
use striate_site::{Site, SiteError, Standing, Tend, TendMatter, Tended};
use tokio::sync::oneshot;

/// Grants expire after this time, so a later answer is of no use.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A home's answer. Dropped without [`Answer::take`], it gives up what it grants.
pub(crate) struct Answer {
    runtime: Runtime,
    site: Arc<dyn Site>,
    asked: Vec<Tend>,
    tended: Vec<Tended>,
}

impl Answer {
    /// Asks a home. A task waits for the answer even if the caller stops waiting.
    pub(crate) fn wait_for(
        runtime: Runtime,
        site: Arc<dyn Site>,
        asked: Vec<Tend>,
    ) -> oneshot::Receiver<Result<Self, SiteError>> {
        let (answer, answered) = oneshot::channel();
        let within = runtime.clone();
        runtime.clone().spawn(async move {
            let Ok(tended) = within.timeout(ANSWER_WITHIN, site.tend(asked.clone())).await else { return };
            // Dropped here where nobody receives it.
            let _ = answer.send(tended.map(|tended| Self { runtime, site, asked, tended }));
        });
        answered
    }

    /// What was answered: its grants are the caller's.
    pub(crate) fn take(mut self) -> Vec<Tended> {
        std::mem::take(&mut self.tended)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let is_granted = |(_, tended): &(&Tend, &Tended)| tended.standing == Standing::Granted;
        let given_up = |(tend, tended): (&Tend, &Tended)| Tend {
            reads: 0,
            matter: TendMatter::GaveUp,
            grant: tended.grant,
            ..*tend
        };
        let granted: Vec<Tend> =
            self.asked.iter().zip(&self.tended).filter(is_granted).map(given_up).collect();
        if !granted.is_empty() {
            let (site, within) = (Arc::clone(&self.site), self.runtime.clone());
            self.runtime.spawn(async move { within.timeout(ANSWER_WITHIN, site.tend(granted)).await });
        }
    }
}

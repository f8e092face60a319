//! What a home has answered. It may grant the right to fill blocks, and whoever asked may be gone by then: others would then wait in
//! vain until the grant expires.

use std::sync::Arc;
use std::time::Duration;

use striate_runtime::Runtime;
use striate_site::{Site, SiteError, Standing, Tend, TendMatter, Tended};
use tokio::sync::oneshot;

/// An answer that has not come by then does not come: the grants in it have expired.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A home's answer. Where nobody takes it, what it grants is given up.
pub(crate) struct Answer {
    runtime: Runtime,
    site: Arc<dyn Site>,
    asked: Vec<Tend>,
    tended: Vec<Tended>,
}

impl Answer {
    /// Asks a home. The answer is waited for also when whoever asked does not wait any more.
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
        let given_up = |(tend, _): (&Tend, &Tended)| Tend { reads: 0, matter: TendMatter::GaveUp, ..*tend };
        let granted: Vec<Tend> =
            self.asked.iter().zip(&self.tended).filter(is_granted).map(given_up).collect();
        if !granted.is_empty() {
            let (site, within) = (Arc::clone(&self.site), self.runtime.clone());
            self.runtime.spawn(async move { within.timeout(ANSWER_WITHIN, site.tend(granted)).await });
        }
    }
}

//! EC-Store's probes and its solver in the background, for the published policy alone ([`striate_plan::published`]).
//!
//! Every [`StripeOptions::probe_interval`](crate::StripeOptions::probe_interval) all sites are asked for their load,
//! decoupled from reads (§V-A). The solver takes [`SOLVE_TIME`] for all queries that have come without a plan, and for all
//! cached plans after a probe: until then those of the probe before serve. The paper has one thread for it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::join_all;
use striate_core::SiteId;
use striate_site::SiteStatus;

use super::reads::{Reads, Shared};

/// What HiGHS takes for a query of ten blocks, about (`make plan-bench`).
const SOLVE_TIME: Duration = Duration::from_millis(10);

impl Reads {
    /// Probes until the client is gone.
    pub(crate) fn probe_in_background(&self) {
        let (runtime, shared) = (self.shared.runtime.clone(), Arc::downgrade(&self.shared));
        let interval = self.shared.options.probe_interval;
        self.shared.runtime.spawn(async move {
            while let Some(loads) = probe(&shared).await {
                runtime.sleep(SOLVE_TIME).await;
                if let Some(shared) = shared.upgrade() {
                    shared.published.lock().reload(&loads);
                }
                runtime.sleep(interval.saturating_sub(SOLVE_TIME)).await;
            }
        });
    }

    /// Finds plans for the queries that had none, after a while.
    pub(super) fn solve_in_background(&self) {
        let (runtime, shared) = (self.shared.runtime.clone(), Arc::downgrade(&self.shared));
        self.shared.runtime.spawn(async move {
            runtime.sleep(SOLVE_TIME).await;
            if let Some(shared) = shared.upgrade() {
                shared.published.lock().solve_wanted();
            }
        });
    }
}

/// The load of each site that answers. `None` when the client is gone.
async fn probe(shared: &Weak<Shared>) -> Option<Vec<(SiteId, f64)>> {
    let shared = shared.upgrade()?;
    let views = shared.sites.views();
    let statuses = join_all(views.iter().map(|view| view.site.status())).await;
    let load = |status: SiteStatus| (status.site, 1.0 + f64::from(status.load.queue_requests));
    Some(statuses.into_iter().flatten().map(load).collect())
}

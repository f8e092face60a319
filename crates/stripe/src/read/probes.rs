//! What policies learn in the background: probes of all sites, and plans that are found for later.
//!
//! Every [`Policy::probe_every`](striate_plan::Policy::probe_every) all sites are asked for their load, decoupled from reads
//! (EC-Store §V-A). Solving takes [`SOLVE_TIME`] for all queries that have come without a plan, and for all cached plans
//! after a probe: until then those of the probe before serve. The paper has one thread for it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::join_all;
use striate_core::SiteId;
use striate_site::SiteStatus;

use super::reads::{Reads, Shared};

/// What HiGHS takes for a query of ten blocks, about (`make plan-bench`).
const SOLVE_TIME: Duration = Duration::from_millis(10);

impl Reads {
    /// Probes until nobody reads any more, where the policy wants it.
    pub(crate) fn probe_in_background(&self) {
        let options = &self.shared.options;
        let Some(interval) = options.read_policy.probe_every() else { return };
        let interval = options.probe_interval.unwrap_or(interval);
        let (runtime, shared) = (self.shared.runtime.clone(), Arc::downgrade(&self.shared));
        self.shared.runtime.spawn(async move {
            while let Some(loads) = probe(&shared).await {
                runtime.sleep(SOLVE_TIME).await;
                if let Some(shared) = shared.upgrade() {
                    shared.planner.lock().take_loads(&loads);
                }
                runtime.sleep(interval.saturating_sub(SOLVE_TIME)).await;
            }
        });
    }

    /// Has the planner work after a while.
    pub(super) fn work_in_background(&self) {
        let (runtime, shared) = (self.shared.runtime.clone(), Arc::downgrade(&self.shared));
        self.shared.runtime.spawn(async move {
            runtime.sleep(SOLVE_TIME).await;
            if let Some(shared) = shared.upgrade() {
                shared.planner.lock().work_in_background();
            }
        });
    }
}

/// The load of each site that answers. `None` when nobody reads any more.
async fn probe(shared: &Weak<Shared>) -> Option<Vec<(SiteId, f64)>> {
    let shared = shared.upgrade()?;
    let views = shared.sites.views();
    let statuses = join_all(views.iter().map(|view| view.site.status())).await;
    let load = |status: SiteStatus| (status.site, 1.0 + f64::from(status.load.queue_requests));
    Some(statuses.into_iter().flatten().map(load).collect())
}

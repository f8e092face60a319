//! Probes sites for their queues, for policies that need it: in the background, and before a query is planned.
//!
//! Every [`Policy::probe_every`](striate_plan::Policy::probe_every), all sites are probed, decoupled from reads
//! (EC-Store §V-A; Hu et al. §3.1). A policy takes its [`Policy::solve_time`](striate_plan::Policy::solve_time) to
//! evaluate a probe, and to find plans for queries that arrived without one. Until then the earlier results are used.
//!
//! The [`Policy::sites_to_probe`](striate_plan::Policy::sites_to_probe) are probed at once, before the query is
//! planned (Hu et al. §2.4). Every probe is a message to its site, and counts whether it is answered or not.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use futures::future::join_all;
use striate_core::SiteId;
use striate_plan::{Probe, ProbedSite, SiteQueue};
use striate_site::{Site, SiteStatus};

use super::measure::ReadMeasures;
use super::reads::{Reads, Shared};

/// Queues reported by the probed sites of one query.
#[derive(Debug)]
pub(super) struct ProbedQueues(BTreeMap<SiteId, SiteQueue>);

impl ProbedQueues {
    /// Returns the queue of a site; `None` if it was not probed or did not answer.
    pub(super) fn of(&self, site: SiteId) -> Option<SiteQueue> {
        self.0.get(&site).copied()
    }
}

impl Reads {
    /// Starts background probes if the policy wants them. They run until the last reader is dropped.
    pub(crate) fn probe_in_background(&self) {
        let options = &self.shared.options;
        let Some(interval) = options.read_policy.probe_every() else { return };
        let (interval, solve_time) =
            (options.probe_interval.unwrap_or(interval), options.read_policy.solve_time());
        let (runtime, shared) = (self.shared.runtime.clone(), Arc::downgrade(&self.shared));
        self.shared.runtime.spawn(async move {
            let mut last = runtime.now();
            loop {
                let began = runtime.now();
                let Some(sites) = probe_all(&shared).await else { return };
                let probe = Probe { since_last: began - last, sites };
                last = began;
                runtime.sleep(solve_time).await;
                if let Some(shared) = shared.upgrade() {
                    shared.planner.lock().take_probe(&probe, &mut *shared.rng.lock());
                }
                runtime.sleep_until(began + interval).await;
            }
        });
    }

    /// Starts the planner's background work after its solve time.
    pub(super) fn work_in_background(&self) {
        let (runtime, shared) = (self.shared.runtime.clone(), Arc::downgrade(&self.shared));
        let solve_time = self.shared.options.read_policy.solve_time();
        self.shared.runtime.spawn(async move {
            runtime.sleep(solve_time).await;
            if let Some(shared) = shared.upgrade() {
                shared.planner.lock().work_in_background();
            }
        });
    }

    /// Probes sites for their queues, all at once. A site that is silent for the hedge time is left out.
    pub(super) async fn probe(&self, sites: &[SiteId]) -> ProbedQueues {
        let shared = &self.shared;
        ReadMeasures::count(&shared.measures.probes, sites.len());
        let answers = sites.iter().map(|&id| async move {
            let status = ask(shared, &*shared.sites.get(id)?).await?;
            let workers = f64::from(status.load.workers.max(1));
            let waiting = (f64::from(status.load.queue_requests) - workers).max(0.0) / workers;
            Some((id, SiteQueue { waiting, bytes: status.load.queue_bytes as f64 }))
        });
        ProbedQueues(join_all(answers).await.into_iter().flatten().collect())
    }
}

/// Returns the status of a site, if it answers within the hedge time.
async fn ask(shared: &Shared, site: &dyn Site) -> Option<SiteStatus> {
    shared.runtime.timeout(shared.hedge_delay.hedge_after(), site.status()).await.ok()?.ok()
}

/// Probes all sites and returns the reports of those that answer, ordered by site. `None` once the last reader is
/// dropped.
async fn probe_all(shared: &Weak<Shared>) -> Option<Vec<ProbedSite>> {
    let shared = shared.upgrade()?;
    let views = shared.sites.views();
    ReadMeasures::count(&shared.measures.probes, views.len());
    let statuses = join_all(views.iter().map(|view| ask(&shared, &*view.site))).await;
    let report = |status: SiteStatus| ProbedSite {
        site: status.site,
        requests: f64::from(status.load.queue_requests),
        bytes: status.load.queue_bytes as f64,
    };
    let mut sites: Vec<ProbedSite> = statuses.into_iter().flatten().map(report).collect();
    sites.sort_by_key(|report| report.site);
    Some(sites)
}

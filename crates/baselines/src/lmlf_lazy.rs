//! LMLF Lazy (Hu et al., SoCC'17, §3.1): least marginal load first, by a table of all sites' queues that is refreshed
//! every second. Requests directed since the last refresh are not in the table, so requests flock to the same sites
//! until the next one. Probes: as many as there are sites, each second, however many requests there are.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rand::RngCore;
use striate_codec::CodecError;
use striate_core::SiteId;
use striate_plan::{
    ChosenChunk, ChunkChoice, OptionMetric, Policy, Probe, QueryPlan, ReadPlanner, ReadQuery,
};

use crate::least_first::plan_least;

/// T: interval between refreshes of the table (§4).
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// Reads by least marginal load, according to a table of queues.
#[derive(Clone, Copy, Debug, Default)]
pub struct LmlfLazy;

/// The table. Reads are normal until it is first filled.
#[derive(Debug, Default)]
struct LazyPlanner {
    /// Q_j in bytes.
    queues: BTreeMap<SiteId, f64>,
}

impl Policy for LmlfLazy {
    fn planner(&self) -> Box<dyn ReadPlanner> {
        Box::<LazyPlanner>::default()
    }

    fn probe_every(&self) -> Option<Duration> {
        Some(PROBE_EVERY)
    }

    fn why(&self, chunk: ChosenChunk) -> ChunkChoice {
        if chunk.is_wanted { ChunkChoice::Systematic } else { ChunkChoice::LeastCost }
    }
}

impl fmt::Display for LmlfLazy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("lmlf-lazy")
    }
}

impl ReadPlanner for LazyPlanner {
    fn plan(&mut self, query: &ReadQuery<'_>, _: &mut dyn RngCore) -> Result<QueryPlan, CodecError> {
        plan_least(query, OptionMetric::MarginalLoad, &|site| self.queues.get(&site).copied())
    }

    fn take_probe(&mut self, probe: &Probe, _: &mut dyn RngCore) {
        self.queues = probe.sites.iter().map(|site| (site.site, site.bytes)).collect();
    }
}

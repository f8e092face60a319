//! Least latency first and least marginal load first (Hu et al., SoCC'17, §2.4): by queues that are asked for at every request,
//! of all sites that could serve it (LLF, LMLF), or, by the power of two choices (§2.5), of the wanted chunk's and those of
//! one degraded read only (LLF-PW2, LMLF-PW2): a random one of a Reed–Solomon code, an LRC's local group.
//!
//! The two differ in what is probed. Both choose the least of the options whose sites they know.
//!
//! Probes for one request: of `rs(6,3)` 9 and 7, of `lrc(6,2,2)` 10 and 4.

use std::fmt;

use rand::RngCore;
use striate_codec::{ChunkSet, CodecError};
use striate_core::SiteId;
use striate_plan::read::options::one_degraded_option;
use striate_plan::{
    ChosenChunk, ChunkChoice, OptionMetric, Policy, Purpose, QueryPlan, ReadPlanner, ReadQuery, WantedChunk,
    plan_normally,
};

use crate::directing::{plan_pieces, wanted_chunk, wants_one_chunk};

/// Reads by the least option at each request.
#[derive(Clone, Copy, Debug)]
pub struct LeastFirst {
    /// What is least.
    pub metric: OptionMetric,
    /// Whose queues are asked for.
    pub probing: Probing,
}

/// Which sites are probed for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probing {
    /// Every site that has a chunk of the stripe.
    All,
    /// That of the wanted chunk, and those of one degraded read. For other pieces none.
    PowerOfTwo,
}

impl Policy for LeastFirst {
    fn planner(&self) -> Box<dyn ReadPlanner> {
        Box::new(*self)
    }

    fn sites_to_probe(&self, query: &ReadQuery<'_>, rng: &mut dyn RngCore) -> Vec<SiteId> {
        let mut sites = Vec::new();
        for of in query.pieces {
            let available: ChunkSet = of.available(query.can_be_asked).collect();
            let probed = match self.probing {
                Probing::All => available,
                Probing::PowerOfTwo if wants_one_chunk(of) => {
                    let degraded = one_degraded_option(of.code, wanted_chunk(of), &available, rng);
                    let normal = of.wanted.intersection(&available);
                    normal.iter().chain(degraded.unwrap_or_default().iter()).collect()
                }
                Probing::PowerOfTwo => ChunkSet::EMPTY,
            };
            sites.extend(probed.iter().map(|index| of.sites[index]));
        }
        sites.sort_unstable();
        sites.dedup();
        sites
    }

    fn why(&self, chunk: ChosenChunk) -> ChunkChoice {
        if chunk.is_wanted { ChunkChoice::Systematic } else { ChunkChoice::LeastCost }
    }
}

impl fmt::Display for LeastFirst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.metric, self.probing) {
            (OptionMetric::Latency, Probing::All) => "llf",
            (OptionMetric::Latency, Probing::PowerOfTwo) => "llf-pw2",
            (OptionMetric::MarginalLoad, Probing::All) => "lmlf",
            (OptionMetric::MarginalLoad, Probing::PowerOfTwo) => "lmlf-pw2",
        })
    }
}

impl ReadPlanner for LeastFirst {
    fn plan(&mut self, query: &ReadQuery<'_>, _: &mut dyn RngCore) -> Result<QueryPlan, CodecError> {
        let queue = |site| Some((query.queue)(site)?.bytes);
        plan_least(query, self.metric, &queue)
    }
}

/// Plans every piece by its least option, by these queues.
///
/// # Errors
/// [`CodecError::Insufficient`] when the chunks of a piece that can be had do not determine it.
pub(crate) fn plan_least(
    query: &ReadQuery<'_>,
    metric: OptionMetric,
    queue: &dyn Fn(SiteId) -> Option<f64>,
) -> Result<QueryPlan, CodecError> {
    if query.purpose == Purpose::Rest {
        return plan_normally(query);
    }
    plan_pieces(query, queue, |of, queues| {
        let nodes = queues.nodes(of, query);
        let (code, index, bytes) = (of.code, wanted_chunk(of), f64::from(of.len));
        WantedChunk { code, index, bytes, nodes: &nodes }.least_option(metric)
    })
}

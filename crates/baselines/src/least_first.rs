//! Least latency first and least marginal load first (Hu et al., SoCC'17, §2.4): probes queues at every request. LLF
//! and LMLF probe all sites that could serve it. LLF-PW2 and LMLF-PW2, by the power of two choices (§2.5), probe the
//! site of the wanted chunk and those of one degraded read: a random one of a Reed–Solomon code, or an LRC's local
//! group.
//!
//! All of them choose the least of the options whose sites they know; the two kinds differ in what they probe.
//!
//! Probes per request: 9 and 7 for `rs(6,3)`, 10 and 4 for `lrc(6,2,2)`.

use std::fmt;

use rand::RngCore;
use striate_codec::{ChunkSet, CodecError};
use striate_core::SiteId;
use striate_plan::read::options::one_degraded_option;
use striate_plan::{
    ChosenChunk, ChunkChoice, OptionMetric, Policy, QueryPlan, ReadPlanner, ReadPurpose, ReadQuery,
    WantedChunk, plan_normally,
};

use crate::directing::{plan_pieces, wanted_chunk, wants_one_chunk};

/// Reads the least option, at each request.
#[derive(Clone, Copy, Debug)]
pub struct LeastFirst {
    /// The metric to minimise.
    pub metric: OptionMetric,
    /// The sites whose queues are probed.
    pub probing: ProbeScope,
}

/// Which sites are probed for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeScope {
    /// Every site that has a chunk of the stripe.
    All,
    /// The site of the wanted chunk, and those of one degraded read. No site for other pieces.
    PowerOfTwo,
}

impl Policy for LeastFirst {
    fn planner(&self) -> Box<dyn ReadPlanner> {
        Box::new(*self)
    }

    fn sites_to_probe(&self, query: &ReadQuery<'_>, rng: &mut dyn RngCore) -> Vec<SiteId> {
        let mut sites = Vec::new();
        for piece in query.pieces {
            let available: ChunkSet = piece.available(query.can_be_asked).collect();
            let probed = match self.probing {
                ProbeScope::All => available,
                ProbeScope::PowerOfTwo if wants_one_chunk(piece) => {
                    let degraded = one_degraded_option(piece.code, wanted_chunk(piece), &available, rng);
                    let normal = piece.wanted.intersection(&available);
                    normal.iter().chain(degraded.unwrap_or_default().iter()).collect()
                }
                ProbeScope::PowerOfTwo => ChunkSet::EMPTY,
            };
            sites.extend(probed.iter().map(|index| piece.sites[index]));
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
            (OptionMetric::Latency, ProbeScope::All) => "llf",
            (OptionMetric::Latency, ProbeScope::PowerOfTwo) => "llf-pw2",
            (OptionMetric::MarginalLoad, ProbeScope::All) => "lmlf",
            (OptionMetric::MarginalLoad, ProbeScope::PowerOfTwo) => "lmlf-pw2",
        })
    }
}

impl ReadPlanner for LeastFirst {
    fn plan(&mut self, query: &ReadQuery<'_>, _: &mut dyn RngCore) -> Result<QueryPlan, CodecError> {
        let queue = |site| Some((query.queue)(site)?.bytes);
        plan_least(query, self.metric, &queue)
    }
}

/// Plans the least option of every piece, given these queues.
///
/// # Errors
/// [`CodecError::Insufficient`] if the available chunks of a piece do not determine it.
pub(crate) fn plan_least(
    query: &ReadQuery<'_>,
    metric: OptionMetric,
    queue: &dyn Fn(SiteId) -> Option<f64>,
) -> Result<QueryPlan, CodecError> {
    if query.purpose == ReadPurpose::Rest {
        return plan_normally(query);
    }
    plan_pieces(query, queue, |piece, queues| {
        let nodes = queues.nodes(piece, query);
        let (code, index, bytes) = (piece.code, wanted_chunk(piece), f64::from(piece.len));
        WantedChunk { code, index, bytes, nodes: &nodes }.least_option(metric)
    })
}

//! Why a read would ask what it would ask: the plan of a query, with everything that it was made from.
//!
//! Blocks are looked up and planned as [`super::query`] does, against the sites' state of this moment. Nothing is asked
//! of a site.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use striate_core::{RackId, SiteId};
use striate_meta::records::Block;
use striate_plan::{QueryBlock, QueryPlan, ReadPolicy, price_plan};

use super::gathering::Gathering;
use super::reads::Reads;
use crate::error::StripeError;
use crate::sites::{CostPart, SitesSnapshot};
use crate::table::stripe_id;

/// The plan of reading some blocks in one query.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueryExplained {
    /// The policy that chose, as [`ReadPolicy`] is written.
    pub policy: String,
    /// The blocks, in the order of the query.
    pub blocks: Vec<BlockExplained>,
    /// The sites of their chunks, in the order of their numbers.
    pub sites: Vec<SiteExplained>,
    /// Eq. 1 of what is read, where asking an idle site costs 1.
    pub cost: f64,
    /// No plan that reads as many chunks of each block costs less.
    pub lower_bound: f64,
    /// What part of its cost another plan may save at most.
    pub gap: f64,
    /// Time to look up the stripes, in microseconds.
    pub metadata_us: f64,
    /// Time to plan, in microseconds.
    pub planning_us: f64,
}

/// A block and the choice among its chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockExplained {
    /// Its stripe.
    pub stripe: String,
    /// Its length in bytes.
    pub len: u32,
    /// Its code, as a profile.
    pub profile: String,
    /// The length of a chunk in bytes (z_i).
    pub chunk_len: u32,
    /// k: chunks that are data.
    pub data_chunks: usize,
    /// Its n chunks.
    pub chunks: Vec<ChunkExplained>,
}

/// A chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkExplained {
    /// Its index in the stripe; from k on it is a parity.
    pub index: usize,
    /// The site that holds it; 0 for a chunk that was never written.
    pub site: u32,
    /// Whether it is read, and why.
    pub choice: ChunkChoice,
}

/// Why a chunk is read or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChunkChoice {
    /// Read: it is data, and the policy takes data where it can.
    Systematic,
    /// Read in the place of a data chunk that cannot be had.
    Substitute,
    /// Read: its site is asked for other chunks of the query anyway.
    SharedSite,
    /// Read: its site is among the cheapest of the block.
    LeastCost,
    /// Read: it was drawn.
    Drawn,
    /// Not read: others suffice.
    NotNeeded,
    /// Cannot be had: it was never written (debt).
    InDebt,
    /// Cannot be had: its site does not answer or is not known.
    NoAnswer,
}

/// A site and what asking it costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiteExplained {
    /// Its number.
    pub site: u32,
    /// Its failure domain.
    pub rack: String,
    /// o_j; none when it cannot be asked.
    pub cost: Option<f64>,
    /// m_j, of 64 KiB; none when it cannot be asked.
    pub transfer: Option<f64>,
    /// What o_j is the sum of.
    pub parts: Vec<CostPart>,
    /// Chunks of this query that it would be asked for.
    pub chunks_read: usize,
}

impl ChunkChoice {
    /// Whether the chunk is read.
    pub fn is_read(self) -> bool {
        !matches!(self, Self::NotNeeded | Self::InDebt | Self::NoAnswer)
    }

    /// The choice in words.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Systematic => "read: data, nothing to decode",
            Self::Substitute => "read: in the place of a data chunk that cannot be had",
            Self::SharedSite => "read: its site is asked anyway",
            Self::LeastCost => "read: cheap",
            Self::Drawn => "read: drawn",
            Self::NotNeeded => "not needed",
            Self::InDebt => "cannot be had: never written (debt)",
            Self::NoAnswer => "cannot be had: its site does not answer",
        }
    }
}

impl Reads {
    /// See [`crate::Stripes::explain`].
    pub(crate) async fn explain(
        &self,
        blocks: &[Block],
        policy: ReadPolicy,
    ) -> Result<QueryExplained, StripeError> {
        let runtime = &self.shared.runtime;
        let began = runtime.now();
        let stripes = self.shared.table.open_blocks(blocks).await?;
        let gathering: Vec<_> = stripes.into_iter().map(Gathering::new).collect();
        let located = runtime.now();
        let sites = self.shared.sites.snapshot();
        let plan = self.plan(policy, self.extra_reads(policy, &gathering), &gathering);
        let planned = runtime.now();
        let Some(plan) = plan else { return Err(unreadable(blocks, &gathering, &sites)?) };
        let queried: Vec<_> = gathering.iter().map(Gathering::for_plan).collect();
        let price = price_plan(&queried, &plan, |site| sites.cost(site));
        let choices = Choices { policy, plan: &plan, sites: &sites };
        let explained = blocks.iter().zip(&gathering).enumerate();
        let explained = explained.map(|(number, (block, of))| choices.of_block(number, block, of));
        Ok(QueryExplained {
            policy: policy.to_string(),
            blocks: explained.collect(),
            sites: choices.of_sites(&queried),
            cost: price.cost,
            lower_bound: price.lower_bound,
            gap: price.gap(),
            metadata_us: (located - began).as_secs_f64() * 1e6,
            planning_us: (planned - located).as_secs_f64() * 1e6,
        })
    }
}

/// The error for a query without a plan: that of the first block that has none.
fn unreadable(
    blocks: &[Block],
    gathering: &[Gathering],
    sites: &SitesSnapshot,
) -> Result<StripeError, StripeError> {
    for (block, of) in blocks.iter().zip(gathering) {
        let QueryBlock { code, sites: holders, .. } = of.for_plan();
        let can_be_had = |index: &usize| holders[*index].0 != 0 && sites.cost(holders[*index]).is_some();
        let available: Vec<usize> = (0..code.n()).filter(can_be_had).collect();
        if !code.is_sufficient(&available) {
            let lost: Vec<_> = (0..code.n()).filter(|index| !can_be_had(index)).collect();
            return Ok(StripeError::Unreadable {
                stripe: stripe_id(&block.stripe)?,
                needed: code.k(),
                available: available.len(),
                reason: format!("chunks {lost:?} are in debt or on sites that do not answer"),
            });
        }
    }
    // Sites changed between the two looks at them.
    Ok(StripeError::Busy)
}

/// What chooses the chunks of a query.
struct Choices<'a> {
    policy: ReadPolicy,
    plan: &'a QueryPlan,
    sites: &'a SitesSnapshot,
}

impl Choices<'_> {
    fn of_block(&self, number: usize, block: &Block, gathering: &Gathering) -> BlockExplained {
        let QueryBlock { code, sites, .. } = gathering.for_plan();
        let chunk = |(index, &site): (usize, &SiteId)| ChunkExplained {
            index,
            site: site.0,
            choice: self.of_chunk(number, index, &gathering.for_plan()),
        };
        BlockExplained {
            stripe: gathering.stripe.id.to_string(),
            len: block.len,
            profile: gathering.stripe.record.profile.clone(),
            chunk_len: gathering.stripe.record.chunk_len,
            data_chunks: code.k(),
            chunks: sites.iter().enumerate().map(chunk).collect(),
        }
    }

    fn of_chunk(&self, block: usize, index: usize, of: &QueryBlock<'_>) -> ChunkChoice {
        let site = of.sites[index];
        if site.0 == 0 {
            return ChunkChoice::InDebt;
        }
        if self.sites.cost(site).is_none() {
            return ChunkChoice::NoAnswer;
        }
        let read = self.plan.reads.iter().find(|read| read.site == site);
        let Some(read) =
            read.filter(|read| read.chunks.iter().any(|chunk| (chunk.block, chunk.index) == (block, index)))
        else {
            return ChunkChoice::NotNeeded;
        };
        let shares = read.chunks.len() > 1;
        match self.policy {
            ReadPolicy::Random | ReadPolicy::LateBinding { .. } => ChunkChoice::Drawn,
            ReadPolicy::Normal if index < of.code.k() => ChunkChoice::Systematic,
            ReadPolicy::Normal => ChunkChoice::Substitute,
            ReadPolicy::LeastLoaded => ChunkChoice::LeastCost,
            ReadPolicy::CostModel { .. } | ReadPolicy::Adaptive | ReadPolicy::Published { .. } if shares => {
                ChunkChoice::SharedSite
            }
            // The heuristic looks at no cost; the plan that is cached for the query later does.
            ReadPolicy::Published { .. } if !self.plan.is_cached => ChunkChoice::Drawn,
            ReadPolicy::CostModel { .. } | ReadPolicy::Adaptive | ReadPolicy::Published { .. } => {
                ChunkChoice::LeastCost
            }
        }
    }

    fn of_sites(&self, blocks: &[QueryBlock<'_>]) -> Vec<SiteExplained> {
        let read: BTreeMap<SiteId, usize> =
            self.plan.reads.iter().map(|read| (read.site, read.chunks.len())).collect();
        let mut sites: Vec<SiteId> = blocks.iter().flat_map(|block| block.sites.iter().copied()).collect();
        sites.sort_unstable();
        sites.dedup();
        let describe = |site: SiteId| SiteExplained {
            site: site.0,
            rack: self.sites.rack(site).map_or_else(String::new, |RackId(rack)| rack),
            cost: self.sites.cost(site).map(|cost| cost.asking),
            transfer: self.sites.cost(site).map(|cost| cost.transfer(64 << 10)),
            parts: self.sites.cost_parts(site),
            chunks_read: read.get(&site).copied().unwrap_or(0),
        };
        sites.into_iter().filter(|site| site.0 != 0).map(describe).collect()
    }
}

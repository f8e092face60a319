//! Explains the plan of a query, with everything that it was made from.
//!
//! Blocks are looked up and planned as in [`super::query`], against the current state of the sites. No request is
//! sent to a site.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use striate_codec::ChunkSet;
use striate_core::{RackId, SiteId};
use striate_plan::{
    ChosenChunk, ChunkChoice, QueryChunk, QueryPiece, QueryPlan, ReadPolicy, ReadPurpose, price_plan,
};

use super::explain_options::{OptionExplanation, options_of};
use super::gathering::StripeRead;
use super::reads::Reads;
use super::span::{Span, StoredBytes};
use crate::error::StripeError;
use crate::sites::{CostPart, SitesSnapshot};

/// Plan of a query that reads some blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueryExplanation {
    /// Policy that chose the plan, in the notation of [`ReadPolicy`].
    pub policy: String,
    /// Blocks in the order of the query.
    pub blocks: Vec<BlockExplanation>,
    /// Sites of the blocks' chunks, in the order of their numbers.
    pub sites: Vec<SiteExplanation>,
    /// Cost of the plan by Eq. 1, where asking an idle site costs 1, whatever the policy minimises. Chunks that are
    /// computed from wide stripes are not counted.
    pub cost: f64,
    /// Lower bound on the cost of any plan that reads as many chunks of each block, whichever option reads each
    /// packed object.
    pub lower_bound: f64,
    /// Maximum fraction of its cost that another plan could save.
    pub gap: f64,
    /// Duration of the look-up of the stripes, in microseconds.
    pub metadata_us: f64,
    /// Duration of the planning, in microseconds.
    pub planning_us: f64,
}

/// A block and the choice among its chunks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockExplanation {
    /// Stripe that holds the block.
    pub stripe: String,
    /// Length of the block in bytes.
    pub len: u32,
    /// Code of the stripe, as a profile.
    pub profile: String,
    /// Length of a chunk in bytes (z_i).
    pub chunk_len: u32,
    /// Number of data chunks, k.
    pub data_chunks: usize,
    /// All n chunks of the stripe.
    pub chunks: Vec<ChunkExplanation>,
    /// Description of the block's cached form, which is read first; `None` without a memory tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<String>,
    /// Location of a packed object in its stripe; `None` for a block with a stripe of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extent: Option<ExtentExplanation>,
    /// Options for reading a packed object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<OptionExplanation>,
}

/// Location of a packed object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtentExplanation {
    /// Index of the chunk that holds it.
    pub chunk: usize,
    /// Offset in the chunk in bytes.
    pub offset: u32,
}

/// A chunk and whether it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkExplanation {
    /// Index in the stripe; parities start at k.
    pub index: usize,
    /// Site that holds the chunk; 0 for a chunk that was never written or was dropped.
    pub site: u32,
    /// Whether the chunk is read, and why.
    pub choice: ChunkChoice,
}

/// A site and the cost of asking it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiteExplanation {
    /// Number of the site.
    pub site: u32,
    /// Failure domain of the site.
    pub rack: String,
    /// o_j; `None` when the site cannot be asked.
    pub cost: Option<f64>,
    /// m_j for 64 KiB; `None` when the site cannot be asked.
    pub transfer: Option<f64>,
    /// Addends of o_j.
    pub parts: Vec<CostPart>,
    /// Bytes that the site reads or sends before those of this query; 0 when it cannot be asked.
    #[serde(default)]
    pub queue_bytes: u64,
    /// Number of chunks that this query would ask the site for.
    pub chunks_read: usize,
}

impl Reads {
    /// Looks up the stripes that hold the spans; for spans that are in memory only, their form there.
    async fn stored_forms(&self, spans: &[Span]) -> Result<Vec<StripeRead>, StripeError> {
        let is_in_memory = |span: &&Span| matches!(span.of, StoredBytes::Memory(_));
        let in_memory: Vec<Span> = spans.iter().filter(is_in_memory).cloned().collect();
        let mut forms = match self.shared.cache() {
            Some(cache) if !in_memory.is_empty() => cache.find(&in_memory).await.forms,
            _ => Vec::new(),
        }
        .into_iter();
        let ids = spans.iter().filter(|span| !is_in_memory(span)).map(|span| span.of.stripe());
        let mut stripes =
            self.shared.table.open_many(&ids.collect::<Result<Vec<_>, _>>()?).await?.into_iter();
        let stripe = |span: &Span| match is_in_memory(&span) {
            true => forms.next().flatten(),
            false => stripes.next(),
        };
        let of_each = spans.iter().map(stripe);
        of_each.map(|stripe| Ok(StripeRead::new(stripe.ok_or(StripeError::NotInMemory)?, false))).collect()
    }

    /// See [`crate::Stripes::explain`].
    pub(crate) fn explain<'a>(
        &'a self,
        spans: &'a [Span],
        policy: &'a ReadPolicy,
    ) -> BoxFuture<'a, Result<QueryExplanation, StripeError>> {
        Box::pin(async move {
            let runtime = &self.shared.runtime;
            let began = runtime.now();
            let stripes = self.stored_forms(spans).await?;
            let pieces = first_pieces(spans, &stripes)?;
            let located = runtime.now();
            let sites = self.shared.sites.snapshot();
            let computed: Vec<ChunkSet> = stripes
                .iter()
                .zip(&pieces)
                .map(|(stripe, piece)| computed_chunks(stripe, piece, &sites))
                .collect();
            let requested: Vec<QueryPiece<'_>> =
                pieces.iter().zip(&computed).filter_map(without_computed).collect();
            let plan = self.plan_by(policy, ReadPurpose::Query, &requested);
            let planned = runtime.now();
            let Some(plan) = plan else { return Err(unplannable(&requested, &sites)) };
            let price = price_plan(&requested, &plan, |site| sites.cost(site));
            let choices = PlanContext { policy, plan: &plan, sites: &sites };
            let cached = match self.shared.cache() {
                Some(cache) => cache.explain(spans).await.into_iter().map(|cached| cached.text).collect(),
                None => Vec::new(),
            };
            Ok(QueryExplanation {
                policy: policy.to_string(),
                blocks: choices.of_blocks(spans, &stripes, &pieces, &computed, cached),
                sites: choices.of_sites(&pieces),
                cost: price.cost,
                lower_bound: price.lower_bound,
                gap: price.gap(),
                metadata_us: (located - began).as_secs_f64() * 1e6,
                planning_us: (planned - located).as_secs_f64() * 1e6,
            })
        })
    }
}

/// Returns the first piece of each span, as the input of a plan.
fn first_pieces<'a>(spans: &[Span], stripes: &'a [StripeRead]) -> Result<Vec<QueryPiece<'a>>, StripeError> {
    let mut shapes = Vec::with_capacity(spans.len());
    for (span, stripe) in spans.iter().zip(stripes) {
        shapes.extend(span.pieces(&stripe.stripe)?.into_iter().next());
    }
    Ok(stripes.iter().zip(&shapes).map(|(stripe, shape)| stripe.for_plan(shape)).collect())
}

/// Returns the wanted chunks that a read computes from wide stripes ([`super::around`]): their sites do not answer,
/// and the stripe, which has dropped its own parities, does not determine them.
fn computed_chunks(stripe: &StripeRead, piece: &QueryPiece<'_>, sites: &SitesSnapshot) -> ChunkSet {
    let available: ChunkSet = piece.available(&|site| sites.is_readable(site)).collect();
    let lost = piece.wanted.difference(&available);
    let is_sealed =
        stripe.stripe.record.dropped && lost.iter().all(|index| stripe.stripe.wide_of(index).is_some());
    let has_copy = piece.copies.iter().any(|&site| sites.is_readable(site));
    match is_sealed && !has_copy && !piece.code.determines(&available, &piece.wanted) {
        true => lost,
        false => ChunkSet::EMPTY,
    }
}

/// Returns the part of a piece that sites are asked for, if any.
fn without_computed<'a>((piece, computed): (&QueryPiece<'a>, &ChunkSet)) -> Option<QueryPiece<'a>> {
    let wanted = piece.wanted.difference(computed);
    (!wanted.is_empty()).then_some(QueryPiece { wanted, ..*piece })
}

/// Returns the error for a query without a plan: that of the first block that cannot be planned.
fn unplannable(pieces: &[QueryPiece<'_>], sites: &SitesSnapshot) -> StripeError {
    for piece in pieces {
        let available: ChunkSet = piece.available(&|site| sites.is_readable(site)).collect();
        if !piece.code.determines(&available, &piece.wanted) {
            let lost: Vec<_> = (0..piece.code.n()).filter(|index| !available.contains(*index)).collect();
            return StripeError::Unreadable {
                stripe: piece.stripe,
                needed: piece.code.k(),
                available: available.len(),
                reason: format!("chunks {lost:?} are in debt or on sites that do not answer"),
            };
        }
    }
    // Sites changed between the two snapshots.
    StripeError::Busy
}

/// The plan of a query and the policy and sites that led to it.
struct PlanContext<'a> {
    policy: &'a ReadPolicy,
    plan: &'a QueryPlan,
    sites: &'a SitesSnapshot,
}

impl PlanContext<'_> {
    /// Explains every block. `cached` describes the blocks' cached forms, in their order.
    fn of_blocks(
        &self,
        spans: &[Span],
        stripes: &[StripeRead],
        pieces: &[QueryPiece<'_>],
        computed: &[ChunkSet],
        cached: Vec<String>,
    ) -> Vec<BlockExplanation> {
        let (mut cached, mut positions) = (cached.into_iter(), 0..);
        let blocks = spans.iter().zip(stripes).zip(pieces.iter().zip(computed));
        let explained = blocks.map(|((span, stripe), (piece, computed))| {
            let position = without_computed((piece, computed)).and_then(|_| positions.next());
            let explained = self.of_block(position, span, stripe, piece, computed);
            BlockExplanation { cached: cached.next(), ..explained }
        });
        explained.collect()
    }

    /// Explains one block. `position` is its place among the planned pieces, if sites are asked for any of it.
    fn of_block(
        &self,
        position: Option<usize>,
        span: &Span,
        stripe: &StripeRead,
        piece: &QueryPiece<'_>,
        computed: &ChunkSet,
    ) -> BlockExplanation {
        let chunk = |(index, &site): (usize, &SiteId)| ChunkExplanation {
            index,
            site: site.0,
            choice: match computed.contains(index) {
                true => ChunkChoice::Computed,
                false if site.0 == 0 && !stripe.stripe.has_place(index) => ChunkChoice::Dropped,
                false => self.of_chunk(position, index, piece),
            },
        };
        let (extent, options) = match &span.of {
            StoredBytes::Block(_) | StoredBytes::Memory(_) => (None, Vec::new()),
            StoredBytes::Extent(extent) => {
                let extent = ExtentExplanation { chunk: extent.index as usize, offset: extent.offset };
                (Some(extent), options_of(piece, &self.read_of(position), self.sites))
            }
        };
        BlockExplanation {
            cached: None,
            extent,
            options,
            stripe: piece.stripe.to_string(),
            len: span.of.len(),
            profile: stripe.stripe.record.profile.clone(),
            chunk_len: piece.len,
            data_chunks: piece.code.k(),
            chunks: piece.sites.iter().enumerate().map(chunk).collect(),
        }
    }

    /// Returns the chunks of a piece that the plan reads.
    fn read_of(&self, position: Option<usize>) -> ChunkSet {
        let chunks = self.plan.reads.iter().flat_map(|read| &read.chunks);
        chunks.filter(|chunk| Some(chunk.piece) == position).map(|chunk| chunk.index).collect()
    }

    fn of_chunk(&self, position: Option<usize>, index: usize, piece: &QueryPiece<'_>) -> ChunkChoice {
        let site = piece.sites[index];
        if site.0 == 0 {
            return ChunkChoice::InDebt;
        }
        if !self.sites.is_readable(site) {
            return ChunkChoice::NoAnswer;
        }
        let is_read = |chunk: &QueryChunk| Some(chunk.piece) == position && chunk.index == index;
        match self.plan.reads.iter().find(|read| read.site == site && read.chunks.iter().any(is_read)) {
            None => ChunkChoice::NotNeeded,
            Some(read) => self.policy.why(ChosenChunk {
                is_wanted: piece.wanted.contains(index),
                shares_site: read.chunks.len() > 1,
                is_cached: self.plan.is_cached,
            }),
        }
    }

    fn of_sites(&self, pieces: &[QueryPiece<'_>]) -> Vec<SiteExplanation> {
        let read: BTreeMap<SiteId, usize> =
            self.plan.reads.iter().map(|read| (read.site, read.chunks.len())).collect();
        let mut sites: Vec<SiteId> = pieces.iter().flat_map(QueryPiece::all_sites).collect();
        sites.sort_unstable();
        sites.dedup();
        let describe = |site: SiteId| SiteExplanation {
            site: site.0,
            rack: self.sites.rack(site).map_or_else(String::new, |RackId(rack)| rack),
            cost: self.sites.cost(site).map(|cost| cost.asking),
            transfer: self.sites.cost(site).map(|cost| cost.transfer(64 << 10)),
            parts: self.sites.cost_parts(site),
            queue_bytes: self.sites.queue(site).map_or(0, |queue| queue.bytes as u64),
            chunks_read: read.get(&site).copied().unwrap_or(0),
        };
        sites.into_iter().filter(|site| site.0 != 0).map(describe).collect()
    }
}

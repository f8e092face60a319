//! Reads any number of pieces by a [`ReadPolicy`](striate_plan::ReadPolicy) (EC-Store §IV-B; design.md §5).
//!
//! The stripes of all spans are looked up together, `plan` chooses the chunks, and each site gets one request. A
//! piece is complete as soon as the arrived chunks determine it (*late binding*, when more were requested than are
//! needed). A site's request is dropped once no piece needs anything of it, which removes what is still queued there.
//!
//! A chunk that is missing, damaged or late is planned around: the incomplete pieces are planned again without it,
//! using what has arrived and what is still expected in time. A range is read around a loss from the same columns of
//! other chunks. With a policy that predicts, a site is late when it takes longer than its queue suggests
//! ([`super::arrival`]), and so are the last splits of a cached block soon after the others ([`super::last_splits`]),
//! within a budget; with any policy, a site is late when it has been silent for the hedge time. The first reply wins.
//!
//! When a piece can no longer be completed, its stripe is looked up again. If the record has changed, the stripe's
//! pieces start again; otherwise they are lost, and the error says which chunks are missing.
//!
//! A cached block is read as a stripe of the memory tier ([`super::cached`]). When it cannot be completed, the query
//! waits for what is on its way from memory, though not from late sites, and reads the rest from the durable copy.
//!
//! A query ends with all of its bytes in memory. They count against the byte budget, including chunks beyond the
//! needed ones, from before the sites are asked until the caller drops [`BlocksRead`]. Extra chunks that a plan
//! requests to read around available ones count while the query runs, and are requested only if their memory is free
//! at once. Otherwise the query reads normally, because a query that holds memory must not wait for more. A query
//! larger than the budget takes all of it and so runs alone; what it then holds is the caller's choice.

mod retrieval;
mod shortage;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use striate_plan::{PlanCost, ReadPurpose};
use striate_runtime::Instant;
use tracing::{Instrument, debug_span};

use super::cached::{CachedForms, ServedFrom, Source};
use super::located::LocatedQuery;
use super::measure::Phase;
use super::reads::Reads;
use super::requests::{RequestKey, SiteRequests};
use super::span::Span;
use crate::budget::{ByteBudget, Share};
use crate::error::StripeError;
use crate::table::OpenedStripe;

/// Spans of a query, in its order. Holds its share of the byte budget until dropped: holding one while waiting for
/// another query, get or put can deadlock.
#[derive(Debug)]
pub struct BlocksRead {
    /// Verified bytes of each span, as one or more pieces.
    pub blocks: Vec<Vec<Bytes>>,
    /// Measurements of the query.
    pub stats: ReadStats,
    share: Share,
}

impl BlocksRead {
    /// Drops the blocks and returns their share of the budget.
    pub fn into_share(self) -> Share {
        self.share
    }
}

/// Measurements of a query.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReadStats {
    /// Duration of the look-up of the stripes.
    pub metadata: Duration,
    /// Time from the look-up to the last chunk needed.
    pub retrieve: Duration,
    /// Time spent decoding, as part of `retrieve`.
    pub decode: Duration,
    /// Sites probed for their queues before the first plan.
    pub probes: usize,
    /// Sites that the first plan asked.
    pub sites: usize,
    /// Chunks requested, whole or in part.
    pub chunks: usize,
    /// Bytes of pieces that had to be decoded.
    pub decoded_bytes: u64,
    /// Pieces planned again because a chunk was missing, damaged or lost with its site.
    pub planned_again: usize,
    /// Chunks requested at once beyond a sufficient set (δ).
    pub extra_chunks: usize,
    /// Chunks requested because others were late.
    pub hedged_chunks: usize,
    /// Requests to sites cancelled before they had ended.
    pub cancelled: usize,
    /// True if a cached plan was used.
    pub cached_plan: bool,
    /// Cost of the plan, if the policy minimises it.
    pub plan: Option<PlanCost>,
}

/// Why pieces are planned again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shortage {
    None,
    /// A chunk is late.
    Late,
    /// A chunk failed, or a stripe has a new record.
    Failed,
}

type DetourFuture<'a> = BoxFuture<'a, (RequestKey, Result<Bytes, StripeError>)>;
type LookupFuture<'a> = BoxFuture<'a, (usize, Result<Option<Arc<OpenedStripe>>, StripeError>)>;

/// A query in progress.
struct Query<'a, HandOut> {
    reads: &'a Reads,
    spans: &'a [Span],
    began: Instant,
    located: LocatedQuery,
    requests: SiteRequests,
    /// True if something may be late earlier than the timer of the query fires: a request sent just now, or the last
    /// splits of a cached block.
    has_new_wait: bool,
    look_ups: FuturesUnordered<LookupFuture<'a>>,
    /// Chunks being computed from wide stripes.
    detours: FuturesUnordered<DetourFuture<'a>>,
    /// Number of pieces neither complete nor given up.
    open: usize,
    shortage: Shortage,
    is_more_asked_than_needed: bool,
    stats: ReadStats,
    /// Takes a span's position, its bytes and their source, once per span.
    hand_out: HandOut,
}

impl Reads {
    /// See [`crate::Stripes::read_spans`].
    pub(crate) async fn read_spans(
        &self,
        spans: &[Span],
        budget: &ByteBudget,
        source: Source,
    ) -> Result<BlocksRead, StripeError> {
        let mut served = vec![false; spans.len()];
        let read = self.read_in_memory(spans, budget, source, &mut served).await;
        self.tell_failed(spans, source, &served, read.as_ref().err());
        read
    }

    async fn read_in_memory(
        &self,
        spans: &[Span],
        budget: &ByteBudget,
        source: Source,
        served: &mut [bool],
    ) -> Result<BlocksRead, StripeError> {
        let mut stats = ReadStats::default();
        let (located, _expected) = self.located(spans, source, &mut stats).await?;
        let bytes = located.bytes_in_memory(&*self.shared.options.read_policy, self.can_be_asked());
        let share = budget.acquire(bytes).await?;
        let mut read = vec![Vec::new(); spans.len()];
        let hand_out = |span: usize, pieces| read[span] = pieces;
        let mut hand_out = self.telling_cache(spans, source, served, hand_out);
        let stats = self.gather(spans, located, ReadPurpose::Query, budget, stats, &mut hand_out).await?;
        drop(hand_out);
        Ok(BlocksRead { blocks: read, stats, share })
    }

    /// See [`crate::Stripes::read_ahead`].
    pub(crate) async fn read_ahead(
        &self,
        spans: &[Span],
        budget: &ByteBudget,
        source: Source,
        hand_out: impl FnMut(usize, Vec<Bytes>) + Send,
    ) -> Result<ReadStats, StripeError> {
        let mut served = vec![false; spans.len()];
        let telling = self.telling_cache(spans, source, &mut served, hand_out);
        let mut stats = ReadStats::default();
        let read = match self.located(spans, source, &mut stats).await {
            Ok((located, _expected)) => {
                self.gather(spans, located, ReadPurpose::Ahead, budget, stats, telling).await
            }
            Err(error) => {
                drop(telling);
                Err(error)
            }
        };
        self.tell_failed(spans, source, &served, read.as_ref().err());
        read
    }

    /// Reports the failed spans of a query to the cache.
    fn tell_failed(&self, spans: &[Span], source: Source, served: &[bool], error: Option<&StripeError>) {
        let cache = self.shared.cache().filter(|_| source == Source::Nearest);
        if let (Some(cache), Some(error)) = (cache, error) {
            let failed = spans.iter().zip(served).filter(|(_, is_served)| !**is_served);
            failed.for_each(|(span, _)| cache.failed(span, error));
        }
    }

    /// Wraps `hand_out` so that it reports the source of each span to the cache and marks the span in `served`.
    fn telling_cache<'a>(
        &'a self,
        spans: &'a [Span],
        source: Source,
        served: &'a mut [bool],
        mut hand_out: impl FnMut(usize, Vec<Bytes>) + Send + 'a,
    ) -> impl FnMut(usize, Vec<Bytes>, ServedFrom) + Send + 'a {
        let cache = self.shared.cache().filter(|_| source == Source::Nearest);
        move |span, bytes, from| {
            served[span] = true;
            if let Some(cache) = cache {
                cache.served(&spans[span], &bytes, from);
            }
            hand_out(span, bytes);
        }
    }

    /// Looks up the stripes of spans together. The second value is what the cache expects of the query; keep it until
    /// the end.
    async fn located(
        &self,
        spans: &[Span],
        source: Source,
        stats: &mut ReadStats,
    ) -> Result<(LocatedQuery, Option<Box<dyn Send>>), StripeError> {
        let began = self.shared.runtime.now();
        let CachedForms { forms, expected } = match self.shared.cache().filter(|_| source != Source::Durable)
        {
            Some(cache) => cache.find(spans).await,
            None => CachedForms::default(),
        };
        let looking_up = LocatedQuery::look_up(&self.shared.table, &self.shared.sites, spans, &forms);
        let located = looking_up.instrument(debug_span!("metadata")).await?;
        stats.metadata = self.shared.runtime.now() - began;
        self.shared.measures.took(Phase::Metadata, stats.metadata);
        Ok((located, expected))
    }

    /// Plans and reads spans whose stripes are known.
    async fn gather(
        &self,
        spans: &[Span],
        located: LocatedQuery,
        purpose: ReadPurpose,
        budget: &ByteBudget,
        mut stats: ReadStats,
        hand_out: impl FnMut(usize, Vec<Bytes>, ServedFrom) + Send,
    ) -> Result<ReadStats, StripeError> {
        let (runtime, measures) = (&self.shared.runtime, &self.shared.measures);
        let began = runtime.now();
        let open: Vec<usize> = located.open_pieces().collect();
        let (plan, probes) = self.plan_measured(purpose, &located, &open).await;
        let (plan, _extra_share) = self.within_budget(plan, purpose, &located, &open, budget);
        stats.probes = probes;
        let planned = runtime.now();
        measures.took(Phase::Plan, planned - began);
        let mut query = Query {
            reads: self,
            spans,
            began,
            has_new_wait: false,
            requests: SiteRequests::new(self.clone(), self.shared.options.read_policy.predicts_lateness()),
            look_ups: FuturesUnordered::new(),
            detours: FuturesUnordered::new(),
            open: open.len(),
            shortage: Shortage::None,
            is_more_asked_than_needed: false,
            stats,
            located,
            hand_out,
        };
        query.begin(plan, &open);
        query.take_arrivals().instrument(debug_span!("retrieve")).await;
        let retrieved = runtime.now();
        query.stats.retrieve = retrieved - began;
        measures.took(Phase::Retrieve, (retrieved - planned).saturating_sub(query.stats.decode));
        measures.queried(&query.stats);
        query.finish()
    }
}

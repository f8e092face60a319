//! Reads any number of pieces by a [`ReadPolicy`](striate_plan::ReadPolicy) (EC-Store §IV-B; design.md §5).
//!
//! The stripes of all spans are looked up together, `plan` chooses the chunks, and each site gets one request. A
//! piece is complete as soon as the arrived chunks determine it (*late binding*, when more were requested than are
//! needed). A site's request is dropped once no piece needs anything of it, which removes what is still queued there.
//!
//! A chunk that is missing, damaged or late is planned around: the incomplete pieces are planned again without it,
//! using what has arrived and what is still expected in time. A range is read around a loss from the same columns of
//! other chunks. With a policy that predicts, a site is late when it takes longer than its queue suggests
//! ([`super::arrival`]), within a budget; with any policy, it is late when it has been silent for the hedge time. The
//! first reply wins.
//!
//! When a piece can no longer be completed, its stripe is looked up again. If the record has changed, the stripe's
//! pieces start again; otherwise they are lost, and the error says which chunks are missing.
//!
//! A cached block is read as a stripe of the memory tier ([`super::cached`]); missing parts are read from the durable
//! copy.
//!
//! A query ends with all of its bytes in memory. They count against the byte budget, including chunks beyond the
//! needed ones, from before the sites are asked until the caller drops [`BlocksRead`]. Extra chunks that a plan
//! requests to read around available ones count while the query runs, and are requested only if their memory is free
//! at once. Otherwise the query reads normally, because a query that holds memory must not wait for more. A query
//! larger than the budget takes all of it and so runs alone; what it then holds is the caller's choice.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use smallvec::SmallVec;
use striate_core::{ChunkRange, SiteId};
use striate_plan::{PlanCost, QueryPlan, ReadPurpose};
use striate_runtime::Instant;
use striate_site::SiteError;
use tracing::{Instrument, debug_span};

use super::cached::{CachedForms, ServedFrom, Source};
use super::gathering::{Piece, StripeRead, matches_checksum, trim};
use super::located::LocatedQuery;
use super::measure::Phase;
use super::reads::Reads;
use super::requests::{Answer, RequestKey, SiteRequests};
use super::span::{Span, StoredBytes};
use crate::budget::{ByteBudget, Share};
use crate::error::StripeError;
use crate::table::OpenedStripe;

/// Maximum number of restarts of a stripe's pieces because its record changed.
const MAX_RESTARTS: u32 = 5;

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
    located: LocatedQuery,
    requests: SiteRequests,
    look_ups: FuturesUnordered<LookupFuture<'a>>,
    /// Chunks being computed from wide stripes.
    arounds: FuturesUnordered<DetourFuture<'a>>,
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
        let CachedForms { forms, expected } = match self.shared.cache().filter(|_| source == Source::Nearest)
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
        let (plan, _around) = self.within_budget(plan, purpose, &located, &open, budget);
        stats.probes = probes;
        let planned = runtime.now();
        measures.took(Phase::Plan, planned - began);
        let mut query = Query {
            reads: self,
            spans,
            requests: SiteRequests::new(self.clone(), self.shared.options.read_policy.predicts_lateness()),
            look_ups: FuturesUnordered::new(),
            arounds: FuturesUnordered::new(),
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

impl<HandOut: FnMut(usize, Vec<Bytes>, ServedFrom) + Send> Query<'_, HandOut> {
    /// Sends the requests of the first plan. Without a plan for all pieces, requests what is available for each.
    fn begin(&mut self, plan: Option<QueryPlan>, open: &[usize]) {
        let Some(plan) = plan else {
            self.shortage = Shortage::Failed;
            return self.ask_for_the_rest();
        };
        self.stats.cached_plan = plan.is_cached;
        self.stats.sites = plan.reads.len();
        self.stats.extra_chunks = plan.extra_chunks;
        self.stats.plan = plan.cost;
        self.is_more_asked_than_needed = plan.extra_chunks > 0;
        self.stats.chunks = self.ask(plan, open);
    }

    /// Sends the requests of a plan for the pieces `of`. Returns the number of chunks requested.
    fn ask(&mut self, plan: QueryPlan, of: &[usize]) -> usize {
        let mut count = 0;
        let mut asked: Vec<(SiteId, Vec<(RequestKey, ChunkRange)>)> = Vec::with_capacity(plan.reads.len());
        for read in plan.reads {
            let mut chunks = Vec::with_capacity(read.chunks.len());
            for chunk in read.chunks {
                let piece = &self.located.pieces[of[chunk.piece]];
                let stripe = &mut self.located.stripes[piece.stripe];
                if let Some((position, range)) = stripe.ask(chunk.index, &piece.shape) {
                    chunks.push((RequestKey { stripe: piece.stripe, position, turn: stripe.turn }, range));
                }
            }
            count += chunks.len();
            if !chunks.is_empty() {
                asked.push((read.site, chunks));
            }
        }
        self.requests.ask(asked);
        count
    }

    /// Takes replies that are ready, without waiting: most small reads need no clock.
    fn take_ready(&mut self) {
        while self.open > 0
            && self.shortage == Shortage::None
            && let Some(answer) = self.requests.next_ready()
        {
            self.take(answer);
        }
        if self.shortage != Shortage::None {
            self.ask_for_the_rest();
        }
    }

    /// Takes replies, and plans around missing and late chunks, until every piece is complete or given up.
    async fn take_arrivals(&mut self) {
        self.take_ready();
        if self.open == 0 {
            return;
        }
        let runtime = &self.reads.shared.runtime;
        let far = |now: Instant| now + self.reads.shared.options.read_deadline;
        let mut wake_at = self.requests.wake_at().unwrap_or_else(|| far(runtime.now()));
        let mut timer = std::pin::pin!(runtime.sleep_until(wake_at));
        let mut chunks = self.stats.chunks;
        while self.open > 0 && !self.is_stuck() {
            // A request sent just now may be late earlier than the timer fires.
            if std::mem::replace(&mut chunks, self.stats.chunks) < self.stats.chunks
                && let Some(earlier) = self.requests.wake_at().filter(|earlier| *earlier < wake_at)
            {
                wake_at = earlier;
                timer.set(runtime.sleep_until(wake_at));
            }
            tokio::select! {
                biased;
                answer = self.requests.next(), if !self.requests.is_idle() => self.take(answer),
                Some((stripe, found)) = self.look_ups.next(), if !self.look_ups.is_empty() => {
                    self.take_look_up(stripe, found);
                }
                Some((wanted, read)) = self.arounds.next(), if !self.arounds.is_empty() => {
                    self.take_around(wanted, read);
                }
                () = &mut timer => {
                    if self.requests.look_at_clock(&mut self.located) {
                        self.shortage = Shortage::Late;
                    }
                    wake_at = self.requests.wake_at().unwrap_or_else(|| far(runtime.now()));
                    timer.set(runtime.sleep_until(wake_at));
                }
            }
            if self.shortage != Shortage::None {
                self.ask_for_the_rest();
            }
        }
    }

    /// Whether nothing is in flight and nothing more can be requested. Open pieces are then given up: no read waits
    /// for a reply that no request will bring.
    fn is_stuck(&mut self) -> bool {
        let is_idle =
            |query: &Self| query.requests.is_idle() && query.look_ups.is_empty() && query.arounds.is_empty();
        if !is_idle(self) {
            return false;
        }
        self.shortage = Shortage::Failed;
        self.ask_for_the_rest();
        if !is_idle(self) {
            return false;
        }
        let open: Vec<usize> = self.located.open_pieces().collect();
        for piece in open {
            let Piece { stripe, shape, .. } = &self.located.pieces[piece];
            let error = self.located.stripes[*stripe].unreadable(shape);
            self.located.pieces[piece].error = Some(error);
        }
        true
    }

    /// Takes a reply; ignores one to a request of an earlier turn.
    fn take(&mut self, answer: Answer) {
        let Answer { site, wanted: RequestKey { stripe: number, position, turn }, result } = answer;
        if let Err(error) = &result {
            self.reads.shared.sites.note_failure(site, error);
        }
        let stripe = &mut self.located.stripes[number];
        if stripe.turn != turn {
            return;
        }
        match stripe.answer(position, result).cloned() {
            None => self.complete_pieces_of(number),
            // The record may be out of date; the chunk itself can be read instead.
            Some(_) if stripe.is_of_copy(position) => {
                self.reads.shared.table.forget(stripe.stripe.id);
                self.shortage = Shortage::Failed;
            }
            // A split missing from a cached form is not damage.
            Some(_) if stripe.stripe.is_cached() => self.shortage = Shortage::Failed,
            // Only a miss at the current location is a lost chunk.
            Some(SiteError::Missing(_) | SiteError::Corrupt { .. }) if stripe.is_remembered => {
                self.look_up(number)
            }
            Some(_) => {
                self.report_damage(number);
                self.shortage = Shortage::Failed;
            }
        }
    }

    /// Completes the pieces that the arrived chunks determine, and hands out the spans completed by it.
    fn complete_pieces_of(&mut self, stripe: usize) {
        let open: SmallVec<[usize; 3]> = self.located.open_pieces_of(stripe).collect();
        let completed = open.into_iter().filter(|&piece| self.complete(piece)).count();
        if completed == 0 {
            return;
        }
        self.open -= completed;
        for (span, bytes) in self.located.take_complete(stripe) {
            (self.hand_out)(span, bytes, self.located.served_from(span, stripe));
        }
        if self.is_more_asked_than_needed && self.reads.shared.options.read_policy.cancels() {
            self.stats.cancelled += self.requests.drop_unneeded(&self.located);
        }
    }

    /// Completes a piece if it is determined. A block must match its checksum if any of it was decoded or computed,
    /// and a whole extent always. On a mismatch, other chunks are requested instead of those that led to it.
    fn complete(&mut self, number: usize) -> bool {
        let (runtime, measures) = (&self.reads.shared.runtime, &self.reads.shared.measures);
        let piece = &self.located.pieces[number];
        let stripe = &self.located.stripes[piece.stripe];
        if !stripe.is_determined(&piece.shape) {
            return false;
        }
        let is_decoded = stripe.must_decode(&piece.shape);
        let has_computed = stripe.has_computed(&piece.shape);
        let began = is_decoded.then(|| runtime.now());
        let span = is_decoded.then(|| debug_span!("decode").entered());
        let Some(chunks) = stripe.complete(&piece.shape, runtime.buffers()) else { return false };
        let is_right = match piece.whole_of {
            Some(of) if is_decoded || has_computed || matches!(self.spans[of].of, StoredBytes::Extent(_)) => {
                let of = &self.spans[of].of;
                matches_checksum(of, &trim(chunks.clone(), of.len()))
            }
            _ => true,
        };
        drop(span);
        if let Some(began) = began {
            let took = runtime.now() - began;
            self.stats.decode += took;
            measures.took(Phase::Decode, took);
        }
        if !is_right {
            tracing::warn!(stripe = %stripe.stripe.id, is_decoded, "bytes do not match the checksum in their row");
            let (k, wanted) = (stripe.stripe.code.k(), piece.shape.wanted);
            // Computed columns are suspect in any case, and they alone.
            let is_suspect = |index| match is_decoded {
                _ if has_computed => false,
                true => index >= k,
                false => wanted.contains(index),
            };
            let stripe = piece.stripe;
            self.located.stripes[stripe].distrust(is_suspect);
            self.shortage = Shortage::Failed;
            return false;
        }
        if is_decoded {
            self.stats.decoded_bytes += chunks.iter().map(|chunk| chunk.len() as u64).sum::<u64>();
        }
        self.located.pieces[number].chunks = Some(chunks);
        true
    }

    /// Requests replacements for missing and late chunks, if any exist.
    fn ask_for_the_rest(&mut self) {
        let why = std::mem::replace(&mut self.shortage, Shortage::None);
        let open: Vec<usize> = self.located.open_pieces().collect();
        let is_short = |&piece: &usize| !self.located.for_plan(piece).is_determined();
        let mut short: Vec<usize> = open.into_iter().filter(is_short).collect();
        let (mut plannable, mut hopeless) = (Vec::with_capacity(short.len()), Vec::new());
        for piece in short.drain(..) {
            if !self.can_be_had(piece) {
                let of = &self.located.stripes[self.located.pieces[piece].stripe].stripe;
                if why == Shortage::Late && of.record.dropped && self.read_around(piece) {
                    // The first reply wins.
                    continue;
                }
                // Late chunks count again only if the others are too few.
                let Piece { stripe, shape, .. } = &self.located.pieces[piece];
                self.located.stripes[*stripe].await_late(shape);
            }
            match self.can_be_had(piece) {
                true => plannable.push(piece),
                false => hopeless.push(piece),
            }
        }
        if !plannable.is_empty()
            && let Some(plan) = self.reads.plan_rest(&self.located, &plannable)
        {
            let more = self.ask(plan, &plannable);
            self.stats.chunks += more;
            self.is_more_asked_than_needed = true;
            match why {
                Shortage::Late => self.stats.hedged_chunks += more,
                Shortage::Failed | Shortage::None => self.stats.planned_again += plannable.len(),
            }
        }
        hopeless.into_iter().for_each(|piece| self.look_up_again(piece));
    }

    /// Whether the arrived, awaited and available chunks determine a piece.
    fn can_be_had(&self, piece: usize) -> bool {
        let of = self.located.for_plan(piece);
        let mut all = of.awaited;
        of.available(&self.reads.can_be_asked()).for_each(|index| {
            all.insert(index);
        });
        of.code.determines(&all, &of.wanted)
    }

    /// Looks up the stripe of a piece that no further request can complete, unless a request in flight still may.
    fn look_up_again(&mut self, piece: usize) {
        let number = self.located.pieces[piece].stripe;
        let stripe = &mut self.located.stripes[number];
        if !stripe.may_complete(&self.located.pieces[piece].shape) {
            self.look_up(number);
        }
    }

    /// Looks a stripe up again, or for a cached form the stripe of its durable copy.
    fn look_up(&mut self, number: usize) {
        let id = self.located.kept_in(number, self.spans);
        let stripe = &mut self.located.stripes[number];
        if !std::mem::replace(&mut stripe.is_looked_up, true) {
            let (table, is_cached) = (&self.reads.shared.table, stripe.stripe.is_cached());
            self.look_ups.push(Box::pin(async move {
                let found = match id {
                    Ok(id) if is_cached => table.open_many(&[id]).await.map(|mut found| found.pop()),
                    Ok(id) => table.find_again(id).await,
                    Err(error) => Err(error),
                };
                (number, found)
            }));
        }
    }

    /// Reports the failed chunks of a stripe as damage, if its record is current.
    fn report_damage(&self, number: usize) {
        let stripe = &self.located.stripes[number];
        if !stripe.is_remembered {
            stripe.failures().for_each(|(index, error)| {
                self.reads.shared.damage.report(&stripe.stripe, index, error);
            });
        }
    }

    /// Restarts a stripe's pieces if its record has changed; otherwise gives up those that cannot be completed.
    fn take_look_up(&mut self, number: usize, found: Result<Option<Arc<OpenedStripe>>, StripeError>) {
        let stripe = &mut self.located.stripes[number];
        stripe.is_looked_up = false;
        if stripe.stripe.is_cached() {
            return self.fall_back(number, found);
        }
        let of = &stripe.stripe;
        let error = match found {
            Ok(Some(now)) if now.row.version == of.row.version && stripe.is_remembered => {
                stripe.is_remembered = false;
                self.report_damage(number);
                self.shortage = Shortage::Failed;
                return;
            }
            Err(_) if stripe.is_remembered => {
                // Other chunks may do: the known record still leads to them, or to none.
                stripe.is_remembered = false;
                self.shortage = Shortage::Failed;
                return;
            }
            Ok(Some(now)) if now.row.version == of.row.version => None,
            Ok(Some(_)) if stripe.turn == MAX_RESTARTS => Some(StripeError::Busy),
            Ok(Some(now)) if (now.code.k(), now.record.chunk_len) != (of.code.k(), of.record.chunk_len) => {
                // No change re-encodes a stripe under its name.
                Some(crate::table::inconsistent(of.id, "its shape has changed under a read".to_owned()))
            }
            Ok(Some(now)) => {
                stripe.restart(now);
                self.shortage = Shortage::Failed;
                return;
            }
            Ok(None) => Some(crate::table::gone(of.id)),
            Err(error) => Some(error),
        };
        let open: Vec<usize> = self.located.open_pieces_of(number).collect();
        for piece in open {
            let stripe = &self.located.stripes[number];
            let shape = &self.located.pieces[piece].shape;
            if error.is_none() && !stripe.may_complete(shape) && self.read_around(piece) {
                continue;
            }
            let stripe = &self.located.stripes[number];
            let shape = &self.located.pieces[piece].shape;
            if error.is_some() || !stripe.may_complete(shape) {
                let error = error.clone().unwrap_or_else(|| stripe.unreadable(shape));
                self.located.pieces[piece].error = Some(error);
                self.open -= 1;
            }
        }
    }

    /// Requests the chunks that a piece wants, and computes those that their sites cannot provide from their wide
    /// stripes. Returns `false` if that is impossible or has already failed.
    fn read_around(&mut self, number: usize) -> bool {
        let piece = &self.located.pieces[number];
        let (of, columns) = (piece.stripe, piece.shape.columns.clone());
        let stripe = &mut self.located.stripes[of];
        let Some(around) = stripe.around(&piece.shape, &self.reads.can_be_asked()) else { return false };
        let (reads, id, turn) = (self.reads, stripe.stripe.id, stripe.turn);
        let wanted = |position| RequestKey { stripe: of, position, turn };
        for (index, position) in around.computed {
            let (wanted, columns) = (wanted(position), columns.clone());
            self.arounds.push(Box::pin(async move { (wanted, reads.read_around(id, index, columns).await) }));
        }
        self.stats.chunks += around.asked.len();
        let asked = around.asked.into_iter();
        self.requests
            .ask(asked.map(|(site, position, range)| (site, vec![(wanted(position), range)])).collect());
        self.stats.planned_again += 1;
        true
    }

    /// Takes computed columns.
    fn take_around(&mut self, wanted: RequestKey, read: Result<Bytes, StripeError>) {
        let RequestKey { stripe: number, position, turn } = wanted;
        let stripe = &mut self.located.stripes[number];
        if stripe.turn != turn {
            return;
        }
        self.stats.decoded_bytes += read.as_ref().map_or(0, Bytes::len) as u64;
        let result = read.map_err(|error| SiteError::Unavailable(error.to_string()));
        match stripe.answer(position, result) {
            None => self.complete_pieces_of(number),
            Some(_) => self.shortage = Shortage::Failed,
        }
    }

    /// Reads the missing parts of a cached form from the durable copy.
    fn fall_back(&mut self, number: usize, found: Result<Option<Arc<OpenedStripe>>, StripeError>) {
        let fallen_back = found.and_then(|kept| {
            let kept = kept.ok_or_else(|| crate::table::gone(self.located.stripes[number].stripe.id))?;
            self.located.fall_back(number, StripeRead::new(kept, false), self.spans)
        });
        match fallen_back {
            Ok((more, less)) => {
                self.open = self.open + more - less;
                self.shortage = Shortage::Failed;
            }
            Err(error) => {
                let open: Vec<usize> = self.located.open_pieces_of(number).collect();
                self.open -= open.len();
                for piece in open {
                    let of = &self.located.stripes[number];
                    let is_out_of_reach = matches!(error, StripeError::NotInMemory) && !of.is_gone();
                    let out_of_reach = || of.unreadable(&self.located.pieces[piece].shape);
                    let error = if is_out_of_reach { out_of_reach() } else { error.clone() };
                    self.located.pieces[piece].error = Some(error);
                }
            }
        }
    }

    /// Returns the measurements of the query, or the error of the first unavailable span.
    fn finish(mut self) -> Result<ReadStats, StripeError> {
        let error = self.located.first_error();
        if self.requests.under_way() > 0 && !self.reads.shared.options.read_policy.cancels() {
            // The sites serve the requests they received, whether still wanted or not.
            let requests =
                std::mem::replace(&mut self.requests, SiteRequests::new(self.reads.clone(), false));
            self.reads.shared.runtime.spawn(requests.drain());
        }
        error.map_or(Ok(self.stats), Err)
    }
}

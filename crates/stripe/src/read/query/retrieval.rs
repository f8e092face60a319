//! The course of a query: sends the requests of a plan, takes the replies, and completes pieces.

use bytes::Bytes;
use futures::stream::StreamExt;
use smallvec::SmallVec;
use striate_core::{ChunkRange, SiteId};
use striate_plan::QueryPlan;
use striate_site::SiteError;
use tracing::debug_span;

use super::{Query, ReadStats, Shortage};
use crate::error::StripeError;
use crate::read::cached::ServedFrom;
use crate::read::gathering::{Piece, matches_checksum, trim};
use crate::read::measure::Phase;
use crate::read::requests::{Answer, RequestKey, SiteRequests};
use crate::read::span::StoredBytes;

impl<HandOut: FnMut(usize, Vec<Bytes>, ServedFrom) + Send> Query<'_, HandOut> {
    /// Sends the requests of the first plan. Without a plan for all pieces, requests what is available for each.
    pub(super) fn begin(&mut self, plan: Option<QueryPlan>, open: &[usize]) {
        let Some(plan) = plan else {
            self.shortage = Shortage::Failed;
            return self.request_replacements();
        };
        self.stats.cached_plan = plan.is_cached;
        self.stats.sites = plan.reads.len();
        self.stats.extra_chunks = plan.extra_chunks;
        self.stats.plan = plan.cost;
        self.is_more_asked_than_needed = plan.extra_chunks > 0;
        self.stats.chunks = self.ask(plan, open);
    }

    /// Sends the requests of a plan for these pieces. Returns the number of chunks requested.
    pub(super) fn ask(&mut self, plan: QueryPlan, pieces: &[usize]) -> usize {
        let mut count = 0;
        let mut requests: Vec<(SiteId, Vec<(RequestKey, ChunkRange)>)> = Vec::with_capacity(plan.reads.len());
        for read in plan.reads {
            let mut chunks = Vec::with_capacity(read.chunks.len());
            for chunk in read.chunks {
                let piece = &self.located.pieces[pieces[chunk.piece]];
                let stripe = &mut self.located.stripes[piece.stripe];
                if let Some((position, range)) = stripe.ask(chunk.index, &piece.shape) {
                    chunks.push((RequestKey { stripe: piece.stripe, position, turn: stripe.turn }, range));
                }
            }
            count += chunks.len();
            if !chunks.is_empty() {
                self.has_new_wait = true;
                requests.push((read.site, chunks));
            }
        }
        self.requests.ask(requests);
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
        self.request_replacements();
    }

    /// Takes replies, and plans around missing and late chunks, until every piece is complete or given up.
    pub(super) async fn take_arrivals(&mut self) {
        self.take_ready();
        if self.open == 0 {
            return;
        }
        let runtime = &self.reads.shared.runtime;
        let wake_at_of = |query: &Self| {
            let deadline = || runtime.now() + query.reads.shared.options.read_deadline;
            query.requests.wake_at(&query.located).unwrap_or_else(deadline)
        };
        self.has_new_wait = false;
        let mut wake_at = wake_at_of(self);
        let mut timer = std::pin::pin!(runtime.sleep_until(wake_at));
        while self.open > 0 && !self.is_stuck() {
            if std::mem::take(&mut self.has_new_wait)
                && let Some(earlier) =
                    self.requests.wake_at(&self.located).filter(|earlier| *earlier < wake_at)
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
                Some((key, read)) = self.detours.next(), if !self.detours.is_empty() => {
                    self.take_detour(key, read);
                }
                () = &mut timer => {
                    if self.requests.look_at_clock(&mut self.located) {
                        self.shortage = Shortage::Late;
                    }
                    wake_at = wake_at_of(self);
                    timer.set(runtime.sleep_until(wake_at));
                }
            }
            self.request_replacements();
        }
    }

    /// Whether nothing is in flight and nothing more can be requested. Open pieces are then given up: no read waits
    /// for a reply that no request will bring.
    fn is_stuck(&mut self) -> bool {
        let is_idle =
            |query: &Self| query.requests.is_idle() && query.look_ups.is_empty() && query.detours.is_empty();
        if !is_idle(self) {
            return false;
        }
        self.shortage = Shortage::Failed;
        self.request_replacements();
        if !is_idle(self) {
            return false;
        }
        let open: Vec<usize> = self.located.open_pieces().collect();
        for piece in open {
            let Piece { stripe, shape, .. } = &self.located.pieces[piece];
            let error = self.located.stripes[*stripe].unreadable(shape, self.reads.can_be_asked());
            self.located.pieces[piece].error = Some(error);
        }
        true
    }

    /// Takes a reply; ignores one to a request of an earlier turn.
    fn take(&mut self, answer: Answer) {
        let Answer { site, key, result } = answer;
        let RequestKey { stripe: number, position, turn } = key;
        if let Err(error) = &result {
            self.reads.shared.sites.note_failure(site, error);
        }
        let stripe = &mut self.located.stripes[number];
        if stripe.turn != turn {
            return;
        }
        match stripe.answer(position, result).cloned() {
            None => self.take_bytes(key),
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

    /// Uses the bytes that a request has brought.
    fn take_bytes(&mut self, key: RequestKey) {
        self.complete_pieces_of(key.stripe);
        if self.located.stripes[key.stripe].stripe.is_cached() {
            self.fall_back(key.stripe);
            self.has_new_wait |= self.requests.note_split(key, &self.located, self.began);
        }
    }

    /// Completes the pieces that the arrived chunks determine, and hands out the spans completed by it.
    pub(super) fn complete_pieces_of(&mut self, stripe: usize) {
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

    /// Distrusts the chunks that led to wrong bytes of a piece, so that others are requested instead.
    fn distrust_chunks_of(&mut self, number: usize, is_decoded: bool, has_computed: bool) {
        let piece = &self.located.pieces[number];
        let stripe = &mut self.located.stripes[piece.stripe];
        tracing::warn!(stripe = %stripe.stripe.id, is_decoded, "bytes do not match the checksum in their row");
        let (k, wanted) = (stripe.stripe.code.k(), piece.shape.wanted);
        // Computed columns are suspect in any case, and they alone.
        stripe.distrust(|index| match is_decoded {
            _ if has_computed => false,
            true => index >= k,
            false => wanted.contains(index),
        });
        self.shortage = Shortage::Failed;
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
            Some(whole)
                if is_decoded || has_computed || matches!(self.spans[whole].of, StoredBytes::Extent(_)) =>
            {
                let stored = &self.spans[whole].of;
                matches_checksum(stored, &trim(chunks.clone(), stored.len()))
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
            self.distrust_chunks_of(number, is_decoded, has_computed);
            return false;
        }
        if is_decoded {
            self.stats.decoded_bytes += chunks.iter().map(|chunk| chunk.len() as u64).sum::<u64>();
        }
        self.located.pieces[number].chunks = Some(chunks);
        true
    }

    /// Returns the measurements of the query, or the error of the first unavailable span.
    pub(super) fn finish(mut self) -> Result<ReadStats, StripeError> {
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

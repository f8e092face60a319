//! Streams an object's bytes to a receiver.
//!
//! Its blocks are read ahead of the receiver, within the byte budget: several at a time, as one query
//! ([`crate::Client::read_spans`] plans in the same way). Failures end the stream with an error, never short
//! (design.md §10.6).
//!
//! The memory held follows the receiver. One that takes nothing loses what was read for it ([`ParkedStream`]), and gets
//! it in *narrow* reads when it resumes: parts of blocks, each larger than the one before while they are taken quickly.
//! While idle receivers pin much of the memory, all reads are narrow; while any request waits for memory, they are fair
//! shares of it ([`Limit`]). A receiver with large buffers looks fast until they fill, so each read is at most half of
//! what it took quickly before ([`STAKE`]).

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use striate_runtime::Instant;
use striate_stripe::{ByteBudget, ParkedStream, PinnedShare, SampledObject, Share, Shrink, Span};
use tracing::Instrument;

use crate::blocks::BlockWalk;
use crate::get::{Budget, ends_early};
use crate::object::ObjectStream;
use crate::packed_row::PackedRow;
use crate::read_ahead::ReadAhead;
use crate::{Client, ClientError};

/// Maximum bytes in flight of one get, including the block to be sent next, when the client's budget is large.
const MOST_AHEAD: u64 = 16 << 20;
/// Maximum bytes in flight of one get as a part of the budget, one in this many, so that a few receivers that pause
/// do not hold up others.
const MOST_OF_BUDGET: u64 = 5;
/// Maximum number of blocks of one query.
const MOST_BLOCKS: usize = 64;
/// Length of the narrowest read in bytes: a granule. Whole bodies up to this length are left to the connection's
/// buffers.
const NARROWEST: u32 = 64 << 10;
/// Factor by which the next read grows when a narrow one was taken quickly, and shrinks when it was taken slowly.
const GROWTH: u32 = 4;
/// A narrow read is at most one part in this many of what the receiver took quickly before: it may be wasted.
pub(crate) const STAKE: u64 = 2;
/// While memory is short, a read is at most one part in this many of all that the receiver's connection has taken:
/// buffers of some MiB earn little.
const EARNED: u64 = 32;
/// Length in bytes from which whole blocks are read, and ahead.
const WIDE: u32 = 4 << 20;
/// Time within which a narrow read counts as taken quickly; after four times as long it counts as slow.
const QUICK: Duration = Duration::from_secs(1);

/// An object on its way to a receiver.
pub(crate) struct Reader {
    client: Client,
    budget: Budget,
    /// Sample that records the blocks read, if the request is sampled.
    sampled: Option<SampledObject>,
    /// Tracing span of the reads.
    span: tracing::Span,
    walk: BlockWalk,
    /// Row of the object, if it is packed.
    packed: Option<PackedRow>,
    /// Maximum bytes in flight.
    most_ahead: u64,
    /// Spans taken from the walk, to be read next.
    pending: VecDeque<Span>,
    /// Spans begun and not handed out, in order.
    begun: VecDeque<Span>,
    /// Reads of the spans in `begun`.
    ahead: VecDeque<ReadAhead>,
    /// Pieces left of the current read.
    pieces: std::vec::IntoIter<Bytes>,
    share: Option<Share>,
    /// Memory of the last piece handed out, set when the receiver is found idle.
    pinned: Option<PinnedShare>,
    last_piece: usize,
    narrow: Option<NarrowReads>,
    /// True once the first read has completed: the receiver has the response's head.
    is_open: bool,
    /// Bytes that the receiver has not received yet.
    remaining: u64,
    has_failed: bool,
}

/// Size of the reads for a receiver that is slow or not known yet.
struct NarrowReads {
    len: u32,
    /// When the last read was ready; `None` if the receiver was idle since.
    ready: Option<Instant>,
    /// Bytes given to the receiver in narrow reads, and before.
    given_bytes: u64,
}

impl NarrowReads {
    fn narrowest(given_bytes: u64) -> Self {
        Self { len: NARROWEST, ready: None, given_bytes }
    }
}

/// Size of reads while memory is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// Length of the first read in bytes.
    begin: u32,
    /// Maximum length of a read in bytes.
    pub(crate) most: u32,
}

impl Limit {
    /// Returns the present limit, for a receiver whose connection has taken `taken_bytes` bytes before.
    pub(crate) fn now(budget: &ByteBudget, taken_bytes: u64) -> Option<Self> {
        let between = |len: u64| len.clamp(NARROWEST.into(), WIDE.into()) as u32;
        let earned = between(taken_bytes / EARNED);
        if budget.is_pressed() {
            return Some(Self { begin: NARROWEST, most: earned });
        }
        if budget.is_tight() {
            return Some(Self { begin: NARROWEST, most: NARROWEST * GROWTH });
        }
        // These receivers take what they get: the fewer they are, the less there is to share.
        let share = between(budget.fair_share()? as u64).max(earned);
        (share < WIDE).then_some(Self { begin: share, most: share })
    }
}

impl Reader {
    /// Creates a reader of the `remaining` bytes that the walk covers, of a packed object or another.
    pub(crate) fn new(
        client: &Client,
        budget: Budget,
        (walk, packed): (BlockWalk, Option<PackedRow>),
        remaining: u64,
        sampled: Option<SampledObject>,
    ) -> Self {
        let stripes = &client.inner.stripes;
        let is_narrow = match budget {
            Budget::Own { .. } | Budget::BlockByBlock => stripes.budget().is_tight(),
            Budget::Narrow => true,
            Budget::Readers => false,
        };
        Self {
            budget,
            sampled,
            span: tracing::Span::current(),
            walk,
            packed,
            most_ahead: MOST_AHEAD.min(stripes.options().in_flight_bytes as u64 / MOST_OF_BUDGET),
            pending: VecDeque::new(),
            begun: VecDeque::new(),
            ahead: VecDeque::new(),
            pieces: Vec::new().into_iter(),
            share: None,
            pinned: None,
            last_piece: 0,
            narrow: is_narrow.then(|| NarrowReads::narrowest(budget.taken_bytes())),
            is_open: false,
            remaining,
            has_failed: false,
            client: client.clone(),
        }
    }

    /// Opens the stream of the bytes, with the first ones already read.
    ///
    /// # Errors
    /// When the first bytes cannot be read.
    pub(crate) async fn open(mut self) -> Result<ObjectStream, ClientError> {
        // A reader with a share of its own has not taken it yet.
        if self.budget != Budget::Readers {
            self.open_next().await?;
        }
        self.is_open = true;
        if self.budget == Budget::Readers || self.remaining <= u64::from(NARROWEST) {
            let step = |mut reader: Self| async { reader.next().await.map(|item| (item, reader)) };
            return Ok(stream::unfold(self, step).boxed());
        }
        let (runtime, budget) =
            (self.client.inner.runtime.clone(), self.client.inner.stripes.budget().clone());
        Ok(stream::unfold(ParkedStream::new(runtime, &budget, self), ParkedStream::step).boxed())
    }

    async fn next_piece(&mut self) -> Result<Option<Bytes>, ClientError> {
        loop {
            if let Some(piece) = self.pieces.next() {
                self.hand_out(piece.len());
                return Ok(Some(piece));
            }
            let span = self.span.clone();
            match self.open_next().instrument(span).await? {
                true => {}
                false if self.remaining == 0 => return Ok(None),
                false => return Err(ends_early(self.remaining)),
            }
        }
    }

    /// Records that the next `len` bytes were handed to the receiver.
    fn hand_out(&mut self, len: usize) {
        self.remaining = self.remaining.saturating_sub(len as u64);
        self.last_piece = len;
        let mut len = len as u32;
        while let Some(first) = self.begun.front_mut() {
            let of_first = len.min(first.range.len() as u32);
            (first.range.start, len) = (first.range.start + of_first, len - of_first);
            if !first.range.is_empty() {
                break;
            }
            self.begun.pop_front();
        }
    }

    /// Makes the next read the current one. Returns `false` after the last.
    async fn open_next(&mut self) -> Result<bool, ClientError> {
        (self.share, self.pinned) = (None, None);
        self.widen();
        let is_narrow = !matches!(self.budget, Budget::Own { .. }) || self.narrow.is_some();
        if is_narrow && self.ahead.is_empty() {
            return self.open_alone().await;
        }
        if self.ahead.is_empty() {
            let Some(first) = self.next_span().await? else { return Ok(false) };
            let share = self.memory(self.memory_of(&first)).await?;
            let first = self.in_place(first).await?;
            self.begin(first, share).await?;
        }
        if !is_narrow {
            self.read_ahead().await?;
        }
        let Some(first) = self.ahead.front_mut() else { return Ok(false) };
        let (pieces, share) = first.next().await?;
        if first.len() == 0 {
            self.ahead.pop_front();
        }
        (self.pieces, self.share) = (pieces.into_iter(), Some(share));
        Ok(true)
    }

    /// As [`Reader::open_next`], without reading ahead.
    async fn open_alone(&mut self) -> Result<bool, ClientError> {
        let Some(span) = self.next_span().await? else { return Ok(false) };
        let len = span.range.len() as u64;
        self.begun.push_back(span.clone());
        if self.budget != Budget::Readers {
            self.share = Some(self.memory(span.range.len()).await?);
        }
        let span = self.in_place(span).await?;
        self.pieces = self.client.inner.stripes.read_span(span).await?.into_iter();
        if let Some(narrow) = &mut self.narrow {
            narrow.ready = Some(self.client.inner.runtime.now());
            narrow.given_bytes += len;
        }
        Ok(true)
    }

    /// Returns a span, about to be read, in the place where a packed object is now.
    async fn in_place(&mut self, mut span: Span) -> Result<Span, ClientError> {
        if let Some(packed) = &mut self.packed {
            span.of = packed.place(&self.client).await?;
        }
        Ok(span)
    }

    /// Waits for `len` bytes of the budget. A request without a response yet is refused when there are none in time.
    fn memory(&self, len: usize) -> impl Future<Output = Result<Share, ClientError>> + Send + use<> {
        let (budget, is_open) = (self.client.inner.stripes.budget().clone(), self.is_open);
        async move {
            match is_open {
                true => Ok(budget.wait(len).await),
                false => Ok(budget.acquire(len).await?),
            }
        }
    }

    /// Sizes the next narrow read by the pace of the last one and the memory available.
    fn widen(&mut self) {
        let limit = match self.budget {
            Budget::Own { taken_bytes } => Limit::now(self.client.inner.stripes.budget(), taken_bytes),
            _ => None,
        };
        if let Some(Limit { begin, most }) = limit {
            let begins = || NarrowReads { len: begin, ..NarrowReads::narrowest(self.budget.taken_bytes()) };
            let narrow = self.narrow.get_or_insert_with(begins);
            narrow.len = narrow.len.min(most);
        }
        let Some(NarrowReads { len, ready: Some(ready), given_bytes }) = &mut self.narrow else { return };
        let took = self.client.inner.runtime.now().saturating_duration_since(*ready);
        if took <= QUICK {
            let wider = limit.map_or(*len * GROWTH, |limit| limit.most.min(*len * GROWTH));
            if wider > *len && *given_bytes >= STAKE * u64::from(wider) {
                *len = wider;
            }
        } else if took > 4 * QUICK {
            *len = (*len / GROWTH).max(NARROWEST);
        }
        if *len >= WIDE {
            self.narrow = None;
        }
    }

    async fn next_span(&mut self) -> Result<Option<Span>, ClientError> {
        let span = match self.pending.pop_front() {
            Some(span) => Some(span),
            None => {
                let span = self.walk.next().await?;
                if let (Some(sampled), Some(span)) = (&self.sampled, &span) {
                    sampled.add(&span.of);
                }
                span
            }
        };
        let Some(narrow) = &self.narrow else { return Ok(span) };
        let Some(mut span) = span else { return Ok(None) };
        let cut = span.range.start.saturating_add(narrow.len);
        if cut < span.range.end {
            let rest = Span { of: span.of.clone(), range: cut..span.range.end };
            self.pending.push_front(rest);
            span.range.end = cut;
        }
        Ok(Some(span))
    }

    /// Starts the next reads once at most half of the allowed bytes are in flight, so that several blocks are planned
    /// together. Takes memory only if no request waits for it.
    async fn read_ahead(&mut self) -> Result<(), ClientError> {
        while self.ahead_len() <= self.most_ahead / 2 {
            let Some(span) = self.next_span().await? else { break };
            let Some(share) = self.client.inner.stripes.budget().try_acquire(self.memory_of(&span)) else {
                self.pending.push_front(span);
                break;
            };
            self.begin(span, share).await?;
        }
        Ok(())
    }

    /// Starts the read of a span, together with the following ones as far as no request waits for their memory.
    async fn begin(&mut self, first: Span, share: Share) -> Result<(), ClientError> {
        let mut len = self.ahead_len() + first.range.len() as u64;
        let mut window = vec![(first, share)];
        while window.len() < MOST_BLOCKS {
            let Some(span) = self.next_span().await? else { break };
            len += span.range.len() as u64;
            let share = match len <= self.most_ahead {
                true => self.client.inner.stripes.budget().try_acquire(self.memory_of(&span)),
                false => None,
            };
            let Some(share) = share else {
                self.pending.push_front(span);
                break;
            };
            window.push((span, share));
        }
        self.begun.extend(window.iter().map(|(span, _)| span.clone()));
        let is_awaited = self.ahead.is_empty();
        let client = &self.client;
        self.ahead.push_back(match (window.pop(), window.is_empty()) {
            (Some((span, share)), true) if is_awaited => ReadAhead::when_awaited(client, span, share),
            (Some((span, share)), true) => ReadAhead::now(client, span, share),
            (last, _) => ReadAhead::window(client, window.into_iter().chain(last).collect()),
        });
        Ok(())
    }

    /// Bytes in flight.
    fn ahead_len(&self) -> u64 {
        self.ahead.iter().map(ReadAhead::len).sum()
    }

    /// Bytes that a block's read counts in the byte budget, including chunks beyond the needed ones.
    fn memory_of(&self, span: &Span) -> usize {
        let extra = self.client.inner.stripes.options().read_policy.extra_reads();
        span.range.len() * if span.is_whole() { 1 + extra } else { 1 }
    }
}

impl Shrink for Reader {
    type Item = Result<Bytes, ClientError>;

    async fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let piece = self.next_piece().await;
        self.has_failed = piece.is_err();
        piece.transpose()
    }

    /// Drops what was read and not handed out; it is read again on demand. The piece handed out last still counts,
    /// unless it is small enough to be left to the connection's buffers.
    fn shrink(&mut self) {
        let budget = self.client.inner.stripes.budget();
        let share = self.share.take().filter(|_| self.last_piece > NARROWEST as usize);
        self.pinned = share.map(|share| budget.pin(share, self.last_piece)).or(self.pinned.take());
        self.pieces = Vec::new().into_iter();
        self.ahead.clear();
        for span in self.begun.drain(..).rev() {
            self.pending.push_front(span);
        }
        self.narrow = Some(NarrowReads::narrowest(0));
    }
}

#[cfg(test)]
mod tests {
    use striate_runtime::Runtime;

    use super::*;

    const MIB: u32 = 1 << 20;

    /// Returns the limit while `waiting` requests wait for all of 32 MiB.
    async fn limit_beside(waiting: usize, taken_bytes: u64) -> Option<Limit> {
        let budget = ByteBudget::new(Runtime::real(), 32 << 20, Duration::from_secs(5));
        let _all = budget.acquire(32 << 20).await.unwrap();
        let mut waits: Vec<_> = (0..waiting).map(|_| Box::pin(budget.wait(1))).collect();
        for wait in &mut waits {
            assert!(futures::poll!(wait).is_pending());
        }
        Limit::now(&budget, taken_bytes)
    }

    #[tokio::test]
    async fn those_who_wait_for_others_that_take_what_they_get_read_fair_shares() {
        let both = |len| Some(Limit { begin: len, most: len });
        assert_eq!(limit_beside(0, 0).await, None);
        assert_eq!(limit_beside(8, 0).await, None, "4 MiB each are wide");
        assert_eq!(limit_beside(16, 0).await, both(2 * MIB));
        assert_eq!(limit_beside(2_000, 0).await, both(NARROWEST));
        assert_eq!(limit_beside(2_000, 32 << 20).await, both(MIB), "a connection that has taken much");
    }
}

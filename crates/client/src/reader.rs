//! An object's bytes on their way to a receiver.
//!
//! Its blocks are read some ahead of the receiver, within the byte budget: several at a time, as one query
//! ([`crate::Client::read_spans`] plans in the same way). Failures end the stream with an error, never short
//! (design.md §10.6).
//!
//! What is held follows the receiver. One that takes nothing loses what was read for it ([`Parked`]), and gets it in
//! *narrow* reads when it goes on: parts of blocks, the next one larger while they are taken quickly. While idle receivers
//! pin much of the memory all reads are narrow, and while anybody waits for memory they are fair shares of it ([`Limit`]). A
//! receiver whose buffers hold some MiB seems quick until they are full: the next read is at most half of what was taken
//! quickly before ([`STAKE`]).

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use striate_runtime::Instant;
use striate_stripe::{ByteBudget, Parked, Pinned, SampledObject, Share, Shrink, Span};
use tracing::Instrument;

use crate::blocks::BlockWalk;
use crate::get::{Budget, ends_early};
use crate::object::ObjectStream;
use crate::read_ahead::Ahead;
use crate::{Client, ClientError};

/// Bytes under way of one get, the block that is to be sent next included, where the client's budget is large.
const MOST_AHEAD: u64 = 16 << 20;
/// And as a share of the budget, so that a few receivers that pause do not hold up others.
const MOST_OF_BUDGET: u64 = 5;
/// Blocks of one query.
const MOST_BLOCKS: usize = 64;
/// The narrowest read: a granule. Whole answers up to this length are left to the connection's buffers.
const NARROWEST: u32 = 64 << 10;
/// The next read is so many times larger when a narrow one was taken quickly, and smaller when it was taken slowly.
const GROWTH: u32 = 4;
/// A narrow read is at most such a part of what the receiver took quickly before it: what may be in vain.
pub(crate) const STAKE: u64 = 2;
/// While memory is short a read is at most such a part of all that the receiver's connection has taken: buffers of some MiB
/// earn little.
const EARNED: u64 = 32;
/// From here on whole blocks are read, and ahead.
const WIDE: u32 = 4 << 20;
/// A narrow read was taken quickly within this time, and slowly after four times as long.
const QUICK: Duration = Duration::from_secs(1);

/// An object on its way to a receiver.
pub(crate) struct Reader {
    client: Client,
    budget: Budget,
    /// Where the blocks that are asked for are noted, if they are.
    sampled: Option<SampledObject>,
    /// What the reads of its blocks belong to.
    span: tracing::Span,
    walk: BlockWalk,
    /// Bytes that may be under way.
    most_ahead: u64,
    /// Taken from the walk, to be read next.
    pending: VecDeque<Span>,
    /// Begun and not handed out, in order.
    begun: VecDeque<Span>,
    /// The reads of these.
    ahead: VecDeque<Ahead>,
    /// What is left of the current read.
    pieces: std::vec::IntoIter<Bytes>,
    share: Option<Share>,
    /// Of the piece that was handed out last, when the receiver was found idle.
    pinned: Option<Pinned>,
    last_piece: usize,
    narrow: Option<Narrow>,
    /// The first read has come: the receiver has its answer's head.
    is_open: bool,
    /// Bytes that the receiver has not got yet.
    left: u64,
    has_failed: bool,
}

/// How much is read for a receiver at once, when it is slow or not known yet.
struct Narrow {
    len: u32,
    /// When the last read was ready; unknown where the receiver was idle since.
    ready: Option<Instant>,
    /// Bytes that the receiver was given so, and before.
    given: u64,
}

impl Narrow {
    fn narrowest(given: u64) -> Self {
        Self { len: NARROWEST, ready: None, given }
    }
}

/// How much is read at once while memory is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// At first.
    begin: u32,
    /// At most.
    pub(crate) most: u32,
}

impl Limit {
    /// That of the moment, for a receiver whose connection has taken `taken` bytes before.
    pub(crate) fn now(budget: &ByteBudget, taken: u64) -> Option<Self> {
        let between = |len: u64| len.clamp(NARROWEST.into(), WIDE.into()) as u32;
        let earned = between(taken / EARNED);
        if budget.is_pressed() {
            return Some(Self { begin: NARROWEST, most: earned });
        }
        if budget.is_tight() {
            return Some(Self { begin: NARROWEST, most: NARROWEST * GROWTH });
        }
        // Receivers that take what they get: the fewer they are, the less there is to share.
        let share = between(budget.fair_share()? as u64).max(earned);
        (share < WIDE).then_some(Self { begin: share, most: share })
    }
}

impl Reader {
    /// A reader of the `left` bytes over which `walk` goes.
    pub(crate) fn new(
        client: &Client,
        budget: Budget,
        walk: BlockWalk,
        left: u64,
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
            most_ahead: MOST_AHEAD.min(stripes.options().in_flight_bytes as u64 / MOST_OF_BUDGET),
            pending: VecDeque::new(),
            begun: VecDeque::new(),
            ahead: VecDeque::new(),
            pieces: Vec::new().into_iter(),
            share: None,
            pinned: None,
            last_piece: 0,
            narrow: is_narrow.then(|| Narrow::narrowest(budget.taken())),
            is_open: false,
            left,
            has_failed: false,
            client: client.clone(),
        }
    }

    /// The stream of its bytes, with the first ones at hand.
    ///
    /// # Errors
    /// When these cannot be read.
    pub(crate) async fn open(mut self) -> Result<ObjectStream, ClientError> {
        // Who reads on a share of their own has not taken it yet.
        if self.budget != Budget::Readers {
            self.open_next().await?;
        }
        self.is_open = true;
        if self.budget == Budget::Readers || self.left <= u64::from(NARROWEST) {
            let step = |mut reader: Self| async { reader.next().await.map(|item| (item, reader)) };
            return Ok(stream::unfold(self, step).boxed());
        }
        let (runtime, budget) =
            (self.client.inner.runtime.clone(), self.client.inner.stripes.budget().clone());
        Ok(stream::unfold(Parked::new(runtime, &budget, self), Parked::step).boxed())
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
                false if self.left == 0 => return Ok(None),
                false => return Err(ends_early(self.left)),
            }
        }
    }

    /// The next `len` bytes are the receiver's.
    fn hand_out(&mut self, len: usize) {
        self.left = self.left.saturating_sub(len as u64);
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

    /// Makes the next read the current one. `false` after the last.
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

    /// As [`Reader::open_next`], with nothing read ahead.
    async fn open_alone(&mut self) -> Result<bool, ClientError> {
        let Some(span) = self.next_span().await? else { return Ok(false) };
        let len = span.range.len() as u64;
        self.begun.push_back(span.clone());
        if self.budget != Budget::Readers {
            self.share = Some(self.memory(span.range.len()).await?);
        }
        self.pieces = self.client.inner.stripes.read_span(span).await?.into_iter();
        if let Some(narrow) = &mut self.narrow {
            narrow.ready = Some(self.client.inner.runtime.now());
            narrow.given += len;
        }
        Ok(true)
    }

    /// Waits for `len` bytes of the budget. Whoever has no answer yet is refused when there are none in time.
    fn memory(&self, len: usize) -> impl Future<Output = Result<Share, ClientError>> + Send + use<> {
        let (budget, is_open) = (self.client.inner.stripes.budget().clone(), self.is_open);
        async move {
            match is_open {
                true => Ok(budget.wait(len).await),
                false => Ok(budget.acquire(len).await?),
            }
        }
    }

    /// The next narrow read is as large as the pace of the last one says, and as memory allows.
    fn widen(&mut self) {
        let limit = match self.budget {
            Budget::Own { taken } => Limit::now(self.client.inner.stripes.budget(), taken),
            _ => None,
        };
        if let Some(Limit { begin, most }) = limit {
            let begins = || Narrow { len: begin, ..Narrow::narrowest(self.budget.taken()) };
            let narrow = self.narrow.get_or_insert_with(begins);
            narrow.len = narrow.len.min(most);
        }
        let Some(Narrow { len, ready: Some(ready), given }) = &mut self.narrow else { return };
        let took = self.client.inner.runtime.now().saturating_duration_since(*ready);
        if took <= QUICK {
            let wider = limit.map_or(*len * GROWTH, |limit| limit.most.min(*len * GROWTH));
            if wider > *len && *given >= STAKE * u64::from(wider) {
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

    /// Begins the reads of the next blocks when half of what may be is under way, so that several are planned together, as far as nobody waits for their memory.
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

    /// Begins the read of a span, together with those behind it as far as nobody waits for their memory.
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
            (Some((span, share)), true) if is_awaited => Ahead::when_awaited(client, span, share),
            (Some((span, share)), true) => Ahead::now(client, span, share),
            (last, _) => Ahead::window(client, window.into_iter().chain(last).collect()),
        });
        Ok(())
    }

    /// Bytes that are under way.
    fn ahead_len(&self) -> u64 {
        self.ahead.iter().map(Ahead::len).sum()
    }

    /// What a block's read counts in the byte budget: chunks that are asked for beyond the needed ones included.
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

    /// What was read and not handed out is read again, when it is wanted. The piece that was handed out last still
    /// counts, unless it is as small as what is left to the connection's buffers.
    fn shrink(&mut self) {
        let budget = self.client.inner.stripes.budget();
        let share = self.share.take().filter(|_| self.last_piece > NARROWEST as usize);
        self.pinned = share.map(|share| budget.pin(share, self.last_piece)).or(self.pinned.take());
        self.pieces = Vec::new().into_iter();
        self.ahead.clear();
        for span in self.begun.drain(..).rev() {
            self.pending.push_front(span);
        }
        self.narrow = Some(Narrow::narrowest(0));
    }
}

#[cfg(test)]
mod tests {
    use striate_runtime::Runtime;

    use super::*;

    const MIB: u32 = 1 << 20;

    /// What is read at once while `waiting` requests wait for all of 32 MiB.
    async fn limit_beside(waiting: usize, taken: u64) -> Option<Limit> {
        let budget = ByteBudget::new(Runtime::real(), 32 << 20, Duration::from_secs(5));
        let _all = budget.acquire(32 << 20).await.unwrap();
        let mut waits: Vec<_> = (0..waiting).map(|_| Box::pin(budget.wait(1))).collect();
        for wait in &mut waits {
            assert!(futures::poll!(wait).is_pending());
        }
        Limit::now(&budget, taken)
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

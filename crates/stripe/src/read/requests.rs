//! The requests of a query in flight, one per site and plan, and which of them are late.
//!
//! A site fails the unanswered rest of its request when it has been silent for the read deadline, when its reply ends
//! early, or when it cannot be asked at all. So every requested chunk is answered once.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use striate_core::{ChunkRange, SiteId};
use striate_runtime::Instant;
use striate_site::{Priority, ReadReply, ReadRequest, ReadStream, SiteError};

use super::arrival::Conditions;
use super::last_splits::LastSplits;
use super::located::LocatedQuery;
use super::reads::Reads;
use crate::sites::InFlight;

/// Identifies the request of a stripe that a chunk answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestKey {
    pub(super) stripe: usize,
    /// Position among the requests of the stripe.
    pub(super) position: usize,
    /// Turn of the stripe when the request was sent.
    pub(super) turn: u32,
}

/// Columns of a chunk, or the error.
pub(super) struct Answer {
    pub(super) site: SiteId,
    pub(super) key: RequestKey,
    pub(super) result: Result<Bytes, SiteError>,
}

/// Requests of a query in flight.
pub(super) struct SiteRequests {
    reads: Reads,
    /// Whether sites are late when they take longer than predicted.
    predicts: bool,
    last_splits: LastSplits,
    under_way: FuturesUnordered<NextReply>,
    /// Sites whose requests have neither ended nor been dropped.
    active: usize,
    /// Answers that are ready.
    ready: VecDeque<Answer>,
}

/// A range that a site was asked for.
struct Item {
    key: RequestKey,
    len: u32,
    is_answered: bool,
}

/// The request to one site.
struct SiteRequest {
    site: SiteId,
    items: Vec<Item>,
    /// Replies of the site; `None` once they have ended or no piece needs them.
    stream: Option<(ReadStream, InFlight)>,
    unanswered: usize,
    /// Bytes received so far.
    bytes: u64,
    next_bytes: u64,
    asked_at: Instant,
    /// Time of the last reply, or of the request.
    heard_at: Instant,
    /// Estimated queue of the site when the request was sent.
    queue: f64,
    /// True once the site is later than predicted, or with the last splits of a block: replacements were sent, or the
    /// budget did not allow them.
    is_late: bool,
    /// True once the site was silent for the hedge time: replacements were sent.
    is_silent: bool,
}

impl SiteRequests {
    /// Creates an empty set. With `predicts`, sites count as late by prediction, and with the last splits of a block.
    pub(super) fn new(reads: Reads, predicts: bool) -> Self {
        let (under_way, ready) = (FuturesUnordered::new(), VecDeque::new());
        Self { reads, predicts, last_splits: LastSplits::default(), under_way, active: 0, ready }
    }

    /// Sends requests to sites, each for some chunks.
    pub(super) fn ask(&mut self, requests: Vec<(SiteId, Vec<(RequestKey, ChunkRange)>)>) {
        let sites = self.reads.shared.sites.snapshot();
        let now = self.reads.shared.runtime.now();
        for (id, chunks) in requests {
            let bytes = chunks.iter().map(|(_, range)| u64::from(range.len)).sum();
            let Some((site, in_flight, queue)) = sites.ask(id, bytes) else {
                self.ready.extend(chunks.into_iter().map(|(key, _)| {
                    let reason = "it does not answer or is unknown".to_owned();
                    Answer { site: id, key, result: Err(SiteError::Unavailable(reason)) }
                }));
                continue;
            };
            let (mut items, mut ranges) =
                (Vec::with_capacity(chunks.len()), Vec::with_capacity(chunks.len()));
            for (key, range) in chunks {
                items.push(Item { key, len: range.len, is_answered: false });
                ranges.push(range);
            }
            let next_bytes = ranges.first().map_or(0, |range| u64::from(range.len));
            let request = ReadRequest { ranges, priority: Priority::Foreground, deadline: None };
            let request = SiteRequest {
                site: id,
                unanswered: items.len(),
                items,
                stream: Some((site.read(request), in_flight)),
                bytes: 0,
                next_bytes,
                asked_at: now,
                heard_at: now,
                queue,
                is_late: false,
                is_silent: false,
            };
            self.active += 1;
            self.under_way.push(NextReply(Some(request)));
        }
    }

    /// Whether no further answer will come.
    pub(super) fn is_idle(&self) -> bool {
        self.active == 0 && self.ready.is_empty()
    }

    /// Returns when to call [`SiteRequests::look_at_clock`] next: when the first of the sites will be late.
    pub(super) fn wake_at(&self, located: &LocatedQuery) -> Option<Instant> {
        let requests = self.under_way.iter().filter_map(|next| next.0.as_ref());
        let active = requests.filter(|request| request.stream.is_some());
        let due = active.map(|request| request.due(&self.reads, self.predicts));
        due.chain(self.last_splits.due(located)).min()
    }

    /// Records the reply to a request for a split of a cached block. Returns whether a wait began for the last splits,
    /// which may be late earlier than all others.
    pub(super) fn note_split(&mut self, key: RequestKey, located: &LocatedQuery, began: Instant) -> bool {
        self.predicts && self.last_splits.note_reply(key, located, began, &self.reads.shared.runtime)
    }

    /// Returns the next answer if it is ready.
    pub(super) fn next_ready(&mut self) -> Option<Answer> {
        if self.is_idle() { None } else { self.next().now_or_never() }
    }

    /// Returns the next answer; never resolves when no further answer will come.
    pub(super) async fn next(&mut self) -> Answer {
        loop {
            if let Some(answer) = self.ready.pop_front() {
                return answer;
            }
            let Some((mut request, reply)) = self.under_way.next().await else {
                return futures::future::pending().await;
            };
            let Some(reply) = reply else {
                let reason = "its answer ended early".to_owned();
                self.fail(request, &SiteError::Unavailable(reason));
                continue;
            };
            if request.items.get(reply.item).is_none_or(|item| item.is_answered) {
                self.fail(
                    request,
                    &SiteError::Unavailable("it sent an answer that was not requested".to_owned()),
                );
                continue;
            }
            request.record(&self.reads, &reply, self.predicts);
            let key = request.items[reply.item].key;
            let answer = Answer { site: request.site, key, result: reply.result };
            match request.unanswered {
                0 => self.active -= 1,
                _ => self.under_way.push(NextReply(Some(request))),
            }
            return answer;
        }
    }

    /// Fails the unanswered rest of a request.
    fn fail(&mut self, request: SiteRequest, error: &SiteError) {
        self.active -= 1;
        let answer = |key| Answer { site: request.site, key, result: Err(error.clone()) };
        self.ready.extend(request.outstanding().map(answer));
    }

    /// Fails sites that were silent for the read deadline, and gives up what sites that are late now have not
    /// answered, and last splits that are late: replacements are then requested. Unless a site is silent, the budget
    /// must allow it. Returns whether anything was given up.
    pub(super) fn look_at_clock(&mut self, located: &mut LocatedQuery) -> bool {
        let now = self.reads.shared.runtime.now();
        let deadline = self.reads.shared.options.read_deadline;
        let reads = self.reads.clone();
        let can_be_asked = reads.can_be_asked();
        let mut given_up = false;
        for next in self.under_way.iter_mut() {
            let Some(request) = next.0.as_mut().filter(|request| request.stream.is_some()) else { continue };
            if request.heard_at + deadline <= now {
                request.stream = None;
                self.active -= 1;
                let answer = |key| Answer { site: request.site, key, result: Err(SiteError::Deadline) };
                self.ready.extend(request.outstanding().map(answer));
                continue;
            }
            let mut late = request.awaited(located);
            match request.late_at(&reads, self.predicts).is_some_and(|late_at| late_at <= now) {
                true => request.note_late(&reads, now),
                false => late.retain(|key| self.last_splits.is_late(*key, located, now, &can_be_asked)),
            }
            given_up |= request.give_up(&late, &reads, located);
        }
        self.last_splits.forget(now);
        given_up
    }

    /// Drops the requests that no open piece needs. Returns how many had not answered everything.
    pub(super) fn drop_unneeded(&mut self, located: &LocatedQuery) -> usize {
        let mut dropped = 0;
        for next in self.under_way.iter_mut() {
            let Some(request) = next.0.as_mut() else { continue };
            let is_needed = |key: RequestKey| {
                located.stripes[key.stripe].turn == key.turn && located.needs(key.stripe, key.position)
            };
            if request.stream.is_some() && !request.outstanding().any(is_needed) {
                request.record_dropped(&self.reads, self.predicts);
                request.stream = None;
                self.active -= 1;
                dropped += 1;
            }
        }
        dropped
    }

    /// Whether a site that is not late has yet to answer what an open piece of a stripe needs.
    pub(super) fn awaits(&self, stripe: usize, located: &LocatedQuery) -> bool {
        let requests = self.under_way.iter().filter_map(|next| next.0.as_ref());
        let in_time = |request: &&SiteRequest| request.stream.is_some() && !request.is_late;
        let is_needed = |key: RequestKey| key.stripe == stripe && located.needs(stripe, key.position);
        requests.filter(in_time).any(|request| request.outstanding().any(is_needed))
    }

    /// Number of requests that have not answered everything.
    pub(super) fn under_way(&self) -> usize {
        self.active
    }

    /// Consumes the remaining replies until every site has answered or was silent for the read deadline.
    pub(super) async fn drain(mut self) {
        let runtime = self.reads.shared.runtime.clone();
        let deadline = self.reads.shared.options.read_deadline;
        while self.active > 0 && runtime.timeout(deadline, self.next()).await.is_ok() {}
    }
}

impl SiteRequest {
    /// Records a reply and what it reveals of the site.
    fn record(&mut self, reads: &Reads, reply: &ReadReply, predicts: bool) {
        let now = reads.shared.runtime.now();
        let is_first = self.unanswered == self.items.len();
        let item = &mut self.items[reply.item];
        if let Some((_, in_flight)) = &mut self.stream {
            in_flight.hear(u64::from(item.len), &reply.load, now);
            match &reply.result {
                Ok(bytes) if is_first => in_flight.note_first(bytes.len() as u64, now - self.asked_at),
                Ok(bytes) => in_flight.note_next(bytes.len() as u64, now - self.heard_at),
                Err(_) => {}
            }
        }
        (item.is_answered, self.heard_at) = (true, now);
        self.unanswered -= 1;
        if let Ok(bytes) = &reply.result {
            self.bytes += bytes.len() as u64;
            self.next_bytes = bytes.len() as u64;
            reads.shared.hedge_delay.record(now - self.asked_at);
            if predicts {
                reads.shared.arrivals.record(Conditions::new(self.queue, self.bytes), now - self.asked_at);
            }
        }
    }

    /// Records the wait of a late request that is dropped: it would have taken even longer. Otherwise only quick ones
    /// would be remembered.
    fn record_dropped(&self, reads: &Reads, predicts: bool) {
        if predicts && self.is_late {
            let waited = reads.shared.runtime.now() - self.asked_at;
            reads.shared.arrivals.record(self.conditions(), waited);
        }
    }

    /// Returns what is awaited of the site for an open piece.
    fn awaited(&self, located: &LocatedQuery) -> Vec<RequestKey> {
        let is_awaited = |key: &RequestKey| {
            let stripe = &located.stripes[key.stripe];
            stripe.turn == key.turn
                && stripe.is_awaited(key.position)
                && located.needs(key.stripe, key.position)
        };
        self.outstanding().filter(is_awaited).collect()
    }

    /// Records that the site is late, or silent.
    fn note_late(&mut self, reads: &Reads, now: Instant) {
        self.is_silent |= self.silent_at(reads) <= now;
        self.is_late = true;
    }

    /// Gives up late chunks, if the budget allows it or the site is silent. Returns whether there were any.
    fn give_up(&mut self, late: &[RequestKey], reads: &Reads, located: &mut LocatedQuery) -> bool {
        self.is_late |= !late.is_empty();
        // A chunk of a part is replaced by about k others.
        let price = |key: &RequestKey| located.price_of_hedge(key.stripe, key.position);
        let chunks: usize = late.iter().map(price).sum();
        if late.is_empty() || !(self.is_silent || reads.shared.hedge_budget.spend(chunks)) {
            return false;
        }
        late.iter().for_each(|key| located.stripes[key.stripe].give_up(key.position));
        true
    }

    /// Conditions of the next chunk.
    fn conditions(&self) -> Conditions {
        Conditions::new(self.queue, self.bytes + self.next_bytes)
    }

    /// Returns when to examine the request next: when it will be late, or has failed.
    fn due(&self, reads: &Reads, predicts: bool) -> Instant {
        let deadline = self.heard_at + reads.shared.options.read_deadline;
        self.late_at(reads, predicts).map_or(deadline, |late_at| late_at.min(deadline))
    }

    /// Returns when the request will be late next; `None` if replacements were already sent for silence.
    fn late_at(&self, reads: &Reads, predicts: bool) -> Option<Instant> {
        if self.is_silent {
            return None;
        }
        let silent_at = self.silent_at(reads);
        let predicted = if predicts && !self.is_late {
            reads.shared.arrivals.late_after(self.conditions()).map(|after| self.asked_at + after + TICK)
        } else {
            None
        };
        Some(predicted.map_or(silent_at, |late_at| late_at.min(silent_at)))
    }

    /// Returns when the site will have been silent for the hedge time.
    fn silent_at(&self, reads: &Reads) -> Instant {
        self.heard_at + reads.shared.hedge_after()
    }

    /// Returns the unanswered chunks.
    fn outstanding(&self) -> impl Iterator<Item = RequestKey> {
        self.items.iter().filter(|item| !item.is_answered).map(|item| item.key)
    }
}

/// Margin of a prediction: a request that takes exactly as long as predicted is not late.
pub(super) const TICK: Duration = Duration::from_micros(1);

/// Resolves to the site's request with its next reply, or with `None` at the end. Never resolves once the request was
/// dropped.
struct NextReply(Option<SiteRequest>);

impl Future for NextReply {
    type Output = (SiteRequest, Option<ReadReply>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let request = self.0.as_mut().expect("polled after it was ready");
        let Some((stream, _)) = &mut request.stream else { return Poll::Pending };
        let Poll::Ready(reply) = stream.as_mut().poll_next(context) else { return Poll::Pending };
        let request = self.0.take().expect("it was there above");
        Poll::Ready((request, reply))
    }
}

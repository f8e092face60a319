//! The reads of a query that are under way, one for each site, and which of them are late.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use striate_core::{ChunkId, ChunkRange, Generation, SiteId};
use striate_plan::{QueryChunk, SiteRead};
use striate_runtime::Instant;
use striate_site::{Priority, ReadReply, ReadRequest, ReadStream, SiteError};

use super::arrival::{Conditions, HedgeBudget};
use super::gathering::Gathering;
use super::reads::Reads;
use crate::sites::InFlight;

/// A chunk, or why it does not come.
pub(super) struct Answer {
    pub(super) site: SiteId,
    pub(super) chunk: QueryChunk,
    pub(super) result: Result<Bytes, SiteError>,
}

/// The reads of a query that are under way.
pub(super) struct Answers {
    reads: Reads,
    /// Whether sites are late when they take longer than predicted.
    predicts: bool,
    next: FuturesUnordered<NextAnswer>,
    /// Sites whose reads have neither ended nor been dropped.
    active: usize,
}

/// What one site still has to answer.
struct SiteAnswers {
    read: SiteRead,
    /// `None` once it has ended or nobody needs it.
    stream: Option<(ReadStream, InFlight)>,
    /// Which of the read's chunks were answered.
    answered: Vec<bool>,
    /// Bytes that came so far, and of the next chunk.
    bytes: u64,
    next_bytes: u64,
    asked_at: Instant,
    /// When it answered last, or was asked.
    heard_at: Instant,
    /// The site's estimated queue when it was asked.
    queue: f64,
    /// Later than predicted: others were asked, or the budget did not allow it.
    is_late: bool,
    /// Silent for the hedge time: others were asked.
    is_silent: bool,
}

impl Answers {
    /// None yet. With `predicts`, sites count as late by prediction.
    pub(super) fn new(reads: Reads, predicts: bool) -> Self {
        Self { reads, predicts, next: FuturesUnordered::new(), active: 0 }
    }

    /// Asks the sites that can be asked.
    pub(super) fn ask(&mut self, reads: Vec<SiteRead>, gathering: &mut [Gathering]) {
        for read in reads {
            if let Some(site) = SiteAnswers::ask(&self.reads, read, gathering) {
                self.active += 1;
                self.next.push(NextAnswer(Some(site)));
            }
        }
    }

    /// The next answer; `None` when nothing more can come.
    pub(super) async fn next(&mut self) -> Option<Answer> {
        while self.active > 0 {
            let (mut site, reply) = self.next.next().await?;
            let Some(reply) = reply else {
                self.active -= 1;
                continue;
            };
            site.note(&self.reads, &reply, self.predicts);
            let chunk = site.read.chunks[reply.item];
            let answer = Answer { site: site.read.site, chunk, result: reply.result };
            self.next.push(NextAnswer(Some(site)));
            return Some(answer);
        }
        None
    }

    /// When the first site will be late that is not yet.
    pub(super) fn late_at(&self) -> Option<Instant> {
        let sites = self.next.iter().filter_map(|next| next.0.as_ref()).filter(|site| site.stream.is_some());
        sites.filter_map(|site| site.late_at(&self.reads, self.predicts)).min()
    }

    /// What sites that are late now still have to answer is no longer awaited; for those that are late only by
    /// prediction, as far as the budget allows.
    pub(super) fn give_up_late(&mut self, gathering: &mut [Gathering], budget: &HedgeBudget) {
        let now = self.reads.shared.runtime.now();
        for site in self.next.iter_mut().filter_map(|next| next.0.as_mut()) {
            let is_late = site.late_at(&self.reads, self.predicts).is_some_and(|late_at| late_at <= now);
            if site.stream.is_none() || !is_late {
                continue;
            }
            site.is_silent |= site.silent_at(&self.reads) <= now;
            site.is_late = true;
            let outstanding: Vec<QueryChunk> = site.outstanding(gathering).collect();
            if site.is_silent || budget.spend(outstanding.len()) {
                for chunk in outstanding {
                    gathering[chunk.block].awaited.retain(|index| *index != chunk.index);
                }
            }
        }
    }

    /// Drops the reads that no incomplete block needs; answers how many had not answered everything.
    pub(super) fn drop_unneeded(&mut self, gathering: &[Gathering]) -> usize {
        let mut taken_back = 0;
        for site in self.next.iter_mut().filter_map(|next| next.0.as_mut()) {
            if site.stream.is_some() && site.read.chunks.iter().all(|chunk| gathering[chunk.block].complete) {
                site.note_dropped(&self.reads, self.predicts);
                site.stream = None;
                self.active -= 1;
                taken_back += usize::from(site.answered.contains(&false));
            }
        }
        taken_back
    }

    /// Sites that still have something to answer.
    pub(super) fn silent(&self) -> Vec<SiteId> {
        let sites = self.next.iter().filter_map(|next| next.0.as_ref());
        sites.filter(|site| site.stream.is_some()).map(|site| site.read.site).collect()
    }
}

impl SiteAnswers {
    fn ask(reads: &Reads, read: SiteRead, gathering: &mut [Gathering]) -> Option<Self> {
        let sites = reads.shared.sites.snapshot();
        let queue = sites.queue(read.site)?;
        let (site, in_flight) = sites.ask(read.site, &queue)?;
        for chunk in &read.chunks {
            gathering[chunk.block].asked.push(chunk.index);
            gathering[chunk.block].awaited.push(chunk.index);
        }
        let range = |chunk: &QueryChunk| {
            let stripe = &gathering[chunk.block].stripe;
            let generation = Generation(stripe.record.locations[chunk.index].generation);
            let chunk = ChunkId { stripe: stripe.id, index: chunk.index as u8, generation };
            ChunkRange { chunk, offset: 0, len: stripe.record.chunk_len }
        };
        let ranges: Vec<ChunkRange> = read.chunks.iter().map(range).collect();
        let next_bytes = ranges.first().map_or(0, |range| u64::from(range.len));
        let request = ReadRequest { ranges, priority: Priority::Foreground, deadline: None };
        let asked_at = reads.shared.runtime.now();
        Some(Self {
            stream: Some((site.read(request), in_flight)),
            answered: vec![false; read.chunks.len()],
            read,
            bytes: 0,
            next_bytes,
            asked_at,
            heard_at: asked_at,
            queue: queue.requests(),
            is_late: false,
            is_silent: false,
        })
    }

    /// Takes note of an answer.
    fn note(&mut self, reads: &Reads, reply: &ReadReply, predicts: bool) {
        let now = reads.shared.runtime.now();
        let is_first = !self.answered.contains(&true);
        if let Some((_, in_flight)) = &self.stream {
            in_flight.hear(now);
            match &reply.result {
                Ok(bytes) if is_first => in_flight.note_first(bytes.len() as u64, now - self.asked_at),
                Ok(bytes) => in_flight.note_next(bytes.len() as u64, now - self.heard_at),
                Err(_) => {}
            }
        }
        (self.answered[reply.item], self.heard_at) = (true, now);
        if let Ok(bytes) = &reply.result {
            self.bytes += bytes.len() as u64;
            self.next_bytes = bytes.len() as u64;
            reads.shared.patience.record(now - self.asked_at);
            if predicts {
                reads.shared.arrivals.record(Conditions::new(self.queue, self.bytes), now - self.asked_at);
            }
        }
    }

    /// A late read that is given up would have taken longer still. Without it only the quick ones would be remembered.
    fn note_dropped(&self, reads: &Reads, predicts: bool) {
        if predicts && self.is_late {
            let waited = reads.shared.runtime.now() - self.asked_at;
            reads.shared.arrivals.record(self.conditions(), waited);
        }
    }

    /// Those of the next chunk.
    fn conditions(&self) -> Conditions {
        Conditions::new(self.queue, self.bytes + self.next_bytes)
    }

    /// When it will be late next; `None` if others were asked already, whatever it does.
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

    /// When it will have been silent for the hedge time.
    fn silent_at(&self, reads: &Reads) -> Instant {
        self.heard_at + reads.shared.patience.hedge_after()
    }

    /// Chunks that it has not answered and that incomplete blocks wait for.
    fn outstanding(&self, gathering: &[Gathering]) -> impl Iterator<Item = QueryChunk> {
        let chunks = self.read.chunks.iter().zip(&self.answered).filter(|(_, answered)| !**answered);
        chunks.map(|(chunk, _)| *chunk).filter(|chunk| {
            let block = &gathering[chunk.block];
            !block.complete && !block.has(chunk.index) && block.awaited.contains(&chunk.index)
        })
    }
}

/// What takes as long as predicted is not late.
const TICK: Duration = Duration::from_micros(1);

/// Resolves to the site with its next answer, or `None` when it has no more. Never, once the site's read was
/// dropped.
struct NextAnswer(Option<SiteAnswers>);

impl Future for NextAnswer {
    type Output = (SiteAnswers, Option<ReadReply>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let site = self.0.as_mut().expect("polled after it was ready");
        let Some((stream, _)) = &mut site.stream else { return Poll::Pending };
        let Poll::Ready(reply) = stream.as_mut().poll_next(context) else { return Poll::Pending };
        let mut site = self.0.take().expect("it was there above");
        if reply.is_none() {
            site.stream = None;
        }
        Poll::Ready((site, reply))
    }
}

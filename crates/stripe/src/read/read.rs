//! Reading a block.
//!
//! The *normal read* fetches exactly the ranges of the data chunks that hold the wanted bytes, with one request
//! for each site, and hands them on without a copy. When a chunk is missing, damaged or late, a *degraded
//! read* begins beside it: it fetches whole chunks from the cheapest sites that determine what is wanted,
//! decodes, and checks the block's own checksum before a byte is served (design.md §10.12). What was asked before
//! goes on, and whichever is complete first is the answer: a medium that is merely busy is not asked twice.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use striate_codec::{DecodePlan, crc32c};
use striate_core::{ChunkId, ChunkRange, Generation, SiteId};
use striate_meta::records::Block;
use striate_plan::plan_block_read;
use striate_runtime::{Buffer, BufferPool, Instant};
use striate_site::{Priority, ReadRequest, Site, SiteError};
use tracing::{Instrument, debug_span};

use super::measure::{Phase, ReadMeasures};
use super::reads::Reads;
use crate::error::StripeError;
use crate::table::{OpenedStripe, stripe_id};

/// How often a read begins anew because the stripe's record changed under it.
const MAX_RESTARTS: usize = 5;

/// One read of a range of one block.
struct Attempt<'a> {
    /// The data chunks that hold the range, each with its part of it: what the normal read asks for.
    wanted: Vec<(usize, Range<u32>)>,
    /// The parts of `wanted` that arrived.
    parts: HashMap<usize, Bytes>,
    /// Whole chunks that arrived.
    whole: HashMap<usize, Bytes>,
    /// Why a chunk cannot be had.
    failed: HashMap<usize, SiteError>,
    /// Requests that are under way; one that is late may still be the first to arrive.
    fetches: FuturesUnordered<Fetch<'a>>,
    /// Chunks that were asked for, with the part.
    asked: Vec<(usize, Range<u32>)>,
    /// When the last of them was asked for, or found late.
    asked_at: Instant,
    /// Of those, the ones that kept this read waiting longer than others do.
    late: Vec<usize>,
}

type Fetch<'a> = BoxFuture<'a, (usize, Range<u32>, Result<Bytes, SiteError>)>;

/// How an attempt goes on.
enum Step {
    /// More chunks are under way.
    Wait,
    /// Every wanted part arrived.
    Normal(Vec<Bytes>),
    /// The whole chunks that arrived determine the block, after decoding.
    Degraded(Option<DecodePlan>),
    /// What can still be had does not determine the block.
    TooFew,
}

impl Reads {
    /// The bytes `range` of a block, verified, in order, as ready pieces.
    ///
    /// # Errors
    /// [`StripeError::Unreadable`] names what is missing when fewer chunks than needed can be had.
    pub(crate) async fn read_block(
        &self,
        block: &Block,
        range: Range<u32>,
    ) -> Result<Vec<Bytes>, StripeError> {
        let span = debug_span!("read_block", bytes = i64::from(range.end - range.start));
        self.read_block_of_now(block, range).instrument(span).await
    }

    /// Reads the block, again from the beginning where its stripe changes meanwhile.
    async fn read_block_of_now(&self, block: &Block, range: Range<u32>) -> Result<Vec<Bytes>, StripeError> {
        let id = stripe_id(&block.stripe)?;
        let began = self.shared.runtime.now();
        let mut stripe = self.shared.table.open(id).instrument(debug_span!("metadata")).await?;
        self.shared.measures.took(Phase::Metadata, self.shared.runtime.now() - began);
        for _ in 0..MAX_RESTARTS {
            match self.attempt(&stripe, block, range.clone()).await {
                Ok(pieces) => return Ok(pieces),
                Err(error) => {
                    let now = self.shared.table.open(id).await?;
                    if now.row.version == stripe.row.version {
                        return Err(error);
                    }
                    stripe = now;
                }
            }
        }
        Err(StripeError::Busy)
    }

    /// Reads the range from the data chunks alone as long as nothing fails and nothing is late, then from
    /// whatever arrives first.
    async fn attempt(
        &self,
        stripe: &OpenedStripe,
        block: &Block,
        range: Range<u32>,
    ) -> Result<Vec<Bytes>, StripeError> {
        let began = self.shared.runtime.now();
        let mut attempt = Attempt::new(self.wanted(stripe, range.clone()), began);
        let step = self.retrieve(stripe, &mut attempt).instrument(debug_span!("retrieve")).await;
        let retrieved = self.shared.runtime.now();
        self.shared.measures.took(Phase::Retrieve, retrieved - began);
        self.count(&attempt);
        attempt.failed.iter().for_each(|(&index, error)| self.shared.damage.report(stripe, index, error));
        match step {
            Step::Normal(pieces) => Ok(pieces),
            Step::Degraded(decode) => {
                let began = self.shared.runtime.now();
                let buffers = self.shared.runtime.buffers();
                let bytes =
                    debug_span!("decode").in_scope(|| stripe.decoded(block, attempt, decode, buffers))?;
                self.shared.measures.took(Phase::Decode, self.shared.runtime.now() - began);
                Ok(vec![bytes.slice(range.start as usize..range.end as usize)])
            }
            Step::Wait | Step::TooFew => Err(stripe.unreadable(&attempt)),
        }
    }

    /// Chunks asked around late ones, and requests that nobody waits for any more.
    fn count(&self, attempt: &Attempt<'_>) {
        let measures = &self.shared.measures;
        if !attempt.late.is_empty() {
            ReadMeasures::count(&measures.hedged_chunks, attempt.asked.len() - attempt.wanted.len());
        }
        ReadMeasures::count(&measures.cancelled_requests, attempt.fetches.len());
    }

    /// Asks and takes what comes until the range can be answered, or cannot any more.
    async fn retrieve<'a>(&'a self, stripe: &OpenedStripe, attempt: &mut Attempt<'a>) -> Step {
        for (index, part) in attempt.wanted.clone() {
            self.ask(stripe, attempt, index, part);
        }
        let mut step = attempt.normal();
        while let Step::Wait = step {
            let late_at = attempt.asked_at + self.shared.patience.hedge_after();
            tokio::select! {
                biased;
                next = attempt.fetches.next() => match next {
                    Some((index, part, result)) => attempt.note(stripe, index, part, result),
                    None => step = Step::TooFew,
                },
                () = self.shared.runtime.sleep_until(late_at) => {
                    attempt.mark_late();
                    attempt.asked_at = self.shared.runtime.now();
                }
            }
            if let Step::Wait = step {
                step = match attempt.normal() {
                    Step::Wait if attempt.is_degraded() => self.degrade(stripe, attempt),
                    step => step,
                };
            }
        }
        step
    }

    /// What the normal read asks for; of copies, the cheapest one.
    fn wanted(&self, stripe: &OpenedStripe, range: Range<u32>) -> Vec<(usize, Range<u32>)> {
        let mut wanted: Vec<_> = stripe.parts(range).collect();
        if stripe.code.k() == 1 {
            let copy = plan_block_read(&stripe.code, &[0], &self.costs(stripe, None)).ok();
            wanted[0].0 = copy.and_then(|plan| plan.fetch.first().copied()).unwrap_or(0);
        }
        wanted
    }

    /// Asks for whole chunks, the cheapest that determine the block, unless those that arrived already do. Late
    /// ones count only where the others are too few.
    fn degrade<'a>(&'a self, stripe: &OpenedStripe, attempt: &mut Attempt<'a>) -> Step {
        let block: Vec<usize> = (0..stripe.code.k()).collect();
        let arrived: Vec<_> =
            (0..stripe.code.n()).map(|index| attempt.whole.contains_key(&index).then_some(0.0)).collect();
        if let Ok(plan) = plan_block_read(&stripe.code, &block, &arrived) {
            return Step::Degraded(plan.decode);
        }
        let mut costs = self.costs(stripe, Some(attempt));
        let all = costs.clone();
        attempt.late.iter().for_each(|&late| costs[late] = None);
        let plan = plan_block_read(&stripe.code, &block, &costs);
        let Ok(plan) = plan.or_else(|_| plan_block_read(&stripe.code, &block, &all)) else {
            return Step::TooFew;
        };
        let whole = 0..stripe.record.chunk_len;
        for index in plan.fetch {
            if !attempt.whole.contains_key(&index) && !attempt.asked.contains(&(index, whole.clone())) {
                self.ask(stripe, attempt, index, whole.clone());
            }
        }
        Step::Wait
    }

    fn ask<'a>(&'a self, stripe: &OpenedStripe, attempt: &mut Attempt<'a>, index: usize, part: Range<u32>) {
        attempt.fetches.push(self.fetch(stripe, index, part.clone()));
        attempt.asked.push((index, part));
        attempt.asked_at = self.shared.runtime.now();
    }

    /// The cost of fetching each chunk: nothing for those that arrived, None for those that cannot be had.
    fn costs(&self, stripe: &OpenedStripe, attempt: Option<&Attempt<'_>>) -> Vec<Option<f64>> {
        let cost = |(index, location): (usize, &striate_meta::records::Location)| {
            let arrived = attempt.is_some_and(|attempt| attempt.whole.contains_key(&index));
            if arrived {
                return Some(0.0);
            }
            let failed = attempt.is_some_and(|attempt| attempt.failed.contains_key(&index));
            if failed || location.site == 0 {
                return None;
            }
            let site = self.shared.sites.readable(SiteId(location.site))?;
            Some(1.0 + f64::from(site.last_load().queue_requests))
        };
        stripe.record.locations.iter().enumerate().map(cost).collect()
    }

    /// One range of one chunk, within the read deadline.
    fn fetch<'a>(&'a self, stripe: &OpenedStripe, index: usize, part: Range<u32>) -> Fetch<'a> {
        let location = stripe.record.locations[index];
        let chunk =
            ChunkId { stripe: stripe.id, index: index as u8, generation: Generation(location.generation) };
        let site_id = SiteId(location.site);
        let Some(site) = self.shared.sites.readable(site_id) else {
            let reason = if location.site == 0 { "in debt" } else { "not answering or not known" };
            return Box::pin(async move { (index, part, Err(SiteError::Unavailable(reason.to_owned()))) });
        };
        let range = ChunkRange { chunk, offset: part.start, len: part.len() as u32 };
        let runtime = &self.shared.runtime;
        let deadline = self.shared.options.read_deadline;
        Box::pin(async move {
            let began = runtime.now();
            let read = runtime.timeout(deadline, read_one(site, range)).await;
            let result = read.unwrap_or(Err(SiteError::Deadline));
            match &result {
                Ok(_) => self.shared.patience.record(runtime.now() - began),
                Err(error) => self.shared.sites.note_failure(site_id, error),
            }
            (index, part, result)
        })
    }
}

impl<'a> Attempt<'a> {
    fn new(wanted: Vec<(usize, Range<u32>)>, asked_at: Instant) -> Self {
        Self {
            wanted,
            parts: HashMap::new(),
            whole: HashMap::new(),
            failed: HashMap::new(),
            fetches: FuturesUnordered::new(),
            asked: Vec::new(),
            asked_at,
            late: Vec::new(),
        }
    }

    /// Takes note of an answer.
    fn note(
        &mut self,
        stripe: &OpenedStripe,
        index: usize,
        part: Range<u32>,
        result: Result<Bytes, SiteError>,
    ) {
        let bytes = match result {
            Ok(bytes) => bytes,
            Err(error) => return drop(self.failed.insert(index, error)),
        };
        if part == (0..stripe.record.chunk_len) {
            self.whole.insert(index, bytes.clone());
        }
        if self.wanted.contains(&(index, part)) {
            self.parts.insert(index, bytes);
        }
    }

    /// The wanted parts in their order, if all are there.
    fn normal(&self) -> Step {
        let pieces: Option<Vec<Bytes>> =
            self.wanted.iter().map(|(index, _)| self.parts.get(index).cloned()).collect();
        pieces.map_or(Step::Wait, Step::Normal)
    }

    /// Every chunk that is still awaited is late.
    fn mark_late(&mut self) {
        let arrived = |index: &usize| self.parts.contains_key(index) || self.whole.contains_key(index);
        let awaited = self.asked.iter().map(|(index, _)| *index);
        self.late = awaited.filter(|index| !arrived(index) && !self.failed.contains_key(index)).collect();
    }

    fn is_degraded(&self) -> bool {
        !self.failed.is_empty() || !self.late.is_empty()
    }
}

impl OpenedStripe {
    /// The data chunks that hold a range of the block, each with its part of the range.
    fn parts(&self, range: Range<u32>) -> impl Iterator<Item = (usize, Range<u32>)> + use<> {
        let len = u64::from(self.record.chunk_len);
        let (start, end) = (u64::from(range.start), u64::from(range.end));
        (start / len..end.div_ceil(len)).map(move |index| {
            let base = index * len;
            let part = start.saturating_sub(base) as u32..(end - base).min(len) as u32;
            (index as usize, part)
        })
    }

    /// The block, put together from whole chunks and checked against its own checksum.
    fn decoded(
        &self,
        block: &Block,
        attempt: Attempt<'_>,
        decode: Option<DecodePlan>,
        buffers: &BufferPool,
    ) -> Result<Bytes, StripeError> {
        let (k, chunk_len) = (self.code.k(), self.record.chunk_len as usize);
        let mut chunks = attempt.whole;
        if let Some(plan) = decode {
            decode_into(&plan, chunk_len, &mut chunks, buffers);
        }
        let mut bytes = BytesMut::with_capacity(k * chunk_len);
        (0..k).for_each(|index| bytes.extend_from_slice(&chunks[&index]));
        bytes.truncate(block.len as usize);
        if crc32c(&bytes) != block.crc32c {
            let reason = "the decoded bytes do not match the block's checksum; nothing was served".to_owned();
            return Err(StripeError::Inconsistent { what: format!("stripe {}", self.id), reason });
        }
        Ok(bytes.freeze())
    }

    fn unreadable(&self, attempt: &Attempt<'_>) -> StripeError {
        let locations = self.record.locations.iter().enumerate();
        let missing =
            locations.filter(|(index, _)| !attempt.whole.contains_key(index)).map(|(index, location)| {
                match attempt.failed.get(&index) {
                    Some(error) => format!("chunk {index} on site {}: {error}", location.site),
                    None if location.site == 0 => format!("chunk {index} was never written (debt)"),
                    None => format!("chunk {index} on site {}: not answering or not known", location.site),
                }
            });
        StripeError::Unreadable {
            stripe: self.id,
            needed: self.code.k(),
            available: attempt.whole.len(),
            reason: missing.collect::<Vec<_>>().join("; "),
        }
    }
}

/// Adds the decoded chunks to those that were fetched.
fn decode_into(
    plan: &DecodePlan,
    chunk_len: usize,
    chunks: &mut HashMap<usize, Bytes>,
    buffers: &BufferPool,
) {
    let mut outputs: Vec<Buffer> = plan.wanted().iter().map(|_| buffers.take(chunk_len)).collect();
    {
        let inputs: Vec<&[u8]> = plan.sources().iter().map(|index| chunks[index].as_ref()).collect();
        let mut refs: Vec<&mut [u8]> = outputs.iter_mut().map(|output| &mut output[..]).collect();
        plan.apply(&inputs, &mut refs).expect("whole chunks of one stripe have one length");
    }
    for (&index, output) in plan.wanted().iter().zip(outputs) {
        chunks.insert(index, output.freeze());
    }
}

async fn read_one(site: Arc<dyn Site>, range: ChunkRange) -> Result<Bytes, SiteError> {
    let request = ReadRequest { ranges: vec![range], priority: Priority::Foreground, deadline: None };
    match site.read(request).next().await {
        Some(reply) => reply.result,
        None => Err(SiteError::Unavailable("it ended its answer early".to_owned())),
    }
}

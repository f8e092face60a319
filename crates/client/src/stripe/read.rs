//! Reading a block.
//!
//! The *normal read* fetches exactly the ranges of the data chunks that hold the wanted bytes, with one request
//! for each site, and hands them on without a copy. When a chunk is missing, damaged or late, the *degraded
//! read* takes over: it fetches whole chunks from the cheapest sites that determine what is wanted, decodes,
//! and checks the block's own checksum before a byte is served (design.md §10.12).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use striate_codec::{Code, DecodePlan, crc32c};
use striate_core::{ChunkId, ChunkRange, Generation, SiteId, StripeId};
use striate_meta::records::{Block, Stripe};
use striate_meta::{Row, keys};
use striate_plan::plan_block_read;
use striate_site::{Priority, ReadRequest, Site, SiteError};

use super::{Stripes, stripe_id};
use crate::error::ClientError;

/// How often a read begins anew because the stripe's record changed under it.
const MAX_RESTARTS: usize = 5;

/// A stripe's record with what follows from it.
pub(super) struct OpenedStripe {
    pub(super) id: StripeId,
    row: Row,
    pub(super) record: Stripe,
    pub(super) code: Code,
}

/// What is known of the chunks during one read.
struct Attempt {
    /// Whole chunks that arrived.
    got: HashMap<usize, Bytes>,
    /// Why a chunk cannot be had.
    failed: HashMap<usize, SiteError>,
    /// Chunks asked for and not answered within the hedge time.
    late: Vec<usize>,
}

type Fetch<'a> = BoxFuture<'a, (usize, Result<Bytes, SiteError>)>;

/// How a degraded read ended.
enum Outcome {
    Read(HashMap<usize, Bytes>, Option<DecodePlan>),
    TooFew,
}

impl Stripes {
    /// The bytes `range` of a block, verified, in order, as ready pieces.
    ///
    /// # Errors
    /// [`ClientError::Unreadable`] names what is missing when fewer chunks than needed can be had.
    pub(crate) async fn read_block(
        &self,
        block: &Block,
        range: Range<u32>,
    ) -> Result<Vec<Bytes>, ClientError> {
        let id = stripe_id(&block.stripe)?;
        let mut stripe = self.open_stripe(id).await?;
        for _ in 0..MAX_RESTARTS {
            let failed = match self.normal_read(&stripe, range.clone()).await {
                Ok(pieces) => return Ok(pieces),
                Err(failed) => failed,
            };
            match self.degraded_read(&stripe, block, range.clone(), failed).await {
                Ok(pieces) => return Ok(pieces),
                Err(error) => {
                    let now = self.open_stripe(id).await?;
                    if now.row.version == stripe.row.version {
                        return Err(error);
                    }
                    stripe = now;
                }
            }
        }
        Err(ClientError::Busy)
    }

    async fn open_stripe(&self, id: StripeId) -> Result<OpenedStripe, ClientError> {
        let row = self.shared.meta.get(&keys::stripe(id)).await?;
        self.opened(id, row)
    }

    /// What follows from a stripe's row.
    pub(super) fn opened(&self, id: StripeId, row: Option<Row>) -> Result<OpenedStripe, ClientError> {
        let inconsistent =
            |reason: String| ClientError::Inconsistent { what: format!("stripe {id}"), reason };
        let row =
            row.ok_or_else(|| inconsistent("its record is gone; the object was replaced meanwhile".into()))?;
        let record: Stripe = row.record()?;
        let profile =
            self.shared.profiles.parse(&record.profile).map_err(|error| inconsistent(error.to_string()))?;
        let code = self.code(&profile)?;
        if record.locations.len() != code.n() || record.chunk_len == 0 {
            return Err(inconsistent(format!("it has {} locations for {profile}", record.locations.len())));
        }
        Ok(OpenedStripe { id, row, record, code })
    }

    /// Reads the range from the data chunks alone; or says which chunks failed it and what arrived whole.
    async fn normal_read(&self, stripe: &OpenedStripe, range: Range<u32>) -> Result<Vec<Bytes>, Attempt> {
        let mut attempt = Attempt { got: HashMap::new(), failed: HashMap::new(), late: Vec::new() };
        let mut wanted: Vec<(usize, Range<u32>)> = stripe.parts(range).collect();
        if stripe.code.k() == 1 {
            let costs = self.costs(stripe, &attempt);
            let copy = plan_block_read(&stripe.code, &[0], &costs).ok();
            wanted[0].0 = copy.and_then(|plan| plan.fetch.first().copied()).unwrap_or(0);
        }
        let mut fetches: FuturesUnordered<Fetch<'_>> = FuturesUnordered::new();
        for (index, part) in &wanted {
            fetches.push(self.fetch(stripe, *index, part.clone()));
        }
        let mut pieces = vec![None; wanted.len()];
        let hedge = self.shared.runtime.sleep(self.shared.options.hedge_after);
        tokio::pin!(hedge);
        while attempt.failed.is_empty() {
            tokio::select! {
                biased;
                next = fetches.next() => match next {
                    None => return Ok(pieces.into_iter().flatten().collect()),
                    Some((index, Ok(bytes))) => {
                        let slot = wanted.iter().position(|(wanted, _)| *wanted == index);
                        pieces[slot.expect("it was asked for")] = Some(bytes);
                    }
                    Some((index, Err(error))) => {
                        attempt.failed.insert(index, error);
                    }
                },
                () = &mut hedge => break,
            }
        }
        let whole = |part: &Range<u32>| part.len() == stripe.record.chunk_len as usize;
        for ((index, part), piece) in wanted.into_iter().zip(pieces) {
            match piece {
                Some(bytes) if whole(&part) => drop(attempt.got.insert(index, bytes)),
                None if !attempt.failed.contains_key(&index) => attempt.late.push(index),
                _ => {}
            }
        }
        Err(attempt)
    }

    /// Reads whole chunks from any sufficient set, decodes, verifies, and cuts the range out.
    async fn degraded_read(
        &self,
        stripe: &OpenedStripe,
        block: &Block,
        range: Range<u32>,
        mut attempt: Attempt,
    ) -> Result<Vec<Bytes>, ClientError> {
        let wanted: Vec<usize> = (0..stripe.code.k()).collect();
        let outcome = self.gather(stripe, &wanted, &mut attempt).await;
        self.report_damage(stripe, &attempt).await;
        let Outcome::Read(mut chunks, decode) = outcome else {
            return Err(stripe.unreadable(&attempt));
        };
        if let Some(plan) = decode {
            decode_into(&plan, stripe.record.chunk_len as usize, &mut chunks);
        }
        let mut bytes = BytesMut::with_capacity(wanted.len() * stripe.record.chunk_len as usize);
        wanted.iter().for_each(|index| bytes.extend_from_slice(&chunks[index]));
        bytes.truncate(block.len as usize);
        if crc32c(&bytes) != block.crc32c {
            let reason = "the decoded bytes do not match the block's checksum; nothing was served".to_owned();
            return Err(ClientError::Inconsistent { what: format!("stripe {}", stripe.id), reason });
        }
        Ok(vec![bytes.freeze().slice(range.start as usize..range.end as usize)])
    }

    /// Fetches until what arrived determines the wanted chunks, or nothing more can come.
    async fn gather(&self, stripe: &OpenedStripe, wanted: &[usize], attempt: &mut Attempt) -> Outcome {
        let whole = 0..stripe.record.chunk_len;
        let mut fetches: FuturesUnordered<Fetch<'_>> = FuturesUnordered::new();
        let mut asked: Vec<usize> = Vec::new();
        loop {
            if let Some(outcome) = finished(stripe, wanted, attempt) {
                return outcome;
            }
            let mut costs = self.costs(stripe, attempt);
            attempt.late.iter().for_each(|&late| costs[late] = costs[late].map(|cost| cost + 1e6));
            match plan_block_read(&stripe.code, wanted, &costs) {
                Ok(plan) => {
                    for index in plan.fetch {
                        if !attempt.got.contains_key(&index) && !asked.contains(&index) {
                            asked.push(index);
                            fetches.push(self.fetch(stripe, index, whole.clone()));
                        }
                    }
                }
                Err(_) => return Outcome::TooFew,
            }
            let hedge = self.shared.runtime.sleep(self.shared.options.hedge_after);
            tokio::select! {
                biased;
                next = fetches.next() => match next {
                    Some((index, Ok(bytes))) => drop(attempt.got.insert(index, bytes)),
                    Some((index, Err(error))) => drop(attempt.failed.insert(index, error)),
                    None => return Outcome::TooFew,
                },
                () = hedge => {
                    let waiting = asked.iter().filter(|index| !attempt.got.contains_key(index));
                    attempt.late = waiting.filter(|index| !attempt.failed.contains_key(index)).copied().collect();
                }
            }
        }
    }

    /// The cost of fetching each chunk: nothing for those that arrived, None for those that cannot be had.
    fn costs(&self, stripe: &OpenedStripe, attempt: &Attempt) -> Vec<Option<f64>> {
        let cost = |(index, location): (usize, &striate_meta::records::Location)| {
            if attempt.got.contains_key(&index) {
                return Some(0.0);
            }
            if attempt.failed.contains_key(&index) || location.site == 0 {
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
            return Box::pin(async move { (index, Err(SiteError::Unavailable(reason.to_owned()))) });
        };
        let range = ChunkRange { chunk, offset: part.start, len: part.len() as u32 };
        let runtime = &self.shared.runtime;
        let deadline = self.shared.options.read_deadline;
        Box::pin(async move {
            let read = runtime.timeout(deadline, read_one(site, range)).await;
            let result = read.unwrap_or(Err(SiteError::Deadline));
            if let Err(error) = &result {
                self.shared.sites.note_failure(site_id, error);
            }
            (index, result)
        })
    }

    /// Marks a stripe as in debt when chunks at their current location are missing or damaged, for heal to
    /// find. The record is read again first: a chunk that was moved meanwhile is not lost (design.md §10.5).
    async fn report_damage(&self, stripe: &OpenedStripe, attempt: &Attempt) {
        let is_damage =
            |error: &SiteError| matches!(error, SiteError::Missing(_) | SiteError::Corrupt { .. });
        if !attempt.failed.values().any(is_damage) || !self.shared.reported.lock().insert(stripe.id) {
            return;
        }
        for (index, error) in attempt.failed.iter().filter(|(_, error)| is_damage(error)) {
            tracing::warn!(stripe = %stripe.id, index, %error, "damaged chunk found by a read; run `striate heal`");
        }
        let mut tx = self.transaction();
        tx.require_unchanged(keys::stripe(stripe.id), Some(&stripe.row));
        tx.put(keys::debt(stripe.id), Bytes::new());
        let (meta, shared, id) = (self.shared.meta.clone(), self.shared.clone(), stripe.id);
        self.shared.runtime.spawn(async move {
            if !matches!(meta.commit(tx).await, Ok(striate_meta::Commit::Done(_))) {
                shared.reported.lock().remove(&id);
            }
        });
    }

    /// Forgets that a stripe was reported, so that new damage is reported again.
    pub(crate) fn forget_report(&self, stripe: StripeId) {
        self.shared.reported.lock().remove(&stripe);
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

    fn unreadable(&self, attempt: &Attempt) -> ClientError {
        let locations = self.record.locations.iter().enumerate();
        let missing =
            locations.filter(|(index, _)| !attempt.got.contains_key(index)).map(|(index, location)| {
                match attempt.failed.get(&index) {
                    Some(error) => format!("chunk {index} on site {}: {error}", location.site),
                    None if location.site == 0 => format!("chunk {index} was never written (debt)"),
                    None => format!("chunk {index} on site {}: not answering or not known", location.site),
                }
            });
        ClientError::Unreadable {
            stripe: self.id,
            needed: self.code.k(),
            available: attempt.got.len(),
            reason: missing.collect::<Vec<_>>().join("; "),
        }
    }
}

/// The end of a degraded read, if what arrived determines what is wanted.
fn finished(stripe: &OpenedStripe, wanted: &[usize], attempt: &Attempt) -> Option<Outcome> {
    let costs: Vec<_> =
        (0..stripe.code.n()).map(|index| attempt.got.contains_key(&index).then_some(0.0)).collect();
    let plan = plan_block_read(&stripe.code, wanted, &costs).ok()?;
    Some(Outcome::Read(attempt.got.clone(), plan.decode))
}

/// Adds the decoded chunks to those that were fetched.
fn decode_into(plan: &DecodePlan, chunk_len: usize, chunks: &mut HashMap<usize, Bytes>) {
    let mut outputs: Vec<BytesMut> = plan.wanted().iter().map(|_| BytesMut::zeroed(chunk_len)).collect();
    {
        let inputs: Vec<&[u8]> = plan.sources().iter().map(|index| chunks[index].as_ref()).collect();
        let mut refs: Vec<&mut [u8]> = outputs.iter_mut().map(|output| output.as_mut()).collect();
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

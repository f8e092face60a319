//! Reading many blocks at once, by a [`ReadPolicy`] (EC-Store §IV-B; design.md §5).
//!
//! The stripes of all blocks are looked up together, `plan` chooses the chunks, and each site gets one request.
//! A block is complete as soon as the chunks that came determine it (*late binding*, when more were asked than
//! are needed); a site's read is dropped once no block needs anything of it any more, which takes what is
//! still queued there out of its queue. A block that its chunks do not complete, because one of them was
//! missing or damaged, is read by itself around them, as [`super::read`] does. When nobody has answered for
//! the hedge time, the blocks that still lack chunks are planned anew around the sites that are silent; a site
//! that never answers costs that time and no more.
//!
//! All blocks of a query are in memory at the end. They count against the client's byte budget, chunks beyond
//! the needed ones included, from before the sites are asked until the caller drops [`BlocksRead`]. A query
//! that is larger than the budget takes all of it and so runs alone; what it then holds is the caller's choice.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::{FuturesUnordered, StreamExt};
use striate_codec::crc32c_append;
use striate_core::{ChunkId, ChunkRange, Generation, SiteId};
use striate_meta::keys;
use striate_meta::records::Block;
use striate_plan::{QueryBlock, QueryChunk, QueryPlan, ReadPolicy, SiteRead, plan_block_read};
use striate_site::{Priority, ReadReply, ReadRequest, ReadStream, SiteError};

use super::read::OpenedStripe;
use super::sites::{InFlight, SitesSnapshot};
use super::{Stripes, stripe_id};
use crate::budget::{ByteBudget, Share};
use crate::error::ClientError;

/// The blocks of a query, in its order. They count against the client's byte budget until this is dropped:
/// whoever keeps one while it waits for another query, get or put may wait for itself.
#[derive(Debug)]
pub struct BlocksRead {
    /// Each block's bytes, verified, as ready pieces.
    pub blocks: Vec<Vec<Bytes>>,
    /// What it took.
    pub stats: ReadStats,
    _share: Share,
}

/// What a query took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadStats {
    /// Time to look up the stripes.
    pub metadata: Duration,
    /// Time from the look-up to the last chunk that was needed.
    pub retrieve: Duration,
    /// Sites that were asked.
    pub sites: usize,
    /// Chunks that were asked for.
    pub chunks: usize,
    /// Bytes of blocks that had to be decoded.
    pub decoded_bytes: u64,
    /// Blocks that the plan did not deliver and that were read by themselves.
    pub read_alone: usize,
}

/// A block while its chunks arrive.
struct Gathering {
    stripe: OpenedStripe,
    sites: Vec<SiteId>,
    /// Whole chunks that came, with their indices.
    got: Vec<(usize, Bytes)>,
    /// Chunks that were asked for.
    asked: Vec<usize>,
    complete: bool,
}

impl Stripes {
    /// See [`crate::Client::read_blocks`].
    pub(crate) async fn read_blocks(
        &self,
        blocks: &[Block],
        budget: &ByteBudget,
    ) -> Result<BlocksRead, ClientError> {
        let began = self.shared.runtime.now();
        let mut gathering = self.open_blocks(blocks).await?;
        let located = self.shared.runtime.now();
        let mut stats = ReadStats { metadata: located - began, ..ReadStats::default() };
        let policy = self.shared.options.read_policy;
        let needed: usize = gathering.iter().map(|block| block.bytes_in_memory(policy)).sum();
        let share = budget.acquire(needed).await;
        // Blocks for which there is no plan at all fail below, with the reason.
        if let Some(plan) = self.plan(policy, &gathering) {
            stats.sites = plan.reads.len();
            stats.chunks = plan.reads.iter().map(|read| read.chunks.len()).sum();
            stats.chunks += self.execute(policy, plan, &mut gathering).await;
        }
        stats.retrieve = self.shared.runtime.now() - located;
        let mut read = Vec::with_capacity(blocks.len());
        for (block, gathered) in blocks.iter().zip(gathering) {
            let assembled = if gathered.complete { gathered.assemble(block, &mut stats) } else { None };
            read.push(match assembled {
                Some(pieces) => pieces,
                None => {
                    stats.read_alone += 1;
                    self.read_block(block, 0..block.len).await?
                }
            });
        }
        Ok(BlocksRead { blocks: read, stats, _share: share })
    }

    async fn open_blocks(&self, blocks: &[Block]) -> Result<Vec<Gathering>, ClientError> {
        let ids = blocks.iter().map(|block| stripe_id(&block.stripe)).collect::<Result<Vec<_>, _>>()?;
        let keys: Vec<Bytes> = ids.iter().map(|id| keys::stripe(*id)).collect();
        let rows = self.shared.meta.get_many(&keys).await?;
        let opened = ids.into_iter().zip(rows).map(|(id, row)| {
            let stripe = self.opened(id, row)?;
            let sites = stripe.record.locations.iter().map(|location| SiteId(location.site)).collect();
            let got = Vec::with_capacity(stripe.code.k());
            Ok(Gathering { stripe, sites, got, asked: Vec::new(), complete: false })
        });
        opened.collect()
    }

    fn plan(&self, policy: ReadPolicy, gathering: &[Gathering]) -> Option<QueryPlan> {
        let blocks: Vec<_> = gathering
            .iter()
            .map(|block| QueryBlock { code: &block.stripe.code, sites: &block.sites })
            .collect();
        let sites = self.shared.sites.snapshot();
        let cost = |site| sites.cost(site);
        self.shared.planner.lock().plan(policy, &blocks, cost, &mut *self.shared.rng.lock()).ok()
    }

    /// Asks the sites and takes what comes until every block is complete, nothing more can come, or the read
    /// deadline has passed. Answers how many chunks were asked for around silent sites.
    async fn execute(&self, policy: ReadPolicy, plan: QueryPlan, gathering: &mut [Gathering]) -> usize {
        let sites = self.shared.sites.snapshot();
        let mut answers = Answers::default();
        answers.ask(&sites, plan.reads, gathering);
        let mut incomplete = gathering.len();
        let mut around = 0;
        let runtime = &self.shared.runtime;
        let arrivals = async {
            while incomplete > 0 {
                let Ok(next) = runtime.timeout(self.shared.options.hedge_after, answers.next()).await else {
                    let reads = self.plan_around(gathering);
                    around += reads.iter().map(|read| read.chunks.len()).sum::<usize>();
                    answers.ask(&sites, reads, gathering);
                    continue;
                };
                let Some((site, chunk, result)) = next else { break };
                match result {
                    Ok(bytes) => {
                        let completes = gathering[chunk.block].take(chunk.index, bytes);
                        incomplete -= usize::from(completes);
                        if completes && policy.extra_reads() > 0 && policy.cancels() {
                            answers.drop_unneeded(gathering);
                        }
                    }
                    Err(error) => self.shared.sites.note_failure(site, &error),
                }
            }
        };
        let arrived = runtime.timeout(self.shared.options.read_deadline, arrivals).await;
        if arrived.is_err() {
            let silent = answers.silent().into_iter();
            silent.for_each(|site| self.shared.sites.note_failure(site, &SiteError::Deadline));
        } else if !policy.cancels() {
            // The sites serve what they were asked, wanted or not.
            let (clock, deadline) = (runtime.clone(), self.shared.options.read_deadline);
            runtime.spawn(async move {
                let rest = async { while answers.next().await.is_some() {} };
                // Whoever is silent for so long has nothing more to serve.
                let _ = clock.timeout(deadline, rest).await;
            });
        }
        around
    }

    /// The chunks that complete the incomplete blocks without those that are being waited for, as far as there
    /// are others.
    fn plan_around(&self, gathering: &mut [Gathering]) -> Vec<SiteRead> {
        let sites = self.shared.sites.snapshot();
        let mut reads: BTreeMap<SiteId, Vec<QueryChunk>> = BTreeMap::new();
        for (number, block) in gathering.iter_mut().enumerate().filter(|(_, block)| !block.complete) {
            let costs: Vec<_> = (0..block.sites.len()).map(|index| block.cost(index, &sites)).collect();
            let wanted: Vec<usize> = (0..block.stripe.code.k()).collect();
            let Ok(plan) = plan_block_read(&block.stripe.code, &wanted, &costs) else { continue };
            for index in plan.fetch.into_iter().filter(|index| !block.asked.contains(index)) {
                reads.entry(block.sites[index]).or_default().push(QueryChunk { block: number, index });
            }
        }
        reads.into_iter().map(|(site, chunks)| SiteRead { site, chunks }).collect()
    }
}

impl Gathering {
    /// Bytes of the chunks that a policy asks for.
    fn bytes_in_memory(&self, policy: ReadPolicy) -> usize {
        let code = &self.stripe.code;
        (code.k() + policy.extra_reads()).min(code.n()) * self.stripe.record.chunk_len as usize
    }

    /// What fetching a chunk costs. `None` for one that cannot be had, and for one that was asked for and is late.
    fn cost(&self, index: usize, sites: &SitesSnapshot) -> Option<f64> {
        if self.got.iter().any(|(got, _)| *got == index) {
            return Some(0.0);
        }
        if self.asked.contains(&index) { None } else { sites.cost(self.sites[index]) }
    }

    /// Takes a chunk that came; true if the block became complete by it.
    fn take(&mut self, index: usize, bytes: Bytes) -> bool {
        if self.complete || bytes.len() != self.stripe.record.chunk_len as usize {
            return false;
        }
        self.got.push((index, bytes));
        let indices: Vec<usize> = self.got.iter().map(|(index, _)| *index).collect();
        self.complete = self.stripe.code.is_sufficient(&indices);
        self.complete
    }

    /// The block's bytes: the data chunks that came and the others decoded from all. `None` when decoding
    /// fails or its result does not match the block's checksum.
    fn assemble(mut self, block: &Block, stats: &mut ReadStats) -> Option<Vec<Bytes>> {
        // With k = 1 every chunk is the block.
        let wanted = if self.stripe.code.k() == 1 { 0..0 } else { 0..self.stripe.code.k() };
        let missing: Vec<usize> =
            wanted.filter(|wanted| self.got.iter().all(|(index, _)| index != wanted)).collect();
        if !missing.is_empty() {
            let decoded = self.decode(&missing)?;
            self.got.extend(missing.iter().copied().zip(decoded));
        }
        self.got.sort_unstable_by_key(|(index, _)| *index);
        let mut left = block.len as usize;
        let mut pieces = Vec::with_capacity(self.stripe.code.k());
        for (_, bytes) in self.got.drain(..).take(self.stripe.code.k()) {
            let len = left.min(bytes.len());
            pieces.push(bytes.slice(..len));
            left -= len;
        }
        if missing.is_empty() {
            return Some(pieces);
        }
        stats.decoded_bytes += u64::from(block.len);
        let crc = pieces.iter().fold(0, |crc, piece| crc32c_append(crc, piece));
        if crc != block.crc32c {
            tracing::warn!(stripe = %self.stripe.id, "a decoded block does not match its checksum");
            return None;
        }
        Some(pieces)
    }

    /// The chunks `missing`, computed from those that came.
    fn decode(&self, missing: &[usize]) -> Option<Vec<Bytes>> {
        let available: Vec<usize> = self.got.iter().map(|(index, _)| *index).collect();
        let plan = self.stripe.code.decode_plan(&available, missing).ok()?;
        let came = |index: &usize| self.got.iter().find(|(got, _)| got == index).map(|(_, bytes)| &bytes[..]);
        let inputs: Option<Vec<&[u8]>> = plan.sources().iter().map(came).collect();
        let chunk_len = self.stripe.record.chunk_len as usize;
        let mut outputs: Vec<BytesMut> = missing.iter().map(|_| BytesMut::zeroed(chunk_len)).collect();
        let mut refs: Vec<&mut [u8]> = outputs.iter_mut().map(|output| output.as_mut()).collect();
        plan.apply(&inputs?, &mut refs).ok()?;
        Some(outputs.into_iter().map(BytesMut::freeze).collect())
    }
}

/// What one site still has to answer.
struct SiteAnswers {
    read: SiteRead,
    /// `None` once it has ended or nobody needs it.
    stream: Option<(ReadStream, InFlight)>,
}

impl SiteAnswers {
    fn ask(sites: &SitesSnapshot, read: SiteRead, gathering: &mut [Gathering]) -> Option<Self> {
        let (site, in_flight) = sites.ask(read.site)?;
        read.chunks.iter().for_each(|chunk| gathering[chunk.block].asked.push(chunk.index));
        let range = |chunk: &QueryChunk| {
            let stripe = &gathering[chunk.block].stripe;
            let generation = Generation(stripe.record.locations[chunk.index].generation);
            let chunk = ChunkId { stripe: stripe.id, index: chunk.index as u8, generation };
            ChunkRange { chunk, offset: 0, len: stripe.record.chunk_len }
        };
        let ranges = read.chunks.iter().map(range).collect();
        let request = ReadRequest { ranges, priority: Priority::Foreground, deadline: None };
        Some(Self { stream: Some((site.read(request), in_flight)), read })
    }

    /// Drops the read if every block it is for is complete; true if it was dropped.
    fn drop_if_unneeded(&mut self, gathering: &[Gathering]) -> bool {
        let unneeded =
            self.stream.is_some() && self.read.chunks.iter().all(|chunk| gathering[chunk.block].complete);
        if unneeded {
            self.stream = None;
        }
        unneeded
    }
}

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

/// The reads of a query that are under way.
#[derive(Default)]
struct Answers {
    next: FuturesUnordered<NextAnswer>,
    /// Sites whose reads have neither ended nor been dropped.
    active: usize,
}

impl Answers {
    fn ask(&mut self, sites: &SitesSnapshot, reads: Vec<SiteRead>, gathering: &mut [Gathering]) {
        for site in reads.into_iter().filter_map(|read| SiteAnswers::ask(sites, read, gathering)) {
            self.active += 1;
            self.next.push(NextAnswer(Some(site)));
        }
    }

    /// The next answer, with what was asked of its site; `None` when nothing more can come.
    async fn next(&mut self) -> Option<(SiteId, QueryChunk, Result<Bytes, SiteError>)> {
        while self.active > 0 {
            let (site, reply) = self.next.next().await?;
            let Some(reply) = reply else {
                self.active -= 1;
                continue;
            };
            let answer = (site.read.site, site.read.chunks[reply.item], reply.result);
            self.next.push(NextAnswer(Some(site)));
            return Some(answer);
        }
        None
    }

    /// Drops the reads that no incomplete block needs.
    fn drop_unneeded(&mut self, gathering: &[Gathering]) {
        for next in self.next.iter_mut() {
            if next.0.as_mut().is_some_and(|site| site.drop_if_unneeded(gathering)) {
                self.active -= 1;
            }
        }
    }

    /// Sites that still have something to answer.
    fn silent(&self) -> Vec<SiteId> {
        let sites = self.next.iter().filter_map(|next| next.0.as_ref());
        sites.filter(|site| site.stream.is_some()).map(|site| site.read.site).collect()
    }
}

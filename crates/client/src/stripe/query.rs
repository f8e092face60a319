//! Reading many blocks at once, by a [`ReadPolicy`] (EC-Store §IV-B; design.md §5).
//!
//! The stripes of all blocks are looked up together, `plan` chooses the chunks, and each site gets one request.
//! A block is complete as soon as the chunks that came determine it (*late binding*, when more were asked than
//! are needed); a site's read is dropped once no block needs anything of it any more, which takes what is
//! still queued there out of its queue. A block that its chunks do not complete, because one of them was
//! missing or damaged, is read by itself around them, as [`super::read`] does.
//!
//! Sites that are late are planned around, and whoever is first is used. With the adaptive policy a site is late when
//! it takes longer than its queue lets expect ([`super::arrival`]), within a budget; with any policy it is when it
//! has answered nothing for the hedge time. A site that never answers costs that time and no more.
//!
//! All blocks of a query are in memory at the end. They count against the client's byte budget, chunks beyond
//! the needed ones included, from before the sites are asked until the caller drops [`BlocksRead`]. A query
//! that is larger than the budget takes all of it and so runs alone; what it then holds is the caller's choice.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use striate_codec::crc32c_append;
use striate_core::SiteId;
use striate_meta::keys;
use striate_meta::records::Block;
use striate_plan::{PlanCost, QueryBlock, QueryPlan, ReadPolicy, SiteRead};
use striate_site::SiteError;
use tracing::{Instrument, debug_span, field};

use super::answers::{Answer, Answers};
use super::read::OpenedStripe;
use super::{Stripes, stripe_id};
use crate::budget::{ByteBudget, Share};
use crate::error::ClientError;
use crate::measure::Phase;

/// The adaptive policy asks for an extra chunk while so many requests wait for each worker, in the mean over the
/// sites that have chunks of the query.
const MOST_WAITING_FOR_EXTRA_READS: f64 = 0.1;

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
#[derive(Clone, Copy, Debug, Default, PartialEq)]
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
    /// Of the chunks that were asked for, those beyond a sufficient set at once (δ).
    pub extra_chunks: usize,
    /// Of the chunks that were asked for, those asked because others were late.
    pub hedged_chunks: usize,
    /// Reads of a site that were taken back before they had ended.
    pub cancelled: usize,
    /// A cached plan served (the published policy).
    pub cached_plan: bool,
    /// What the plan costs, if the policy minimises that.
    pub plan: Option<PlanCost>,
}

/// A block while its chunks arrive.
pub(super) struct Gathering {
    pub(super) stripe: OpenedStripe,
    sites: Vec<SiteId>,
    /// Whole chunks that came, with their indices.
    got: Vec<(usize, Bytes)>,
    /// Chunks that were asked for.
    pub(super) asked: Vec<usize>,
    /// Of those, the ones that came or are still expected in time.
    pub(super) awaited: Vec<usize>,
    pub(super) complete: bool,
}

impl Stripes {
    /// See [`crate::Client::read_blocks`].
    pub(crate) async fn read_blocks(
        &self,
        blocks: &[Block],
        budget: &ByteBudget,
    ) -> Result<BlocksRead, ClientError> {
        let began = self.shared.runtime.now();
        let measures = &self.shared.measures;
        let mut gathering = self.open_blocks(blocks).instrument(debug_span!("metadata")).await?;
        let located = self.shared.runtime.now();
        let mut stats = ReadStats { metadata: located - began, ..ReadStats::default() };
        let policy = self.shared.options.read_policy;
        let needed: usize = gathering.iter().map(|block| block.bytes_in_memory(policy)).sum();
        let share = budget.acquire(needed).await;
        // Blocks for which there is no plan at all fail below, with the reason.
        let extra_reads = self.extra_reads(policy, &gathering);
        let (hits, _) = self.shared.published.lock().hits_and_misses();
        let plan_began = self.shared.runtime.now();
        let plan = self.plan_measured(policy, extra_reads, &gathering);
        let planned = self.shared.runtime.now();
        if let Some(plan) = plan {
            stats.cached_plan = self.shared.published.lock().hits_and_misses().0 > hits;
            stats.sites = plan.reads.len();
            stats.chunks = chunk_count(&plan.reads);
            stats.extra_chunks = extra_reads * gathering.len();
            stats.plan = plan.cost;
            let execution = self.execute(policy, plan, &mut gathering, &mut stats);
            execution.instrument(debug_span!("retrieve")).await;
        }
        let retrieved = self.shared.runtime.now();
        stats.retrieve = retrieved - located;
        measures.took(Phase::Metadata, stats.metadata);
        measures.took(Phase::Plan, planned - plan_began);
        measures.took(Phase::Retrieve, retrieved - planned);
        let mut read = Vec::with_capacity(blocks.len());
        for (block, gathered) in blocks.iter().zip(gathering) {
            let assembled = if gathered.complete { self.assemble(gathered, block, &mut stats) } else { None };
            read.push(match assembled {
                Some(pieces) => pieces,
                None => {
                    stats.read_alone += 1;
                    self.read_block(block, 0..block.len).await?
                }
            });
        }
        measures.queried(&stats);
        Ok(BlocksRead { blocks: read, stats, _share: share })
    }

    /// As [`Gathering::assemble`], measured where it decodes.
    fn assemble(&self, gathered: Gathering, block: &Block, stats: &mut ReadStats) -> Option<Vec<Bytes>> {
        if gathered.has_data() {
            return gathered.assemble(block, stats);
        }
        let began = self.shared.runtime.now();
        let assembled = debug_span!("decode").in_scope(|| gathered.assemble(block, stats));
        self.shared.measures.took(Phase::Decode, self.shared.runtime.now() - began);
        assembled
    }

    pub(super) async fn open_blocks(&self, blocks: &[Block]) -> Result<Vec<Gathering>, ClientError> {
        let ids = blocks.iter().map(|block| stripe_id(&block.stripe)).collect::<Result<Vec<_>, _>>()?;
        let keys: Vec<Bytes> = ids.iter().map(|id| keys::stripe(*id)).collect();
        let rows = self.shared.meta.get_many(&keys).await?;
        let opened = ids.into_iter().zip(rows).map(|(id, row)| {
            let stripe = self.opened(id, row)?;
            let sites = stripe.record.locations.iter().map(|location| SiteId(location.site)).collect();
            let got = Vec::with_capacity(stripe.code.k());
            Ok(Gathering { stripe, sites, got, asked: Vec::new(), awaited: Vec::new(), complete: false })
        });
        opened.collect()
    }

    /// δ now: the adaptive policy asks for one chunk more as long as that makes nobody wait.
    pub(super) fn extra_reads(&self, policy: ReadPolicy, gathering: &[Gathering]) -> usize {
        if policy != ReadPolicy::Adaptive {
            return policy.extra_reads();
        }
        let sites = self.shared.sites.snapshot();
        let all = gathering.iter().flat_map(|block| &block.sites);
        let waiting: Vec<f64> =
            all.filter_map(|site| sites.queue(*site)).map(|queue| queue.waiting).collect();
        let mean = waiting.iter().sum::<f64>() / waiting.len().max(1) as f64;
        if mean <= MOST_WAITING_FOR_EXTRA_READS { policy.extra_reads() } else { 0 }
    }

    /// As [`Stripes::plan`], for a read that takes place.
    fn plan_measured(
        &self,
        policy: ReadPolicy,
        extra_reads: usize,
        gathering: &[Gathering],
    ) -> Option<QueryPlan> {
        let span = debug_span!("plan", %policy, cost = field::Empty, gap = field::Empty);
        let plan = span.in_scope(|| self.plan(policy, extra_reads, gathering))?;
        if let Some(plan) = plan.cost {
            span.record("cost", plan.cost).record("gap", plan.gap());
            self.shared.measures.planned(plan);
        }
        self.shared.hedge_budget.earn(chunk_count(&plan.reads));
        Some(plan)
    }

    /// The plan of a query; `None` when there is none.
    pub(super) fn plan(
        &self,
        policy: ReadPolicy,
        extra_reads: usize,
        gathering: &[Gathering],
    ) -> Option<QueryPlan> {
        let blocks: Vec<_> = gathering.iter().map(Gathering::for_plan).collect();
        let sites = self.shared.sites.snapshot();
        let cost = |site| sites.cost(site);
        let mut rng = self.shared.rng.lock();
        match policy {
            ReadPolicy::Published { .. } => {
                let ids: Vec<_> = gathering.iter().map(|block| block.stripe.id).collect();
                let can_be_asked = |site| sites.cost(site).is_some();
                let mut planner = self.shared.published.lock();
                let plan = planner.plan(&ids, &blocks, extra_reads, can_be_asked, &mut *rng);
                if planner.is_wanted() {
                    self.solve_in_background();
                }
                plan.ok()
            }
            _ => self.shared.planner.lock().plan(policy, extra_reads, &blocks, cost, &mut *rng).ok(),
        }
    }

    /// Asks the sites and takes what comes until every block is complete, nothing more can come, or the read
    /// deadline has passed.
    async fn execute(
        &self,
        policy: ReadPolicy,
        plan: QueryPlan,
        gathering: &mut [Gathering],
        stats: &mut ReadStats,
    ) {
        let runtime = &self.shared.runtime;
        let mut answers = Answers::new(self.clone(), policy == ReadPolicy::Adaptive);
        answers.ask(plan.reads, gathering);
        let mut incomplete = gathering.len();
        let mut is_more_asked_than_needed = stats.extra_chunks > 0;
        let arrivals = async {
            while incomplete > 0 {
                let late_at =
                    answers.late_at().unwrap_or_else(|| runtime.now() + self.shared.options.read_deadline);
                let next = tokio::select! {
                    biased;
                    next = answers.next() => next,
                    () = runtime.sleep_until(late_at) => {
                        let hedged = self.ask_around(policy, &mut answers, gathering);
                        stats.hedged_chunks += hedged;
                        is_more_asked_than_needed |= hedged > 0;
                        continue;
                    }
                };
                let Some(Answer { site, chunk, result }) = next else { break };
                match result {
                    Ok(bytes) => {
                        let completes = gathering[chunk.block].take(chunk.index, bytes);
                        incomplete -= usize::from(completes);
                        if completes && is_more_asked_than_needed && policy.cancels() {
                            stats.cancelled += answers.drop_unneeded(gathering);
                        }
                    }
                    Err(error) => self.shared.sites.note_failure(site, &error),
                }
            }
        };
        let arrived = runtime.timeout(self.shared.options.read_deadline, arrivals).await;
        stats.chunks += stats.hedged_chunks;
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
    }

    /// Asks for chunks in the place of those that are late now, as far as there are others. Answers how many.
    fn ask_around(&self, policy: ReadPolicy, answers: &mut Answers, gathering: &mut [Gathering]) -> usize {
        answers.give_up_late(gathering, &self.shared.hedge_budget);
        let sites = self.shared.sites.snapshot();
        let short: Vec<usize> = (0..gathering.len()).filter(|&block| gathering[block].is_short()).collect();
        let can_be_had = |site| sites.cost(site).is_some();
        let short: Vec<usize> =
            short.into_iter().filter(|&block| gathering[block].can_be_completed(can_be_had)).collect();
        let blocks: Vec<_> = short.iter().map(|&block| gathering[block].for_plan()).collect();
        if blocks.is_empty() {
            return 0;
        }
        let cost = |site| sites.cost(site);
        let mut rng = self.shared.rng.lock();
        let Ok(mut plan) = self.shared.planner.lock().plan(policy, 0, &blocks, cost, &mut *rng) else {
            return 0;
        };
        let chunks = plan.reads.iter_mut().flat_map(|read| &mut read.chunks);
        chunks.for_each(|chunk| chunk.block = short[chunk.block]);
        let hedged = chunk_count(&plan.reads);
        answers.ask(plan.reads, gathering);
        hedged
    }
}

fn chunk_count(reads: &[SiteRead]) -> usize {
    reads.iter().map(|read| read.chunks.len()).sum()
}

impl Gathering {
    /// Whether nothing must be decoded.
    fn has_data(&self) -> bool {
        let k = self.stripe.code.k();
        k == 1 || (0..k).all(|index| self.got.iter().any(|(got, _)| *got == index))
    }

    /// Bytes of the chunks that a policy asks for.
    fn bytes_in_memory(&self, policy: ReadPolicy) -> usize {
        let code = &self.stripe.code;
        (code.k() + policy.extra_reads()).min(code.n()) * self.stripe.record.chunk_len as usize
    }

    /// What a plan for the rest of it starts from.
    pub(super) fn for_plan(&self) -> QueryBlock<'_> {
        QueryBlock { code: &self.stripe.code, sites: &self.sites, asked: &self.asked, awaited: &self.awaited }
    }

    /// What came and is still expected in time does not complete it.
    fn is_short(&self) -> bool {
        !self.complete && !self.stripe.code.is_sufficient(&self.awaited)
    }

    /// With the chunks that were not asked for, on sites where they can be had, it can be completed.
    fn can_be_completed(&self, can_be_had: impl Fn(SiteId) -> bool) -> bool {
        let mut all = self.awaited.clone();
        let others = (0..self.sites.len()).filter(|index| !self.asked.contains(index));
        all.extend(others.filter(|&index| self.sites[index].0 != 0 && can_be_had(self.sites[index])));
        self.stripe.code.is_sufficient(&all)
    }

    /// Whether a chunk came.
    pub(super) fn has(&self, index: usize) -> bool {
        self.got.iter().any(|(got, _)| *got == index)
    }

    /// Takes a chunk that came; true if the block became complete by it.
    fn take(&mut self, index: usize, bytes: Bytes) -> bool {
        if self.complete || bytes.len() != self.stripe.record.chunk_len as usize {
            return false;
        }
        self.got.push((index, bytes));
        if !self.awaited.contains(&index) {
            self.awaited.push(index);
        }
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

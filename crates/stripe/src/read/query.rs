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

use bytes::Bytes;
use striate_meta::records::Block;
use striate_plan::{PlanCost, QueryPlan, ReadPolicy};
use striate_site::SiteError;
use tracing::{Instrument, debug_span};

use super::answers::{Answer, Answers};
use super::gathering::Gathering;
use super::measure::Phase;
use super::reads::Reads;
use crate::budget::{ByteBudget, Share};
use crate::error::StripeError;

/// The blocks of a query, in its order. They count against the client's byte budget until this is dropped:
/// whoever keeps one while it waits for another query, get or put may wait for itself.
#[derive(Debug)]
pub struct BlocksRead {
    /// Each block's bytes, verified, as ready pieces.
    pub blocks: Vec<Vec<Bytes>>,
    /// What it took.
    pub stats: ReadStats,
    share: Share,
}

impl BlocksRead {
    /// Gives the blocks up and keeps their share of the budget.
    pub fn into_share(self) -> Share {
        self.share
    }
}

/// What a query took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReadStats {
    /// Time to look up the stripes.
    pub metadata: Duration,
    /// Time from the look-up to the last chunk that was needed.
    pub retrieve: Duration,
    /// Of that, time to decode.
    pub decode: Duration,
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

/// A query while it is read.
struct Query<'a, HandOut> {
    reads: &'a Reads,
    policy: ReadPolicy,
    blocks: &'a [Block],
    gathering: Vec<Gathering>,
    stats: ReadStats,
    /// Takes a block's position and its bytes, once for each.
    hand_out: HandOut,
}

impl Reads {
    /// See [`crate::Stripes::read_blocks`].
    pub(crate) async fn read_blocks(
        &self,
        blocks: &[Block],
        budget: &ByteBudget,
    ) -> Result<BlocksRead, StripeError> {
        let mut stats = ReadStats::default();
        let gathering = self.located(blocks, &mut stats).await?;
        let policy = self.shared.options.read_policy;
        let needed: usize = gathering.iter().map(|block| block.bytes_in_memory(policy)).sum();
        let share = budget.acquire(needed).await?;
        stats.extra_chunks = self.extra_reads(policy, &gathering) * blocks.len();
        let mut read = vec![Vec::new(); blocks.len()];
        let hand_out = |block: usize, pieces| read[block] = pieces;
        let stats = self.gather(blocks, gathering, stats, hand_out).await?;
        Ok(BlocksRead { blocks: read, stats, share })
    }

    /// See [`crate::Stripes::read_ahead`].
    pub(crate) async fn read_ahead(
        &self,
        blocks: &[Block],
        hand_out: impl FnMut(usize, Vec<Bytes>) + Send,
    ) -> Result<ReadStats, StripeError> {
        let mut stats = ReadStats::default();
        let gathering = self.located(blocks, &mut stats).await?;
        stats.extra_chunks = self.shared.options.read_policy.certain_extra_reads() * blocks.len();
        self.gather(blocks, gathering, stats, hand_out).await
    }

    /// The stripes of blocks, looked up together.
    async fn located(&self, blocks: &[Block], stats: &mut ReadStats) -> Result<Vec<Gathering>, StripeError> {
        let began = self.shared.runtime.now();
        let stripes = self.shared.table.open_blocks(blocks).instrument(debug_span!("metadata")).await?;
        stats.metadata = self.shared.runtime.now() - began;
        self.shared.measures.took(Phase::Metadata, stats.metadata);
        Ok(stripes.into_iter().map(Gathering::new).collect())
    }

    /// Plans and reads blocks whose stripes are known, those that the plan does not deliver by themselves.
    async fn gather(
        &self,
        blocks: &[Block],
        gathering: Vec<Gathering>,
        stats: ReadStats,
        hand_out: impl FnMut(usize, Vec<Bytes>) + Send,
    ) -> Result<ReadStats, StripeError> {
        let (runtime, measures) = (&self.shared.runtime, &self.shared.measures);
        let policy = self.shared.options.read_policy;
        let located = runtime.now();
        // Blocks for which there is no plan at all fail below, with the reason.
        let extra_reads = stats.extra_chunks / blocks.len().max(1);
        let plan = self.plan_measured(policy, extra_reads, &gathering);
        let planned = runtime.now();
        let mut query = Query { reads: self, policy, blocks, gathering, stats, hand_out };
        match plan {
            Some(plan) => query.execute(plan).instrument(debug_span!("retrieve")).await,
            None => query.stats.extra_chunks = 0,
        }
        let retrieved = runtime.now();
        query.stats.retrieve = retrieved - located;
        measures.took(Phase::Plan, planned - located);
        measures.took(Phase::Retrieve, (retrieved - planned).saturating_sub(query.stats.decode));
        query.read_rest().await?;
        measures.queried(&query.stats);
        Ok(query.stats)
    }
}

impl<HandOut: FnMut(usize, Vec<Bytes>) + Send> Query<'_, HandOut> {
    /// Asks the sites and takes what comes until every block is complete, nothing more can come, or the read
    /// deadline has passed.
    async fn execute(&mut self, plan: QueryPlan) {
        let reads = self.reads;
        let (runtime, deadline) = (&reads.shared.runtime, reads.shared.options.read_deadline);
        self.stats.cached_plan = plan.is_cached;
        self.stats.sites = plan.reads.len();
        self.stats.chunks = plan.chunk_count();
        self.stats.plan = plan.cost;
        let mut answers = Answers::new(reads.clone(), self.policy == ReadPolicy::Adaptive);
        answers.ask(plan.reads, &mut self.gathering);
        let arrived = runtime.timeout(deadline, self.take_arrivals(&mut answers)).await;
        self.stats.chunks += self.stats.hedged_chunks;
        if arrived.is_err() {
            let silent = answers.silent().into_iter();
            silent.for_each(|site| reads.shared.sites.note_failure(site, &SiteError::Deadline));
        } else if !self.policy.cancels() {
            // The sites serve what they were asked, wanted or not.
            let clock = runtime.clone();
            runtime.spawn(async move {
                let rest = async { while answers.next().await.is_some() {} };
                // Whoever is silent for so long has nothing more to serve.
                let _ = clock.timeout(deadline, rest).await;
            });
        }
    }

    /// Takes what comes, and asks around what is late, until every block is complete or nothing more can come.
    async fn take_arrivals(&mut self, answers: &mut Answers) {
        let shared = &self.reads.shared;
        let mut is_more_asked_than_needed = self.stats.extra_chunks > 0;
        let mut incomplete = self.gathering.len();
        while incomplete > 0 {
            let late_at =
                answers.late_at().unwrap_or_else(|| shared.runtime.now() + shared.options.read_deadline);
            let next = tokio::select! {
                biased;
                next = answers.next() => next,
                () = shared.runtime.sleep_until(late_at) => {
                    let hedged = self.ask_around(answers);
                    self.stats.hedged_chunks += hedged;
                    is_more_asked_than_needed |= hedged > 0;
                    continue;
                }
            };
            let Some(Answer { site, chunk, result }) = next else { break };
            match result {
                Ok(bytes) => {
                    if self.gathering[chunk.block].take(chunk.index, bytes) {
                        incomplete -= 1;
                        self.complete(chunk.block);
                        if is_more_asked_than_needed && self.policy.cancels() {
                            self.stats.cancelled += answers.drop_unneeded(&self.gathering);
                        }
                    }
                }
                Err(error) => {
                    shared.sites.note_failure(site, &error);
                    self.reads.shared.damage.report(&self.gathering[chunk.block].stripe, chunk.index, &error);
                }
            }
        }
    }

    /// Asks for chunks in the place of those that are late now, as far as there are others. Answers how many.
    fn ask_around(&mut self, answers: &mut Answers) -> usize {
        let shared = &self.reads.shared;
        answers.give_up_late(&mut self.gathering, &shared.hedge_budget);
        let all: Vec<_> = self.gathering.iter().map(Gathering::for_plan).collect();
        let costs = self.reads.costs_of(&all);
        let can_be_had = |site| costs.of(site).is_some();
        let is_short = |block: &Gathering| block.is_short() && block.can_be_completed(can_be_had);
        let short: Vec<usize> = (0..all.len()).filter(|&block| is_short(&self.gathering[block])).collect();
        let blocks: Vec<_> = short.iter().map(|&block| all[block]).collect();
        if blocks.is_empty() {
            return 0;
        }
        let cost = |site| costs.of(site);
        let mut rng = shared.rng.lock();
        let Ok(mut plan) = shared.planner.lock().plan(self.policy, 0, &blocks, cost, &mut *rng) else {
            return 0;
        };
        let chunks = plan.reads.iter_mut().flat_map(|read| &mut read.chunks);
        chunks.for_each(|chunk| chunk.block = short[chunk.block]);
        let hedged = plan.chunk_count();
        answers.ask(plan.reads, &mut self.gathering);
        hedged
    }

    /// Hands out a block whose chunks determine it; measured where it must be decoded. One that does not match its
    /// checksum is left to be read by itself.
    fn complete(&mut self, block: usize) {
        let (gathered, of) = (&mut self.gathering[block], &self.blocks[block]);
        let runtime = &self.reads.shared.runtime;
        let is_decoded = !gathered.has_data();
        let pieces = if is_decoded {
            let began = runtime.now();
            let pieces = debug_span!("decode").in_scope(|| gathered.assemble(of, runtime.buffers()));
            let took = runtime.now() - began;
            self.stats.decode += took;
            self.reads.shared.measures.took(Phase::Decode, took);
            pieces
        } else {
            gathered.assemble(of, runtime.buffers())
        };
        if let Some(pieces) = pieces {
            self.stats.decoded_bytes += if is_decoded { u64::from(of.len) } else { 0 };
            gathered.is_handed_out = true;
            (self.hand_out)(block, pieces);
        }
    }

    /// Reads by itself what is not handed out yet.
    async fn read_rest(&mut self) -> Result<(), StripeError> {
        for (number, block) in self.blocks.iter().enumerate() {
            if !self.gathering[number].is_handed_out {
                self.stats.read_alone += 1;
                let pieces = self.reads.read_block(block, 0..block.len).await?;
                (self.hand_out)(number, pieces);
            }
        }
        Ok(())
    }
}

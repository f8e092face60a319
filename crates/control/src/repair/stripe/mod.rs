//! The repair of one stripe.
//!
//! Each step may be the last one before a crash:
//! 1. Take a new generation from the stripe record and open an entry that says where the new chunks will be, durably.
//! 2. Read good chunks, decode, and compare with the checksums of the original encoding (I10).
//! 3. Write the new chunks under the new generation. If only one chunk is lost, its new site does steps 2 and 3: it
//!    adds up what the sources' sites send it, so that nothing travels through this process. Several that are too long
//!    to come together here are made like that in one round each.
//! 4. Compare-and-swap the stripe record on the version of step 1 ([`striate_stripe::StripeChange`], shared with the
//!    mover).
//!
//! Chunks of its generation that end up unnamed, and those that a site may have stored without saying so, become
//! garbage. After a crash the entry is cancelled, which has the same effect.

mod making;
mod naming;
mod strays;
mod stuck;
mod targets;
mod trees;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use futures::future::BoxFuture;
use futures::future::join_all;
use striate_core::{ChunkId, Generation, SiteId, StripeId};
use striate_meta::{Revision, keys, records};
use striate_plan::{ChunkState, CombineTree, StripeRepair, plan_repair};
use striate_site::{Priority, SiteError};
use striate_stripe::{StripeError, Stripes, has_place, is_hole};

use crate::repair::absence::AbsentSites;
use crate::repair::pace::RepairPace;
use striate_stripe::StripeChange;

pub(crate) use self::strays::strays;

/// Outcome of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairOutcome {
    /// Chunks rebuilt and named.
    pub chunks: u64,
    /// Bytes of the rebuilt chunks.
    pub bytes: u64,
    /// Chunks still lost, for lack of a site.
    pub still_lost: u64,
    /// Chunks on sites that do not answer, left alone.
    pub unknown: u64,
    /// Chunks in racks that their groups do not need, as long as a site takes none or other damage is in the way.
    pub astray: u64,
    /// Why sites took no chunk, as text.
    pub refused: Vec<String>,
    /// Why nothing could be done, if nothing could.
    pub unrepairable: Option<String>,
}

impl RepairOutcome {
    /// Returns whether the stripe has all its chunks, and none of them waits to go to the others of its group.
    pub fn is_whole(&self) -> bool {
        self.still_lost == 0 && self.unknown == 0 && self.astray == 0 && self.unrepairable.is_none()
    }
}

struct Job<'a> {
    stripes: &'a Stripes,
    change: StripeChange<'a>,
    absent: &'a AbsentSites,
    pace: &'a RepairPace,
    states: Vec<ChunkState>,
    /// Whether the stripe drops its own parities if this round rebuilds a member. Its own rule then no longer binds.
    gives_up_parities: bool,
}

/// Findings of earlier rounds of one stripe's repair.
#[derive(Default)]
struct Findings {
    /// Whether every chunk was verified, so that it is known whether the stripe is whole. This stays true while rounds
    /// only move chunks: these are verified in their new places.
    is_examined: bool,
    /// Revision of the stripe's debt before its record was read for that.
    owed: Option<Revision>,
    /// States of chunks that were read.
    chunks: HashMap<ChunkId, ChunkState>,
    /// Sites that took no chunk, with the reasons: full, suspect, silent. Others are asked instead.
    refusals: BTreeMap<SiteId, String>,
    /// Whether a site failed to make its chunk itself, so that it is made here.
    is_made_here: bool,
    /// The last failure to read, make or store a chunk.
    last_failure: Option<String>,
    /// Chunks rebuilt in earlier rounds.
    rebuilt: u64,
    /// Chunks moved in earlier rounds to bring groups together.
    gathered: u64,
    /// Chunks, by their own stripes, that stay where they are while groups are brought together.
    stays: BTreeSet<(StripeId, usize)>,
}

impl Findings {
    /// Merges the outcome of a round into the totals. `None` requests another round, if each rebuilds one chunk.
    fn add(&mut self, outcome: RepairOutcome, one_at_a_time: bool) -> Option<RepairOutcome> {
        self.rebuilt += outcome.chunks;
        let bytes = outcome.bytes / outcome.chunks.max(1) * self.rebuilt;
        let is_done = !one_at_a_time || outcome.still_lost == 0;
        is_done.then_some(RepairOutcome { chunks: self.rebuilt, bytes, ..outcome })
    }

    /// Records why a chunk cannot be a source.
    fn note_bad_source(&mut self, chunk: ChunkId, site: SiteId, error: &SiteError) {
        tracing::warn!(%chunk, %site, %error, "a source of a repair cannot be used");
        self.chunks.insert(chunk, state_after(error));
        self.note_failure(site, error);
    }

    fn note_failure(&mut self, site: SiteId, error: &SiteError) {
        self.last_failure = Some(format!("site {site}: {error}"));
    }

    fn refusals(&self) -> Vec<String> {
        self.refusals.iter().map(|(site, reason)| format!("site {site}: {reason}")).collect()
    }
}

/// Examines the stripe's chunks and rebuilds lost ones at the given pace. With `examine`, every chunk is first read
/// from its medium and verified; without, only chunks on sites that are gone count as lost, and those that reads find
/// bad.
///
/// # Errors
/// When the metadata store fails. The outcome reports what is wrong with the stripe itself.
pub fn repair_stripe<'a>(
    stripes: &'a Stripes,
    id: StripeId,
    absent: &'a AbsentSites,
    pace: &'a RepairPace,
    examine: bool,
) -> BoxFuture<'a, Result<RepairOutcome, StripeError>> {
    Box::pin(async move {
        let mut findings = Findings::default();
        let mut rounds = 0;
        // Every round rebuilds or moves a chunk, learns of at least one more bad chunk or site, or loses against another
        // executor.
        while rounds < 8 + findings.rebuilt + findings.gathered {
            rounds += 1;
            let gathered = findings.gathered;
            let job = Job::open(stripes, id, absent, pace, &mut findings).await?;
            let Some(mut job) = job else { return Ok(RepairOutcome::default()) };
            if examine && !findings.is_examined {
                job.examine().await;
                findings.is_examined = true;
            }
            if let Some(outcome) = job.run(&mut findings).await? {
                return Ok(outcome);
            }
            findings.is_examined &= findings.gathered > gathered;
        }
        let reason = findings.last_failure.as_deref().unwrap_or("other executors kept changing the stripe");
        Ok(RepairOutcome {
            unrepairable: Some(format!("{reason}; run heal again")),
            refused: findings.refusals(),
            ..RepairOutcome::default()
        })
    })
}

impl<'a> Job<'a> {
    /// Reads the stripe's record. `None` if it is gone: nothing is left to repair, and its debt is dropped.
    async fn open(
        stripes: &'a Stripes,
        id: StripeId,
        absent: &'a AbsentSites,
        pace: &'a RepairPace,
        findings: &mut Findings,
    ) -> Result<Option<Self>, StripeError> {
        // Read the debt before the record: what is verified now does not cover damage reported from now on.
        if !findings.is_examined {
            findings.owed = stripes.meta().get(&keys::debt(id)).await?.map(|row| row.version);
        }
        let Some(mut change) = stripes.change(id, Priority::Repair).await? else {
            let mut tx = stripes.transaction();
            tx.require_unchanged(keys::stripe(id), None).delete(keys::debt(id));
            stripes.meta().commit(tx).await?;
            return Ok(None);
        };
        change.leave(&absent.leaving);
        let k = change.code.k();
        let state = |(index, location): (usize, &records::Location)| match SiteId(location.site) {
            SiteId(0) if is_hole(&change.record, index) => ChunkState::Zero,
            _ if !has_place(&change.record, k, index) => ChunkState::Elsewhere,
            SiteId(0) => ChunkState::Lost,
            site if absent.gone.contains(&site) => ChunkState::Lost,
            site if absent.awaited.contains(&site) => ChunkState::Unknown,
            site if stripes.site(site).is_none() => ChunkState::Lost,
            site => findings.chunks.get(&change.chunk(index)).copied().unwrap_or(ChunkState::Good(site)),
        };
        let states = change.record.locations.iter().enumerate().map(state).collect();
        let mut job = Self { stripes, change, absent, pace, states, gives_up_parities: false };
        job.leave_members();
        Ok(Some(job))
    }

    /// Leaves lost members of a wide stripe to the repair of the stripes they were written in.
    fn leave_members(&mut self) {
        for state in &mut self.states[..self.change.record.members.len()] {
            if *state == ChunkState::Lost {
                *state = ChunkState::Elsewhere;
            }
        }
    }

    /// Verifies every chunk that seems good.
    async fn examine(&mut self) {
        let (stripes, len) = (self.stripes, self.change.record.chunk_len);
        let loads = self.good_sites().map(|site| (site, 1)).collect();
        let _turn = self.pace.turn(stripes, loads, len).await;
        let checks = self.states.iter().enumerate().map(|(index, &state)| self.examine_chunk(index, state));
        self.states = join_all(checks).await;
        self.leave_members();
    }

    fn good_sites(&self) -> impl Iterator<Item = SiteId> {
        self.states.iter().filter_map(|state| match state {
            ChunkState::Good(site) => Some(*site),
            _ => None,
        })
    }

    /// Returns the cost of reading each chunk.
    fn costs(&self) -> Vec<f64> {
        let len = self.change.record.chunk_len;
        let cost = |state: &ChunkState| match state {
            ChunkState::Good(site) => self.pace.cost(self.stripes, *site, len),
            ChunkState::Zero => 0.0,
            _ => f64::MAX,
        };
        self.states.iter().map(cost).collect()
    }

    async fn examine_chunk(&self, index: usize, state: ChunkState) -> ChunkState {
        let ChunkState::Good(site_id) = state else { return state };
        let Some(site) = self.stripes.site(site_id) else { return ChunkState::Lost };
        match site.verify(self.change.chunk(index)).await {
            Ok(info)
                if info.crc32c == self.change.record.locations[index].crc32c
                    && info.len == self.change.len_of(index) =>
            {
                state
            }
            Ok(_) => ChunkState::Lost,
            Err(error) => state_after(&error),
        }
    }

    /// Runs one round; `None` requests another.
    async fn run(mut self, findings: &mut Findings) -> Result<Option<RepairOutcome>, StripeError> {
        if self.is_stuck(findings)
            && let Some(chunk_move) = self.unblocking_move(findings).await?
        {
            self.make_room(&chunk_move, findings).await?;
            return Ok(None);
        }
        let costs = self.costs();
        let plan = match plan_repair(&self.change.code, &self.states, &costs, &self.targets(findings)) {
            Err(_) if self.lost_members().next().is_some() => return self.run_in_wide(findings).await,
            Err(error) => {
                let unrepairable = Some(format!("{error}; {}", self.describe_lost(findings)));
                return Ok(Some(RepairOutcome { unrepairable, ..self.outcome(findings.rebuilt) }));
            }
            Ok(None) if self.outcome(0).is_whole() && self.gather_stray(findings).await? => return Ok(None),
            Ok(None) => return self.finish(findings).await,
            Ok(Some(plan)) => plan,
        };
        self.execute(&plan, &costs, findings).await
    }

    /// Ends a repair that can make and move no more chunks. `None` requests another round.
    async fn finish(&self, findings: &Findings) -> Result<Option<RepairOutcome>, StripeError> {
        let mut outcome = RepairOutcome { refused: findings.refusals(), ..self.outcome(findings.rebuilt) };
        if outcome.is_whole() {
            outcome.astray = self.waiting_strays(findings)?;
        }
        let is_settled = !outcome.is_whole() || self.settle_debt(findings).await?;
        Ok(is_settled.then_some(outcome))
    }

    /// Executes a plan: makes the new chunks and names them. `None` requests another round.
    async fn execute(
        mut self,
        plan: &StripeRepair,
        costs: &[f64],
        findings: &mut Findings,
    ) -> Result<Option<RepairOutcome>, StripeError> {
        let is_made_there = plan.targets.len() == 1 && !findings.is_made_here;
        let tree = is_made_there.then(|| self.tree(plan, costs));
        let loads = tree.as_ref().map_or_else(|| self.loads(plan), CombineTree::loads);
        let _turn = self.pace.turn(self.stripes, loads, self.change.record.chunk_len).await;
        let _memory = match &tree {
            Some(_) => None,
            None => Some(self.stripes.memory_for(self.memory_of(plan)).await),
        };
        let Some(generation) = self.change.open(&plan.targets).await? else { return Ok(None) };
        let written = if let Some(tree) = &tree {
            self.assemble(plan.targets[0].0, tree, generation, findings).await
        } else {
            let chunks = match self.is_one_at_a_time() {
                true => self.sum_locally(plan, costs, findings).await?,
                false => self.rebuild(plan, findings).await?,
            };
            self.write(&plan.targets, generation, chunks, findings).await
        };
        let one_at_a_time = self.is_one_at_a_time();
        self.name_chunks(&written, generation, one_at_a_time, findings).await
    }

    /// Names the new chunks; those that the record does not name in the end become garbage. `None` requests another
    /// round.
    async fn name_chunks(
        &mut self,
        written: &[(usize, SiteId)],
        generation: Generation,
        one_at_a_time: bool,
        findings: &mut Findings,
    ) -> Result<Option<RepairOutcome>, StripeError> {
        if written.is_empty() {
            self.change.give_up(written, generation).await;
            return Ok(None);
        }
        let outcome = self.swap(written, generation, findings).await?;
        if outcome.is_none() {
            self.change.give_up(written, generation).await;
        }
        Ok(outcome.and_then(|outcome| findings.add(outcome, one_at_a_time)))
    }

    fn is_wide(&self) -> bool {
        !self.change.record.members.is_empty()
    }

    /// Runs one round for a chunk that its own stripe cannot restore: its wide stripe does, by a tree, or here once a
    /// tree has failed.
    async fn run_in_wide(mut self, findings: &mut Findings) -> Result<Option<RepairOutcome>, StripeError> {
        let (mut chosen, mut why_not) = (None, None);
        for index in self.lost_members() {
            let Some((_, target)) = self.one_target(index, findings) else { continue };
            match self.tree_in_wide(index, target, findings).await? {
                Ok((wide, tree)) => {
                    chosen = Some((index, target, wide, tree));
                    break;
                }
                Err(reason) => why_not = Some(format!("{reason}; {}", self.describe_lost(findings))),
            }
        }
        let Some((index, target, wide, tree)) = chosen else {
            let (unrepairable, refused) = (why_not, findings.refusals());
            return Ok(Some(RepairOutcome { unrepairable, refused, ..self.outcome(findings.rebuilt) }));
        };
        self.pace.note(&tree);
        let _turn = self.pace.turn(self.stripes, tree.loads(), self.change.record.chunk_len).await;
        let _memory = match findings.is_made_here {
            true => Some(self.stripes.memory_for(self.change.record.chunk_len as usize).await),
            false => None,
        };
        let Some(generation) = self.change.open(&[(index, target)]).await? else { return Ok(None) };
        let written = if findings.is_made_here {
            let chunks = self.sum_in_wide(index, &wide, &tree, findings).await?;
            self.write(&[(index, target)], generation, chunks, findings).await
        } else {
            let result = self.change.assemble_from(&wide, index, generation, &tree).await;
            self.take_made(index, target, generation, result, findings)
        };
        self.name_chunks(&written, generation, true, findings).await
    }

    /// Returns how many chunks each site of a plan sends or receives if they are made here.
    fn loads(&self, plan: &StripeRepair) -> Vec<(SiteId, u32)> {
        let locations = &self.change.record.locations;
        let sources = plan.decode.sources().iter().map(|&index| (SiteId(locations[index].site), 1));
        let sources = sources.filter(|&(site, _)| site.0 != 0);
        sources.chain(plan.targets.iter().map(|&(_, site)| (site, 1))).collect()
    }

    /// Returns the bytes in memory while chunks are made here.
    fn memory_of(&self, plan: &StripeRepair) -> usize {
        let sources = if self.is_one_at_a_time() { 0 } else { plan.decode.sources().len() };
        (sources + plan.targets.len()) * self.change.record.chunk_len as usize
    }

    fn outcome(&self, chunks: u64) -> RepairOutcome {
        let count = |kind: ChunkState| self.states.iter().filter(|state| **state == kind).count() as u64;
        RepairOutcome {
            chunks,
            bytes: chunks * u64::from(self.change.record.chunk_len),
            still_lost: count(ChunkState::Lost),
            unknown: count(ChunkState::Unknown),
            astray: 0,
            refused: Vec::new(),
            unrepairable: None,
        }
    }

    /// Says which chunks are missing, and what failed last.
    fn describe_lost(&self, findings: &Findings) -> String {
        let is_amiss = |state: &ChunkState| matches!(state, ChunkState::Lost | ChunkState::Unknown);
        let lost = self.states.iter().enumerate().filter(|(_, state)| is_amiss(state));
        let text = lost.map(|(index, _)| match self.change.record.locations[index].site {
            0 => format!("chunk {index} was never written"),
            site => format!("chunk {index} on site {site}"),
        });
        let missing = format!("missing: {}", text.collect::<Vec<_>>().join(", "));
        match &findings.last_failure {
            Some(failure) => format!("{missing}; last failure: {failure}"),
            None => missing,
        }
    }
}

/// Returns the state of a chunk after a failed read or verification.
pub(crate) fn state_after(error: &SiteError) -> ChunkState {
    match error {
        SiteError::Missing(_) | SiteError::Corrupt { .. } | SiteError::Suspect(_) => ChunkState::Lost,
        _ => ChunkState::Unknown,
    }
}

//! The repair of one stripe.
//!
//! Steps, each of which may be the last one before a crash: (1) take a new generation from the stripe record and open an
//! entry that says where the new chunks will be, durably; (2) read good chunks, decode, compare with the checksums of the
//! original encoding (I10); (3) write the new chunks under the new generation. Where one chunk is lost its new site does both:
//! it adds up what the sources' sites send it, so that nothing travels through this process. (4) compare-and-swap the stripe
//! record on the version of step 1 ([`striate_stripe::StripeChange`], shared with the mover). Chunks of its generation that end
//! up unnamed, and those that a site may have stored without saying so, become garbage; after a crash the entry is cancelled,
//! which has the same effect.

pub mod absence;
pub mod heal;
pub mod pace;
pub(crate) mod progress;
pub mod scrub;
pub mod service;
pub mod verify;
pub(crate) mod wide_losses;
pub(crate) mod work_list;

mod stuck;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::future::join_all;
use striate_codec::crc32c;
use striate_core::{ChunkId, Generation, RackId, SiteId, StripeId};
use striate_meta::records::GarbageChunk;
use striate_meta::{Commit, Revision, keys, records};
use striate_plan::{Candidate, ChunkState, CombineTree, StripeRepair, plan_repair, repair_by_racks};
use striate_site::{Priority, SiteError};
use striate_stripe::{
    OpenedStripe, StripeError, Stripes, costs_around, equation_around, has_place, is_hole, wide_of,
};

use crate::repair::absence::Absent;
use crate::repair::pace::RepairPace;
use striate_stripe::{Debt, StripeChange, pay_debt};

/// What a repair did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairOutcome {
    /// Chunks rebuilt and named.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Chunks still lost, for want of a site.
    pub still_lost: u64,
    /// Chunks on sites that do not answer, left alone.
    pub unknown: u64,
    /// Why sites took no chunk, in words.
    pub refused: Vec<String>,
    /// Why nothing could be done, if so.
    pub unrepairable: Option<String>,
}

impl RepairOutcome {
    /// Whether the stripe has all its chunks.
    pub fn is_whole(&self) -> bool {
        self.still_lost == 0 && self.unknown == 0 && self.unrepairable.is_none()
    }
}

struct Job<'a> {
    stripes: &'a Stripes,
    change: StripeChange<'a>,
    absent: &'a Absent,
    pace: &'a RepairPace,
    states: Vec<ChunkState>,
    /// The revision of its debt before its record was read.
    owed: Option<Revision>,
    /// Every chunk was verified: then it is known whether the stripe is whole.
    is_examined: bool,
    /// If this round rebuilds a member, the stripe drops its own parities, and its own rule no longer binds.
    gives_up_parities: bool,
}

/// What earlier rounds of one stripe's repair have told.
#[derive(Default)]
struct Learned {
    /// What became of chunks that were read.
    chunks: HashMap<ChunkId, ChunkState>,
    /// Sites that took no chunk, and why: full, suspect, silent. Others are asked instead.
    refusals: BTreeMap<SiteId, String>,
    /// A site could not make its chunk itself: it is made here.
    is_made_here: bool,
    /// Chunks that earlier rounds have rebuilt.
    rebuilt: u64,
}

impl Learned {
    /// What a round did, beside those before. `None` asks for another round: of a wide stripe's chunks one is made at a time.
    fn add(&mut self, outcome: RepairOutcome, one_at_a_time: bool) -> Option<RepairOutcome> {
        self.rebuilt += outcome.chunks;
        let bytes = outcome.bytes / outcome.chunks.max(1) * self.rebuilt;
        let is_done = !one_at_a_time || outcome.still_lost == 0;
        is_done.then_some(RepairOutcome { chunks: self.rebuilt, bytes, ..outcome })
    }

    fn refusals(&self) -> Vec<String> {
        self.refusals.iter().map(|(site, reason)| format!("site {site}: {reason}")).collect()
    }
}

/// Examines the stripe's chunks and rebuilds what is lost, at the given pace. With `examine`, every chunk is read from
/// its medium and verified first; without, only chunks on sites that are gone count as lost, and what reading finds.
///
/// # Errors
/// When the metadata store fails. What is wrong with the stripe itself is in the outcome.
pub fn repair_stripe<'a>(
    stripes: &'a Stripes,
    id: StripeId,
    absent: &'a Absent,
    pace: &'a RepairPace,
    examine: bool,
) -> BoxFuture<'a, Result<RepairOutcome, StripeError>> {
    Box::pin(async move {
        let mut learned = Learned::default();
        let mut rounds = 0;
        // Every round rebuilds a chunk, learns of at least one more bad chunk or site, or loses against another executor.
        while rounds < 8 + learned.rebuilt {
            rounds += 1;
            let job = Job::open(stripes, id, absent, pace, &learned).await?;
            let Some(mut job) = job else { return Ok(RepairOutcome::default()) };
            if examine {
                job.examine().await;
            }
            if let Some(outcome) = job.run(&mut learned).await? {
                return Ok(outcome);
            }
        }
        let reason = "other executors kept changing the stripe; run heal again".to_owned();
        Ok(RepairOutcome {
            unrepairable: Some(reason),
            refused: learned.refusals(),
            ..RepairOutcome::default()
        })
    })
}

impl<'a> Job<'a> {
    /// Reads the stripe's record. `None` when it is gone: nothing to repair, its debt is dropped.
    async fn open(
        stripes: &'a Stripes,
        id: StripeId,
        absent: &'a Absent,
        pace: &'a RepairPace,
        learned: &Learned,
    ) -> Result<Option<Self>, StripeError> {
        // Before the record: what is reported from now on is not known to this look.
        let owed = stripes.meta().get(&keys::debt(id)).await?.map(|row| row.version);
        let Some(change) = stripes.change(id, Priority::Repair).await? else {
            let mut tx = stripes.transaction();
            tx.require_unchanged(keys::stripe(id), None).delete(keys::debt(id));
            stripes.meta().commit(tx).await?;
            return Ok(None);
        };
        let k = change.code.k();
        let state = |(index, location): (usize, &records::Location)| match SiteId(location.site) {
            SiteId(0) if is_hole(&change.record, index) => ChunkState::Zero,
            _ if !has_place(&change.record, k, index) => ChunkState::Elsewhere,
            SiteId(0) => ChunkState::Lost,
            site if absent.gone.contains(&site) => ChunkState::Lost,
            site if absent.awaited.contains(&site) => ChunkState::Unknown,
            site if stripes.site(site).is_none() => ChunkState::Lost,
            site => learned.chunks.get(&change.chunk(index)).copied().unwrap_or(ChunkState::Good(site)),
        };
        let states = change.record.locations.iter().enumerate().map(state).collect();
        let (is_examined, gives_up_parities) = (false, false);
        let mut job = Self { stripes, change, absent, pace, states, owed, is_examined, gives_up_parities };
        job.leave_members();
        Ok(Some(job))
    }

    /// A lost member of a wide stripe is rebuilt with the stripe that it was written in.
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
        self.is_examined = true;
        self.leave_members();
    }

    fn good_sites(&self) -> impl Iterator<Item = SiteId> {
        self.states.iter().filter_map(|state| match state {
            ChunkState::Good(site) => Some(*site),
            _ => None,
        })
    }

    /// What reading each chunk costs.
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

    /// One round; `None` asks for another.
    async fn run(mut self, learned: &mut Learned) -> Result<Option<RepairOutcome>, StripeError> {
        if self.is_stuck(learned) {
            if let Some(wanted) = self.in_the_way(learned) {
                return self.make_room(&wanted, learned).await;
            }
            self.gives_up_parities = self.may_give_up_parities(learned).await?;
            if !self.gives_up_parities
                && let Some(wanted) = self.in_the_way_in_wide(learned).await?
            {
                return self.make_room(&wanted, learned).await;
            }
        }
        let costs = self.costs();
        let plan = match plan_repair(&self.change.code, &self.states, &costs, &self.targets(learned)) {
            Err(_) if self.lost_members().next().is_some() => return self.run_around(learned).await,
            Err(error) => {
                let unrepairable = Some(format!("{error}; {}", self.describe_lost()));
                return Ok(Some(RepairOutcome { unrepairable, ..self.outcome(learned.rebuilt) }));
            }
            Ok(None) => {
                let settled = self.outcome(0).still_lost > 0 || self.settle_debt().await?;
                let done = self.outcome(learned.rebuilt);
                return Ok(settled.then(|| RepairOutcome { refused: learned.refusals(), ..done }));
            }
            Ok(Some(plan)) => plan,
        };
        let is_made_there = plan.targets.len() == 1 && !learned.is_made_here;
        let tree = is_made_there.then(|| self.tree(&plan, &costs));
        let loads = tree.as_ref().map_or_else(|| self.loads(&plan), CombineTree::loads);
        let _turn = self.pace.turn(self.stripes, loads, self.change.record.chunk_len).await;
        let _memory = match &tree {
            Some(_) => None,
            None => Some(self.stripes.memory_for(self.memory_of(&plan)).await),
        };
        let Some(generation) = self.change.open(&plan.targets).await? else { return Ok(None) };
        let written = if let Some(tree) = &tree {
            self.assemble(plan.targets[0].0, tree, generation, learned).await
        } else {
            let rebuilt = match self.is_wide() {
                true => self.sum_here(&plan, &costs, learned).await?,
                false => self.rebuild(&plan, learned).await?,
            };
            let Some(chunks) = rebuilt else {
                self.change.give_up(&[], generation).await;
                return Ok(None);
            };
            self.write(&plan, generation, chunks, learned).await
        };
        if written.is_empty() {
            self.change.give_up(&written, generation).await;
            return Ok(None);
        }
        let one_at_a_time = self.is_one_at_a_time();
        let outcome = self.swap(&written, generation, learned).await?;
        if outcome.is_none() {
            self.change.give_up(&written, generation).await;
        }
        Ok(outcome.and_then(|outcome| learned.add(outcome, one_at_a_time)))
    }

    /// Sites for the lost chunks: none that holds, or may hold, a chunk of the stripe, or has refused one.
    fn targets(&self, learned: &Learned) -> Vec<(usize, SiteId)> {
        if self.is_one_at_a_time() {
            return self.lost().find_map(|index| self.one_target(index, learned)).into_iter().collect();
        }
        self.draw_targets(&self.lost().collect::<Vec<_>>(), learned)
    }

    fn lost(&self) -> impl Iterator<Item = usize> {
        let is_lost = |&index: &usize| self.states[index] == ChunkState::Lost;
        (0..self.states.len()).filter(is_lost)
    }

    /// Where wide stripes are concerned each lost chunk is made by a tree of its own, or by slices here, so that nowhere the bytes of
    /// many chunks come together.
    fn is_one_at_a_time(&self) -> bool {
        self.is_wide() || self.lost_members().next().is_some()
    }

    fn is_wide(&self) -> bool {
        !self.change.record.members.is_empty()
    }

    /// Lost chunks that are members of wide stripes.
    fn lost_members(&self) -> impl Iterator<Item = usize> {
        self.lost().filter(|&index| wide_of(&self.change.record.locations[index]).is_some())
    }

    /// A site for a lost chunk.
    fn one_target(&self, index: usize, learned: &Learned) -> Option<(usize, SiteId)> {
        self.draw_targets(&[index], learned).pop()
    }

    fn draw_targets(&self, lost: &[usize], learned: &Learned) -> Vec<(usize, SiteId)> {
        // Those of lost chunks that are not placed now come back where they were, if they can.
        let kept = (0..self.states.len()).filter(|index| !lost.contains(index));
        let kept = kept.map(|index| SiteId(self.change.record.locations[index].site));
        let kept: BTreeSet<SiteId> = kept.chain(self.change.expected_sites(lost)).collect();
        let takers = self.takers(lost, learned);
        let (free, holding): (Vec<&Candidate>, Vec<&Candidate>) =
            self.pace.order(self.stripes, &takers).into_iter().partition(|of| !kept.contains(&of.site));
        let found = self.change.rule().targets_in_order(&free, &self.change.racks(lost), lost);
        match *lost {
            // The only site that its wide stripe lets it go to may have another chunk of the stripe.
            [index] if found.is_empty() && !self.is_bound_by_rule(index) => {
                free.into_iter().chain(holding).next().map(|of| (index, of.site)).into_iter().collect()
            }
            _ => found,
        }
    }

    fn is_bound_by_rule(&self, index: usize) -> bool {
        let is_member = wide_of(&self.change.record.locations[index]).is_some();
        self.change.is_bound_by_rule() && !(self.gives_up_parities && is_member)
    }

    /// Sites that take chunks, and to which the wide stripes of the lost ones let them go.
    fn takers(&self, lost: &[usize], learned: &Learned) -> Vec<Candidate> {
        let mut candidates = self.pace.candidates(self.stripes, self.change.record.chunk_len);
        candidates.retain(|&Candidate { site, .. }| {
            !learned.refusals.contains_key(&site)
                && !self.absent.contains(site)
                && lost.iter().all(|&index| self.change.wide_admits(index, site))
        });
        candidates
    }

    /// One round for a chunk that its own stripe cannot give back: its wide stripe does, by a tree.
    async fn run_around(mut self, learned: &mut Learned) -> Result<Option<RepairOutcome>, StripeError> {
        let (mut chosen, mut why_not) = (None, None);
        for index in self.lost_members() {
            let Some((_, target)) = self.one_target(index, learned) else { continue };
            match self.tree_around(index, target, learned).await? {
                Ok((wide, tree)) => {
                    chosen = Some((index, target, wide, tree));
                    break;
                }
                Err(reason) => why_not = Some(format!("{reason}; {}", self.describe_lost())),
            }
        }
        let Some((index, target, wide, tree)) = chosen else {
            let (unrepairable, refused) = (why_not, learned.refusals());
            return Ok(Some(RepairOutcome { unrepairable, refused, ..self.outcome(learned.rebuilt) }));
        };
        self.pace.note(&tree);
        let _turn = self.pace.turn(self.stripes, tree.loads(), self.change.record.chunk_len).await;
        let Some(generation) = self.change.open(&[(index, target)]).await? else { return Ok(None) };
        let made = self.change.assemble_from(&wide, index, generation, &tree).await;
        let written = self.take_made(index, target, generation, made, learned);
        if written.is_empty() {
            self.change.give_up(&written, generation).await;
            return Ok(None);
        }
        let outcome = self.swap(&written, generation, learned).await?;
        if outcome.is_none() {
            self.change.give_up(&written, generation).await;
        }
        Ok(outcome.and_then(|outcome| learned.add(outcome, true)))
    }

    /// The wide stripe that can give back a lost member, and who adds up what for it at `target`; or why it cannot.
    async fn tree_around(
        &self,
        index: usize,
        target: SiteId,
        learned: &Learned,
    ) -> Result<Result<(OpenedStripe, CombineTree), String>, StripeError> {
        let Some((wide, position)) = self.stripes.wide_stripe_of(self.change.id, index).await? else {
            return Ok(Err("no sealed wide stripe has it".to_owned()));
        };
        let costs = costs_around(&wide, position, |at| self.cost_in(&wide, at, position, learned));
        let home = self.rack(target);
        let terms = match equation_around(&wide, position, &costs, &home, |site| self.rack(site)) {
            Ok(terms) => terms,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let of_repairer = |at: usize| {
            let site = SiteId(wide.record.locations[at].site);
            self.pace.repairer_cost(site, costs[at].unwrap_or(f64::MAX))
        };
        let tree = self.change.tree_over(&wide, target, &terms, of_repairer);
        Ok(Ok((wide, tree)))
    }

    /// What reading a chunk of a wide stripe costs. `None` where it cannot be had.
    fn cost_in(&self, wide: &OpenedStripe, at: usize, position: usize, learned: &Learned) -> Option<f64> {
        let site = SiteId(wide.record.locations[at].site);
        let is_bad = || learned.chunks.contains_key(&wide.file(at)) || self.absent.contains(site);
        match wide.has_place(at) {
            _ if at == position => None,
            false => Some(0.0),
            true if site.0 == 0 || is_bad() || self.stripes.site(site).is_none() => None,
            true => Some(self.pace.cost(self.stripes, site, wide.record.chunk_len)),
        }
    }

    /// Who adds up what for the one lost chunk at the site that takes it.
    fn tree(&self, plan: &StripeRepair, costs: &[f64]) -> CombineTree {
        let (lost, target) = plan.targets[0];
        let terms = self.terms(lost, target, costs);
        let site = |chunk: usize| SiteId(self.change.record.locations[chunk].site);
        let of_repairer = |chunk: usize| self.pace.repairer_cost(site(chunk), costs[chunk]);
        let tree = self.change.combine_tree(target, &terms, of_repairer);
        self.pace.note(&tree);
        tree
    }

    /// The sum that is the lost chunk, as (coefficient, chunk index): that of the fewest sums across racks. What is known without
    /// being read is left out.
    fn terms(&self, lost: usize, target: SiteId, costs: &[f64]) -> Vec<(u8, usize)> {
        let home = self.rack(target);
        let is_known = |chunk: usize| matches!(self.states[chunk], ChunkState::Good(_) | ChunkState::Zero);
        let costs: Vec<Option<f64>> =
            costs.iter().enumerate().map(|(chunk, &cost)| is_known(chunk).then_some(cost)).collect();
        let rack = |state: &ChunkState| match state {
            ChunkState::Good(site) => self.rack(*site),
            _ => home.clone(),
        };
        let racks: Vec<RackId> = self.states.iter().map(rack).collect();
        let racks: Vec<&RackId> = racks.iter().collect();
        let repair = repair_by_racks(&self.change.code, lost, &costs, &racks, &home);
        let equation = repair.expect("the plan says that the good chunks determine it").equation;
        let is_file = |&(chunk, _): &(usize, u8)| matches!(self.states[chunk], ChunkState::Good(_));
        equation.sources.into_iter().filter(is_file).map(|(chunk, by)| (by, chunk)).collect()
    }

    /// A site's rack; one that is not known has none beside it.
    fn rack(&self, site: SiteId) -> RackId {
        self.stripes.site(site).map_or_else(|| RackId::of_unknown(site), |site| site.rack())
    }

    /// The chunks that each site of a plan sends or is sent where they are made here.
    fn loads(&self, plan: &StripeRepair) -> Vec<(SiteId, u32)> {
        let locations = &self.change.record.locations;
        let sources = plan.decode.sources().iter().map(|&index| (SiteId(locations[index].site), 1));
        let sources = sources.filter(|&(site, _)| site.0 != 0);
        sources.chain(plan.targets.iter().map(|&(_, site)| (site, 1))).collect()
    }

    /// Bytes in memory while chunks are made here.
    fn memory_of(&self, plan: &StripeRepair) -> usize {
        let sources = if self.is_wide() { 0 } else { plan.decode.sources().len() };
        (sources + plan.targets.len()) * self.change.record.chunk_len as usize
    }

    /// Steps 2 and 3 at the site that takes the one lost chunk. Answers it, or nothing: `learned` then has why.
    async fn assemble(
        &mut self,
        index: usize,
        tree: &CombineTree,
        generation: Generation,
        learned: &mut Learned,
    ) -> Vec<(usize, SiteId)> {
        let made = self.change.assemble_chunk(index, generation, tree).await;
        self.take_made(index, tree.site, generation, made, learned)
    }

    /// What became of a chunk that a site was to make.
    fn take_made(
        &mut self,
        index: usize,
        site: SiteId,
        generation: Generation,
        made: Result<(), SiteError>,
        learned: &mut Learned,
    ) -> Vec<(usize, SiteId)> {
        let Err(error) = made else { return vec![(index, site)] };
        self.change.note_stray(index, site, generation, &error);
        tracing::debug!(stripe = %self.change.id, %site, %error, "a lost chunk could not be made at its new site");
        match error {
            SiteError::Missing(chunk) | SiteError::Corrupt { chunk, .. } => {
                learned.chunks.insert(chunk, ChunkState::Lost);
            }
            SiteError::NoSpace | SiteError::Busy | SiteError::Suspect(_) => {
                learned.refusals.insert(site, error.to_string());
            }
            // Whose fault it is the next round sees.
            _ => learned.is_made_here = true,
        }
        Vec::new()
    }

    /// Step 2 for the one lost chunk of a plan, a slice after the other. `None` when a source was bad; `learned` then has it.
    async fn sum_here(
        &self,
        plan: &StripeRepair,
        costs: &[f64],
        learned: &mut Learned,
    ) -> Result<Option<Vec<Bytes>>, StripeError> {
        let (index, target) = plan.targets[0];
        let error = match self.change.sum_here(&self.terms(index, target, costs)).await {
            Ok(sum) if crc32c(&sum) == self.change.record.locations[index].crc32c => {
                return Ok(Some(vec![sum]));
            }
            Ok(_) => return Err(self.no_match(index)),
            Err(error) => error,
        };
        tracing::warn!(stripe = %self.change.id, index, %error, "a lost chunk cannot be computed now");
        if let SiteError::Missing(chunk) | SiteError::Corrupt { chunk, .. } = error {
            learned.chunks.insert(chunk, ChunkState::Lost);
        }
        Ok(None)
    }

    fn no_match(&self, index: usize) -> StripeError {
        let reason = format!("the rebuilt chunk {index} does not match the original encoding's checksum");
        StripeError::Inconsistent { what: format!("stripe {}", self.change.id), reason }
    }

    /// Step 2: the payloads of the plan's targets. `None` when a source was bad; `learned` then has it.
    async fn rebuild(
        &self,
        plan: &StripeRepair,
        learned: &mut Learned,
    ) -> Result<Option<Vec<Bytes>>, StripeError> {
        let chunk_len = self.change.record.chunk_len as usize;
        let read = async |index: usize| match self.states[index] {
            ChunkState::Zero => None,
            _ => Some(self.change.read_chunk(index).await),
        };
        let reads = join_all(plan.decode.sources().iter().map(|&index| read(index))).await;
        let mut inputs = Vec::with_capacity(reads.len());
        for (&index, read) in plan.decode.sources().iter().zip(reads) {
            let Some(read) = read else {
                inputs.push(Bytes::from(vec![0; chunk_len]));
                continue;
            };
            let bad = match read {
                Ok(bytes) if crc32c(&bytes) == self.change.record.locations[index].crc32c => {
                    inputs.push(filled_up(bytes, self.change.record.chunk_len));
                    continue;
                }
                Ok(_) => ChunkState::Lost,
                Err(error) => state_after(&error),
            };
            tracing::warn!(chunk = %self.change.chunk(index), state = ?bad, "a source of a repair cannot be used");
            learned.chunks.insert(self.change.chunk(index), bad);
        }
        if inputs.len() < plan.decode.sources().len() {
            return Ok(None);
        }
        let mut outputs: Vec<BytesMut> = plan.targets.iter().map(|_| BytesMut::zeroed(chunk_len)).collect();
        let sources: Vec<&[u8]> = inputs.iter().map(Bytes::as_ref).collect();
        let mut refs: Vec<&mut [u8]> = outputs.iter_mut().map(BytesMut::as_mut).collect();
        plan.decode.apply(&sources, &mut refs).expect("whole chunks of one stripe have one length");
        for (&(index, _), output) in plan.targets.iter().zip(&outputs) {
            if crc32c(output) != self.change.record.locations[index].crc32c {
                return Err(self.no_match(index));
            }
        }
        Ok(Some(outputs.into_iter().map(BytesMut::freeze).collect()))
    }

    /// Step 3: writes the new chunks; answers those that are durable, and `learned` has the sites that took none.
    async fn write(
        &mut self,
        plan: &StripeRepair,
        generation: Generation,
        chunks: Vec<Bytes>,
        learned: &mut Learned,
    ) -> Vec<(usize, SiteId)> {
        let writes = plan.targets.iter().zip(chunks);
        let writes =
            writes.map(|(&(index, site), payload)| self.change.write_chunk(index, site, generation, payload));
        let results = join_all(writes).await;
        let mut written = Vec::new();
        for (&(index, site), result) in plan.targets.iter().zip(results) {
            match result {
                Ok(()) => written.push((index, site)),
                Err(error) => {
                    self.change.note_refusal(index, site, generation, &error);
                    learned.refusals.insert(site, error.to_string());
                }
            }
        }
        written
    }

    /// Step 4. `None` when somebody else changed the record.
    async fn swap(
        &mut self,
        written: &[(usize, SiteId)],
        generation: Generation,
        learned: &Learned,
    ) -> Result<Option<RepairOutcome>, StripeError> {
        let mut replaced = Vec::new();
        for &(index, site) in written {
            replaced.extend(self.change.replace(index, site, generation));
            self.states[index] = ChunkState::Good(site);
        }
        let k = self.change.code.k();
        if self.gives_up_parities && written.iter().any(|&(index, _)| index < k) {
            replaced.extend(self.change.drop_parities());
            self.states[k..].fill(ChunkState::Elsewhere);
        }
        replaced.extend(self.give_up_sites_of_lost_chunks(written));
        let outcome = RepairOutcome { refused: learned.refusals(), ..self.outcome(written.len() as u64) };
        let debt = match outcome.still_lost + outcome.unknown {
            0 if self.is_examined => Debt::Paid(self.owed),
            0 => Debt::AsItIs,
            _ => Debt::Owed,
        };
        let done = self.change.swap(replaced, debt).await?;
        if done {
            self.stripes.stripe_repaired(self.change.id);
        }
        Ok(done.then_some(outcome))
    }

    /// A lost chunk's site or rack may have taken another chunk of the stripe, while the one that was to take the lost
    /// chunk's place failed: then the lost one is named nowhere, so that the rule holds (I6). Answers what was named.
    fn give_up_sites_of_lost_chunks(&mut self, written: &[(usize, SiteId)]) -> Vec<GarbageChunk> {
        let rule = self.change.rule();
        let mut given_up = Vec::new();
        if !self.change.is_bound_by_rule() {
            return given_up;
        }
        for index in (0..self.states.len()).filter(|&index| self.states[index] == ChunkState::Lost) {
            let racks = self.change.racks(&[index]);
            let places = racks.iter().enumerate().filter_map(|(of, rack)| Some((of, rack.as_ref()?)));
            let is_full = racks[index].as_ref().is_some_and(|rack| !rule.admits(index, rack, places));
            let location = &mut self.change.record.locations[index];
            let is_taken = |&(other, site): &(usize, SiteId)| other != index && site.0 == location.site;
            if location.site != 0 && (is_full || written.iter().any(is_taken)) {
                let (site, generation) = (location.site, location.generation);
                given_up.push(GarbageChunk { index: index as u32, site, generation });
                location.site = 0;
            }
        }
        given_up
    }

    /// Drops the debt of a stripe that is whole. `false` when the record changed meanwhile.
    async fn settle_debt(&self) -> Result<bool, StripeError> {
        let is_amiss = |state: &ChunkState| matches!(state, ChunkState::Lost | ChunkState::Unknown);
        let whole = !self.states.iter().any(is_amiss);
        if !whole || !self.is_examined {
            return Ok(true);
        }
        let mut tx = self.change.unchanged();
        pay_debt(&mut tx, self.change.id, self.owed);
        let done = matches!(self.stripes.meta().commit(tx).await?, Commit::Done(_));
        self.stripes.stripe_repaired(self.change.id);
        Ok(done)
    }

    fn outcome(&self, chunks: u64) -> RepairOutcome {
        let count = |wanted: ChunkState| self.states.iter().filter(|state| **state == wanted).count() as u64;
        RepairOutcome {
            chunks,
            bytes: chunks * u64::from(self.change.record.chunk_len),
            still_lost: count(ChunkState::Lost),
            unknown: count(ChunkState::Unknown),
            refused: Vec::new(),
            unrepairable: None,
        }
    }

    fn describe_lost(&self) -> String {
        let is_amiss = |state: &ChunkState| matches!(state, ChunkState::Lost | ChunkState::Unknown);
        let lost = self.states.iter().enumerate().filter(|(_, state)| is_amiss(state));
        let text = lost.map(|(index, _)| match self.change.record.locations[index].site {
            0 => format!("chunk {index} was never written"),
            site => format!("chunk {index} on site {site}"),
        });
        format!("missing: {}", text.collect::<Vec<_>>().join(", "))
    }
}

/// A chunk with as many zeros behind it as it is shorter than `len` bytes.
fn filled_up(bytes: Bytes, len: u32) -> Bytes {
    if bytes.len() >= len as usize {
        return bytes;
    }
    let mut filled = BytesMut::from(&bytes[..]);
    filled.resize(len as usize, 0);
    filled.freeze()
}

/// What a failed read or verification says of a chunk.
pub(crate) fn state_after(error: &SiteError) -> ChunkState {
    match error {
        SiteError::Missing(_) | SiteError::Corrupt { .. } | SiteError::Suspect(_) => ChunkState::Lost,
        _ => ChunkState::Unknown,
    }
}

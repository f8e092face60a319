//! The optimising mover: moves chunks so that reads of blocks requested together ask fewer and less loaded sites
//! (EC-Store §IV-D, §V-B2).
//!
//! Every second it draws candidates from the sampled requests ([`AccessSource`]: of this process, or of all gateways)
//! and looks up where their chunks are and how loaded the sites are. It plans the best moves that the search finds,
//! each in the state that the earlier ones leave, and starts them concurrently. Moves that are in progress, or whose
//! effect the sites have not reported yet, are part of the state, so that they do not all go to the same idle site.
//!
//! It may move one byte for every hundred that requests read, unless [`Allowance`] says otherwise; an unused budget
//! accumulates for a minute at most. If nothing is read, nothing is moved.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::Serialize;
use striate_core::{SiteId, StripeId};
use striate_plan::movement::{
    ChunkMove, MovementBudget, MovementQueue, MovementState, Objective, SettledPlan,
};
use striate_plan::{Adaptive, Policy};
use striate_runtime::Instant;
use striate_stripe::{StripeError, Stripes};

use super::active_moves::{ActiveMoves, MoveLimit};
use super::budget::{Allowance, Budget};
use super::mover::{MoveOutcome, move_chunk};
use super::source::AccessSource;
use super::state::gather;
use super::unseen_load::UnseenLoad;
use crate::statistics::SiteStatistics;

/// Limit on concurrent moves. Bytes travel through this process if sites cannot reach each other.
const AT_ONCE: MoveLimit = MoveLimit { stripes: 256, bytes: 256 << 20 };

/// Configuration of the optimising mover.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptimiserOptions {
    /// Value of a move.
    pub objective: Objective,
    /// How much may be moved.
    pub allowance: Allowance,
    /// Interval between two rounds.
    pub every: Duration,
    /// Blocks drawn in a round.
    pub draws: usize,
    /// Partners of each block that count, if the objective goes by pairs of blocks.
    pub partners: usize,
    /// Requests of each block that count, if the objective goes by whole requests.
    pub requests: usize,
    /// δ: chunks that requests ask for beyond a sufficient set, if they are not this process's own. The published
    /// objective ignores it.
    pub extra_reads: usize,
    /// Requests that must be sampled before anything is moved.
    pub least_requests: usize,
    /// Limits of a search.
    pub budget: MovementBudget,
}

impl Default for OptimiserOptions {
    /// The improved objective, 1% of the traffic, every second.
    fn default() -> Self {
        Self {
            objective: Objective::improved(),
            allowance: Allowance::OfTraffic(0.01),
            every: Duration::from_secs(1),
            draws: 96,
            partners: 24,
            requests: 32,
            extra_reads: Adaptive::default().most_extra_reads(),
            least_requests: 200,
            budget: MovementBudget::default(),
        }
    }
}

/// Work done since the process started.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OptimiserProgress {
    /// Rounds that found candidates.
    pub rounds: u64,
    /// Candidate moves evaluated.
    pub evaluated: u64,
    /// Plans made.
    pub plans: u64,
    /// Sum of the gains (Δ) that these plans expected.
    pub gain: f64,
    /// Chunks moved.
    pub chunks: u64,
    /// Bytes of the moved chunks.
    pub bytes: u64,
    /// Moves that other changes made needless, or that were refused.
    pub not_made: u64,
    /// Chunks found missing or damaged, and left to repair.
    pub left_to_repair: u64,
    /// Largest memory of a search state, in bytes.
    pub state_bytes: usize,
    /// Bytes or chunks that may be moved now, as the allowance counts.
    pub budget: f64,
}

/// Moves chunks to make reads cheaper. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Optimiser {
    shared: Arc<Shared>,
}

/// A planned move, and its share of the load that its plan shifts between sites.
struct PlannedMove {
    chunk_move: ChunkMove,
    bytes: u64,
    shifts: Vec<(SiteId, f64)>,
}

#[derive(Debug)]
struct Shared {
    options: OptimiserOptions,
    progress: Mutex<OptimiserProgress>,
    budget: Mutex<Budget>,
    unseen: Mutex<UnseenLoad>,
    is_paused: AtomicBool,
}

impl Default for Optimiser {
    fn default() -> Self {
        Self::new(OptimiserOptions::default())
    }
}

impl Optimiser {
    /// Creates an optimiser with these options.
    pub fn new(options: OptimiserOptions) -> Self {
        let shared = Shared {
            options,
            progress: Mutex::default(),
            budget: Mutex::new(Budget::new(options.allowance)),
            unseen: Mutex::default(),
            is_paused: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Creates a paused optimiser with the default options.
    pub fn paused() -> Self {
        let optimiser = Self::default();
        optimiser.set_paused(true);
        optimiser
    }

    /// Returns the progress so far.
    pub fn progress(&self) -> OptimiserProgress {
        OptimiserProgress {
            budget: self.shared.budget.lock().available(),
            ..self.shared.progress.lock().clone()
        }
    }

    /// Pauses, so that no further round starts, or resumes.
    pub fn set_paused(&self, is_paused: bool) {
        self.shared.is_paused.store(is_paused, Ordering::Relaxed);
    }

    /// Returns whether it is paused.
    pub fn is_paused(&self) -> bool {
        self.shared.is_paused.load(Ordering::Relaxed)
    }

    /// Runs until the task is dropped, guided by `source` and the statistics of the sites. Run it in one process of a
    /// cluster.
    pub fn run(
        self,
        stripes: Stripes,
        source: AccessSource,
        statistics: SiteStatistics,
    ) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let mut active_moves = ActiveMoves::default();
            loop {
                active_moves.during(stripes.runtime().sleep(self.shared.options.every)).await;
                if let Err(error) = self.begin_round(&stripes, &source, &statistics, &mut active_moves).await
                {
                    tracing::warn!(%error, "moving chunks closer to their readers failed; will retry");
                }
            }
        })
    }

    /// Runs one round and all its moves; returns how many chunks it moved.
    ///
    /// # Errors
    /// When the metadata store fails; the next round continues.
    pub fn round<'a>(
        &'a self,
        stripes: &'a Stripes,
        source: &'a AccessSource,
        statistics: &'a SiteStatistics,
    ) -> BoxFuture<'a, Result<u64, StripeError>> {
        Box::pin(async move {
            let mut active_moves = ActiveMoves::default();
            self.begin_round(stripes, source, statistics, &mut active_moves).await?;
            active_moves.finish().await
        })
    }

    /// Plans moves and starts them, beside those in progress.
    ///
    /// # Errors
    /// When the metadata store fails; the next round continues.
    pub async fn begin_round(
        &self,
        stripes: &Stripes,
        source: &AccessSource,
        statistics: &SiteStatistics,
        active_moves: &mut ActiveMoves,
    ) -> Result<(), StripeError> {
        let (moving, room) = (active_moves.moves(), active_moves.room(AT_ONCE));
        let planned =
            active_moves.during(self.plan_round(stripes, source, statistics, &moving, room)).await?;
        let now = stripes.runtime().now();
        for (stripe, moves) in planned {
            moves.iter().for_each(|planned| self.shared.unseen.lock().note(now, &planned.shifts));
            let chunk_moves = moves.iter().map(|planned| planned.chunk_move).collect();
            let bytes = moves.iter().map(|planned| planned.bytes).sum();
            active_moves.begin(
                stripe,
                chunk_moves,
                bytes,
                self.clone().make_in_order(stripes.clone(), moves),
            );
        }
        Ok(())
    }

    /// Plans moves as far as `room` allows while others are `moving`. The moves of each stripe are in order.
    async fn plan_round(
        &self,
        stripes: &Stripes,
        source: &AccessSource,
        statistics: &SiteStatistics,
        moving: &[ChunkMove],
        room: MoveLimit,
    ) -> Result<BTreeMap<StripeId, Vec<PlannedMove>>, StripeError> {
        if self.is_paused() {
            return Ok(BTreeMap::new());
        }
        let gathered = gather(stripes, source, statistics, &self.shared.options).await?;
        let Some(mut gathered) = gathered else { return Ok(BTreeMap::new()) };
        {
            let mut progress = self.shared.progress.lock();
            progress.rounds += 1;
            progress.state_bytes = progress.state_bytes.max(gathered.state.memory_bytes());
        }
        let now = stripes.runtime().now();
        self.shared.budget.lock().grant(now, source.requests(), gathered.request_bytes);
        {
            let mut unseen = self.shared.unseen.lock();
            unseen.hear(now, statistics.view());
            unseen.loads().for_each(|(site, load)| gathered.state.add_load(site, load));
        }
        gathered.state.expect(moving);
        let optimiser = self.clone();
        let plan = move || optimiser.plan(&mut gathered.state, &gathered.candidates, room);
        Ok(stripes.runtime().run_blocking(plan).await)
    }

    /// Takes the best plans one after the other, as far as the budget and the room allow.
    fn plan(
        &self,
        state: &mut MovementState,
        candidates: &[StripeId],
        room: MoveLimit,
    ) -> BTreeMap<StripeId, Vec<PlannedMove>> {
        let OptimiserOptions { objective, budget, .. } = self.shared.options;
        let mut all: BTreeMap<StripeId, Vec<PlannedMove>> = BTreeMap::new();
        let mut bytes_begun = 0;
        let may_go_on = |stripes: usize, bytes: u64| {
            let is_room = stripes < room.stripes && bytes < room.bytes;
            is_room && !self.is_paused() && self.shared.budget.lock().allows_more()
        };
        if !may_go_on(0, 0) {
            return all;
        }
        let mut queue = MovementQueue::new(state, objective, candidates.iter().copied(), budget);
        while may_go_on(all.len(), bytes_begun) {
            let Some(SettledPlan { plan, shifts }) = queue.next_plan(state) else { break };
            {
                let mut progress = self.shared.progress.lock();
                progress.plans += 1;
                progress.gain += plan.gain;
            }
            let part = 1.0 / plan.moves.len() as f64;
            let shifts: Vec<(SiteId, f64)> =
                shifts.into_iter().map(|(site, load)| (site, part * load)).collect();
            for chunk_move in plan.moves {
                let bytes = u64::from(state.chunk_len_of(&chunk_move));
                self.shared.budget.lock().spend(bytes);
                bytes_begun += bytes;
                let planned = PlannedMove { chunk_move, bytes, shifts: shifts.clone() };
                all.entry(chunk_move.stripe).or_default().push(planned);
            }
        }
        self.shared.progress.lock().evaluated += queue.evaluated;
        all
    }

    /// Makes the moves of one stripe in order. Stops at the first that fails: the plan was based on an outdated view,
    /// and the remaining loads do not shift.
    async fn make_in_order(self, stripes: Stripes, moves: Vec<PlannedMove>) -> Result<u64, StripeError> {
        let mut made = 0;
        for planned in &moves {
            let outcome = move_chunk(&stripes, &planned.chunk_move).await;
            if let Ok(outcome) = &outcome {
                self.count(outcome);
            }
            if !matches!(outcome, Ok(MoveOutcome::Moved { .. })) {
                self.take_back(stripes.runtime().now(), &moves[made..]);
                outcome?;
                break;
            }
            made += 1;
        }
        Ok(made as u64)
    }

    /// Reverts the load shifts of moves that were not made.
    fn take_back(&self, now: Instant, moves: &[PlannedMove]) {
        let mut unseen = self.shared.unseen.lock();
        for planned in moves {
            let back: Vec<(SiteId, f64)> = planned.shifts.iter().map(|&(site, load)| (site, -load)).collect();
            unseen.note(now, &back);
        }
    }

    fn count(&self, outcome: &MoveOutcome) {
        let mut progress = self.shared.progress.lock();
        match outcome {
            MoveOutcome::Moved { bytes } => {
                progress.chunks += 1;
                progress.bytes += bytes;
            }
            MoveOutcome::LeftToRepair => progress.left_to_repair += 1,
            MoveOutcome::Outdated | MoveOutcome::Refused(_) | MoveOutcome::Contended => {
                progress.not_made += 1;
            }
        }
    }
}

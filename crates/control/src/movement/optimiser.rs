//! The optimising mover: moves chunks so that reads of blocks that are asked for together ask fewer and less loaded sites
//! (EC-Store §IV-D, §V-B2).
//!
//! Every second it draws candidates from what was asked for ([`AccessSource`]: of this process's client, or of all
//! gateways), looks where their chunks are and what the sites bear, and makes the best moves that the search finds, those of
//! a group at the same time. The state is kept up to date with the moves of a round, and with those since the sites told
//! their loads, so that they do not all run to the same idle site.
//!
//! It may move one byte for a hundred that requests read, unless [`Allowance`] says otherwise; what is not used is saved up
//! for a minute at most. Where nothing is read nothing is moved.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use serde::Serialize;
use striate_client::{Client, ClientError};
use striate_core::SiteId;
use striate_plan::movement::{ChunkMove, MovementBudget, MovementState, Objective, select_movement};

use super::budget::{Allowance, Budget};
use super::mover::{MoveOutcome, move_chunk};
use super::source::AccessSource;
use super::state::{Gathered, gather};
use crate::statistics::{SiteLoadView, SiteStatistics};

/// Plans of one round.
const PLANS: usize = 8;

/// How it is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptimiserOptions {
    /// What a move is worth.
    pub objective: Objective,
    /// How much is moved.
    pub allowance: Allowance,
    /// Pause between two rounds.
    pub every: Duration,
    /// Blocks drawn in a round.
    pub draws: usize,
    /// Partners of each that count.
    pub partners: usize,
    /// When a search ends.
    pub budget: MovementBudget,
}

impl Default for OptimiserOptions {
    /// The improved objective, 1% of the traffic, every second.
    fn default() -> Self {
        Self {
            objective: Objective::improved(),
            allowance: Allowance::OfTraffic(0.01),
            every: Duration::from_secs(1),
            draws: 32,
            partners: 24,
            budget: MovementBudget::default(),
        }
    }
}

/// What it did, since the process began.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OptimiserProgress {
    /// Rounds in which there was something to look at.
    pub rounds: u64,
    /// Candidate moves that were evaluated.
    pub evaluated: u64,
    /// Plans that were made.
    pub plans: u64,
    /// The gains that these plans expected (Δ), added up.
    pub gain: f64,
    /// Chunks moved.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Moves that others made needless, or that were refused.
    pub not_made: u64,
    /// Chunks that were found missing or damaged, and left to repair.
    pub left_to_repair: u64,
    /// The most memory that a search looked at, in bytes.
    pub state_bytes: usize,
    /// Bytes, or chunks, that may be moved now, as the allowance counts.
    pub budget: f64,
}

/// Moves chunks for the readers' sake. A cheap handle.
#[derive(Clone, Debug)]
pub struct Optimiser {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: OptimiserOptions,
    progress: Mutex<OptimiserProgress>,
    budget: Mutex<Budget>,
    recent: Mutex<Recent>,
    is_paused: AtomicBool,
}

/// What has moved since the sites' loads became known.
#[derive(Debug, Default)]
struct Recent {
    loads: Vec<SiteLoadView>,
    /// From, to, and the load that went along.
    moved: Vec<(SiteId, SiteId, f64)>,
}

impl Default for Optimiser {
    fn default() -> Self {
        Self::new(OptimiserOptions::default())
    }
}

impl Optimiser {
    /// With these options.
    pub fn new(options: OptimiserOptions) -> Self {
        let shared = Shared {
            options,
            progress: Mutex::default(),
            budget: Mutex::new(Budget::new(options.allowance)),
            recent: Mutex::default(),
            is_paused: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared) }
    }

    /// With the usual options, and doing nothing yet.
    pub fn paused() -> Self {
        let optimiser = Self::default();
        optimiser.set_paused(true);
        optimiser
    }

    /// What it did.
    pub fn progress(&self) -> OptimiserProgress {
        OptimiserProgress { budget: self.shared.budget.lock().left(), ..self.shared.progress.lock().clone() }
    }

    /// Begins no further move, or goes on.
    pub fn set_paused(&self, is_paused: bool) {
        self.shared.is_paused.store(is_paused, Ordering::Relaxed);
    }

    /// Whether it is paused.
    pub fn is_paused(&self) -> bool {
        self.shared.is_paused.load(Ordering::Relaxed)
    }

    /// Runs for ever, by what `source` and the statistics of the sites say. In one process of a cluster.
    pub async fn run(self, client: Client, source: AccessSource, statistics: SiteStatistics) {
        loop {
            client.runtime().sleep(self.shared.options.every).await;
            if let Err(error) = self.round(&client, &source, &statistics).await {
                tracing::warn!(%error, "chunks are moved for the readers later");
            }
        }
    }

    /// One round; answers how many chunks it moved.
    ///
    /// # Errors
    /// When the metadata store fails; the next round goes on.
    pub async fn round(
        &self,
        client: &Client,
        source: &AccessSource,
        statistics: &SiteStatistics,
    ) -> Result<u64, ClientError> {
        if self.is_paused() {
            return Ok(0);
        }
        let gathered = gather(client, source, statistics, &self.shared.options).await?;
        let Some(mut gathered) = gathered else { return Ok(0) };
        {
            let mut progress = self.shared.progress.lock();
            progress.rounds += 1;
            progress.state_bytes = progress.state_bytes.max(gathered.state.memory_bytes());
        }
        let now = client.runtime().now();
        self.shared.budget.lock().grant(now, source.requests(), gathered.request_bytes);
        self.remember(statistics.view(), &mut gathered.state);
        let mut moved = 0;
        for _ in 0..PLANS {
            if self.is_paused() || !self.shared.budget.lock().allows_more() {
                break;
            }
            let this = self.clone();
            let search = move || {
                let moves = this.search(&mut gathered);
                (moves, gathered)
            };
            let moves;
            (moves, gathered) = client.runtime().run_blocking(search).await;
            let Some(moves) = moves else { break };
            let made = self.make(client, &moves, &mut gathered.state).await?;
            moved += made as u64;
            if made < moves.len() {
                // What is known of the state is wrong.
                break;
            }
        }
        Ok(moved)
    }

    /// Makes the moves of a plan, which are of different stripes, at the same time; answers how many were made.
    async fn make(
        &self,
        client: &Client,
        moves: &[ChunkMove],
        state: &mut MovementState,
    ) -> Result<usize, ClientError> {
        let outcomes = join_all(moves.iter().map(|wanted| move_chunk(client, wanted))).await;
        let mut made = 0;
        for (wanted, outcome) in moves.iter().zip(outcomes) {
            let outcome = outcome?;
            self.count(&outcome);
            if matches!(outcome, MoveOutcome::Moved { .. }) {
                self.shared.recent.lock().moved.push((wanted.from, wanted.to, state.load_of(wanted)));
                state.apply(&[*wanted]);
                made += 1;
            }
        }
        Ok(made)
    }

    /// Makes the state one in which the sites bear what has moved since they told their loads; until they tell them anew.
    fn remember(&self, loads: Vec<SiteLoadView>, state: &mut MovementState) {
        let mut recent = self.shared.recent.lock();
        if recent.loads != loads {
            *recent = Recent { loads, moved: Vec::new() };
        }
        recent.moved.iter().for_each(|&(from, to, load)| state.shift_load(from, to, load));
    }

    /// The moves of the best plan.
    fn search(&self, gathered: &mut Gathered) -> Option<Vec<ChunkMove>> {
        let Gathered { state, candidates, .. } = gathered;
        let options = self.shared.options;
        let found = select_movement(state, options.objective, candidates.iter().copied(), options.budget);
        let mut progress = self.shared.progress.lock();
        progress.evaluated += found.evaluated;
        let plan = found.best?;
        progress.plans += 1;
        progress.gain += plan.gain;
        Some(plan.moves)
    }

    fn count(&self, outcome: &MoveOutcome) {
        let mut progress = self.shared.progress.lock();
        match outcome {
            MoveOutcome::Moved { bytes } => {
                progress.chunks += 1;
                progress.bytes += bytes;
                self.shared.budget.lock().spend(*bytes);
            }
            MoveOutcome::LeftToRepair => progress.left_to_repair += 1,
            MoveOutcome::Outdated | MoveOutcome::Refused(_) | MoveOutcome::Contended => {
                progress.not_made += 1;
            }
        }
    }
}

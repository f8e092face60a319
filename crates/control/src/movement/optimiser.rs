//! The optimising mover: moves chunks so that reads of blocks that are asked for together ask fewer and less loaded sites
//! (EC-Store §IV-D, §V-B2).
//!
//! Every second it draws candidates from what this process's client was asked for, looks where their chunks are and what
//! the sites bear, and makes the best moves that the search finds. The state is kept up to date with the moves of a round,
//! and with those since the sites told their loads, so that they do not all run to the same idle site.
//!
//! It may move one byte for a hundred that requests read, by the sampled requests of the same statistics; what is not
//! used is saved up for a minute at most. Where nothing is read nothing is moved.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use striate_client::{Client, ClientError};
use striate_core::SiteId;
use striate_plan::movement::{ChunkMove, MovementBudget, MovementState, Objective, select_movement};

use super::mover::{MoveOutcome, move_chunk};
use super::state::{Gathered, gather};
use crate::statistics::{SiteLoadView, SiteStatistics};

/// Requests that must have been sampled before anything is moved.
const LEAST_REQUESTS: usize = 200;
/// Plans of one round.
const PLANS: usize = 8;
/// Rounds whose budget is saved up.
const SAVED_ROUNDS: f64 = 60.0;

/// How it is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptimiserOptions {
    /// What a move is worth.
    pub objective: Objective,
    /// Bytes moved for each byte that requests read.
    pub traffic_share: f64,
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
            traffic_share: 0.01,
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
    /// Bytes that may be moved now.
    pub budget_bytes: f64,
}

/// Moves chunks for the readers' sake. A cheap handle.
#[derive(Clone, Debug, Default)]
pub struct Optimiser {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    options: OptimiserOptions,
    progress: Mutex<OptimiserProgress>,
    /// Sampled requests until the last round.
    observed: Mutex<u64>,
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

impl Optimiser {
    /// With these options.
    pub fn new(options: OptimiserOptions) -> Self {
        Self { shared: Arc::new(Shared { options, ..Shared::default() }) }
    }

    /// With the usual options, and doing nothing yet.
    pub fn paused() -> Self {
        let optimiser = Self::default();
        optimiser.set_paused(true);
        optimiser
    }

    /// What it did.
    pub fn progress(&self) -> OptimiserProgress {
        self.shared.progress.lock().clone()
    }

    /// Begins no further move, or goes on.
    pub fn set_paused(&self, is_paused: bool) {
        self.shared.is_paused.store(is_paused, Ordering::Relaxed);
    }

    /// Whether it is paused.
    pub fn is_paused(&self) -> bool {
        self.shared.is_paused.load(Ordering::Relaxed)
    }

    /// Runs for ever, by the statistics of this client and these of the sites.
    pub async fn run(self, client: Client, statistics: SiteStatistics) {
        loop {
            client.runtime().sleep(self.shared.options.every).await;
            if let Err(error) = self.round(&client, &statistics).await {
                tracing::warn!(%error, "chunks are moved for the readers later");
            }
        }
    }

    /// One round; answers how many chunks it moved.
    ///
    /// # Errors
    /// When the metadata store fails; the next round goes on.
    pub async fn round(&self, client: &Client, statistics: &SiteStatistics) -> Result<u64, ClientError> {
        let options = self.shared.options;
        if self.is_paused() || client.co_access_totals().requests < LEAST_REQUESTS {
            return Ok(0);
        }
        let mut rng = client.runtime().rng();
        let gathered =
            gather(client, statistics, options.objective, options.draws, options.partners, &mut rng).await?;
        let Some(mut gathered) = gathered else { return Ok(0) };
        self.shared.progress.lock().rounds += 1;
        self.grant(client, gathered.request_bytes);
        self.remember(statistics.view(), &mut gathered.state);
        let mut moved = 0;
        for _ in 0..PLANS {
            if self.is_paused() || self.progress().budget_bytes <= 0.0 {
                break;
            }
            let Some(moves) = self.search(&mut gathered) else { break };
            for wanted in moves {
                let load = gathered.state.load_of(&wanted);
                let outcome = move_chunk(client, &wanted).await?;
                moved += u64::from(matches!(outcome, MoveOutcome::Moved { .. }));
                self.count(&outcome);
                if !matches!(outcome, MoveOutcome::Moved { .. }) {
                    // What is known of the state is wrong.
                    return Ok(moved);
                }
                self.shared.recent.lock().moved.push((wanted.from, wanted.to, load));
                gathered.state.apply(&[wanted]);
            }
        }
        Ok(moved)
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

    /// Adds to the budget its share of what was read since the last round.
    fn grant(&self, client: &Client, request_bytes: f64) {
        let observed = client.co_access_totals().observed;
        let new = observed - std::mem::replace(&mut *self.shared.observed.lock(), observed).min(observed);
        let requests = new as f64 / client.options().sampling.clamp(f64::MIN_POSITIVE, 1.0);
        let granted = requests * request_bytes * self.shared.options.traffic_share;
        let mut progress = self.shared.progress.lock();
        let most = progress.budget_bytes.max(granted * SAVED_ROUNDS);
        progress.budget_bytes = (progress.budget_bytes + granted).min(most);
    }

    fn count(&self, outcome: &MoveOutcome) {
        let mut progress = self.shared.progress.lock();
        match outcome {
            MoveOutcome::Moved { bytes } => {
                progress.chunks += 1;
                progress.bytes += bytes;
                progress.budget_bytes -= *bytes as f64;
            }
            MoveOutcome::LeftToRepair => progress.left_to_repair += 1,
            MoveOutcome::Outdated | MoveOutcome::Refused(_) | MoveOutcome::Contended => {
                progress.not_made += 1;
            }
        }
    }
}

//! Movement in a world: EC-Store's statistics service and chunk mover (§V-A, §V-B2), with the real code.
//!
//! Client services sample their requests and report them, and sites report their load. A mover on its own machine
//! draws its candidates from all reports together and moves chunks by [`Optimiser`]: copies between the modelled
//! disks, and compare-and-swaps over the modelled path to the metadata. The processor time of the search is charged
//! to the mover, which searches on one core ([`ProcessorCost::evaluate_moves`]). Reports themselves take no time
//! here. The old copy of a moved chunk stays where it is, as garbage: runs are shorter than the grace period.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use striate_client::{Client, ClientError};
use striate_control::movement::{AccessSource, ActiveMoves, Allowance, Optimiser, OptimiserOptions};
use striate_control::{AccessReport, GatheredAccess, REQUESTS_TOGETHER, SiteStatistics};
use striate_plan::movement::Objective;
use striate_plan::{CoAccessLimits, ReadPolicy};

use crate::calibration::ProcessorCost;
use crate::world::{World, WorldOptions};

/// Options of the services.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MovementOptions {
    /// Objective that values a move.
    pub objective: Objective,
    /// Limit on what is moved.
    pub allowance: Allowance,
    /// Pause between two rounds of the mover.
    pub every: Duration,
    /// Interval at which clients report their requests, and sites their load.
    pub report_every: Duration,
    /// Share of the requests that are sampled.
    pub sampling: f64,
    /// Number of sampled requests that count, over all clients.
    pub window: usize,
    /// Blocks drawn per round.
    pub draws: usize,
}

/// Chunks moved, and the cost of moving them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MovementTotals {
    /// Chunks moved.
    pub chunks: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Plans made.
    pub plans: u64,
    /// Moves begun and not completed.
    pub not_made: u64,
    /// Candidate moves evaluated.
    pub evaluated: u64,
    /// Processor time charged for the search, in seconds.
    pub search_s: f64,
    /// Memory of the statistics of all reports together, in bytes.
    pub statistics_bytes: u64,
    /// Maximum memory that a search looked at, in bytes.
    pub state_bytes: u64,
}

/// The running services.
#[derive(Clone, Debug)]
pub struct Movement {
    options: MovementOptions,
    client: Client,
    access: GatheredAccess,
    optimiser: Optimiser,
    searched: Arc<Mutex<Duration>>,
}

impl MovementOptions {
    /// The published options (§V-A, §V-B3, §VI-C5): the paper's objective, one chunk per second, reports every ten
    /// seconds over 5,000 requests.
    pub fn published() -> Self {
        let every = Duration::from_secs(1);
        Self {
            objective: Objective::published(),
            allowance: Allowance::ChunksPerSecond(1.0),
            every,
            report_every: every * 10,
            sampling: 1.0,
            window: CoAccessLimits::default().requests,
            draws: 32,
        }
    }

    /// The improved objective with the default allowance.
    pub fn improved() -> Self {
        let OptimiserOptions { objective, allowance, draws, .. } = OptimiserOptions::default();
        Self { objective, allowance, draws, window: REQUESTS_TOGETHER, ..Self::published() }
    }

    /// Divides all intervals by `scale`: what happens at intervals then happens equally often in a scaled phase.
    #[must_use]
    pub fn scaled(self, scale: f64) -> Self {
        let allowance = match self.allowance {
            Allowance::ChunksPerSecond(rate) => Allowance::ChunksPerSecond(rate * scale),
            of_traffic @ Allowance::OfTraffic(_) => of_traffic,
        };
        let (every, report_every) = (self.every.div_f64(scale), self.report_every.div_f64(scale));
        Self { allowance, every, report_every, ..self }
    }

    /// Returns the limits of what each of `clients` client services keeps.
    pub(crate) fn limits_of(&self, clients: u32) -> CoAccessLimits {
        let requests = self.window.div_ceil(clients.max(1) as usize);
        CoAccessLimits::of_requests(requests)
    }

    /// Returns the optimiser's options; `policy` is the read policy of the world.
    fn optimiser(&self, policy: &ReadPolicy) -> OptimiserOptions {
        OptimiserOptions {
            objective: self.objective,
            allowance: self.allowance,
            every: self.every,
            draws: self.draws,
            extra_reads: policy.most_extra_reads(),
            ..OptimiserOptions::default()
        }
    }
}

impl Movement {
    /// Starts the services in `world`; they end with it.
    ///
    /// # Errors
    /// If the mover cannot register.
    pub async fn start(
        world: &Arc<World>,
        of_world: &WorldOptions,
        options: MovementOptions,
    ) -> Result<Self, ClientError> {
        // Its reads are of single chunks, which no policy chooses.
        let mut of_client = of_world.client_options();
        (of_client.stripes.sampling, of_client.stripes.read_policy) = (0.0, ReadPolicy::default());
        let client = world.client(world.placement_machine(), of_client).await?;
        let limits = CoAccessLimits::of_requests(options.window);
        let movement = Self {
            options,
            client,
            access: GatheredAccess::new(limits),
            optimiser: Optimiser::new(options.optimiser(&of_world.policy)),
            searched: Arc::default(),
        };
        let statistics = SiteStatistics::default();
        world.runtime.spawn(movement.clone().gather(Arc::clone(world), statistics.clone()));
        world.runtime.spawn(movement.clone().keep_moving(statistics));
        Ok(movement)
    }

    /// Returns the mover's own client service.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the moves so far.
    pub fn moved(&self) -> MovementTotals {
        let done = self.optimiser.progress();
        let together = self.access.together(self.client.runtime().now());
        MovementTotals {
            chunks: done.chunks,
            bytes: done.bytes,
            plans: done.plans,
            not_made: done.not_made + done.left_to_repair,
            evaluated: done.evaluated,
            search_s: self.searched.lock().as_secs_f64(),
            statistics_bytes: together.totals().memory_bytes as u64,
            state_bytes: done.state_bytes as u64,
        }
    }

    /// Runs the statistics service.
    async fn gather(self, world: Arc<World>, statistics: SiteStatistics) {
        let runtime = &world.runtime;
        loop {
            runtime.sleep(self.options.report_every).await;
            for (number, client) in world.clients.iter().enumerate() {
                let name = format!("client{number:04}");
                let (snapshot, requests) =
                    (client.stripes().sampler().snapshot(), client.stripes().requests());
                let report = AccessReport { snapshot, requests, ..AccessReport::default() };
                let reported = self.access.report(&name, report, runtime.now());
                reported.expect("as many services report as there may be, and well-formed");
            }
            statistics.round(self.client.stripes()).await;
        }
    }

    /// Runs the chunk mover.
    async fn keep_moving(self, statistics: SiteStatistics) {
        let runtime = self.client.runtime();
        let source = AccessSource::Gathered(self.access.clone());
        let mut active_moves = ActiveMoves::default();
        loop {
            active_moves.during(runtime.sleep(self.options.every)).await;
            let before = self.optimiser.progress().evaluated;
            let round = self
                .optimiser
                .begin_round(self.client.stripes(), &source, &statistics, &mut active_moves)
                .await;
            round.expect("the engine is in memory, and no message to it is lost for ever");
            let evaluated = self.optimiser.progress().evaluated - before;
            let took = ProcessorCost::MEASURED.evaluate_moves(self.options.objective, evaluated);
            *self.searched.lock() += took;
            active_moves.during(runtime.sleep(took)).await;
        }
    }
}

impl MovementTotals {
    /// Returns the difference to an earlier state.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            chunks: self.chunks - before.chunks,
            bytes: self.bytes - before.bytes,
            plans: self.plans - before.plans,
            not_made: self.not_made - before.not_made,
            evaluated: self.evaluated - before.evaluated,
            search_s: self.search_s - before.search_s,
            statistics_bytes: self.statistics_bytes,
            state_bytes: self.state_bytes,
        }
    }
}

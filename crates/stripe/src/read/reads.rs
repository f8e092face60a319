//! State shared by all reads of one process: plans, knowledge of the sites, and measurements.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use striate_core::StripeId;
use striate_meta::records::Block;
use striate_plan::ReadPlanner;
use striate_runtime::Runtime;

use super::arrival::{ArrivalTimes, HedgeBudget};
use super::cached::{BlockCache, Invalidation};
use super::damage::DamageReports;
use super::hedge_delay::HedgeDelay;
use super::measure::ReadMeasures;
use super::span::MemoryBlock;
use crate::error::StripeError;
use crate::options::StripeOptions;
use crate::sites::Sites;
use crate::table::StripeTable;

/// Reads stripes. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Reads {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) runtime: Runtime,
    pub(super) table: Arc<StripeTable>,
    pub(super) sites: Arc<Sites>,
    pub(super) options: StripeOptions,
    pub(super) hedge_delay: HedgeDelay,
    pub(super) arrivals: ArrivalTimes,
    pub(super) hedge_budget: HedgeBudget,
    pub(super) measures: ReadMeasures,
    pub(super) rng: Arc<Mutex<SmallRng>>,
    /// Planner of the policy.
    pub(super) planner: Mutex<Box<dyn ReadPlanner>>,
    pub(super) damage: DamageReports,
    cache: OnceLock<Arc<dyn BlockCache>>,
}

impl Shared {
    /// Returns the block cache, if one was set.
    pub(super) fn cache(&self) -> Option<&dyn BlockCache> {
        self.cache.get().map(|cache| &**cache)
    }

    /// How long a site may be silent before other sites are asked: the policy's time-out, or the hedge time of recent
    /// reads.
    pub(super) fn hedge_after(&self) -> Duration {
        self.options.read_policy.time_out().unwrap_or_else(|| self.hedge_delay.hedge_after())
    }
}

impl Reads {
    pub(crate) fn new(
        runtime: Runtime,
        table: Arc<StripeTable>,
        sites: Arc<Sites>,
        options: StripeOptions,
        rng: Arc<Mutex<SmallRng>>,
    ) -> Self {
        let shared = Shared {
            hedge_delay: HedgeDelay::new(options.hedge_after, options.read_deadline),
            arrivals: ArrivalTimes::new(),
            hedge_budget: HedgeBudget::default(),
            measures: ReadMeasures::default(),
            rng,
            planner: Mutex::new(options.read_policy.planner()),
            damage: DamageReports::new(runtime.clone(), table.clone()),
            cache: OnceLock::new(),
            runtime,
            table,
            sites,
            options,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Makes reads look for cached blocks. Later calls have no effect.
    pub(crate) fn set_cache(&self, cache: Arc<dyn BlockCache>) {
        let _ = self.shared.cache.set(cache);
    }

    /// Offers a written block to the cache.
    pub(crate) fn written(&self, block: &Block, bytes: &Bytes) {
        if let Some(cache) = self.shared.cache() {
            cache.written(block, bytes);
        }
    }

    /// See [`crate::Stripes::forget_in_memory`].
    pub(crate) fn forget_in_memory(&self, block: MemoryBlock, cause: Invalidation) {
        if let Some(cache) = self.shared.cache() {
            cache.forget(block, cause);
        }
    }

    /// See [`crate::Stripes::keep_in_memory`].
    pub(crate) async fn keep(
        &self,
        bytes: Bytes,
        most_splits: usize,
        parities: usize,
    ) -> Result<MemoryBlock, StripeError> {
        match self.shared.cache() {
            Some(cache) => cache.keep(bytes, most_splits, parities).await,
            None => Err(StripeError::TooFewSites {
                available: 0,
                needed: 1,
                reason: "there are no memory sites; start `striate site --memory-mib` or `striate server --cache-mib`".to_owned(),
            }),
        }
    }

    /// Measurements of the reads so far.
    pub(crate) fn measures(&self) -> &ReadMeasures {
        &self.shared.measures
    }

    /// Forgets that a stripe was reported, so that new damage is reported again.
    pub(crate) fn forget_report(&self, stripe: StripeId) {
        self.shared.damage.forget(stripe);
    }
}

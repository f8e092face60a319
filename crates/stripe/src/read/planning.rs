//! The plan of a query, from the sites' state of the moment.

use striate_plan::{QueryBlock, QueryPlan, ReadPolicy};
use tracing::{debug_span, field};

use super::gathering::Gathering;
use super::reads::Reads;
use crate::sites::Costs;

/// The adaptive policy asks for an extra chunk while so many requests wait for each worker, in the mean over the
/// sites that have chunks of the query.
const MOST_WAITING_FOR_EXTRA_READS: f64 = 0.1;

impl Reads {
    /// δ now: the adaptive policy asks for one chunk more as long as that makes nobody wait.
    pub(super) fn extra_reads(&self, policy: ReadPolicy, gathering: &[Gathering]) -> usize {
        if policy != ReadPolicy::Adaptive {
            return policy.extra_reads();
        }
        let sites = self.shared.sites.snapshot();
        let all = gathering.iter().flat_map(|block| block.for_plan().sites);
        let waiting: Vec<f64> =
            all.filter_map(|site| sites.queue(*site)).map(|queue| queue.waiting).collect();
        let mean = waiting.iter().sum::<f64>() / waiting.len().max(1) as f64;
        if mean <= MOST_WAITING_FOR_EXTRA_READS { policy.extra_reads() } else { 0 }
    }

    /// As [`Reads::plan`], for a read that takes place.
    pub(super) fn plan_measured(
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
        self.shared.hedge_budget.earn(plan.chunk_count());
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
        let costs = self.costs_of(&blocks);
        let mut rng = self.shared.rng.lock();
        match policy {
            ReadPolicy::Published { .. } => {
                let ids: Vec<_> = gathering.iter().map(|block| block.stripe.id).collect();
                let can_be_asked = |site| costs.of(site).is_some();
                let mut planner = self.shared.published.lock();
                let plan = planner.plan(&ids, &blocks, extra_reads, can_be_asked, &mut *rng);
                if planner.is_wanted() {
                    self.solve_in_background();
                }
                plan.ok()
            }
            _ => {
                let cost = |site| costs.of(site);
                self.shared.planner.lock().plan(policy, extra_reads, &blocks, cost, &mut *rng).ok()
            }
        }
    }

    /// What the sites of some blocks cost now.
    pub(super) fn costs_of(&self, blocks: &[QueryBlock<'_>]) -> Costs {
        self.shared.sites.snapshot().costs(blocks.iter().flat_map(|of| of.sites.iter().copied()))
    }
}

//! Plans a query from the current state of the sites.

use std::cell::OnceCell;

use striate_core::SiteId;
use striate_plan::{QueryPiece, QueryPlan, ReadPolicy, ReadPurpose, ReadQuery, SiteQueue, plan_normally};
use tracing::{Instrument, debug_span, field};

use super::located::LocatedQuery;
use super::probes::ProbedQueues;
use super::reads::Reads;
use crate::budget::{ByteBudget, Share};

/// First step of a query.
enum PlanStep {
    Plan(Option<QueryPlan>),
    /// Sites to probe for their queues before the query is planned.
    Probe(Vec<SiteId>),
}

impl Reads {
    /// Whether a site answers reads now.
    pub(super) fn can_be_asked(&self) -> impl Fn(SiteId) -> bool {
        let sites = self.shared.sites.snapshot();
        move |site| sites.is_readable(site)
    }

    /// Plans a query that will run, by the policy of this process, after probing sites if the policy wants it.
    /// Returns the plan and the number of sites probed.
    pub(super) async fn plan_measured(
        &self,
        purpose: ReadPurpose,
        located: &LocatedQuery,
        pieces: &[usize],
    ) -> (Option<QueryPlan>, usize) {
        self.shared.sites.watch();
        let policy = &self.shared.options.read_policy;
        let span = debug_span!("plan", %policy, cost = field::Empty, gap = field::Empty);
        let pieces: Vec<QueryPiece<'_>> = pieces.iter().map(|&piece| located.for_plan(piece)).collect();
        let first = span.in_scope(|| self.plan_or_probe(purpose, &pieces));
        let (plan, probes) = match first {
            PlanStep::Plan(plan) => (plan, 0),
            PlanStep::Probe(sites) => {
                let probed = self.probe(&sites).instrument(span.clone()).await;
                let plan = span.in_scope(|| {
                    self.with_query(&pieces, purpose, Some(&probed), |query| self.plan_here(query))
                });
                (plan, sites.len())
            }
        };
        let Some(plan) = plan else { return (None, probes) };
        if let Some(plan) = plan.cost {
            span.record("cost", plan.cost).record("gap", plan.gap());
            self.shared.measures.planned(plan);
        }
        self.shared.hedge_budget.earn(plan.chunk_count());
        (Some(plan), probes)
    }

    /// Reserves memory for the bytes that a plan requests beyond those reserved for its pieces. If there is none,
    /// replaces the plan by that of the normal read.
    pub(super) fn within_budget(
        &self,
        plan: Option<QueryPlan>,
        purpose: ReadPurpose,
        located: &LocatedQuery,
        piece_numbers: &[usize],
        budget: &ByteBudget,
    ) -> (Option<QueryPlan>, Option<Share>) {
        let Some(plan) = plan else { return (None, None) };
        let policy = &*self.shared.options.read_policy;
        match located
            .bytes_beyond(&plan, piece_numbers, policy, |site| self.shared.sites.snapshot().is_readable(site))
        {
            0 => (Some(plan), None),
            extra_bytes => match budget.try_acquire(extra_bytes) {
                Some(share) => (Some(plan), Some(share)),
                None => {
                    let pieces: Vec<QueryPiece<'_>> =
                        piece_numbers.iter().map(|&piece| located.for_plan(piece)).collect();
                    (self.with_query(&pieces, purpose, None, |query| plan_normally(query).ok()), None)
                }
            },
        }
    }

    /// Returns the plan, or the sites to probe first.
    fn plan_or_probe(&self, purpose: ReadPurpose, pieces: &[QueryPiece<'_>]) -> PlanStep {
        self.with_query(pieces, purpose, None, |query| {
            let policy = &self.shared.options.read_policy;
            if !policy.is_worth_planning(query) {
                return PlanStep::Plan(plan_normally(query).ok());
            }
            let sites = policy.sites_to_probe(query, &mut *self.shared.rng.lock());
            if sites.is_empty() { PlanStep::Plan(self.plan_here(query)) } else { PlanStep::Probe(sites) }
        })
    }

    /// Plans the rest of some pieces of a query by the policy of this process; `None` if there is no plan.
    pub(super) fn plan_rest(&self, located: &LocatedQuery, pieces: &[usize]) -> Option<QueryPlan> {
        let pieces: Vec<QueryPiece<'_>> = pieces.iter().map(|&piece| located.for_plan(piece)).collect();
        self.plan_by(&self.shared.options.read_policy, ReadPurpose::Rest, &pieces)
    }

    /// Plans pieces by a policy, from what is known of the sites without asking them. The planner keeps no state for
    /// a policy other than this process's own.
    pub(super) fn plan_by(
        &self,
        policy: &ReadPolicy,
        purpose: ReadPurpose,
        pieces: &[QueryPiece<'_>],
    ) -> Option<QueryPlan> {
        self.with_query(pieces, purpose, None, |query| {
            if !policy.is_worth_planning(query) {
                return plan_normally(query).ok();
            }
            if *policy != self.shared.options.read_policy {
                return policy.planner().plan(query, &mut *self.shared.rng.lock()).ok();
            }
            self.plan_here(query)
        })
    }

    /// Plans with the planner of this process.
    fn plan_here(&self, query: &ReadQuery<'_>) -> Option<QueryPlan> {
        let mut planner = self.shared.planner.lock();
        let plan = planner.plan(query, &mut *self.shared.rng.lock());
        if planner.has_background_work() {
            self.work_in_background();
        }
        plan.ok()
    }

    /// Builds the query of these pieces from the current state of the sites, with the `probed` queues if given. Costs
    /// are computed on demand, since most small reads do not need them.
    fn with_query<R>(
        &self,
        pieces: &[QueryPiece<'_>],
        purpose: ReadPurpose,
        probed: Option<&ProbedQueues>,
        look: impl FnOnce(&ReadQuery<'_>) -> R,
    ) -> R {
        let sites = self.shared.sites.snapshot();
        let costs = OnceCell::new();
        let all = || pieces.iter().flat_map(QueryPiece::all_sites);
        look(&ReadQuery {
            pieces,
            purpose,
            can_be_asked: &|site| sites.is_readable(site),
            cost: &|site| costs.get_or_init(|| sites.costs(all())).of(site),
            queue: &|site| {
                if let Some(probed) = probed {
                    return probed.of(site);
                }
                let queue = sites.queue(site)?;
                Some(SiteQueue { waiting: queue.waiting, bytes: queue.bytes_ahead })
            },
        })
    }
}

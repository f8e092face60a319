//! The plan of a query, from the sites' state of the moment.

use std::cell::OnceCell;

use striate_core::SiteId;
use striate_plan::{Purpose, QueryPiece, QueryPlan, ReadPolicy, ReadQuery, SiteQueue, plan_normally};
use tracing::{debug_span, field};

use super::located::Located;
use super::reads::Reads;

impl Reads {
    /// Whether a site answers reads now.
    pub(super) fn can_be_asked(&self) -> impl Fn(SiteId) -> bool {
        let sites = self.shared.sites.snapshot();
        move |site| sites.is_readable(site)
    }

    /// As [`Reads::plan`], for a read that takes place.
    pub(super) fn plan_measured(
        &self,
        purpose: Purpose,
        located: &Located,
        pieces: &[usize],
    ) -> Option<QueryPlan> {
        let policy = &self.shared.options.read_policy;
        let span = debug_span!("plan", %policy, cost = field::Empty, gap = field::Empty);
        let plan = span.in_scope(|| self.plan(purpose, located, pieces))?;
        if let Some(plan) = plan.cost {
            span.record("cost", plan.cost).record("gap", plan.gap());
            self.shared.measures.planned(plan);
        }
        self.shared.hedge_budget.earn(plan.chunk_count());
        Some(plan)
    }

    /// The plan for some pieces of a query, by the policy of this process; `None` when there is none.
    pub(super) fn plan(&self, purpose: Purpose, located: &Located, pieces: &[usize]) -> Option<QueryPlan> {
        let pieces: Vec<QueryPiece<'_>> = pieces.iter().map(|&piece| located.for_plan(piece)).collect();
        self.plan_by(&self.shared.options.read_policy, purpose, &pieces)
    }

    /// The plan for pieces by a policy. Of another policy than this process's own nothing is kept.
    pub(super) fn plan_by(
        &self,
        policy: &ReadPolicy,
        purpose: Purpose,
        pieces: &[QueryPiece<'_>],
    ) -> Option<QueryPlan> {
        self.with_query(pieces, purpose, |query| {
            if !policy.is_worth_planning(query) {
                return plan_normally(query).ok();
            }
            if *policy != self.shared.options.read_policy {
                return policy.planner().plan(query, &mut *self.shared.rng.lock()).ok();
            }
            let mut planner = self.shared.planner.lock();
            let plan = planner.plan(query, &mut *self.shared.rng.lock());
            if planner.has_background_work() {
                self.work_in_background();
            }
            plan.ok()
        })
    }

    /// A query of these pieces with the sites' state of this moment. Most small reads ask nobody what sites cost.
    fn with_query<R>(
        &self,
        pieces: &[QueryPiece<'_>],
        purpose: Purpose,
        look: impl FnOnce(&ReadQuery<'_>) -> R,
    ) -> R {
        let sites = self.shared.sites.snapshot();
        let costs = OnceCell::new();
        let all = || pieces.iter().flat_map(|piece| piece.sites.iter().copied());
        look(&ReadQuery {
            pieces,
            purpose,
            can_be_asked: &|site| sites.is_readable(site),
            cost: &|site| costs.get_or_init(|| sites.costs(all())).of(site),
            queue: &|site| {
                let queue = sites.queue(site)?;
                Some(SiteQueue { waiting: queue.waiting, bytes: queue.bytes })
            },
        })
    }
}

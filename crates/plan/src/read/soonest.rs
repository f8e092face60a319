//! The chunks of which the last comes soonest, at little added load: [`crate::solver::makespan`] for the pieces of a query.
//!
//! The ways to read each piece are those of [`super::query_options`]. Times are in units of what asking an idle site takes, so that c
//! is 1, and the queue of a site is the requests that wait there for each worker and the bytes before a new request, at m_j each. What
//! is left of pieces that were asked for before counts as load.
//!
//! The only piece of a query counts in X for how long it stays at each of its sites, waiting included: for so long it is in
//! the way of what comes next. Least latency first is T alone, and of the sets that end together takes any: the local group of
//! an LRC, say, although its sites are as loaded as the chunk's own. In queries of several pieces the waiting changes nothing
//! that a smaller w would not.

use rand::{Rng, RngCore};
use striate_codec::CodecError;
use striate_core::SiteId;

use super::normal::plan_normally;
use super::piece::{PlanCost, QueryPiece, QueryPlan};
use super::policy::ReadQuery;
use super::query_options::QueryOptions;
use crate::cost::{SiteCost, SiteQueue};
use crate::solver::makespan::{self, MakespanProblem, MakespanWorkspace};

/// Asking an idle site.
const REQUEST: f64 = 1.0;
/// Queues are drawn within so much of themselves and of a request: clients that see the same loads shall not all choose the same of
/// sites that are equal.
const DRAWN: f64 = 0.001;

/// Finds the soonest chunks of queries.
#[derive(Debug, Default)]
pub(super) struct SoonestChunks {
    problem: MakespanProblem,
    workspace: MakespanWorkspace,
    options: QueryOptions,
}

/// Whether a piece that wants one chunk may better be read from others: what waiting for its site is worth is more than what any
/// other option adds to the load.
pub(super) fn may_read_around(piece: &QueryPiece<'_>, query: &ReadQuery<'_>, weight: f64) -> bool {
    let site = piece.wanted.iter().next().map_or(SiteId(0), |index| piece.sites[index]);
    let Some(queue) = (query.queue)(site).filter(|_| site.0 != 0) else { return true };
    if queue == SiteQueue::default() {
        return false;
    }
    (query.cost)(site).is_none_or(|cost| {
        let added = if piece.copies.is_empty() { REQUEST + cost.transfer(piece.len) } else { 0.0 };
        (1.0 + weight) * time_of(queue, cost) > weight * added
    })
}

/// How long a request waits that comes now.
fn time_of(queue: SiteQueue, cost: SiteCost) -> f64 {
    queue.waiting * REQUEST + queue.bytes * cost.per_byte
}

impl SoonestChunks {
    /// The plan that minimises T + w X, `weight` being w.
    ///
    /// # Errors
    /// [`CodecError::Insufficient`] when the chunks of a piece that can be had do not determine it.
    pub(super) fn plan(
        &mut self,
        query: &ReadQuery<'_>,
        weight: f64,
        rng: &mut dyn RngCore,
    ) -> Result<QueryPlan, CodecError> {
        self.set_up(query, weight, rng);
        let Self { problem, workspace, options } = self;
        options.push_all(query, 0, &mut problem.pieces)?;
        // A site may have stopped answering since it was looked at.
        let Ok(plan) = makespan::solve(problem, workspace) else { return plan_normally(query) };
        debug_assert_eq!(makespan::check_makespan(problem, &plan), Ok(()));
        let cost = Some(PlanCost { cost: plan.cost, lower_bound: plan.lower_bound });
        Ok(QueryPlan { cost, ..options.plan(query, |piece| plan.picks_of(piece))? })
    }

    /// The sites of the query's chunks and their queues, and no pieces yet.
    fn set_up(&mut self, query: &ReadQuery<'_>, weight: f64, rng: &mut dyn RngCore) {
        self.options.reset(query.pieces, |site| query.cost_if_asked(site));
        let queue = |&(site, cost): &(SiteId, SiteCost)| {
            let time = (query.queue)(site).map_or(cost.asking - REQUEST, |queue| time_of(queue, cost));
            time.max(0.0) + (time.max(0.0) + REQUEST) * rng.random_range(0.0..DRAWN)
        };
        self.problem.reset(weight, REQUEST, self.options.sites.iter().map(queue));
        if query.pieces.len() == 1 {
            self.options.waiting.extend_from_slice(self.problem.queues());
        }
    }
}

#[cfg(test)]
mod tests;

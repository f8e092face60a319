//! The chunks whose last one arrives soonest, at little added load: [`crate::solver::makespan`] for the pieces of a
//! query.
//!
//! The ways to read each piece are those of [`super::query_options`]. The unit of time is one request to an idle site,
//! so c is 1. The queue of a site is the requests waiting per worker, plus the bytes before a new request at m_j each.
//! The remaining requests of pieces with earlier requests count as load.
//!
//! If a query has only one piece, X counts how long it stays at each of its sites, waiting included, because it delays
//! later requests for that long. Least latency first is T alone, and takes any of the sets that end together: for
//! example the local group of an LRC, although its sites are as loaded as the chunk's own. In queries of several
//! pieces, counting the wait has no effect that a smaller w would not have.

use rand::{Rng, RngCore};
use striate_codec::CodecError;
use striate_core::SiteId;

use super::normal::plan_normally;
use super::piece::{PlanCost, QueryPiece, QueryPlan};
use super::policy::ReadQuery;
use super::query_options::QueryOptions;
use crate::cost::{SiteCost, SiteQueue};
use crate::solver::makespan::{self, MakespanProblem, MakespanWorkspace};

/// Time of a request to an idle site.
const REQUEST: f64 = 1.0;
/// Fraction of itself and of a request by which a queue is randomised, so that clients with the same loads do not all
/// choose the same of equal sites.
const DRAWN: f64 = 0.001;

/// Finds the soonest chunks of queries.
#[derive(Debug, Default)]
pub(super) struct SoonestChunks {
    problem: MakespanProblem,
    workspace: MakespanWorkspace,
    options: QueryOptions,
}

/// Returns whether a piece that wants one chunk may be better read from others: the value of not waiting for its site
/// exceeds the load that any other option adds.
pub(super) fn may_read_around(piece: &QueryPiece<'_>, query: &ReadQuery<'_>, weight: f64) -> bool {
    let site = piece.wanted.iter().next().map_or(SiteId(0), |index| piece.sites[index]);
    let Some(queue) = (query.queue)(site).filter(|_| site.0 != 0) else { return true };
    if queue == SiteQueue::default() {
        return false;
    }
    (query.cost)(site).is_none_or(|cost| {
        let added = if piece.copies.is_empty() { REQUEST + cost.transfer(piece.len) } else { 0.0 };
        (1.0 + weight) * waiting_time(queue, cost) > weight * added
    })
}

/// Returns how long a request waits that arrives now.
fn waiting_time(queue: SiteQueue, cost: SiteCost) -> f64 {
    queue.waiting * REQUEST + queue.bytes * cost.per_byte
}

impl SoonestChunks {
    /// Returns the plan that minimises T + w X, where `weight` is w.
    ///
    /// # Errors
    /// [`CodecError::Insufficient`] if the available chunks of a piece do not determine it.
    pub(super) fn plan(
        &mut self,
        query: &ReadQuery<'_>,
        weight: f64,
        rng: &mut dyn RngCore,
    ) -> Result<QueryPlan, CodecError> {
        self.set_up(query, weight, rng);
        let Self { problem, workspace, options } = self;
        options.push_all(query, 0, &mut problem.pieces)?;
        // A site may have become unreachable since it was checked.
        let Ok(plan) = makespan::solve(problem, workspace) else { return plan_normally(query) };
        debug_assert_eq!(makespan::check_makespan(problem, &plan), Ok(()));
        let cost = Some(PlanCost { cost: plan.cost, lower_bound: plan.lower_bound });
        Ok(QueryPlan { cost, ..options.plan(query, |piece| plan.picks_of(piece))? })
    }

    /// Sets up the sites of the query's chunks and their queues, without pieces.
    fn set_up(&mut self, query: &ReadQuery<'_>, weight: f64, rng: &mut dyn RngCore) {
        self.options.reset(query.pieces, |site| query.cost_if_asked(site));
        let queue = |&(site, cost): &(SiteId, SiteCost)| {
            let time = (query.queue)(site).map_or(cost.asking - REQUEST, |queue| waiting_time(queue, cost));
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

//! The cheapest options for the pieces of a query by EC-Store's Eq. 1, solved by [`crate::solver::alternatives`]
//! because pieces can be read in other ways than any k of their chunks. The options are those of
//! [`super::query_options`].

use rand::{Rng, RngCore};
use striate_codec::CodecError;

use super::cost_model::{DRAWN, asking};
use super::normal::plan_normally;
use super::piece::{PlanCost, QueryPlan};
use super::policy::ReadQuery;
use super::query_options::QueryOptions;
use crate::solver::access::BUDGET_OF_200_US;
use crate::solver::alternatives::{self, AlternativesProblem, AlternativesWorkspace};

/// Finds the cheapest options of queries.
#[derive(Debug, Default)]
pub(super) struct CheapestOptions {
    problem: AlternativesProblem,
    workspace: AlternativesWorkspace,
    options: QueryOptions,
}

impl CheapestOptions {
    /// Returns the plan of least cost with k + δ chunks of every whole block.
    ///
    /// # Errors
    /// [`CodecError::Insufficient`] if the available chunks of a piece do not determine it.
    pub(super) fn plan(
        &mut self,
        query: &ReadQuery<'_>,
        extra_reads: usize,
        rng: &mut dyn RngCore,
    ) -> Result<QueryPlan, CodecError> {
        let Self { problem, workspace, options } = self;
        options.reset(query.pieces, |site| query.cost_if_asked(site));
        problem.reset(options.sites.iter().map(|(_, cost)| asking(Some(*cost)) * rng.random_range(DRAWN)));
        options.push_all(query, extra_reads, &mut problem.pieces)?;
        // A site may have become unreachable since it was checked.
        let Ok(plan) = alternatives::solve(problem, BUDGET_OF_200_US, workspace) else {
            return plan_normally(query);
        };
        debug_assert_eq!(alternatives::check_alternatives(problem, &plan), Ok(()));
        let cost = Some(PlanCost { cost: plan.cost, lower_bound: plan.lower_bound });
        Ok(QueryPlan { cost, ..options.plan(query, |piece| plan.picks_of(piece))? })
    }
}

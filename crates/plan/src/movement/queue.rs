//! Successive plans, each in the state that the previous ones leave.

use striate_core::{SiteId, StripeId};

use super::objective::Objective;
use super::search::{Gains, MovementBudget, MovementPlan, Search};
use super::state::{ChunkMove, MovementState};

/// A plan whose moves were applied to the state, and its effect on the sites.
#[derive(Clone, Debug, PartialEq)]
pub struct SettledPlan {
    /// The moves.
    pub plan: MovementPlan,
    /// Change of the dynamic load of each affected site.
    pub shifts: Vec<(SiteId, f64)>,
}

/// Makes plans one after the other: the best of all candidates, then the best in the resulting state, and so on.
///
/// A candidate's gain is evaluated again only when its previous gain is the highest. A move usually lowers the other
/// gains or leaves them unchanged; if it raises one, a later queue finds it.
#[derive(Debug)]
pub struct MovementQueue {
    search: Search,
    /// Candidates, each with the gain per move of its best plan when last evaluated.
    ranked: Vec<(f64, StripeId)>,
    /// Candidate moves that may still be evaluated.
    remaining_moves: u64,
    /// Number of candidate moves evaluated.
    pub evaluated: u64,
}

impl MovementQueue {
    /// Evaluates all `candidates` with up to half of `budget`; the other half is for plans. Ignores the budget's
    /// patience.
    pub fn new(
        state: &MovementState,
        objective: Objective,
        candidates: impl IntoIterator<Item = StripeId>,
        budget: MovementBudget,
    ) -> Self {
        let search = Search::new(objective, budget.moves);
        let mut queue = Self { search, ranked: Vec::new(), remaining_moves: budget.moves, evaluated: 0 };
        for candidate in candidates {
            if queue.remaining_moves < budget.moves / 2 {
                break;
            }
            if let Some(plan) = queue.look_at(state, candidate) {
                queue.ranked.push((plan.gain_of_each(), candidate));
            }
        }
        queue
    }

    /// Returns the next plan and applies its moves to `state`. `None` if no plan is worth it, or the budget is spent.
    pub fn next_plan(&mut self, state: &mut MovementState) -> Option<SettledPlan> {
        loop {
            let best = |queue: &[(f64, StripeId)]| {
                let all = queue.iter().enumerate();
                all.max_by(|a, b| a.1.0.total_cmp(&b.1.0).then(b.1.1.cmp(&a.1.1))).map(|(place, _)| place)
            };
            let (_, candidate) = self.ranked.swap_remove(best(&self.ranked)?);
            let Some(plan) = self.look_at(state, candidate) else { continue };
            let gain = plan.gain_of_each();
            let is_best = best(&self.ranked).is_none_or(|place| gain >= self.ranked[place].0);
            self.ranked.push((gain, candidate));
            if is_best && let Some(shifts) = self.settle(state, &plan) {
                return Some(SettledPlan { plan, shifts });
            }
        }
    }

    /// Applies a plan's moves to the state and returns the changes of the sites' loads. With gains by pairs, each chunk
    /// takes its share of the load along. With gains by requests, the requests are planned again. If a site would then
    /// bear too much, the state stays as it was and the result is `None`.
    fn settle(&mut self, state: &mut MovementState, plan: &MovementPlan) -> Option<Vec<(SiteId, f64)>> {
        let first = plan.moves.first()?;
        let Gains::Requests(gains) = &mut self.search.gains else {
            let shifts = plan.moves.iter().map(|step| (step, state.load_of(step)));
            let shifts = shifts.flat_map(|(step, load)| [(step.from, -load), (step.to, load)]).collect();
            state.apply(&plan.moves);
            return Some(shifts);
        };
        let block = state.place_of(first.stripe)?;
        let mut sent_shares = vec![0.0; state.sites.len()];
        gains.add_sent(state, block, -1.0, &mut sent_shares);
        state.relocate(&plan.moves);
        gains.add_sent(state, block, 1.0, &mut sent_shares);
        let Some(shifts) = state.loads.shifts_of(&sent_shares) else {
            let back = |step: &ChunkMove| ChunkMove { from: step.to, to: step.from, ..*step };
            state.relocate(&plan.moves.iter().map(back).collect::<Vec<_>>());
            let to = state.sites.binary_search_by_key(&first.to, |site| site.site);
            self.search.refused.extend(to.map(|to| (block, to)));
            return None;
        };
        shifts.iter().for_each(|&(site, shift)| state.loads.add(site, shift));
        Some(shifts.into_iter().map(|(site, shift)| (state.sites[site].site, shift)).collect())
    }

    fn look_at(&mut self, state: &MovementState, candidate: StripeId) -> Option<MovementPlan> {
        let block = state.place_of(candidate)?;
        self.search.begin(self.remaining_moves);
        self.search.look_at(state, block);
        let found = std::mem::take(&mut self.search.found);
        self.remaining_moves -= found.evaluated.min(self.remaining_moves);
        self.evaluated += found.evaluated;
        found.best
    }
}

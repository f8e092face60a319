//! Algorithm 1: the best movement plan that is found within a budget (EC-Store §IV-D).

use striate_core::StripeId;

use super::gains::AccessGains;
use super::group::GroupGains;
use super::objective::Objective;
use super::state::{ChunkMove, MovementState};

/// Destinations to which whole groups are tried, of each source.
const GROUP_DESTINATIONS: usize = 4;

/// When a search ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovementBudget {
    /// Candidate moves (b, s, d) that are evaluated at most.
    pub moves: u64,
    /// It ends after so many blocks one after the other that brought nothing better.
    pub patience: usize,
}

/// What to move, and what that is expected to be worth.
#[derive(Clone, Debug, PartialEq)]
pub struct MovementPlan {
    /// One move, or those of a group, from one site to another.
    pub moves: Vec<ChunkMove>,
    /// Δ.
    pub gain: f64,
}

/// What a search found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MovementSearch {
    /// The best plan; `None` if no move is worth it.
    pub best: Option<MovementPlan>,
    /// Candidate moves that were evaluated.
    pub evaluated: u64,
}

impl Default for MovementBudget {
    /// A tenth of a second of one processor at most, and 64 blocks without a better plan.
    fn default() -> Self {
        Self { moves: 20_000, patience: 64 }
    }
}

/// The best movement plan for chunks of the `candidates`, in their order, within the budget. Blocks that the state does
/// not have are left out. The state is the same afterwards.
///
/// Costs, for each candidate with n chunks and p partners over N sites, some 2·n·p queries of two blocks and O(N·p)
/// additions.
pub fn select_movement(
    state: &mut MovementState,
    objective: Objective,
    candidates: impl IntoIterator<Item = StripeId>,
    budget: MovementBudget,
) -> MovementSearch {
    let mut search = Search {
        objective,
        budget: budget.moves,
        gains: AccessGains::default(),
        group: GroupGains::default(),
        sources: Vec::new(),
        destinations: Vec::new(),
        found: MovementSearch::default(),
    };
    let mut fruitless = 0;
    for candidate in candidates {
        if fruitless >= budget.patience || search.is_over() {
            break;
        }
        let Some(block) = state.place_of(candidate) else { continue };
        fruitless = if search.look_at(state, block) { 0 } else { fruitless + 1 };
    }
    search.found
}

/// Plans one after the other: the best of all candidates, then the best in the state that this leaves, and so on.
///
/// What a candidate is worth is looked at again only when it is the next best by what it was worth before. A move mostly
/// lowers what others are worth, or leaves it; where it raises it, a later queue finds that.
#[derive(Clone, Debug)]
pub struct MovementQueue {
    objective: Objective,
    /// Candidates with the gain of the best plan for each when it was last looked at.
    ranked: Vec<(f64, StripeId)>,
    /// Candidate moves that may still be evaluated.
    left: u64,
    /// Candidate moves that were evaluated.
    pub evaluated: u64,
}

impl MovementQueue {
    /// Looks at all `candidates` within `budget`; of its patience no use is made.
    pub fn new(
        state: &mut MovementState,
        objective: Objective,
        candidates: impl IntoIterator<Item = StripeId>,
        budget: MovementBudget,
    ) -> Self {
        let mut queue = Self { objective, ranked: Vec::new(), left: budget.moves, evaluated: 0 };
        for candidate in candidates {
            if let Some(plan) = queue.look_at(state, candidate) {
                queue.ranked.push((plan.gain, candidate));
            }
        }
        queue
    }

    /// The next plan, for the state that the moves of the last one leave. `None` when none is worth it, or the budget ends.
    pub fn next_plan(&mut self, state: &mut MovementState) -> Option<MovementPlan> {
        loop {
            let best = |queue: &[(f64, StripeId)]| {
                let all = queue.iter().enumerate();
                all.max_by(|a, b| a.1.0.total_cmp(&b.1.0).then(b.1.1.cmp(&a.1.1))).map(|(place, _)| place)
            };
            let (_, candidate) = self.ranked.swap_remove(best(&self.ranked)?);
            let Some(plan) = self.look_at(state, candidate) else { continue };
            let is_best = best(&self.ranked).is_none_or(|place| plan.gain >= self.ranked[place].0);
            self.ranked.push((plan.gain, candidate));
            if is_best {
                return Some(plan);
            }
        }
    }

    fn look_at(&mut self, state: &mut MovementState, candidate: StripeId) -> Option<MovementPlan> {
        let budget = MovementBudget { moves: self.left, patience: 1 };
        let found = select_movement(state, self.objective, [candidate], budget);
        self.left -= found.evaluated.min(self.left);
        self.evaluated += found.evaluated;
        found.best
    }
}

struct Search {
    objective: Objective,
    budget: u64,
    gains: AccessGains,
    group: GroupGains,
    /// (chunk index, its site), those on the most loaded sites first.
    sources: Vec<(usize, usize)>,
    /// Sites, the most promising first.
    destinations: Vec<(f64, usize)>,
    found: MovementSearch,
}

impl Search {
    fn is_over(&self) -> bool {
        self.found.evaluated >= self.budget
    }

    /// All moves of one block's chunks; `true` if one is better than what was found before.
    fn look_at(&mut self, state: &mut MovementState, block: usize) -> bool {
        if !self.gains.begin_block(state, block, self.objective) {
            return false;
        }
        self.order_sources(state, block);
        self.order_destinations(state, block);
        let mut is_better = false;
        for source in 0..self.sources.len() {
            let (index, from) = self.sources[source];
            is_better |= self.look_at_chunk(state, block, index, from);
            if self.is_over() {
                break;
            }
        }
        is_better
    }

    fn look_at_chunk(&mut self, state: &mut MovementState, block: usize, index: usize, from: usize) -> bool {
        self.gains.begin_source(state, index);
        let shift = state.loads.shift_of(&state.blocks[block], from);
        let mut is_better = false;
        for place in 0..self.destinations.len() {
            if self.is_over() {
                return is_better;
            }
            let to = self.destinations[place].1;
            if !state.may_take(block, from, to) {
                continue;
            }
            let Some(of_balance) = self.objective.of_balance(state, from, to, shift) else { continue };
            self.found.evaluated += 1;
            let saved = self.gains.at(state, to);
            let gain = of_balance + self.objective.of_access(saved, state.blocks[block].popularity);
            if self.is_best(gain, 1) {
                let moves = vec![state.move_of(block, index, from, to)];
                self.found.best = Some(MovementPlan { moves, gain });
                is_better = true;
            }
        }
        is_better | self.look_at_group(state, block, from)
    }

    /// The same with the block's companions.
    fn look_at_group(&mut self, state: &mut MovementState, block: usize, from: usize) -> bool {
        let most = self.objective.group_len();
        if most < 2 || !self.group.begin(state, block, from, most) {
            return false;
        }
        let mut is_better = false;
        for place in 0..self.destinations.len().min(GROUP_DESTINATIONS) {
            if self.is_over() {
                break;
            }
            self.found.evaluated += self.group.len() as u64;
            let to = self.destinations[place].1;
            let Some(plan) = self.group.at(state, self.objective, from, to) else { continue };
            if self.is_best(plan.gain, plan.moves.len()) {
                self.found.best = Some(MovementPlan { moves: plan.moves, gain: plan.gain });
                is_better = true;
            }
        }
        is_better
    }

    fn is_best(&self, gain: f64, moves: usize) -> bool {
        let best = self.found.best.as_ref().map_or(0.0, |best| best.gain);
        gain > best && gain > self.objective.least_gain(moves)
    }

    fn order_sources(&mut self, state: &MovementState, block: usize) {
        self.sources.clear();
        let chunks = state.blocks[block].at.iter().enumerate();
        self.sources.extend(chunks.filter_map(|(index, at)| Some((index, (*at)?))));
        let load = |site: usize| state.loads.omega(site);
        self.sources.sort_unstable_by(|a, b| load(b.1).total_cmp(&load(a.1)).then(a.0.cmp(&b.0)));
    }

    /// Sites that hold partners' chunks attract, by how likely these are asked for; loaded sites repel.
    fn order_destinations(&mut self, state: &MovementState, block: usize) {
        let mean = state.loads.mean().max(f64::MIN_POSITIVE);
        let of = &state.blocks[block];
        self.destinations.clear();
        let spare = |site: usize| 1.0 - state.loads.omega(site) / mean;
        self.destinations.extend((0..state.sites.len()).map(|site| (spare(site), site)));
        for &(partner, likelihood) in &of.partners {
            for site in state.blocks[partner].at.iter().flatten() {
                self.destinations[*site].0 += likelihood;
            }
        }
        self.destinations.retain(|&(_, site)| state.sites[site].takes_chunks && !of.is_at(site));
        self.destinations.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    }
}

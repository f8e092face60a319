//! Algorithm 1: finds the best movement plan within a budget (EC-Store §IV-D).

use std::collections::HashSet;

use striate_core::StripeId;

use super::gains::AccessGains;
use super::loads::LoadShift;
use super::objective::{AccessGain, Objective};
use super::requests::RequestGains;
use super::state::{ChunkMove, MovementState};

/// Number of destinations tried for whole groups, per source.
const GROUP_DESTINATIONS: usize = 16;

/// When a search ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovementBudget {
    /// Maximum number of candidate moves (b, s, d) evaluated.
    pub moves: u64,
    /// Number of successive blocks without a better plan after which the search ends.
    pub patience: usize,
}

/// Chunks to move, and the expected gain.
#[derive(Clone, Debug, PartialEq)]
pub struct MovementPlan {
    /// One move, or the moves of a group from one site to another.
    pub moves: Vec<ChunkMove>,
    /// Δ.
    pub gain: f64,
}

impl MovementPlan {
    /// Returns the gain per move: plans are compared by it, because the number of moves is limited.
    pub fn gain_of_each(&self) -> f64 {
        self.gain / self.moves.len().max(1) as f64
    }
}

/// The result of a search.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MovementSearch {
    /// The best plan; `None` if no move is worth it.
    pub best: Option<MovementPlan>,
    /// Number of candidate moves evaluated.
    pub evaluated: u64,
}

impl Default for MovementBudget {
    /// At most a fifth of a second of one processor, and 64 blocks without a better plan. In addition, a queue plans
    /// some sixteen requests again for each of its plans.
    fn default() -> Self {
        Self { moves: 200_000, patience: 64 }
    }
}

/// Returns the best movement plan for chunks of the `candidates`, tried in order, within the budget. Blocks that are
/// not in the state are skipped.
///
/// Cost, for each candidate with n chunks and p partners over N sites: some 2·n·p queries of two blocks and O(N·p)
/// additions. With q requests instead of partners: a plan for each request not planned before, and O(N·n·q).
pub fn select_movement(
    state: &MovementState,
    objective: Objective,
    candidates: impl IntoIterator<Item = StripeId>,
    budget: MovementBudget,
) -> MovementSearch {
    let mut search = Search::new(objective, budget.moves);
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

/// The state of Algorithm 1.
#[derive(Debug)]
pub(super) struct Search {
    objective: Objective,
    budget: u64,
    pub gains: Gains,
    /// (chunk index, site), the most loaded sites first.
    sources: Vec<(usize, usize)>,
    /// Sites, the most promising first.
    destinations: Vec<(f64, usize)>,
    /// (block, destination) of plans that would overload a site.
    pub refused: HashSet<(usize, usize)>,
    pub found: MovementSearch,
}

/// Savings of moves, by pairs of blocks or by whole requests.
#[derive(Debug)]
pub(super) enum Gains {
    Pairs(AccessGains),
    Requests(Box<RequestGains>),
}

impl Gains {
    fn begin_block(&mut self, state: &MovementState, block: usize) -> bool {
        match self {
            Self::Pairs(gains) => gains.begin_block(state, block),
            Self::Requests(gains) => gains.begin_block(state, block),
        }
    }

    fn begin_source(&mut self, state: &MovementState, index: usize) {
        match self {
            Self::Pairs(gains) => gains.begin_source(state, index),
            Self::Requests(gains) => gains.begin_source(state, index),
        }
    }

    fn at(&mut self, state: &MovementState, destination: usize) -> AccessGain {
        match self {
            Self::Pairs(gains) => gains.at(state, destination),
            Self::Requests(gains) => gains.at(state, destination),
        }
    }
}

impl Search {
    pub fn new(objective: Objective, budget: u64) -> Self {
        let gains = match objective.counts_requests() {
            false => Gains::Pairs(AccessGains::default()),
            true => Gains::Requests(Box::default()),
        };
        let found = MovementSearch::default();
        Self {
            objective,
            budget,
            gains,
            sources: Vec::new(),
            destinations: Vec::new(),
            refused: HashSet::new(),
            found,
        }
    }

    /// Discards the result and continues with this budget.
    pub fn begin(&mut self, budget: u64) {
        (self.budget, self.found) = (budget, MovementSearch::default());
    }

    fn is_over(&self) -> bool {
        self.found.evaluated >= self.budget
    }

    /// Evaluates all moves of one block's chunks. Returns `true` if one is better than the best so far.
    pub fn look_at(&mut self, state: &MovementState, block: usize) -> bool {
        if !self.gains.begin_block(state, block) {
            return false;
        }
        self.order_sources(state, block);
        self.order_destinations(state, block);
        let mut is_better = false;
        for source in 0..self.sources.len() {
            if self.is_over() {
                break;
            }
            let (index, from) = self.sources[source];
            is_better |= self.look_at_chunk(state, block, index, from);
            is_better |= self.look_at_groups(state, from);
        }
        is_better
    }

    fn look_at_chunk(&mut self, state: &MovementState, block: usize, index: usize, from: usize) -> bool {
        self.gains.begin_source(state, index);
        let shift = state.loads.shift_of(&state.blocks[block], from);
        let mut is_better = false;
        for place in 0..self.destinations.len() {
            if self.is_over() {
                break;
            }
            let to = self.destinations[place].1;
            if !state.may_take(block, from, to) || self.refused.contains(&(block, to)) {
                continue;
            }
            let arrives = match &self.gains {
                Gains::Pairs(_) => shift,
                Gains::Requests(gains) => {
                    let read = state.loads.of_reads(&state.blocks[block], gains.reads_at(state, to));
                    LoadShift { dynamic: shift.dynamic.max(read), ..shift }
                }
            };
            let Some(balance_gain) = self.objective.of_balance(state, from, to, arrives) else { continue };
            self.found.evaluated += 1;
            let saved = self.gains.at(state, to);
            let gain = balance_gain + self.objective.of_access(saved, state.blocks[block].popularity);
            if self.is_best(gain, 1) {
                let moves = vec![state.move_of(block, index, from, to)];
                self.found.best = Some(MovementPlan { moves, gain });
                is_better = true;
            }
        }
        is_better
    }

    /// Evaluates moves of the current block together with 1, 3, 7, … of its companions.
    fn look_at_groups(&mut self, state: &MovementState, from: usize) -> bool {
        let Gains::Requests(gains) = &mut self.gains else { return false };
        let companions = gains.companions(state, from, self.objective.group_len()).to_vec();
        let mut is_better = false;
        let mut len = 2;
        while len / 2 < companions.len() && companions.len() > 1 {
            let members = &companions[..len.min(companions.len())];
            for place in 0..self.destinations.len().min(GROUP_DESTINATIONS) {
                if self.is_over() {
                    return is_better;
                }
                is_better |= self.look_at_group(state, members, from, self.destinations[place].1);
            }
            len *= 2;
        }
        is_better
    }

    /// Evaluates the move of all `members`, the first of which is the current block. Rejected if one of them may not go
    /// there.
    fn look_at_group(
        &mut self,
        state: &MovementState,
        members: &[(usize, usize)],
        from: usize,
        to: usize,
    ) -> bool {
        let Gains::Requests(gains) = &self.gains else { return false };
        if self.refused.contains(&(members[0].0, to)) {
            return false;
        }
        let mut shift = LoadShift::default();
        let mut bytes = 0;
        for &(member, _) in members {
            if !state.may_take(member, from, to) {
                return false;
            }
            let member_shift = state.loads.shift_of(&state.blocks[member], from);
            shift.dynamic += member_shift.dynamic;
            shift.stored += member_shift.stored;
            bytes += u64::from(state.blocks[member].chunk_len);
        }
        if bytes > state.sites[to].free_bytes {
            return false;
        }
        let shift = state.loads.at_most(shift, from);
        let Some(balance_gain) = self.objective.of_balance(state, from, to, shift) else { return false };
        self.found.evaluated += 1;
        let saved = gains.of_group(state, members, from, to);
        let gain = balance_gain + self.objective.of_access(saved, state.blocks[members[0].0].popularity);
        let is_better = self.is_best(gain, members.len());
        if is_better {
            let move_of = |&(member, index): &(usize, usize)| state.move_of(member, index, from, to);
            self.found.best = Some(MovementPlan { moves: members.iter().map(move_of).collect(), gain });
        }
        is_better
    }

    fn is_best(&self, gain: f64, moves: usize) -> bool {
        let best = self.found.best.as_ref().map_or(0.0, MovementPlan::gain_of_each);
        let of_each = gain / moves as f64;
        of_each > best && of_each > self.objective.least_gain()
    }

    fn order_sources(&mut self, state: &MovementState, block: usize) {
        self.sources.clear();
        let chunks = state.blocks[block].at.iter().enumerate();
        self.sources.extend(chunks.filter_map(|(index, at)| Some((index, (*at)?))));
        let load = |site: usize| state.loads.omega(site);
        self.sources.sort_unstable_by(|a, b| load(b.1).total_cmp(&load(a.1)).then(a.0.cmp(&b.0)));
    }

    /// Ranks destinations: sites that hold partners' chunks attract in proportion to their likelihood; loaded sites
    /// repel.
    fn order_destinations(&mut self, state: &MovementState, block: usize) {
        let mean = state.loads.mean().max(f64::MIN_POSITIVE);
        let placed = &state.blocks[block];
        self.destinations.clear();
        let spare = |site: usize| 1.0 - state.loads.omega(site) / mean;
        self.destinations.extend((0..state.sites.len()).map(|site| (spare(site), site)));
        match &self.gains {
            Gains::Requests(gains) => gains.attract(&mut self.destinations),
            Gains::Pairs(_) => {
                for &(partner, likelihood) in &placed.partners {
                    for site in state.blocks[partner].at.iter().flatten() {
                        self.destinations[*site].0 += likelihood;
                    }
                }
            }
        }
        self.destinations.retain(|&(_, site)| state.sites[site].takes_chunks && !placed.is_at(site));
        self.destinations.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    }
}

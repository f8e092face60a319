//! What moves save of whole requests: the improved objective's E.
//!
//! A query of two blocks ignores that a third block may ask the same site anyway. Sums over pairs therefore promise
//! more than requests of ten blocks achieve, and concentrate the chunks on few sites. Here moves are judged by sampled
//! requests. The cheapest plan of each (Eq. 1–4, exact) says which sites its other blocks ask; there, a chunk of b
//! costs only its transfer. When b's chunk leaves s for d, b is read from its cheapest chunks at these prices. As in
//! [`gains`], that costs F if the chunk is not read at its new site, and otherwise G plus the chunk's price there. So
//! each request needs one plan, each request and source two sums, and each destination O(1).
//!
//! A *group* is b and the other blocks that a request reads at s. Moving b alone gains nothing while another of them
//! asks s; moving all of them closes s. The saving of a group assumes that every block is read as before, with the
//! group's chunks at d.
//!
//! In both cases the saving is that of one possible plan after the move, so the best plan saves at least as much.
//!
//! [`gains`]: super::gains

use crate::solver::access::{
    AccessChunk, AccessOption, AccessProblem, AccessWorkspace, BUDGET_OF_200_US, solve,
};

use super::objective::AccessGain;
use super::state::{Choice, MovementState};

/// The gains of one block's moves. Call [`Self::begin_block`], then [`Self::begin_source`], then [`Self::at`] for any
/// destination.
#[derive(Debug, Default)]
pub(super) struct RequestGains {
    plans: RequestPlans,
    block: usize,
    index: usize,
    need: usize,
    sites: usize,
    queries: Vec<Query>,
    /// Whether the query's other blocks ask the site, per query and site.
    is_open: Vec<bool>,
    /// The block's chunks without the leaving one.
    remaining_choices: Vec<Choice>,
    /// Scratch space to sort the prices of chunks.
    prices: Vec<f64>,
    /// Σ cost before the move.
    before: f64,
    members: Vec<(usize, usize)>,
}

/// A request for the block.
#[derive(Clone, Copy, Debug)]
struct Query {
    request: usize,
    /// What the block adds to the cost of the request.
    before: f64,
    /// F: cost without the chunk.
    without: f64,
    /// G: cost without the chunk, with one chunk less needed.
    with_one_less: f64,
}

impl RequestGains {
    /// Computes the costs before any move. Returns `false` if the block cannot be read or no request for it is known.
    pub(super) fn begin_block(&mut self, state: &MovementState, block: usize) -> bool {
        let placed = &state.blocks[block];
        (self.block, self.need, self.sites, self.before) = (block, placed.need, state.sites.len(), 0.0);
        self.queries.clear();
        self.is_open.clear();
        if !placed.is_readable() {
            return false;
        }
        for &request in &placed.requests {
            let plan = self.plans.of(state, request);
            self.before += plan.cost;
            let first = self.is_open.len();
            self.is_open.resize(first + self.sites, false);
            for &(site, _) in plan.uses.iter().filter(|(_, user)| *user != block) {
                self.is_open[first + site] = true;
            }
            let own_cost = cheapest(&mut self.prices, &placed.choices, &self.is_open[first..], placed.need);
            self.queries.push(Query { request, before: own_cost, without: 0.0, with_one_less: 0.0 });
        }
        self.before > 0.0
    }

    /// Computes the costs without the chunk `index`.
    pub(super) fn begin_source(&mut self, state: &MovementState, index: usize) {
        self.index = index;
        self.remaining_choices.clear();
        self.remaining_choices.extend(state.blocks[self.block].choices_without(index));
        for (place, query) in self.queries.iter_mut().enumerate() {
            let is_open = &self.is_open[place * self.sites..];
            query.without = cheapest(&mut self.prices, &self.remaining_choices, is_open, self.need);
            query.with_one_less = cheapest(&mut self.prices, &self.remaining_choices, is_open, self.need - 1);
        }
    }

    /// Returns what requests save with the chunk at this destination.
    pub(super) fn at(&self, state: &MovementState, destination: usize) -> AccessGain {
        let Some(new) = state.choice(self.block, self.index, destination) else {
            return AccessGain::default();
        };
        let saved = |(place, query): (usize, &Query)| {
            query.before - query.without.min(query.with_one_less + self.price(place, new))
        };
        AccessGain { saved: self.queries.iter().enumerate().map(saved).sum(), before: self.before }
    }

    /// Returns the share of the requests that would read the chunk at this destination. It is higher than elsewhere if
    /// other blocks ask the site anyway.
    pub(super) fn reads_at(&self, state: &MovementState, destination: usize) -> f64 {
        let Some(new) = state.choice(self.block, self.index, destination) else { return 0.0 };
        let is_read =
            |(place, query): &(usize, &Query)| query.with_one_less + self.price(*place, new) < query.without;
        self.queries.iter().enumerate().filter(is_read).count() as f64 / self.queries.len().max(1) as f64
    }

    /// Returns the price of a chunk in the query at `place`, with its other blocks read as they are.
    fn price(&self, place: usize, choice: Choice) -> f64 {
        choice.transfer + if self.is_open[place * self.sites + choice.site] { 0.0 } else { choice.asking }
    }

    /// Adds to `sent_shares`, for each site, `times` the part of all bytes read that the site sends for requests for
    /// `block`.
    /// It follows the requests' cheapest plans and counts the chunks of all their blocks.
    pub(super) fn add_sent(
        &mut self,
        state: &MovementState,
        block: usize,
        times: f64,
        sent_shares: &mut [f64],
    ) {
        let placed = &state.blocks[block];
        let share = times * placed.popularity / placed.requests.len().max(1) as f64;
        for &request in &placed.requests {
            for &(site, user) in &self.plans.of(state, request).uses {
                sent_shares[site] += share * state.loads.part_of_bytes(state.blocks[user].chunk_len);
            }
        }
    }

    /// Adds to each site's score the share of the requests whose other blocks ask the site.
    pub(super) fn attract(&self, scores: &mut [(f64, usize)]) {
        let share = 1.0 / self.queries.len().max(1) as f64;
        for is_open in self.is_open.chunks(self.sites.max(1)) {
            let open = scores.iter_mut().filter(|(_, site)| is_open[*site]);
            open.for_each(|(score, _)| *score += share);
        }
    }

    /// Returns the block and its companions at `source`, each with the index of its chunk. The block comes first, then
    /// the companions that most of its requests read there.
    pub(super) fn companions(
        &mut self,
        state: &MovementState,
        source: usize,
        most: usize,
    ) -> &[(usize, usize)] {
        let mut together: Vec<(usize, usize)> = Vec::new();
        for query in &self.queries {
            for user in self.plans.users(query.request, source) {
                match together.iter_mut().find(|(other, _)| *other == user) {
                    Some((_, times)) => *times += 1,
                    None => together.push((user, 1)),
                }
            }
        }
        together.retain(|(other, _)| *other != self.block);
        together.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        let all = std::iter::once(self.block).chain(together.into_iter().map(|(other, _)| other));
        let index = |member: usize| state.blocks[member].at.iter().position(|&at| at == Some(source));
        self.members.clear();
        self.members.extend(all.filter_map(|member| Some((member, index(member)?))).take(most));
        &self.members
    }

    /// Returns what requests save when the chunks of all `members` move from `source` to `destination`.
    pub(super) fn of_group(
        &self,
        state: &MovementState,
        members: &[(usize, usize)],
        source: usize,
        destination: usize,
    ) -> AccessGain {
        let transfer = |&(member, index): &(usize, usize), site: usize| {
            state.choice(member, index, site).map_or(0.0, |choice| choice.transfer)
        };
        let mut saved = 0.0;
        for query in &self.queries {
            let (mut goes, mut stays) = (false, false);
            for user in self.plans.users(query.request, source) {
                match members.iter().find(|(member, _)| *member == user) {
                    Some(member) => {
                        goes = true;
                        saved += transfer(member, source) - transfer(member, destination);
                    }
                    None => stays = true,
                }
            }
            let is_asked = self.plans.users(query.request, destination).next().is_some();
            saved += if goes && !stays { state.asking[source] } else { 0.0 };
            saved -= if goes && !is_asked { state.asking[destination] } else { 0.0 };
        }
        AccessGain { saved, before: self.before }
    }
}

/// Returns the sum of the `need` cheapest of `choices`, where open sites cost only the transfer; infinite if there are
/// fewer.
fn cheapest(prices: &mut Vec<f64>, choices: &[Choice], is_open: &[bool], need: usize) -> f64 {
    if choices.len() < need {
        return f64::INFINITY;
    }
    prices.clear();
    let price = |choice: &Choice| choice.transfer + if is_open[choice.site] { 0.0 } else { choice.asking };
    prices.extend(choices.iter().map(price));
    prices.sort_unstable_by(f64::total_cmp);
    prices[..need].iter().sum()
}

/// The cheapest plans of requests, each computed once until one of its blocks moves.
#[derive(Debug, Default)]
struct RequestPlans {
    plans: Vec<Option<RequestPlan>>,
    problem: AccessProblem,
    workspace: AccessWorkspace,
}

#[derive(Clone, Debug, Default)]
struct RequestPlan {
    cost: f64,
    /// (site, block) of every chunk read, ascending.
    uses: Vec<(usize, usize)>,
    /// [`MovementState::request_changed`] when the plan was made.
    changed: u64,
}

impl RequestPlans {
    fn of(&mut self, state: &MovementState, request: usize) -> &RequestPlan {
        if self.plans.len() < state.requests.len() {
            self.plans.resize(state.requests.len(), None);
        }
        let changed = state.request_changed(request);
        let is_valid = self.plans[request].as_ref().is_some_and(|plan| plan.changed == changed);
        if !is_valid {
            let plan = self.make(state, request);
            self.plans[request] = Some(RequestPlan { changed, ..plan });
        }
        self.plans[request].as_ref().expect("just made")
    }

    /// Plans a request without its unreadable blocks.
    fn make(&mut self, state: &MovementState, request: usize) -> RequestPlan {
        let Self { problem, workspace, .. } = self;
        problem.reset(state.asking.iter().copied());
        let readable = || state.requests[request].iter().filter(|&&block| state.blocks[block].is_readable());
        for &block in readable() {
            let placed = &state.blocks[block];
            let option = |choice: &Choice| AccessOption { site: choice.site, transfer: choice.transfer };
            problem.push_block(placed.need, placed.choices.iter().map(option));
        }
        let Ok(plan) = solve(problem, BUDGET_OF_200_US, workspace) else { return RequestPlan::default() };
        let blocks: Vec<usize> = readable().copied().collect();
        let site = |chunk: &AccessChunk| problem.block(chunk.block).options[chunk.option].site;
        let mut uses: Vec<(usize, usize)> =
            plan.chunks.iter().map(|chunk| (site(chunk), blocks[chunk.block])).collect();
        uses.sort_unstable();
        RequestPlan { cost: plan.cost, uses, changed: 0 }
    }

    /// Returns the blocks that a request reads at `site`. Its plan must have been made.
    fn users(&self, request: usize, site: usize) -> impl Iterator<Item = usize> + '_ {
        let uses = self.plans[request].as_ref().map_or(&[][..], |plan| &plan.uses);
        let first = uses.partition_point(|(other, _)| *other < site);
        uses[first..].iter().take_while(move |(other, _)| *other == site).map(|(_, user)| *user)
    }
}

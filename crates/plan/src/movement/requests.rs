//! What moves save of whole requests: the improved objective's E.
//!
//! A query of two blocks does not know that a third one has a site asked anyway, so sums over pairs promise more than
//! requests of ten blocks keep, and bring everything to few sites. Here moves are judged by requests as they were sampled.
//! The cheapest plan of each (Eq. 1–4, exactly) says which sites its other blocks have asked; on those a chunk of b costs its
//! transfer alone. When b's chunk leaves s for d, b is read by the cheapest of its chunks at these prices: as in [`gains`] with
//! F, where the chunk is not read in its new place, or with G and what it costs there. So one plan for each request, two sums
//! for each request and source, and then O(1) for each destination.
//!
//! A *group* are the blocks that a request reads at s beside b. Moving b alone gains nothing as long as another of them has s
//! asked; moving all of them closes s. What a group saves is counted with every block read as before, those of the group at d.
//!
//! Either way what is counted is what one plan after the move saves, so that the best plan saves as much or more.
//!
//! [`gains`]: super::gains

use crate::solver::access::{
    AccessChunk, AccessOption, AccessProblem, AccessWorkspace, BUDGET_OF_200_US, solve,
};

use super::objective::AccessGain;
use super::state::{Choice, MovementState};

/// The gains of one block's moves. [`Self::begin_block`], then [`Self::begin_source`], then any destination.
#[derive(Debug, Default)]
pub(super) struct RequestGains {
    plans: RequestPlans,
    block: usize,
    index: usize,
    need: usize,
    sites: usize,
    queries: Vec<Query>,
    /// For each query and site: whether its other blocks have it asked.
    is_open: Vec<bool>,
    /// The block's chunks without the one that leaves.
    rest: Vec<Choice>,
    /// What chunks cost; to sort them.
    prices: Vec<f64>,
    /// Σ cost before.
    before: f64,
    members: Vec<(usize, usize)>,
}

/// A request for the block.
#[derive(Clone, Copy, Debug)]
struct Query {
    request: usize,
    /// What the block adds to its cost.
    before: f64,
    /// F: with the chunk gone.
    without: f64,
    /// G: with the chunk gone, and one less needed.
    with_one_less: f64,
}

impl RequestGains {
    /// The costs before any move. `false`: the block cannot be read, or nothing is known of requests for it.
    pub(super) fn begin_block(&mut self, state: &MovementState, block: usize) -> bool {
        let of = &state.blocks[block];
        (self.block, self.need, self.sites, self.before) = (block, of.need, state.sites.len(), 0.0);
        self.queries.clear();
        self.is_open.clear();
        if !of.is_readable() {
            return false;
        }
        for &request in &of.requests {
            let plan = self.plans.of(state, request);
            self.before += plan.cost;
            let first = self.is_open.len();
            self.is_open.resize(first + self.sites, false);
            for &(site, _) in plan.uses.iter().filter(|(_, user)| *user != block) {
                self.is_open[first + site] = true;
            }
            let own = cheapest(&mut self.prices, &of.choices, &self.is_open[first..], of.need);
            self.queries.push(Query { request, before: own, without: 0.0, with_one_less: 0.0 });
        }
        self.before > 0.0
    }

    /// The chunk with `index` leaves.
    pub(super) fn begin_source(&mut self, state: &MovementState, index: usize) {
        self.index = index;
        self.rest.clear();
        self.rest.extend(state.blocks[self.block].choices_without(index));
        for (place, query) in self.queries.iter_mut().enumerate() {
            let is_open = &self.is_open[place * self.sites..];
            query.without = cheapest(&mut self.prices, &self.rest, is_open, self.need);
            query.with_one_less = cheapest(&mut self.prices, &self.rest, is_open, self.need - 1);
        }
    }

    /// What requests save by this destination.
    pub(super) fn at(&self, state: &MovementState, destination: usize) -> AccessGain {
        let Some(new) = state.choice(self.block, self.index, destination) else {
            return AccessGain::default();
        };
        let saved = |(place, query): (usize, &Query)| {
            query.before - query.without.min(query.with_one_less + self.price(place, new))
        };
        AccessGain { saved: self.queries.iter().enumerate().map(saved).sum(), before: self.before }
    }

    /// The share of the requests that would read the chunk at this destination: more than of a chunk anywhere, where others
    /// have the site asked.
    pub(super) fn reads_at(&self, state: &MovementState, destination: usize) -> f64 {
        let Some(new) = state.choice(self.block, self.index, destination) else { return 0.0 };
        let is_read =
            |(place, query): &(usize, &Query)| query.with_one_less + self.price(*place, new) < query.without;
        self.queries.iter().enumerate().filter(is_read).count() as f64 / self.queries.len().max(1) as f64
    }

    /// What a chunk costs the query at `place`, its other blocks being read as they are.
    fn price(&self, place: usize, of: Choice) -> f64 {
        of.transfer + if self.is_open[place * self.sites + of.site] { 0.0 } else { of.asking }
    }

    /// Adds to `sent`, for each site, `times` the part that it sends for the requests for `block` of all bytes that requests
    /// read: by the cheapest plans, whichever block they are of.
    pub(super) fn add_sent(&mut self, state: &MovementState, block: usize, times: f64, sent: &mut [f64]) {
        let of = &state.blocks[block];
        let part = times * of.popularity / of.requests.len().max(1) as f64;
        for &request in &of.requests {
            for &(site, user) in &self.plans.of(state, request).uses {
                sent[site] += part * state.loads.part_of_bytes(state.blocks[user].chunk_len);
            }
        }
    }

    /// Adds to each site's score in which part of the requests other blocks have it asked.
    pub(super) fn attract(&self, scores: &mut [(f64, usize)]) {
        let share = 1.0 / self.queries.len().max(1) as f64;
        for is_open in self.is_open.chunks(self.sites.max(1)) {
            let open = scores.iter_mut().filter(|(_, site)| is_open[*site]);
            open.for_each(|(score, _)| *score += share);
        }
    }

    /// The block's companions at `source`, those first that most of its requests read there; itself before them. Each with the
    /// index of its chunk.
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

    /// What requests save when the chunks of all `members` go from `source` to `destination`.
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

/// The sum of the `need` cheapest of `choices`, where open sites cost only the transfer; infinite if there are fewer.
fn cheapest(prices: &mut Vec<f64>, choices: &[Choice], is_open: &[bool], need: usize) -> f64 {
    if choices.len() < need {
        return f64::INFINITY;
    }
    prices.clear();
    let price = |of: &Choice| of.transfer + if is_open[of.site] { 0.0 } else { of.asking };
    prices.extend(choices.iter().map(price));
    prices.sort_unstable_by(f64::total_cmp);
    prices[..need].iter().sum()
}

/// The cheapest plans of requests, each found once for as long as none of its blocks is moved.
#[derive(Debug, Default)]
struct RequestPlans {
    plans: Vec<Option<RequestPlan>>,
    problem: AccessProblem,
    workspace: AccessWorkspace,
}

#[derive(Clone, Debug, Default)]
struct RequestPlan {
    cost: f64,
    /// (site, block) for every chunk that is read, ascending.
    uses: Vec<(usize, usize)>,
    /// [`MovementState::request_changed`] when it was made.
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

    /// Blocks that cannot be read are left out.
    fn make(&mut self, state: &MovementState, request: usize) -> RequestPlan {
        let Self { problem, workspace, .. } = self;
        problem.reset(state.asking.iter().copied());
        let readable = || state.requests[request].iter().filter(|&&block| state.blocks[block].is_readable());
        for &block in readable() {
            let of = &state.blocks[block];
            let option = |choice: &Choice| AccessOption { site: choice.site, transfer: choice.transfer };
            problem.push_block(of.need, of.choices.iter().map(option));
        }
        let Ok(plan) = solve(problem, BUDGET_OF_200_US, workspace) else { return RequestPlan::default() };
        let blocks: Vec<usize> = readable().copied().collect();
        let site = |chunk: &AccessChunk| problem.block(chunk.block).options[chunk.option].site;
        let mut uses: Vec<(usize, usize)> =
            plan.chunks.iter().map(|chunk| (site(chunk), blocks[chunk.block])).collect();
        uses.sort_unstable();
        RequestPlan { cost: plan.cost, uses, changed: 0 }
    }

    /// The blocks that a request reads at `site`. Its plan was made.
    fn users(&self, request: usize, site: usize) -> impl Iterator<Item = usize> + '_ {
        let uses = self.plans[request].as_ref().map_or(&[][..], |plan| &plan.uses);
        let first = uses.partition_point(|(other, _)| *other < site);
        uses[first..].iter().take_while(move |(other, _)| *other == site).map(|(_, user)| *user)
    }
}

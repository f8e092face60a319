//! E for every destination of a chunk, without solving each query anew (EC-Store Eq. 5).
//!
//! A chunk of b leaves s. For a partner i, the best plan after that either does not read the chunk in its new place, which
//! costs F, the same wherever it went; or it does. Where the destination d holds no chunk of i, that is o_d + m_d z_b and
//! G, the cost of one chunk of b less, which is also the same for all d. So two queries for each partner and source, and
//! then O(1) for each destination; only for the few destinations that hold a chunk of i a query is solved.

use super::objective::AccessGain;
use super::pair::{Needed, PairCost};
use super::state::{Choice, MovementState};

/// The gains of one block's moves. [`Self::begin_block`], then [`Self::begin_source`], then any destination.
#[derive(Clone, Debug, Default)]
pub(super) struct AccessGains {
    pair: PairCost,
    need: usize,
    block: usize,
    index: usize,
    /// The block's chunks without the one that leaves.
    rest: Vec<Choice>,
    /// These, and the one in its new place.
    after: Vec<Choice>,
    queries: Vec<Query>,
    /// Σ λ cost before.
    before: f64,
}

/// A query {b, i}.
#[derive(Clone, Copy, Debug)]
struct Query {
    partner: usize,
    likelihood: f64,
    before: f64,
    /// F: with the chunk gone.
    without: f64,
    /// G: with the chunk gone, and one less needed.
    with_one_less: f64,
}

impl AccessGains {
    /// The costs before any move. `false`: the block cannot be read.
    pub(super) fn begin_block(&mut self, state: &MovementState, block: usize) -> bool {
        let of = &state.blocks[block];
        (self.block, self.need) = (block, of.need);
        self.queries.clear();
        if !of.is_readable() {
            return false;
        }
        for &(partner, likelihood) in &of.partners {
            if !state.blocks[partner].is_readable() {
                continue;
            }
            let own = Needed { need: of.need, choices: &of.choices };
            let before = self.pair.of(own, other(state, partner));
            let query = Query { partner, likelihood, before, without: 0.0, with_one_less: 0.0 };
            self.queries.push(query);
        }
        self.before = self.queries.iter().map(|query| query.likelihood * query.before).sum();
        true
    }

    /// The chunk with `index` leaves.
    pub(super) fn begin_source(&mut self, state: &MovementState, index: usize) {
        self.index = index;
        self.rest.clear();
        self.rest.extend(state.blocks[self.block].choices_without(index));
        for query in &mut self.queries {
            let other = other(state, query.partner);
            query.without = self.pair.of(Needed { need: self.need, choices: &self.rest }, other);
            query.with_one_less = self.pair.of(Needed { need: self.need - 1, choices: &self.rest }, other);
        }
    }

    /// E for this destination.
    pub(super) fn at(&mut self, state: &MovementState, destination: usize) -> AccessGain {
        let Some(new) = state.choice(self.block, self.index, destination) else {
            return AccessGain::default();
        };
        self.after.clear();
        let mut saved = 0.0;
        for query in &self.queries {
            let of_partner = &state.blocks[query.partner].choices;
            let after = match of_partner.binary_search_by_key(&destination, |of| of.site).is_ok() {
                false => query.without.min(query.with_one_less + new.asking + new.transfer),
                true => {
                    if self.after.is_empty() {
                        let place = self.rest.partition_point(|choice| choice.site < destination);
                        self.after.extend_from_slice(&self.rest);
                        self.after.insert(place, new);
                    }
                    let own = Needed { need: self.need, choices: &self.after };
                    self.pair.of(own, other(state, query.partner))
                }
            };
            saved += query.likelihood * (query.before - after);
        }
        AccessGain { saved, before: self.before }
    }
}

fn other(state: &MovementState, partner: usize) -> Needed<'_> {
    let of = &state.blocks[partner];
    Needed { need: of.need, choices: &of.choices }
}

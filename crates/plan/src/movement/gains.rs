//! E for every destination of a chunk, without solving every query again (EC-Store Eq. 5).
//!
//! A chunk of b leaves s. The best plan for b and a partner i after that either does not read the chunk at its new
//! site, at a cost F that does not depend on the destination; or it does. If the destination d holds no chunk of i,
//! reading the chunk there costs o_d + m_d z_b plus G, the cost of the query with one chunk of b less, which is the
//! same for all d. So each partner and source needs two queries, and each destination O(1). Only for the few
//! destinations that hold a chunk of i is a query solved.

use super::objective::AccessGain;
use super::pair::{PairBlock, PairCost};
use super::state::{Choice, MovementState};

/// The gains of one block's moves. Call [`Self::begin_block`], then [`Self::begin_source`], then [`Self::at`] for any
/// destination.
#[derive(Clone, Debug, Default)]
pub(super) struct AccessGains {
    pair: PairCost,
    need: usize,
    block: usize,
    index: usize,
    /// The block's chunks without the leaving one.
    remaining_choices: Vec<Choice>,
    /// The block's chunks with the leaving one at its new site.
    choices_after: Vec<Choice>,
    queries: Vec<Query>,
    /// Σ λ · cost before the move.
    before: f64,
}

/// A query {b, i}.
#[derive(Clone, Copy, Debug)]
struct Query {
    partner: usize,
    likelihood: f64,
    before: f64,
    /// F: cost without the chunk.
    without: f64,
    /// G: cost without the chunk, with one chunk less needed.
    with_one_less: f64,
}

impl AccessGains {
    /// Computes the costs before any move. Returns `false` if the block cannot be read.
    pub(super) fn begin_block(&mut self, state: &MovementState, block: usize) -> bool {
        let placed = &state.blocks[block];
        (self.block, self.need) = (block, placed.need);
        self.queries.clear();
        if !placed.is_readable() {
            return false;
        }
        for &(partner, likelihood) in &placed.partners {
            if !state.blocks[partner].is_readable() {
                continue;
            }
            let pair_block = PairBlock { need: placed.need, choices: &placed.choices };
            let before = self.pair.of(pair_block, partner_block(state, partner));
            let query = Query { partner, likelihood, before, without: 0.0, with_one_less: 0.0 };
            self.queries.push(query);
        }
        self.before = self.queries.iter().map(|query| query.likelihood * query.before).sum();
        true
    }

    /// Computes the costs without the chunk `index`.
    pub(super) fn begin_source(&mut self, state: &MovementState, index: usize) {
        self.index = index;
        self.remaining_choices.clear();
        self.remaining_choices.extend(state.blocks[self.block].choices_without(index));
        for query in &mut self.queries {
            let partner = partner_block(state, query.partner);
            query.without =
                self.pair.of(PairBlock { need: self.need, choices: &self.remaining_choices }, partner);
            query.with_one_less =
                self.pair.of(PairBlock { need: self.need - 1, choices: &self.remaining_choices }, partner);
        }
    }

    /// Returns E for this destination.
    pub(super) fn at(&mut self, state: &MovementState, destination: usize) -> AccessGain {
        let Some(new) = state.choice(self.block, self.index, destination) else {
            return AccessGain::default();
        };
        self.choices_after.clear();
        let mut saved = 0.0;
        for query in &self.queries {
            let partner_choices = &state.blocks[query.partner].choices;
            let cost_after =
                match partner_choices.binary_search_by_key(&destination, |choice| choice.site).is_ok() {
                    false => query.without.min(query.with_one_less + new.asking + new.transfer),
                    true => {
                        if self.choices_after.is_empty() {
                            let place =
                                self.remaining_choices.partition_point(|choice| choice.site < destination);
                            self.choices_after.extend_from_slice(&self.remaining_choices);
                            self.choices_after.insert(place, new);
                        }
                        let pair_block = PairBlock { need: self.need, choices: &self.choices_after };
                        self.pair.of(pair_block, partner_block(state, query.partner))
                    }
                };
            saved += query.likelihood * (query.before - cost_after);
        }
        AccessGain { saved, before: self.before }
    }
}

fn partner_block(state: &MovementState, partner: usize) -> PairBlock<'_> {
    let placed = &state.blocks[partner];
    PairBlock { need: placed.need, choices: &placed.choices }
}

//! Improves a plan: pieces take better responses to all others, and sites with few requests are given up.
//!
//! A piece alone cannot save the request to a site that two pieces share. So if requests have a cost, such sites are
//! *closed*: all their slots are removed and read elsewhere, if that is better.

use super::problem::MakespanProblem;
use super::response::{PRECISION, ResponseBounds};
use super::solve::MakespanWorkspace;

/// Maximum number of rounds over all pieces.
const MOST_ROUNDS: usize = 16;
/// Number of slots at a site for which closing it is tried. A single slot's piece leaves on its own; more slots are
/// rarely better elsewhere.
const CLOSED: std::ops::RangeInclusive<u32> = 2..=3;
/// Maximum of the closings tried times the pieces of the query.
const MOST_CLOSING: usize = 1_000;

/// The slots taken of some pieces, to restore them.
#[derive(Clone, Debug, Default)]
pub(super) struct SavedSlots {
    pieces: Vec<usize>,
    picks: Vec<u32>,
    ends: Vec<usize>,
}

impl SavedSlots {
    fn clear(&mut self) {
        self.pieces.clear();
        self.picks.clear();
        self.ends.clear();
    }

    fn push(&mut self, piece: usize, picks: &[u32]) {
        self.pieces.push(piece);
        self.picks.extend_from_slice(picks);
        self.ends.push(self.picks.len());
    }

    fn picks(&self, at: usize) -> &[u32] {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.picks[start..self.ends[at]]
    }
}

impl MakespanWorkspace {
    /// Lets pieces take better responses until there are none.
    fn improve(&mut self, problem: &MakespanProblem) {
        for _ in 0..MOST_ROUNDS {
            if !self.improve_pieces(problem) {
                return;
            }
        }
    }

    /// Lets pieces take better responses and closes sites, until neither improves the plan.
    pub(super) fn improve_fully(&mut self, problem: &MakespanProblem) {
        self.improve(problem);
        let mut remaining = MOST_CLOSING / problem.pieces.piece_count().max(1);
        while problem.request > 0.0 && self.close_sites(problem, &mut remaining) {
            self.improve(problem);
        }
    }

    /// Removes each piece and puts it back at its best. Returns whether any piece improved.
    pub(super) fn improve_pieces(&mut self, problem: &MakespanProblem) -> bool {
        let mut last = self.state.last(problem);
        let mut is_better = false;
        for piece in 0..problem.pieces.piece_count() {
            if self.may_gain(problem, piece, last.1) && self.improve_piece(problem, piece, last) {
                last = self.state.last(problem);
                is_better = true;
            }
        }
        is_better
    }

    /// Returns whether a piece may have a better response: it ends last, adds more load than its lightest option, or
    /// asks a site that no other piece asks.
    fn may_gain(&self, problem: &MakespanProblem, piece: usize, last: usize) -> bool {
        let picks = self.state.picks(piece).iter().map(|&pick| problem.pieces.slots[pick as usize]);
        let load: f64 = picks.clone().map(|slot| slot.load()).sum();
        load > self.bounds.least_loads[piece] * (1.0 + PRECISION)
            || picks.clone().any(|slot| slot.site == last)
            || (problem.request > 0.0 && picks.clone().any(|slot| self.state.count(slot.site) == 1))
    }

    /// Takes a better response of a piece if there is one, and returns whether there was. `last` is T and the site that
    /// ends then.
    fn improve_piece(
        &mut self,
        problem: &MakespanProblem,
        piece: usize,
        (makespan, last): (f64, usize),
    ) -> bool {
        let cost = makespan + problem.weight * self.state.added_load(problem);
        self.before.clear();
        self.before.push(piece, self.state.picks(piece));
        let touches_last = touches(problem, self.state.picks(piece), last);
        self.state.give_back(problem, piece);
        let free = if touches_last { self.state.last(problem).0 } else { makespan };
        let cost_without = free + problem.weight * self.state.added_load(problem);
        let bounds =
            ResponseBounds { below: cost * (1.0 - PRECISION) - cost_without, ..ResponseBounds::by(free) };
        let is_better = self.response.find(problem, &self.state, piece, bounds, &self.bounds.earliest);
        let picks = if is_better { &self.response.picks } else { self.before.picks(0) };
        self.state.take(problem, piece, picks);
        is_better
    }

    /// Closes sites, at most `remaining` times. Returns whether closing any of them improved the plan.
    fn close_sites(&mut self, problem: &MakespanProblem, remaining: &mut usize) -> bool {
        let mut is_better = false;
        for site in 0..problem.queues.len() {
            if *remaining > 0 && CLOSED.contains(&self.state.count(site)) {
                *remaining -= 1;
                is_better |= self.close_site(problem, site);
            }
        }
        is_better
    }

    /// Closes a site if that improves the plan, and returns whether it did. If not, the plan is unchanged.
    fn close_site(&mut self, problem: &MakespanProblem, site: usize) -> bool {
        let below = self.state.cost(problem) * (1.0 - PRECISION);
        self.before.clear();
        for piece in 0..problem.pieces.piece_count() {
            if touches(problem, self.state.picks(piece), site) {
                self.before.push(piece, self.state.picks(piece));
            }
        }
        for at in 0..self.before.pieces.len() {
            self.state.give_back(problem, self.before.pieces[at]);
        }
        let mut put_back = 0;
        while put_back < self.before.pieces.len() {
            let piece = self.before.pieces[put_back];
            let free = self.state.last(problem).0;
            let cost = free + problem.weight * self.state.added_load(problem);
            let bounds = ResponseBounds { free, closed: site, below: below - cost };
            if !self.response.find(problem, &self.state, piece, bounds, &self.bounds.earliest) {
                break;
            }
            self.state.take(problem, piece, &self.response.picks);
            put_back += 1;
        }
        // Each response kept the cost of the plan below the old one.
        if put_back == self.before.pieces.len() {
            return true;
        }
        for at in 0..put_back {
            self.state.give_back(problem, self.before.pieces[at]);
        }
        for (at, &piece) in self.before.pieces.iter().enumerate() {
            self.state.take(problem, piece, self.before.picks(at));
        }
        false
    }
}

/// Returns whether one of these slots is at a site.
fn touches(problem: &MakespanProblem, picks: &[u32], site: usize) -> bool {
    picks.iter().any(|&pick| problem.pieces.slots[pick as usize].site == site)
}

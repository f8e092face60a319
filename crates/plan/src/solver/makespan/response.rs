//! The best response of one piece to what all others take.
//!
//! An end up to `free` costs nothing. Options are matroids, so the cheapest choice of slots that end by a limit is easy
//! to maintain when slots arrive in the order of their ends: each replaces a more expensive one. The response is the
//! best choice over all limits, and the search stops once no saving can make up for the end. It is exact.

use super::problem::MakespanProblem;
use super::state::State;
use crate::solver::piece_options::{Ranges, UNGROUPED};

/// Relative difference below which costs count as equal.
pub(super) const PRECISION: f64 = 1e-9;

/// The best choice for a piece.
#[derive(Clone, Debug, Default)]
pub(super) struct Response {
    /// The slots of the choice.
    pub(super) picks: Vec<u32>,
    /// The end of its last slot.
    pub(super) end: f64,
    /// What it adds to T + w X, where ends up to the free one cost nothing.
    pub(super) cost: f64,
    candidates: Vec<Candidate>,
    /// The candidates taken, in the order of their ends.
    chosen: Vec<Candidate>,
}

/// A slot of the current option.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    slot: u32,
    group: usize,
    end: f64,
    /// w times what it adds to X.
    load: f64,
}

/// The requirements of a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseBounds {
    /// Ends up to this cost nothing.
    pub(super) free: f64,
    /// A site that may not be asked, or [`usize::MAX`] for none.
    pub(super) closed: usize,
    /// Limit below which the cost must be.
    pub(super) below: f64,
}

impl ResponseBounds {
    /// Allows any sites at any cost, with ends up to `free` costing nothing.
    pub(super) fn by(free: f64) -> Self {
        Self { free, closed: usize::MAX, below: f64::INFINITY }
    }
}

impl Response {
    /// Finds the best response; returns whether there is one. `earliest` holds the earliest end of each option of the
    /// problem, as far as it was computed.
    pub(super) fn find(
        &mut self,
        problem: &MakespanProblem,
        state: &State,
        piece: usize,
        bounds: ResponseBounds,
        earliest: &[f64],
    ) -> bool {
        (self.cost, self.end) = (bounds.below, 0.0);
        for option in problem.pieces.options_of(piece) {
            let ranges = problem.pieces.options[option];
            let (late, load) =
                ((earliest[option] - bounds.free).max(0.0), problem.weight * ranges.least_load);
            if late + load >= self.cost {
                continue;
            }
            let least = load + new_requests(problem, state, ranges);
            if late + least >= self.cost {
                continue;
            }
            match ranges.need {
                0 => self.offer(0.0, 0.0, &[]),
                1 => self.take_one(problem, state, ranges, bounds),
                _ => self.take_some(problem, state, ranges, bounds, least),
            }
        }
        self.cost < bounds.below
    }

    /// Keeps a choice if it is better than the current one.
    fn offer(&mut self, cost: f64, end: f64, picks: &[u32]) {
        if cost < self.cost {
            (self.cost, self.end) = (cost, end);
            self.picks.clear();
            self.picks.extend_from_slice(picks);
        }
    }

    fn take_one(&mut self, problem: &MakespanProblem, state: &State, ranges: Ranges, bounds: ResponseBounds) {
        for slot in ranges.slots() {
            if problem.pieces.slots[slot].site != bounds.closed {
                let Candidate { end, load, .. } = candidate(problem, state, slot);
                self.offer((end - bounds.free).max(0.0) + load, end, &[slot as u32]);
            }
        }
    }

    /// Takes slots in the order of their ends and always holds the cheapest choice that ends by then. Once the choice
    /// is complete, a cheaper slot replaces the most expensive one that the caps allow to leave (exchange in a
    /// matroid). No choice costs less than `least`, without its end.
    fn take_some(
        &mut self,
        problem: &MakespanProblem,
        state: &State,
        ranges: Ranges,
        bounds: ResponseBounds,
        least: f64,
    ) {
        let open =
            (ranges.first..ranges.end).filter(|&slot| problem.pieces.slots[slot].site != bounds.closed);
        self.candidates.clear();
        self.candidates.extend(open.map(|slot| candidate(problem, state, slot)));
        self.candidates.sort_unstable_by(|a, b| a.end.total_cmp(&b.end).then(a.slot.cmp(&b.slot)));
        self.chosen.clear();
        for at in 0..self.candidates.len() {
            let new = self.candidates[at];
            let late = (new.end - bounds.free).max(0.0);
            if late + least >= self.cost {
                return;
            }
            if self.choose(ranges, new) && self.chosen.len() == ranges.need {
                let load: f64 = self.chosen.iter().map(|chosen| chosen.load).sum();
                self.offer_chosen(late + load, new.end);
            }
        }
    }

    /// Adds a slot that ends after the chosen ones, if that is better. Returns whether it is chosen.
    fn choose(&mut self, option: Ranges, new: Candidate) -> bool {
        let is_of_group = |chosen: &Candidate| new.group != UNGROUPED && chosen.group == new.group;
        let is_full = new.group != UNGROUPED
            && self.chosen.iter().filter(|chosen| is_of_group(chosen)).count() == option.cap;
        if is_full || self.chosen.len() == option.need {
            let may_leave =
                self.chosen.iter().enumerate().filter(|(_, chosen)| !is_full || is_of_group(chosen));
            let dearest = may_leave.max_by(|(_, a), (_, b)| a.load.total_cmp(&b.load));
            let Some((dearest, _)) = dearest.filter(|(_, chosen)| chosen.load > new.load) else {
                return false;
            };
            self.chosen.remove(dearest);
        }
        self.chosen.push(new);
        true
    }

    fn offer_chosen(&mut self, cost: f64, end: f64) {
        if cost < self.cost {
            (self.cost, self.end) = (cost, end);
            self.picks.clear();
            self.picks.extend(self.chosen.iter().map(|chosen| chosen.slot));
        }
    }
}

/// Returns w c for each site that an option must add to those in use.
fn new_requests(problem: &MakespanProblem, state: &State, ranges: Ranges) -> f64 {
    if problem.request == 0.0 {
        return 0.0;
    }
    let used = problem.pieces.slots[ranges.slots()].iter().filter(|slot| state.is_used(slot.site)).count();
    problem.weight * problem.request * ranges.need.saturating_sub(used) as f64
}

fn candidate(problem: &MakespanProblem, state: &State, slot: usize) -> Candidate {
    let piece_slot = problem.pieces.slots[slot];
    let request = if state.is_used(piece_slot.site) { 0.0 } else { problem.request };
    Candidate {
        slot: slot as u32,
        group: piece_slot.group,
        end: state.end_with(problem, piece_slot.site, piece_slot.transfer),
        load: problem.weight * (piece_slot.transfer + piece_slot.extra + request),
    }
}

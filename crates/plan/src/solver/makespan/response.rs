//! The best response of one piece to what all others take.
//!
//! An end up to `free` costs nothing. Options are matroids, so the cheapest choice of slots that end by a limit is known when slots come
//! in the order of their ends: each takes the place of a more expensive one. The choice is the best one over all limits, until what
//! is saved cannot make up for the end: it is exact.

use super::problem::MakespanProblem;
use super::state::State;
use crate::solver::piece_options::{Ranges, UNGROUPED};

/// Costs that differ by less are equal, as a share of them.
pub(super) const PRECISION: f64 = 1e-9;

/// The best choice for a piece.
#[derive(Clone, Debug, Default)]
pub(super) struct Response {
    /// The slots.
    pub(super) picks: Vec<u32>,
    /// When the last of them ends.
    pub(super) end: f64,
    /// What it adds to T + w X, ends up to the free one being free.
    pub(super) cost: f64,
    candidates: Vec<Candidate>,
    /// The candidates that are taken, in the order of their ends.
    chosen: Vec<Candidate>,
}

/// A slot of the option that is looked at.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    slot: u32,
    group: usize,
    end: f64,
    /// w times what it adds to X.
    load: f64,
}

/// What is wanted of a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// An end up to this costs nothing.
    pub(super) free: f64,
    /// A site that is not asked, or none where it is [`usize::MAX`].
    pub(super) closed: usize,
    /// Only what costs less is of use.
    pub(super) below: f64,
}

impl Wanted {
    /// Any sites at any cost, ends up to `free` costing nothing.
    pub(super) fn by(free: f64) -> Self {
        Self { free, closed: usize::MAX, below: f64::INFINITY }
    }
}

impl Response {
    /// Finds it; answers whether there is one. `earliest` is the earliest end of each option of the problem, as far as it is known.
    pub(super) fn find(
        &mut self,
        problem: &MakespanProblem,
        state: &State,
        piece: usize,
        wanted: Wanted,
        earliest: &[f64],
    ) -> bool {
        (self.cost, self.end) = (wanted.below, 0.0);
        for option in problem.pieces.options_of(piece) {
            let of = problem.pieces.options[option];
            let (late, load) = ((earliest[option] - wanted.free).max(0.0), problem.weight * of.least_load);
            if late + load >= self.cost {
                continue;
            }
            let least = load + new_requests(problem, state, of);
            if late + least >= self.cost {
                continue;
            }
            match of.need {
                0 => self.offer(0.0, 0.0, &[]),
                1 => self.take_one(problem, state, of, wanted),
                _ => self.take_some(problem, state, of, wanted, least),
            }
        }
        self.cost < wanted.below
    }

    /// Keeps a choice if it is better than what is kept.
    fn offer(&mut self, cost: f64, end: f64, picks: &[u32]) {
        if cost < self.cost {
            (self.cost, self.end) = (cost, end);
            self.picks.clear();
            self.picks.extend_from_slice(picks);
        }
    }

    fn take_one(&mut self, problem: &MakespanProblem, state: &State, of: Ranges, wanted: Wanted) {
        for slot in of.slots() {
            if problem.pieces.slots[slot].site != wanted.closed {
                let Candidate { end, load, .. } = candidate(problem, state, slot);
                self.offer((end - wanted.free).max(0.0) + load, end, &[slot as u32]);
            }
        }
    }

    /// Takes slots in the order of their ends and always holds the cheapest choice that ends by then: once the choice is whole, a
    /// cheaper slot replaces the most expensive one that the caps let go (exchange in a matroid).
    /// No choice costs less than `least`, ends not counted.
    fn take_some(
        &mut self,
        problem: &MakespanProblem,
        state: &State,
        of: Ranges,
        wanted: Wanted,
        least: f64,
    ) {
        let open = (of.first..of.end).filter(|&slot| problem.pieces.slots[slot].site != wanted.closed);
        self.candidates.clear();
        self.candidates.extend(open.map(|slot| candidate(problem, state, slot)));
        self.candidates.sort_unstable_by(|a, b| a.end.total_cmp(&b.end).then(a.slot.cmp(&b.slot)));
        self.chosen.clear();
        for at in 0..self.candidates.len() {
            let new = self.candidates[at];
            let late = (new.end - wanted.free).max(0.0);
            if late + least >= self.cost {
                return;
            }
            if self.choose(of, new) && self.chosen.len() == of.need {
                let load: f64 = self.chosen.iter().map(|of| of.load).sum();
                self.offer_chosen(late + load, new.end);
            }
        }
    }

    /// Takes a slot that ends after those that are chosen. Answers whether it is chosen now.
    fn choose(&mut self, option: Ranges, new: Candidate) -> bool {
        let of_group = |of: &Candidate| new.group != UNGROUPED && of.group == new.group;
        let is_full =
            new.group != UNGROUPED && self.chosen.iter().filter(|of| of_group(of)).count() == option.cap;
        if is_full || self.chosen.len() == option.need {
            let may_leave = self.chosen.iter().enumerate().filter(|(_, of)| !is_full || of_group(of));
            let dearest = may_leave.max_by(|(_, a), (_, b)| a.load.total_cmp(&b.load));
            let Some((dearest, _)) = dearest.filter(|(_, of)| of.load > new.load) else { return false };
            self.chosen.remove(dearest);
        }
        self.chosen.push(new);
        true
    }

    fn offer_chosen(&mut self, cost: f64, end: f64) {
        if cost < self.cost {
            (self.cost, self.end) = (cost, end);
            self.picks.clear();
            self.picks.extend(self.chosen.iter().map(|of| of.slot));
        }
    }
}

/// w c for each site that an option must add to those that are used.
fn new_requests(problem: &MakespanProblem, state: &State, of: Ranges) -> f64 {
    if problem.request == 0.0 {
        return 0.0;
    }
    let used = problem.pieces.slots[of.slots()].iter().filter(|slot| state.is_used(slot.site)).count();
    problem.weight * problem.request * of.need.saturating_sub(used) as f64
}

fn candidate(problem: &MakespanProblem, state: &State, slot: usize) -> Candidate {
    let of = problem.pieces.slots[slot];
    let request = if state.is_used(of.site) { 0.0 } else { problem.request };
    Candidate {
        slot: slot as u32,
        group: of.group,
        end: state.end_with(problem, of.site, of.transfer),
        load: problem.weight * (of.transfer + of.extra + request),
    }
}

//! The best response of one piece to what all others take.
//!
//! An end up to `free` costs nothing. Of one option, with a limit on its slots' ends, the cheapest choice takes slots in order
//! of what they add to the load, skipping those over the cap: options are matroids. The limits that matter are `free` and the
//! ends above it, in ascending order, until what is saved cannot make up for the end: the choice is exact.

use super::problem::MakespanProblem;
use super::state::State;
use crate::piece_options::{Ranges, UNGROUPED};

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
    /// Candidates in the order of what they add to the load.
    by_load: Vec<u32>,
    trial: Vec<u32>,
    /// Slots taken of each group.
    taken: Vec<usize>,
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
            let least = problem.weight * of.least_load + (earliest[option] - wanted.free).max(0.0);
            if least >= self.cost || least + new_requests(problem, state, of) >= self.cost {
                continue;
            }
            match of.need {
                0 => self.offer(0.0, 0.0, &[]),
                1 => self.take_one(problem, state, of, wanted),
                _ => self.take_some(problem, state, of, wanted),
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

    fn take_some(&mut self, problem: &MakespanProblem, state: &State, of: Ranges, wanted: Wanted) {
        let open = (of.first..of.end).filter(|&slot| problem.pieces.slots[slot].site != wanted.closed);
        self.candidates.clear();
        self.candidates.extend(open.map(|slot| candidate(problem, state, slot)));
        self.candidates.sort_unstable_by(|a, b| a.end.total_cmp(&b.end).then(a.slot.cmp(&b.slot)));
        self.taken.resize(problem.pieces.groups, 0);
        self.by_load.clear();
        self.by_load.extend(0..self.candidates.len() as u32);
        let soonest = self.choose(of, f64::INFINITY);
        if self.trial.len() < of.need {
            return;
        }
        let is_even = self.candidates.windows(2).all(|pair| pair[0].load == pair[1].load);
        if is_even {
            return self.offer_trial(soonest, wanted.free);
        }
        // The candidates are in the order of their ends, which decides among equals.
        let candidates = &self.candidates;
        self.by_load.sort_unstable_by(|&a, &b| {
            let load = |at: u32| candidates[at as usize].load;
            load(a).total_cmp(&load(b)).then(a.cmp(&b))
        });
        let (least, _) = self.choose(of, f64::INFINITY);
        let mut limit = soonest.1.max(wanted.free);
        loop {
            let chosen = self.choose(of, limit);
            self.offer_trial(chosen, wanted.free);
            let next = self.candidates.iter().map(|of| of.end).find(|&end| end > limit);
            let Some(next) = next.filter(|next| next - wanted.free + least < self.cost) else { return };
            limit = next;
        }
    }

    fn offer_trial(&mut self, (load, end): (f64, f64), free: f64) {
        let trial = std::mem::take(&mut self.trial);
        self.offer((end - free).max(0.0) + load, end, &trial);
        self.trial = trial;
    }

    /// Chooses slots that end by `limit` into `trial`, in the order of `by_load`. Answers what they add to w X, and when the last
    /// one ends.
    fn choose(&mut self, option: Ranges, limit: f64) -> (f64, f64) {
        self.trial.clear();
        self.taken.fill(0);
        let (mut load, mut end) = (0.0, 0.0f64);
        for &at in &self.by_load {
            let of = self.candidates[at as usize];
            if of.end > limit || (of.group != UNGROUPED && self.taken[of.group] == option.cap) {
                continue;
            }
            if of.group != UNGROUPED {
                self.taken[of.group] += 1;
            }
            self.trial.push(of.slot);
            (load, end) = (load + of.load, end.max(of.end));
            if self.trial.len() == option.need {
                break;
            }
        }
        (load, end)
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

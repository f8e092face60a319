//! A lower bound of the cost of every plan, and the floors from which good plans are made.
//!
//! Alone at the current queues a piece ends no later than together with others, so T is at least T₀, the latest of the
//! pieces' earliest ends. A plan that ends by F reads every piece by an option that alone ends by F, and adds at least
//! the sum of the least loads of these options. So T + w X is at least the minimum of F + w·(these loads) over T₀ and
//! the ends above it: between two floors no further option becomes possible. Of the requests' cost c, the bound counts
//! only the sites that pieces without common sites must use.
//!
//! The lightest option of most pieces ends early, so they have no floor. Only the ends of the others are examined in
//! full.

use super::problem::MakespanProblem;
use super::response::PRECISION;
use crate::solver::piece_options::UNGROUPED;

/// Lower bounds from each piece alone.
#[derive(Clone, Debug, Default)]
pub(super) struct Bounds {
    /// The earliest end of each option; 0 if it was not computed.
    pub(super) earliest: Vec<f64>,
    /// The least load of each piece, without c.
    pub(super) least_loads: Vec<f64>,
    /// The pieces, those that end last first.
    pub(super) order: Vec<u32>,
    /// Floors, ascending, with the bounds of plans that end before the next one.
    pub(super) floors: Vec<Floor>,
    /// The earliest end of each piece.
    piece_ends: Vec<f64>,
    /// Ends above T₀, each with the decrease of the load from there on.
    steps: Vec<(f64, f64)>,
    ends: Vec<(f64, usize)>,
    taken_in_group: Vec<usize>,
    is_claimed: Vec<bool>,
}

/// A time by which a plan may end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Floor {
    pub(super) end: f64,
    /// Lower bound of the cost of plans that end between this floor and the next one.
    pub(super) bound: f64,
}

impl Bounds {
    /// Computes all bounds.
    pub(super) fn find(&mut self, problem: &MakespanProblem) {
        self.is_claimed.clear();
        self.is_claimed.resize(problem.queues.len(), false);
        self.taken_in_group.clear();
        self.taken_in_group.resize(problem.pieces.groups, 0);
        self.earliest.clear();
        self.earliest.resize(problem.pieces.options.len(), 0.0);
        self.order_pieces(problem);
        let first = self.first_floor(problem);
        self.floors_from(problem, first);
    }

    /// Returns a lower bound of the cost of any plan.
    pub(super) fn least(&self) -> f64 {
        self.floors.iter().map(|floor| floor.bound).fold(f64::INFINITY, f64::min)
    }

    /// Computes the end of each piece's lightest option, and lists the pieces.
    fn order_pieces(&mut self, problem: &MakespanProblem) {
        self.order.clear();
        self.piece_ends.clear();
        self.least_loads.clear();
        for piece in 0..problem.pieces.piece_count() {
            let lightest = lightest(problem, piece);
            let end = self.earliest_end(problem, lightest);
            self.earliest[lightest] = end;
            self.piece_ends.push(end);
            self.least_loads.push(problem.pieces.options[lightest].least_load);
            self.order.push(piece as u32);
        }
    }

    /// Returns T₀. Examines all options of a piece whose lightest option ends later than the current lower bound of T₀.
    fn first_floor(&mut self, problem: &MakespanProblem) -> f64 {
        let mut first: f64 = 0.0;
        self.sort_by_end();
        for at in 0..self.order.len() {
            let piece = self.order[at] as usize;
            if self.piece_ends[piece] <= first {
                break;
            }
            for option in problem.pieces.options_of(piece) {
                if self.earliest[option] == 0.0 {
                    self.earliest[option] = self.earliest_end(problem, option);
                }
            }
            let ends = &self.earliest[problem.pieces.options_of(piece)];
            self.piece_ends[piece] = ends.iter().copied().fold(f64::INFINITY, f64::min);
            first = first.max(self.piece_ends[piece]);
        }
        self.sort_by_end();
        first
    }

    fn sort_by_end(&mut self) {
        let ends = &self.piece_ends;
        self.order.sort_unstable_by(|&a, &b| ends[b as usize].total_cmp(&ends[a as usize]).then(a.cmp(&b)));
    }

    fn floors_from(&mut self, problem: &MakespanProblem, first: f64) {
        let requests = problem.request * self.sites_needed(problem) as f64;
        let mut load = requests;
        self.steps.clear();
        for piece in 0..problem.pieces.piece_count() {
            load += self.steps_of(problem, piece, first);
        }
        self.steps.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        self.floors.clear();
        self.floors.push(Floor { end: first, bound: first + problem.weight * load });
        for &(end, saved_load) in &self.steps {
            load -= saved_load;
            self.floors.push(Floor { end, bound: end + problem.weight * load });
        }
    }

    /// Returns the least load of a piece's options that end by T₀, and records the later ends with less load.
    fn steps_of(&mut self, problem: &MakespanProblem, piece: usize, first: f64) -> f64 {
        let options = problem.pieces.options_of(piece);
        let load = |option: usize| problem.pieces.options[option].least_load;
        let by_first = options.clone().filter(|&option| self.earliest[option] <= first * (1.0 + PRECISION));
        let mut least = by_first.map(load).fold(f64::INFINITY, f64::min);
        let at_first = least;
        // With a handful of options: repeatedly take the option with less load that ends soonest.
        loop {
            let later =
                options.clone().filter(|&option| self.earliest[option] > first && load(option) < least);
            let next = later.min_by(|&a, &b| self.earliest[a].total_cmp(&self.earliest[b]));
            let Some(next) = next else { return at_first };
            self.steps.push((self.earliest[next], least - load(next)));
            least = load(next);
        }
    }

    /// Returns the earliest possible end of an option, alone.
    fn earliest_end(&mut self, problem: &MakespanProblem, option: usize) -> f64 {
        let ranges = problem.pieces.options[option];
        let slots = &problem.pieces.slots[ranges.slots()];
        let ends = slots.iter().map(|slot| problem.queues[slot.site] + problem.request + slot.transfer);
        match ranges.need {
            0 => return 0.0,
            1 => return ends.fold(f64::INFINITY, f64::min),
            _ => {}
        }
        self.ends.clear();
        self.ends.extend(ends.zip(slots.iter().map(|slot| slot.group)));
        self.ends.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        self.taken_in_group.fill(0);
        let mut remaining = ranges.need;
        for &(end, group) in &self.ends {
            if group != UNGROUPED {
                if self.taken_in_group[group] == ranges.cap {
                    continue;
                }
                self.taken_in_group[group] += 1;
            }
            remaining -= 1;
            if remaining == 0 {
                return end;
            }
        }
        f64::INFINITY
    }

    /// Returns a lower bound of the sites that any plan uses: those of pieces without common sites.
    fn sites_needed(&mut self, problem: &MakespanProblem) -> usize {
        if problem.request == 0.0 {
            return 0;
        }
        let (mut disjoint_sites, mut most) = (0, 0);
        for piece in 0..problem.pieces.piece_count() {
            let options = &problem.pieces.options[problem.pieces.options_of(piece)];
            let need = options.iter().map(|ranges| ranges.need).min().unwrap_or(0);
            most = most.max(need);
            let slots = || options.iter().flat_map(|ranges| &problem.pieces.slots[ranges.slots()]);
            if slots().all(|slot| !self.is_claimed[slot.site]) {
                slots().for_each(|slot| self.is_claimed[slot.site] = true);
                disjoint_sites += need;
            }
        }
        disjoint_sites.max(most)
    }
}

/// Returns the option of least load of a piece that has one.
fn lightest(problem: &MakespanProblem, piece: usize) -> usize {
    let load = |option: usize| problem.pieces.options[option].least_load;
    let options = problem.pieces.options_of(piece);
    options.min_by(|&a, &b| load(a).total_cmp(&load(b))).expect("the piece has an option")
}

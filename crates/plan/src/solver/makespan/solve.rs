//! The solver: makes plans from the best floors on, and improves the best of them.

use super::bound::{Bounds, Floor};
use super::improve::SavedSlots;
use super::problem::MakespanProblem;
use super::response::{PRECISION, Response, ResponseBounds};
use super::state::State;
use crate::solver::piece_options::NoOption;

/// Maximum number of floors from which plans are made, and of pieces placed in all of them together.
const MOST_FLOORS: usize = 8;
const MOST_PLACED: usize = 200;
/// Number of successive floors without a better plan after which no further plan is made.
const MOST_IN_VAIN: usize = 2;

/// The slots to read, their cost, and what is proven about it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MakespanPlan<'a> {
    /// The slots to read, as positions in [`PieceOptions::slots`](crate::solver::piece_options::PieceOptions::slots),
    /// piece by piece.
    pub picks: &'a [u32],
    /// The end of each piece's slots in `picks`.
    pub ends: &'a [usize],
    /// T.
    pub makespan: f64,
    /// X.
    pub added_load: f64,
    /// T + w X.
    pub cost: f64,
    /// Lower bound of the cost of any plan, with a relative error of up to 1e-9.
    pub lower_bound: f64,
}

impl<'a> MakespanPlan<'a> {
    /// Returns the slots to read of a piece, which must exist.
    pub fn picks_of(&self, piece: usize) -> &'a [u32] {
        let start = if piece == 0 { 0 } else { self.ends[piece - 1] };
        &self.picks[start..self.ends[piece]]
    }

    /// Returns the largest part of the cost that another plan could save.
    pub fn gap(&self) -> f64 {
        if self.cost > 0.0 { (1.0 - self.lower_bound / self.cost).max(0.0) } else { 0.0 }
    }
}

/// Memory of the solver, reused between problems.
#[derive(Debug, Default)]
pub struct MakespanWorkspace {
    pub(super) bounds: Bounds,
    pub(super) state: State,
    pub(super) response: Response,
    pub(super) before: SavedSlots,
    picks: Vec<u32>,
    ends: Vec<usize>,
}

/// Finds a good plan.
///
/// # Errors
/// [`NoOption`] for a piece without options.
pub fn solve<'a>(
    problem: &MakespanProblem,
    workspace: &'a mut MakespanWorkspace,
) -> Result<MakespanPlan<'a>, NoOption> {
    problem.pieces.all_have_options()?;
    workspace.bounds.find(problem);
    let (makespan, added_load) = workspace.search(problem);
    let cost = makespan + problem.weight * added_load;
    let lower_bound = workspace.bounds.least().min(cost);
    let MakespanWorkspace { picks, ends, .. } = workspace;
    Ok(MakespanPlan { picks, ends, makespan, added_load, cost, lower_bound })
}

impl MakespanWorkspace {
    /// Makes plans from the best floor on, and keeps the best one. Returns its T and X.
    fn search(&mut self, problem: &MakespanProblem) -> (f64, f64) {
        let floors = &self.bounds.floors;
        let best_floor = (0..floors.len()).min_by(|&a, &b| floors[a].bound.total_cmp(&floors[b].bound));
        let (mut best, mut in_vain) = (f64::INFINITY, 0);
        let most = (MOST_PLACED / problem.pieces.piece_count().max(1)).clamp(1, MOST_FLOORS);
        for number in (best_floor.unwrap_or(0)..floors.len()).take(most) {
            let Floor { end, bound } = self.bounds.floors[number];
            if bound >= best * (1.0 - PRECISION) || in_vain == MOST_IN_VAIN {
                continue;
            }
            self.construct(problem, end);
            self.improve_pieces(problem);
            let cost = self.state.cost(problem);
            in_vain += 1;
            if cost < best {
                (best, in_vain) = (cost, 0);
                self.keep(problem);
            }
        }
        self.take_kept(problem);
        self.improve_fully(problem);
        self.keep(problem);
        (self.state.last(problem).0, self.state.added_load(problem))
    }

    /// Restores the kept plan.
    fn take_kept(&mut self, problem: &MakespanProblem) {
        self.state.reset(problem);
        let mut start = 0;
        for (piece, &end) in self.ends.iter().enumerate() {
            self.state.take(problem, piece, &self.picks[start..end]);
            start = end;
        }
    }

    /// Gives every piece its best response to those before it; ends up to `floor` are free.
    fn construct(&mut self, problem: &MakespanProblem, floor: f64) {
        self.state.reset(problem);
        let mut free = floor;
        for &piece in &self.bounds.order {
            let piece = piece as usize;
            self.response.find(problem, &self.state, piece, ResponseBounds::by(free), &self.bounds.earliest);
            self.state.take(problem, piece, &self.response.picks);
            free = free.max(self.response.end);
        }
    }

    fn keep(&mut self, problem: &MakespanProblem) {
        self.picks.clear();
        self.ends.clear();
        for piece in 0..problem.pieces.piece_count() {
            self.picks.extend_from_slice(self.state.picks(piece));
            self.ends.push(self.picks.len());
        }
    }
}

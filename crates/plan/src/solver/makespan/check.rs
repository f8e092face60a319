//! The checker of these plans: whether a plan is legal and costs what it claims, decided apart from the solver.

use std::collections::BTreeMap;

use super::{MakespanPlan, MakespanProblem};

/// Why a plan is wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MakespanFault {
    /// A piece of which no option is read.
    #[error("what the plan reads of piece {piece} is none of its options")]
    NoOption {
        /// Position of the piece.
        piece: usize,
    },
    /// A figure that is not the plan's.
    #[error("the plan's {what} is {actual}, and it claims {claimed}")]
    Figure {
        /// Which.
        what: &'static str,
        /// What its slots say.
        actual: f64,
        /// What the plan says.
        claimed: f64,
    },
    /// A lower bound that the plan itself refutes.
    #[error("the plan costs {cost}, below its lower bound {lower_bound}")]
    LowerBound {
        /// T + w X.
        cost: f64,
        /// What the plan says.
        lower_bound: f64,
    },
}

/// How far sums of floating-point numbers in different orders may differ, relative to the sum.
const TOLERANCE: f64 = 1e-9;

/// Checks a plan against its problem: every piece is read by one of its options, T, X and T + w X are what the slots say, and the
/// lower bound is not above them.
///
/// # Errors
/// The first fault found.
pub fn check_makespan(problem: &MakespanProblem, plan: &MakespanPlan<'_>) -> Result<(), MakespanFault> {
    let mut loads: BTreeMap<usize, f64> = BTreeMap::new();
    let mut added_load = 0.0;
    for piece in 0..problem.pieces.piece_count() {
        let picks = plan.picks_of(piece);
        if !problem.pieces.is_read(piece, picks) {
            return Err(MakespanFault::NoOption { piece });
        }
        for slot in picks.iter().map(|&pick| problem.pieces.slots()[pick as usize]) {
            *loads.entry(slot.site).or_insert(problem.request()) += slot.transfer;
            added_load += slot.load();
        }
    }
    added_load += problem.request() * loads.len() as f64;
    let ends = loads.iter().map(|(&site, load)| problem.queues()[site] + load);
    let makespan = ends.fold(0.0, f64::max);
    let cost = makespan + problem.weight() * added_load;
    for (what, actual, claimed) in [
        ("makespan", makespan, plan.makespan),
        ("added load", added_load, plan.added_load),
        ("cost", cost, plan.cost),
    ] {
        if (actual - claimed).abs() > TOLERANCE * actual.max(1.0) {
            return Err(MakespanFault::Figure { what, actual, claimed });
        }
    }
    if plan.lower_bound > cost * (1.0 + TOLERANCE) || plan.lower_bound.is_nan() {
        return Err(MakespanFault::LowerBound { cost, lower_bound: plan.lower_bound });
    }
    Ok(())
}

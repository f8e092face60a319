//! The checker of these plans: decides whether a plan is legal and costs what it claims, independently of the solver.

use std::collections::BTreeMap;

use super::{MakespanPlan, MakespanProblem};

/// Why a plan is wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MakespanFault {
    /// The chunks read of a piece match none of its options.
    #[error("what the plan reads of piece {piece} is none of its options")]
    NoOption {
        /// Position of the piece.
        piece: usize,
    },
    /// A claimed figure that differs from the plan's.
    #[error("the plan's {what} is {actual}, and it claims {claimed}")]
    Figure {
        /// Name of the figure.
        what: &'static str,
        /// The value by its slots.
        actual: f64,
        /// The value that the plan claims.
        claimed: f64,
    },
    /// A lower bound above the plan's own cost.
    #[error("the plan costs {cost}, below its lower bound {lower_bound}")]
    LowerBound {
        /// T + w X.
        cost: f64,
        /// The bound that the plan claims.
        lower_bound: f64,
    },
}

/// Maximum relative difference between sums of floating-point numbers in different orders.
const TOLERANCE: f64 = 1e-9;

/// Checks a plan against its problem: every piece is read by one of its options, T, X and T + w X are those of the
/// slots, and the lower bound is not above the cost.
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

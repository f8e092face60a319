//! The checker of these plans: decides whether a plan is legal and costs what it claims, independently of the solver.

use std::collections::BTreeSet;

use super::{AlternativesPlan, AlternativesProblem};

/// Why a plan is wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AlternativesFault {
    /// The chunks read of a piece match none of its options.
    #[error("what the plan reads of piece {piece} is none of its options")]
    NoOption {
        /// Position of the piece.
        piece: usize,
    },
    /// A claimed cost that differs from the plan's.
    #[error("the plan costs {actual} and claims {claimed}")]
    Cost {
        /// The cost by its slots.
        actual: f64,
        /// The cost that the plan claims.
        claimed: f64,
    },
    /// A lower bound above the plan's own cost.
    #[error("the plan costs {cost}, below its lower bound {lower_bound}")]
    LowerBound {
        /// The cost by its slots.
        cost: f64,
        /// The bound that the plan claims.
        lower_bound: f64,
    },
}

/// Maximum relative difference between sums of floating-point numbers in different orders.
const TOLERANCE: f64 = 1e-9;

/// Checks a plan against its problem: every piece is read by one of its options, the cost is that of the slots, and the
/// lower bound is not above it.
///
/// # Errors
/// The first fault found.
pub fn check_alternatives(
    problem: &AlternativesProblem,
    plan: &AlternativesPlan<'_>,
) -> Result<(), AlternativesFault> {
    let (mut sites_asked, mut actual) = (BTreeSet::new(), 0.0);
    for piece in 0..problem.pieces.piece_count() {
        let picks = plan.picks_of(piece);
        if !problem.pieces.is_read(piece, picks) {
            return Err(AlternativesFault::NoOption { piece });
        }
        for slot in picks.iter().map(|&pick| problem.pieces.slots()[pick as usize]) {
            sites_asked.insert(slot.site);
            actual += slot.load();
        }
    }
    actual += sites_asked.iter().map(|&site| problem.overheads()[site]).sum::<f64>();
    if (actual - plan.cost).abs() > TOLERANCE * actual {
        return Err(AlternativesFault::Cost { actual, claimed: plan.cost });
    }
    if plan.lower_bound > actual * (1.0 + TOLERANCE) || plan.lower_bound.is_nan() {
        return Err(AlternativesFault::LowerBound { cost: actual, lower_bound: plan.lower_bound });
    }
    Ok(())
}

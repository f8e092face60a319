//! The checker of these plans: whether a plan is legal and costs what it claims, decided apart from the solver.

use std::collections::BTreeSet;

use super::{AlternativesPlan, AlternativesProblem};

/// Why a plan is wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AlternativesFault {
    /// A piece of which no option is read.
    #[error("what the plan reads of piece {piece} is none of its options")]
    NoOption {
        /// Position of the piece.
        piece: usize,
    },
    /// A claimed cost that is not the plan's.
    #[error("the plan costs {actual} and claims {claimed}")]
    Cost {
        /// What its slots say.
        actual: f64,
        /// What the plan says.
        claimed: f64,
    },
    /// A lower bound that the plan itself refutes.
    #[error("the plan costs {cost}, below its lower bound {lower_bound}")]
    LowerBound {
        /// What its slots say.
        cost: f64,
        /// What the plan says.
        lower_bound: f64,
    },
}

/// How far sums of floating-point numbers in different orders may differ, relative to the sum.
const TOLERANCE: f64 = 1e-9;

/// Checks a plan against its problem: every piece is read by one of its options, the cost is what the slots say, and the lower bound
/// is not above it.
///
/// # Errors
/// The first fault found.
pub fn check_alternatives(
    problem: &AlternativesProblem,
    plan: &AlternativesPlan<'_>,
) -> Result<(), AlternativesFault> {
    let (mut asked, mut actual) = (BTreeSet::new(), 0.0);
    for piece in 0..problem.pieces.piece_count() {
        let picks = plan.picks_of(piece);
        if !problem.pieces.is_read(piece, picks) {
            return Err(AlternativesFault::NoOption { piece });
        }
        for slot in picks.iter().map(|&pick| problem.pieces.slots()[pick as usize]) {
            asked.insert(slot.site);
            actual += slot.load();
        }
    }
    actual += asked.iter().map(|&site| problem.overheads()[site]).sum::<f64>();
    if (actual - plan.cost).abs() > TOLERANCE * actual {
        return Err(AlternativesFault::Cost { actual, claimed: plan.cost });
    }
    if plan.lower_bound > actual * (1.0 + TOLERANCE) || plan.lower_bound.is_nan() {
        return Err(AlternativesFault::LowerBound { cost: actual, lower_bound: plan.lower_bound });
    }
    Ok(())
}

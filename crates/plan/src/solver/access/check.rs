//! The checker of access plans: decides whether a plan is legal and costs what it claims, independently of the solver.

use std::collections::HashSet;

use super::{AccessPlan, AccessProblem};

/// Why a plan is wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AccessFault {
    /// A chunk that the problem does not offer.
    #[error("the plan fetches chunk {option} of block {block}, which the problem does not have")]
    NoSuchOption {
        /// Position of the block.
        block: usize,
        /// Position among the block's options.
        option: usize,
    },
    /// The same chunk twice.
    #[error("the plan fetches chunk {option} of block {block} twice")]
    Twice {
        /// Position of the block.
        block: usize,
        /// Position among the block's options.
        option: usize,
    },
    /// Too few chunks to rebuild a block.
    #[error("the plan fetches {fetched} chunks of block {block}, which needs {need}")]
    TooFew {
        /// Position of the block.
        block: usize,
        /// Chunks of it in the plan.
        fetched: usize,
        /// k_i + δ.
        need: usize,
    },
    /// A claimed cost that differs from the plan's.
    #[error("the plan costs {actual} and claims {claimed}")]
    Cost {
        /// The cost by Eq. 1.
        actual: f64,
        /// The cost that the plan claims.
        claimed: f64,
    },
    /// A lower bound above the plan's own cost.
    #[error("the plan costs {cost}, below its lower bound {lower_bound}")]
    LowerBound {
        /// The cost by Eq. 1.
        cost: f64,
        /// The bound that the plan claims.
        lower_bound: f64,
    },
}

/// Maximum relative difference between sums of floating-point numbers in different orders.
const TOLERANCE: f64 = 1e-9;

/// Checks a plan against its problem: every block has what it needs, every chunk exists and is fetched once, the cost
/// is that of Eq. 1, and the lower bound is not above it. O(chunks).
///
/// # Errors
/// The first fault found.
pub fn check_access(problem: &AccessProblem, plan: &AccessPlan<'_>) -> Result<(), AccessFault> {
    let mut fetched = vec![0; problem.block_count()];
    let mut accessed = HashSet::new();
    let mut seen = HashSet::new();
    let mut actual = 0.0;
    for chunk in plan.chunks {
        let (block, option) = (chunk.block, chunk.option);
        let exists = block < problem.block_count() && option < problem.block(block).options.len();
        if !exists {
            return Err(AccessFault::NoSuchOption { block, option });
        }
        if !seen.insert((block, option)) {
            return Err(AccessFault::Twice { block, option });
        }
        let chosen = problem.block(block).options[option];
        if accessed.insert(chosen.site) {
            actual += problem.overheads()[chosen.site];
        }
        actual += chosen.transfer;
        fetched[block] += 1;
    }
    for (block, (&fetched, access_block)) in fetched.iter().zip(problem.blocks()).enumerate() {
        if fetched < access_block.need {
            return Err(AccessFault::TooFew { block, fetched, need: access_block.need });
        }
    }
    if (actual - plan.cost).abs() > TOLERANCE * actual {
        return Err(AccessFault::Cost { actual, claimed: plan.cost });
    }
    if plan.lower_bound > actual + TOLERANCE * actual || plan.lower_bound.is_nan() {
        return Err(AccessFault::LowerBound { cost: actual, lower_bound: plan.lower_bound });
    }
    Ok(())
}

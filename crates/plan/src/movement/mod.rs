//! Movement: which chunk moves where, so that reads cost less and the sites' loads are even (EC-Store §IV-C, §IV-D).
//!
//! The state C of a [`MovementState`] says where the chunks of some blocks are, how often each block is requested and
//! with which others, and the costs and loads of the sites. For moving block b's chunk from site s to site d,
//!
//! ```text
//! E = Σ_i λ_{b,i} (cost(C, {b, i}) − cost(C', {b, i}))        Eq. 5: what reads of b and a partner i save
//! I = max(Ω_s, Ω_d) − max(Ω'_s, Ω'_d)                          Eq. 6, 7: how much nearer to the mean the farther one comes
//! Δ = w1·E + w2·I                                              Eq. 8
//! ```
//!
//! where C' is the state after the move, cost is that of the best plan (Eq. 1–4), and Ω_j = |1 − ω_j/ω̃|. A chunk takes
//! along the dynamic load of all sites (processor and disk) times its part of the bytes that requests read, which
//! follows from its length and its block's popularity.
//!
//! [`select_movement`] is Algorithm 1. It draws candidates by popularity, and tries chunks on the most loaded sites and
//! likely destinations first. It can stop at any candidate with the best move so far. [`MovementQueue`] continues from
//! there, move after move, without evaluating every candidate again. Two facts make it fast. The cost of two blocks is
//! found exactly by counting chunks on common sites ([`pair`]). For a destination that holds no chunk of the partner,
//! the cost after the move is the minimum of two numbers that do not depend on the destination ([`gains`]).
//!
//! [`Objective::published`] is the paper's. [`Objective::improved`] differs where the paper's objective misleads:
//! - Savings are those of whole sampled requests, not of pairs of blocks ([`requests`]).
//! - Both terms are shares of the cost of all requests. A popular block's saving counts more than a rare one's, and a
//!   block is not preferred for having many partners.
//! - Blocks that requests read at one site move together where a single move would gain nothing or separate them.
//! - No move leaves its destination with more load than the source had, or than the mean. Requests that ask the new
//!   site anyway read the chunk there more often than anywhere else. A [`MovementQueue`] therefore plans the requests
//!   again before it makes a plan. It drops the plan if a site that sends more because of it would exceed the mean and
//!   the previous load of every site that sends less. So the imbalance (most loaded over mean) does not grow.
//! - Every move must pay for itself within 100,000 requests. Plans are compared by the gain of each of their moves.
//!
//! [`Levelling`] decides which moves balance space: off drained sites, and from full sites to empty ones.
//!
//! This module fetches nothing and does not decide when to move. [`check_movement`] checks plans without knowing how
//! they were found.

mod candidates;
mod check;
mod gains;
pub mod instances;
mod levelling;
mod loads;
mod objective;
mod pair;
mod queue;
mod requests;
mod search;
mod state;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

pub use candidates::{MovementCandidate, MovementCandidates, MovementSample, draw_candidates};
pub use check::{MovementFault, check_movement};
pub use levelling::{Levelling, SiteFill};
pub use objective::Objective;
pub use queue::{MovementQueue, SettledPlan};
pub use search::{MovementBudget, MovementPlan, MovementSearch, select_movement};
pub use state::{ChunkMove, MovementBlock, MovementSite, MovementState, Traffic};

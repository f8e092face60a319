//! Movement: which chunk is moved where, so that reads cost less and sites are loaded alike (EC-Store §IV-C, §IV-D).
//!
//! The state C of a [`MovementState`] says where the chunks of some blocks are, how often each block is asked for, with
//! which others, and what the sites cost and bear. For moving block b's chunk from site s to site d,
//!
//! ```text
//! E = Σ_i λ_{b,i} (cost(C, {b, i}) − cost(C', {b, i}))        Eq. 5: what reads of b and a partner i save
//! I = max(Ω_s, Ω_d) − max(Ω'_s, Ω'_d)                          Eq. 6, 7: how much nearer to the mean the farther one comes
//! Δ = w1·E + w2·I                                              Eq. 8
//! ```
//!
//! where C' is the state after the move, cost is that of the best plan (Eq. 1–4), and Ω_j = |1 − ω_j/ω̃|. The load of a
//! chunk that goes along is the dynamic load of all sites (processor and disk), times the chunk's part of the bytes that
//! requests read: its length and how often it is asked for.
//!
//! [`select_movement`] is Algorithm 1: candidates drawn by their popularity, chunks on the most loaded sites first, likely
//! destinations first; it can end at any candidate and then has the best so far. [`MovementQueue`] goes on from there, move after
//! move, without looking at everything anew. What makes it fast: the cost of two
//! blocks is found exactly by counting chunks on common sites ([`pair`]), and for a destination that holds no chunk of the
//! partner the cost after the move is the minimum of two numbers that do not depend on the destination ([`gains`]).
//!
//! [`Objective::published`] is the paper's. [`Objective::improved`] differs where the paper's objective misleads:
//! - what is saved is saved of whole requests, as they were sampled, and not of pairs of blocks ([`requests`]);
//! - both terms are shares of what all requests cost, so that a popular block's saving counts more than a rare one's, and
//!   a block with many partners is not preferred for having them;
//! - blocks that requests read at one site move together, where one alone would gain nothing or tear the others apart;
//! - no move leaves its destination with more load than the source had or the mean is. A chunk whose new site is asked anyway is
//!   read there more often than anywhere else, so before a [`MovementQueue`] makes a plan it plans the requests again, and
//!   gives it up where a site that sends more by it would bear more than the mean and than any that sends less did: the
//!   imbalance (most loaded over mean) does not grow;
//! - none is made that does not pay for itself within 100,000 requests; plans are compared by what each of their moves gains.
//!
//! [`Levelling`] decides what is moved for space's sake: off sites that are drained, and from full sites to empty ones.
//!
//! What this does not do: fetch anything, or decide when. Plans are checked by [`check_movement`], which knows nothing of
//! how they were found.

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

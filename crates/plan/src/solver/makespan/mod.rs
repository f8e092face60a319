//! Which chunks a query reads so that its last one arrives soon and the sites have little work.
//!
//! A query has pieces, and each piece has options ([`crate::solver::piece_options`]). Let q_j be the time before a
//! request that arrives at site j now, c the time of any request, and z m_j that of z bytes. The plan minimises
//!
//! ```text
//! T + w X      T = max over the sites used of  q_j + c + Σ z m_j         when the last site has ended
//!              X = Σ over the sites used of    c + Σ z m_j + decoding    what the query adds to the load of all
//! ```
//!
//! T alone would read around every queue, with work that delays other queries; X alone would never read around one. For
//! one piece, T + w X is its predicted latency plus a share of the load it adds. The problem is the makespan of
//! unrelated machines with jobs that can be exchanged for several smaller ones. A sum over sites (EC-Store's Eq. 1,
//! [`crate::solver::access`]) ignores which site is last: where bytes matter it reads slower than least marginal load
//! first.
//!
//! **w** is [`USUAL_WEIGHT`], 0.06. With fresh queues, any w up to 0.06 reads equally fast and 0.1 is 5 to 10% slower;
//! below 0.06 the sites only do more work. Queues that are ten service times old need more, 0.2 to 0.5, under
//! Reed–Solomon codes, whose degraded reads take k times the work.
//!
//! The algorithm:
//!
//! 1. [`bound`](self) (`bound.rs`): pieces alone at the current queues give a lower bound of T, and *floors* above it
//!    at which an option of less load becomes possible. The minimum of F + w·(load at floor F) bounds every plan from
//!    below: the plan's certificate. It ignores the load that pieces add to each other.
//! 2. From the best floor on, pieces are placed in order of their earliest end, latest first. Each takes its best
//!    response (`response.rs`) to those before it, and an end up to the floor is free.
//! 3. The best of these plans is improved until no piece has a better response to all others, and closing no site is
//!    better (`improve.rs`).
//!
//! The mean gap to the exact optimum is below 1% (`striate-bench plan`). Pieces of one chunk are not merged first,
//! because its ranges may be read in different ways. [`check_makespan`] judges plans without knowing any of this.

mod bound;
mod check;
mod improve;
pub mod instances;
mod problem;
mod response;
mod solve;
mod state;

#[cfg(test)]
mod tests;

pub use check::{MakespanFault, check_makespan};
pub use problem::{MakespanProblem, USUAL_WEIGHT};
pub use solve::{MakespanPlan, MakespanWorkspace, solve};

//! Which chunks a query reads so that its last one comes soon and the sites have little to do for it.
//!
//! A query has pieces, and each piece has options ([`crate::solver::piece_options`]). With q_j the time before a request that comes to
//! site j now, c that of any request, and z m_j that of z bytes, the plan minimises
//!
//! ```text
//! T + w X      T = max over the sites used of  q_j + c + Σ z m_j         when the last site has ended
//!              X = Σ over the sites used of    c + Σ z m_j + decoding    what the query adds to the load of all
//! ```
//!
//! T alone would read around every queue with work that others then wait for; X alone would never read around one. For one
//! piece this is its own predicted latency plus a share of the load that it adds. It is the makespan of unrelated machines with
//! jobs that can be exchanged for several smaller ones. A sum over sites (EC-Store's Eq. 1, [`crate::solver::access`]) does not see
//! who is last: where bytes matter it reads slower than least marginal load first.
//!
//! **w** is [`USUAL_WEIGHT`], 0.06. With fresh queues anything up to 0.06 reads equally fast and 0.1 is 5 to 10% slower; below 0.06
//! the sites only do more work. Queues that are ten service times old want more under Reed–Solomon codes, whose degraded reads are
//! k times the work: 0.2 to 0.5.
//!
//! The way to a plan:
//! 1. [`bound`](self) (`bound.rs`): pieces alone at the present queues say what T must be at least, and *floors* above it at which
//!    an option of less load becomes possible. The least F + w·(load at floor F) bounds every plan from below: the plan's
//!    certificate. It does not see what pieces add to each other.
//! 2. From the best floor on: pieces in order of their earliest end, latest first, each by its best response (`response.rs`) to
//!    those before it, with an end up to the floor for free.
//! 3. The best of them is improved until no piece has a better response to all others, and no site is better left alone
//!    (`improve.rs`).
//!
//! The mean gap to the exact optimum is below 1% (`striate-bench plan`). Pieces of one chunk are not merged before: its ranges may
//! go different ways. [`check_makespan`] judges plans without knowing any of this.

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

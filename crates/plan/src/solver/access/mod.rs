//! Which chunks of many blocks to fetch from which sites at the least cost (EC-Store §IV-B, Eq. 1–4).
//!
//! A request names blocks B_i. Each needs k_i + δ of its chunks, on different sites. Accessing site j costs o_j once,
//! and every chunk from there m_j·z_i more; the goal is the plan of least total cost. The paper gives this integer
//! program to a general solver, which takes milliseconds, and hides that behind a cache of plans. [`solve`] takes
//! microseconds for typical requests, so every request gets the best plan for the current load and nothing is cached:
//!
//! 1. *Preparation* (`prepare`, `component`) settles what needs no search, splits the rest into connected components,
//!    and merges blocks on equal sites.
//! 2. *Prices* of chunks (`dual`) give a lower bound, and tell for most sites whether they belong to an optimal plan.
//! 3. A *greedy plan* by these prices, improved by exchanges (`complement`, `greedy`), is often optimal already.
//! 4. *Search* (`branch`, `closing`) proves it optimal or finds a better one. If the budget ends first, the plan comes
//!    with the bound proven so far.
//!
//! The problem is NP-hard: 100 blocks over 98 sites are beyond any budget of microseconds, and there the bound says how
//! good the plan is. [`check_access`] judges plans without knowing any of this.

mod branch;
mod check;
mod closing;
mod complement;
mod component;
mod dual;
mod greedy;
pub mod instances;
mod prepare;
mod problem;
mod solve;

#[cfg(test)]
mod tests;

pub use check::{AccessFault, check_access};
pub use problem::{AccessBlock, AccessError, AccessOption, AccessProblem};
pub use solve::{AccessChunk, AccessPlan, AccessWorkspace, BUDGET_OF_200_US, solve};

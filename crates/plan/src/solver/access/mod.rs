//! Which chunks of many blocks are fetched from which sites at least cost (EC-Store §IV-B, Eq. 1–4).
//!
//! A request names blocks B_i. Each needs k_i + δ of its chunks, on different sites. Accessing site j costs o_j, once,
//! and every chunk from there m_j·z_i more; the plan of least total cost is wanted. The paper hands this integer
//! program to a general solver, which takes milliseconds, and hides that behind a cache of plans.
//! [`solve`] takes microseconds for what clients ask, so that every request has the best plan for the load of this
//! moment and nothing is cached:
//!
//! 1. *Preparation* (`prepare`, `component`) settles what needs no search, splits the rest where it does not hang
//!    together, and merges blocks on equal sites.
//! 2. *Prices* of chunks (`dual`) give a lower bound, and say of most sites whether they belong to an optimal plan.
//! 3. A *greedy plan* by these prices, improved by exchanges (`complement`, `greedy`), is often optimal already.
//! 4. *Search* (`branch`, `closing`) proves it or finds a better one. When the budget ends first, the plan comes with the
//!    bound that is proved so far.
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

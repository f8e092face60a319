//! Which chunks of many blocks are fetched from which sites at least cost (EC-Store §IV-B, Eq. 1–4).

mod branch;
mod check;
mod closing;
mod complement;
mod component;
mod dual;
mod greedy;
mod prepare;
mod problem;
mod solve;

#[cfg(test)]
mod tests;

pub use check::{AccessFault, check_access};
pub use problem::{AccessBlock, AccessError, AccessOption, AccessProblem};
pub use solve::{AccessChunk, AccessPlan, AccessWorkspace, solve};

//! Which chunks a read requests from which sites (design.md §5).
//!
//! All reads consist of *pieces*: the same columns of some chunks of one stripe. A [`policy::ReadPolicy`] chooses the
//! chunks of all pieces of a query. The choice is grouped by site, because a site gets one request however many chunks
//! it delivers (the o_j of EC-Store Eq. 1 is paid per request, not per chunk).
//!
//! - [`piece`]: pieces, and the plans of queries for them.
//! - [`determining`]: the cheapest chunks that determine others.
//! - [`policy`]: the interface of all policies, with one file for each: [`normal`], [`cost_model`], [`adaptive`].
//! - [`options`]: the read options of one wanted chunk (Hu et al., SoCC'17).
//! - `query_options`: whole queries whose pieces have such options; `code_options`: the options that codes allow;
//!   `soonest`: plans of such queries by [`crate::solver::makespan`]; `cheapest_options`: plans of them by
//!   [`crate::solver::alternatives`].
//! - [`ordered`]: plans that take the chunks of each piece in a given order.
//! - [`price`]: the cost of a plan, and a lower bound for any plan.

pub mod adaptive;
mod cheapest_options;
mod code_options;
pub mod cost_model;
pub mod determining;
pub mod normal;
pub mod options;
pub mod ordered;
pub mod piece;
pub mod policy;
pub mod price;
mod query_options;
mod soonest;

#[cfg(test)]
mod tests;

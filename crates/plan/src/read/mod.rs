//! Which chunks a read asks of which sites (design.md §5).
//!
//! All reads are made of *pieces*: the same columns of some chunks of one stripe. A [`policy::ReadPolicy`] chooses the chunks of all
//! pieces of a query, and the choice is grouped by site, because a site is asked once however many chunks it gives (the
//! o_j of EC-Store Eq. 1 is paid for a request, not for a chunk).
//!
//! - [`piece`]: pieces, and the plans of queries for them.
//! - [`determining`]: the cheapest chunks that determine others.
//! - [`policy`]: what every policy is; one file each: [`normal`], [`cost_model`], [`adaptive`].
//! - [`options`]: the read options of one wanted chunk (Hu et al., SoCC'17).
//! - `query_options`: whole queries whose pieces have such options; `code_options`: what their codes allow; `soonest`: plans of them by
//!   [`crate::solver::makespan`]; `cheapest_options`: plans of them by [`crate::solver::alternatives`].
//! - [`ordered`]: plans that take the chunks of each piece in some order.
//! - [`price`]: what a plan costs, and what any plan must cost.

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

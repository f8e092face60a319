//! ECWide (FAST'21) §6 as a model of flows: its figures with the store's own codes, equations and trees.
//!
//! The codes, [`striate_plan::repair_by_racks`], [`striate_plan::CombineTree`], [`striate_plan::WideGeometry`],
//! [`striate_plan::PlacementRule`], [`striate_plan::LeastRecentlySelected`] and [`striate_plan::plan_sealing`] are
//! real. Disks, coders, cards, and the uplink and downlink of each rack are modelled; flows share them max–min
//! fairly. Two rates were fitted, each to one repair time of topology locality ([`cluster::Setting`]); the other
//! rates are from the paper's text. Some rules were chosen with its figures in view; docs/src/ecwide.md lists them.
//!
//! - [`network`]: flows and their rates.
//! - [`simulation`]: flows that wait for each other.
//! - [`cluster`]: sites, racks and their links.
//! - [`layout`]: the places of a stripe's chunks.
//! - [`repair`]: repairs as flows.
//! - [`encoding`]: computing the parities on one node or several.
//! - [`updates`]: updates of a chunk and its parities.
//! - [`sealing`]: the cost of making a wide stripe.
//! - [`rows`]: values beside the paper's.
//! - [`figures`]: the paper's figures.
//! - [`full_node`]: the paper's figures of full-node repairs.
//! - [`large`]: 1,000 sites, which the paper does not show.
//! - [`codes`]: what the paper computes about codes.

pub mod cluster;
pub mod codes;
pub mod encoding;
pub mod figures;
pub mod full_node;
pub mod large;
pub mod layout;
pub mod network;
pub mod repair;
pub mod rows;
pub mod sealing;
pub mod simulation;
pub mod updates;

#[cfg(test)]
mod tests;

//! ECWide (FAST'21) §6 as a model of flows: its figures with the store's own codes, equations and trees.
//!
//! What is real: the codes, [`striate_plan::repair_by_racks`], [`striate_plan::CombineTree`], [`striate_plan::WideGeometry`],
//! [`striate_plan::PlacementRule`], [`striate_plan::LeastRecentlySelected`] and [`striate_plan::plan_sealing`]. What is modelled:
//! disks, coders, cards, and the uplink and downlink of each rack, which flows share max–min fairly. Two rates were fitted, each
//! on one repair time of topology locality ([`cluster::Setting`]); the other rates are
//! from the paper's text. Some rules were chosen knowing its figures; docs/src/ecwide.md lists them.
//!
//! - [`network`]: flows and their rates.
//! - [`simulation`]: flows that wait for each other.
//! - [`cluster`]: sites, racks and their links.
//! - [`layout`]: where the chunks of a stripe are.
//! - [`repair`]: repairs as flows.
//! - [`encoding`]: one node or several make the parities.
//! - [`updates`]: changes of a chunk, and of its parities.
//! - [`sealing`]: what a wide stripe costs to make.
//! - [`rows`]: values, and the paper's beside them.
//! - [`figures`]: the paper's figures,
//! - [`full_node`]: and those of full nodes.
//! - [`large`]: 1,000 sites, which the paper does not show.
//! - [`codes`]: what the paper computes of codes.

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

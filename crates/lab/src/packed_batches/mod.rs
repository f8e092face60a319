//! Batch reads of packed objects as a queueing model: one plan for the whole query beside one decision after the other.
//!
//! A query reads 10 to 20 small objects at once and has been answered when the last one came. The default policy plans it as a
//! whole ([`striate_plan::solver::makespan`]); least marginal load first (Hu et al., SoCC'17) decides for each object by itself, what
//! the query asks for already counting as load. Both are the real planners, and both are told the same of the sites. What
//! they ask is modelled here: a site serves requests one at a time, first come first served, and that is all it does, so that a
//! million requests take seconds.
//!
//! - [`queries`]: what is read, and when.
//! - [`layout`]: where the partitions are, and copies of the hottest.
//! - [`simulation`]: sites, messages, and what front ends know.
//! - [`comparison`]: all of it on several placements.
//!
//! w was chosen on other placements than the default seeds draw, in a model that is older than this one. There are no failures, no
//! hedges and no cancellation in it.

pub mod comparison;
pub mod layout;
pub mod queries;
pub mod simulation;

#[cfg(test)]
mod tests;

/// Storage sites.
pub const SITES: usize = 90;
/// Objects, of which the one of rank i is read with weight i^−[`EXPONENT`].
pub const OBJECTS: u64 = 200_000;
/// Objects of a partition.
pub const OBJECTS_OF_PARTITION: u64 = 32;
/// Bytes of an object.
pub const OBJECT_BYTES: u32 = 16 << 10;
/// The exponent of Zipf's law.
pub const EXPONENT: f64 = 1.1;
/// Gateways, each with its own planner.
pub const FRONT_ENDS: usize = 8;
/// Seconds that a site takes for a request,
pub const REQUEST_S: f64 = 0.0005;
/// for each object in it,
pub const OBJECT_S: f64 = 0.0005;
/// and that a message takes on its way: a round trip is 0.2 ms, as everywhere in the lab.
pub const MESSAGE_S: f64 = 0.0001;

/// Partitions that have objects.
pub const PARTITIONS: usize = OBJECTS.div_ceil(OBJECTS_OF_PARTITION) as usize;

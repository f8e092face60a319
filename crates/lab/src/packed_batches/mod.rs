//! Batch reads of packed objects as a queueing model: one plan for the whole query against one decision per object.
//!
//! A query reads 10 to 20 small objects at once and is answered when the last one has arrived. The default policy
//! plans it as a whole ([`striate_plan::solver::makespan`]). Least marginal load first (Hu et al., SoCC'17) decides
//! for each object separately, counting what the query already asks for as load. Both are the real planners with the
//! same knowledge of the sites. Their requests are modelled: a site serves requests one at a time, first come, first
//! served, and does nothing else, so that a million requests take seconds.
//!
//! - [`queries`]: which objects are read, and when.
//! - [`layout`]: the places of the partitions, and copies of the hottest.
//! - [`simulation`]: sites, messages, and the knowledge of front ends.
//! - [`comparison`]: all of it on several placements.
//!
//! w was chosen on other placements than the default seeds draw, in a model that is older than this one. The model
//! has no failures, hedges or cancellations.

pub mod comparison;
pub mod layout;
pub mod queries;
pub mod simulation;

#[cfg(test)]
mod tests;

/// Number of storage sites.
pub const SITES: usize = 90;
/// Number of objects. The object of rank i is read with weight i^−[`EXPONENT`].
pub const OBJECTS: u64 = 200_000;
/// Objects per partition.
pub const OBJECTS_OF_PARTITION: u64 = 32;
/// Bytes per object.
pub const OBJECT_BYTES: u32 = 16 << 10;
/// Exponent of Zipf's law.
pub const EXPONENT: f64 = 1.1;
/// Number of gateways, each with its own planner.
pub const FRONT_ENDS: usize = 8;
/// Seconds that a site takes for a request, excluding its objects.
pub const REQUEST_S: f64 = 0.0005;
/// Seconds that a site takes for each object of a request.
pub const OBJECT_S: f64 = 0.0005;
/// Seconds that a message takes: a round trip is 0.2 ms, as everywhere in the lab.
pub const MESSAGE_S: f64 = 0.0001;

/// Number of partitions that have objects.
pub const PARTITIONS: usize = OBJECTS.div_ceil(OBJECTS_OF_PARTITION) as usize;

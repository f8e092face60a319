//! The object API over the metadata engine in memory and sites in memory.

mod buckets;
mod classes;
mod cluster;
mod engine;
mod failures;
mod interleavings;
mod invariants;
mod listing;
mod many;
mod many_puts;
mod model;
mod multipart;
mod queries;
mod races;
mod ranges;
mod reads;
mod sampling;
mod slow_peers;
mod switched;
mod waiting;

//! The layout of cached blocks (EC-Cache, OSDI'16): their splits, and how many parities they have.

pub mod parities;
pub mod splits;

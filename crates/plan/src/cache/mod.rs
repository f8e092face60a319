//! Cached blocks (EC-Cache, OSDI'16): their splits, how many parities they have, and how long a read waits for its last
//! splits.

pub mod last_splits;
pub mod parities;
pub mod splits;

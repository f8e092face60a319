//! Statistics that decisions are based on: blocks read together, hot partitions, and the sites' loads.

pub mod co_access;
pub mod heat;
pub mod site_load;

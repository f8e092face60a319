//! What the store measures of its reads, and decides by: blocks read together, hot partitions, loads of sites.

pub mod co_access;
pub mod heat;
pub mod site_load;

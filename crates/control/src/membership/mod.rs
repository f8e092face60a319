//! Membership: the cluster's sites and processes.
//!
//! - [`members`]: the rows of the cluster and its sites; [`memory_members`]: the rows of memory sites;
//!   [`retirement`]: giving up sites for good; [`drains`]: drains that may not end.
//! - [`leader`]: leader election.
//! - [`upgrade`]: the formats that every process reads, and when newer ones may be written.

pub mod drains;
pub mod leader;
pub mod members;
pub mod memory_members;
pub mod retirement;
pub mod upgrade;

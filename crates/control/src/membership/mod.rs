//! Membership: the cluster's sites and processes.
//!
//! - [`members`]: the cluster's row and those of its sites; [`memory_members`]: those of the memory tier; [`retirement`]: sites that are given
//!   up for good.
//! - [`leader`]: which process does what must happen in one place.
//! - [`upgrade`]: what every process reads, and when newer formats may be written.

pub mod leader;
pub mod members;
pub mod memory_members;
pub mod retirement;
pub mod upgrade;

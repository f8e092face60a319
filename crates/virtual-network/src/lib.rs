//! A network in virtual time, and transports over it. Shared by fault campaigns and the lab's experiments.
//!
//! - [`network`]: machines in racks, links with delays and bandwidths, losses and cuts.
//! - [`site`], [`metadata`]: the transports over it to a real site and to a real metadata engine.
//! - [`trace`]: the event log, whose hash distinguishes two runs.
//!
//! This crate does not know what is asked of the store, or who injects faults.

pub mod metadata;
pub mod network;
pub mod site;
pub mod trace;

pub use metadata::DistantMeta;
pub use network::{Machine, Network, NetworkModel};
pub use site::DistantSite;
pub use trace::{Digest, Event, Trace};

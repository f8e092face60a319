//! A network in virtual time, and the ways over it: what fault campaigns and the lab's experiments share.
//!
//! - [`network`]: machines in racks, links with delays and bandwidths, losses and cuts.
//! - [`site`], [`metadata`]: the ways over it to a real site and to a real metadata engine.
//! - [`trace`]: the event log, whose hash tells two runs apart.
//!
//! It never knows what is asked of the store, nor who breaks it.

pub mod metadata;
pub mod network;
pub mod site;
pub mod trace;

pub use metadata::DistantMeta;
pub use network::{Machine, Network, NetworkModel};
pub use site::DistantSite;
pub use trace::{Digest, Event, Trace};

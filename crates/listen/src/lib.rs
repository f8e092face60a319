//! What unknown peers may occupy: descriptors, connections and time.
//!
//! Everyone who reaches a port can open connections, and each costs a descriptor and some memory. Every listener of
//! every process bounds them in the same way:
//!
//! | question | answer |
//! |--|--|
//! | how many descriptors are there, and who may have how many? | [`descriptors`] |
//! | may this connection stay, and who makes room for it? | [`admission`] |
//! | which addresses are proxies, behind which an address is not one client? | [`networks`] |
//! | what if a connection cannot be accepted? | [`accept`] |
//! | what if the peer takes no bytes? | [`stall`] |
//!
//! The crate knows no protocol. How fast a peer of the S3 port must be is decided by `striate-s3` (`peers`), because
//! there slow peers are the rule.

pub mod accept;
pub mod admission;
pub mod descriptors;
pub mod networks;
pub mod stall;

pub use accept::next_connection;
pub use admission::{Admission, Guest};
pub use networks::Networks;
pub use stall::StallGuard;

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
//! | how many connections has each address? | [`addresses`] |
//! | what if a connection cannot be accepted? | [`accept`] |
//! | what if the peer takes no bytes? | [`stall`] |
//!
//! The crate knows no protocol. The S3 port has a rule of its own for who makes room (`peers` in `striate-s3`), because
//! there slow peers are usual, and a signature tells clients from strangers: it asks how fast a peer moves its bytes
//! where [`admission`] asks only whether the peer is waited for.

pub mod accept;
pub mod addresses;
pub mod admission;
pub mod descriptors;
pub mod networks;
pub mod stall;

pub use accept::next_connection;
pub use addresses::AddressCounts;
pub use admission::{Admission, Guest};
pub use networks::Networks;
pub use stall::StallGuard;

//! The metadata store.
//!
//! One small trait, [`MetaStore`]: ordered keys, an optimistic transaction (preconditions on versions and
//! writes), leases and a watch. Engines implement it: [`memory`] for tests and the lab, the embedded one
//! mirrored over directories (design.md §7, §10.9). What is kept in it, the [`records`] and their [`keys`],
//! is the same on every engine.
//!
//! Facts live here and only here: objects, blocks, chunk locations, sites, intents, garbage. Statistics and
//! plans never do.

pub mod archive;
pub mod conformance;
pub mod embedded;
pub mod keys;
mod lease;
pub mod memory;
mod outcomes;
pub mod records;
pub mod store;
mod watch;

pub use embedded::EmbeddedStore;
pub use memory::MemoryStore;
pub use outcomes::REMEMBERED_COMMITS;
pub use store::{
    Commit, Lease, LeaseId, MetaError, MetaStore, Precondition, Revision, Row, ScanRange, Transaction, TxId,
    Watch, WatchEvent, Write,
};
pub use watch::WATCH_BUFFER_EVENTS;

//! The metadata store.
//!
//! One small trait, [`MetaStore`]: ordered keys, an optimistic transaction (preconditions on versions, and writes),
//! leases and a watch. Engines implement it: [`memory`] for tests and the lab, the embedded one mirrored over
//! directories (design.md §7, §10.9), and for clusters the engines on [`etcd`] and on the [`postgres`] protocol, which
//! [`open`] finds by their URL. The contents, which are the [`records`] and their [`keys`], are the same on every
//! engine.
//!
//! Facts live here and only here: objects, blocks, chunk locations, sites, intents, garbage. Statistics and
//! plans never do.

pub mod archive;
pub mod conformance;
pub mod embedded;
mod engine_url;
pub mod etcd;
pub mod keys;
mod lease;
pub mod memory;
pub mod migration;
mod outcomes;
mod pages;
pub mod postgres;
pub mod records;
pub mod store;
mod watch;

pub use embedded::EmbeddedStore;
pub use engine_url::{EngineUrl, EtcdUrl, InvalidUrl, PostgresUrl, TlsFiles, open};
pub use etcd::EtcdStore;
pub use memory::MemoryStore;
pub use outcomes::REMEMBERED_COMMITS;
pub use pages::RowPages;
pub use postgres::PostgresStore;
pub use store::{
    Commit, Lease, LeaseId, MetaError, MetaStore, Precondition, Revision, Row, ScanRange, Transaction, TxId,
    Watch, WatchEvent, Write,
};
pub use watch::WATCH_BUFFER_EVENTS;

//! The storage service of EC-Store's Figure 3: one site stores chunks and knows nothing of objects.
//!
//! It has two interfaces. [`Site`] is what a client uses, in this process or over a network. [`ChunkStore`] is what a
//! site stores chunks in: a directory of segments, or memory that evicts. Between them are a bounded queue with
//! priorities and cancellation, the load report that comes with every reply and is pushed when the queue changes, and
//! the combine primitive (design.md §4.2).
//!
//! This crate does not know metadata, codes beyond a coefficient, or why a chunk is wanted.

pub mod alarm;
pub mod api;
pub mod cache;
pub mod combine;
pub mod conformance;
pub mod disk;
pub mod filesystem;
pub mod granule;
pub mod identity;
pub mod load;
pub mod local;
pub mod memory;
pub mod protocol;
pub mod pushes;
pub mod queue;
pub mod remote;
pub mod secure;
pub mod service;
pub mod store;
pub mod transport;
pub mod transport_conformance;

pub use api::{
    AssembleRequest, BlockKeeper, CachedBlockState, ChunkPage, CombineRequest, CombineSource, DeleteRequest,
    LoadStream, LocalTerm, Priority, ReadReply, ReadRequest, ReadStream, Site, SiteDirectory, SiteError,
    SiteStatus, SliceStream, Tend, TendEvent, Tended, Window, WriteRequest,
};
pub use cache::{CacheOptions, CacheStore, CacheView, Eviction, MOST_PARITIES, ProcessMemory};
pub use disk::{DiskStore, DiskStoreError, DiskStoreOptions};
pub use filesystem::RealFileSystem;
pub use identity::{DiskId, Identity, IdentityError, SiteIdentity};
pub use local::LocalSite;
pub use memory::MemoryStore;
pub use pushes::PUSH_INTERVAL;
pub use queue::QueueLimits;
pub use remote::{RemoteOptions, RemoteSite, connect};
pub use secure::{Gate, SecureConnector};
pub use service::serve_site;
pub use store::{ChunkInfo, ChunkStore, StoreStatus};
pub use transport::{ByteStream, Connector, Listener, RuntimeExecutor, TcpConnector};

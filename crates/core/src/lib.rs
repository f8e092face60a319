//! Striate's vocabulary.
//!
//! An *object* (S3 key) is one or more *blocks* (4 MiB by default). A block is coded into the n *chunks* of a *stripe*.
//! Chunks live on *sites*, and sites stand in *racks* (failure domains). A *profile* names a code, a layout, a spread
//! over racks and a tier. The terms are those of the papers; `docs/` has a table of their symbols.
//!
//! This crate does no I/O, reads no clock and depends on nothing that does.

pub mod cached;
pub mod chunk;
pub mod formats;
pub mod id;
pub mod load;
pub mod packing;
pub mod profile;
pub mod storage_class;

pub use chunk::{ChunkId, ChunkRange, GRANULE_LEN, SMALL_GRANULE_LEN};
pub use formats::{Formats, FormatsInForce, NeedsNewerProgram};
pub use id::{ClusterId, FencingEpoch, Generation, RackId, SiteId, StripeId};
pub use load::LoadReport;
pub use packing::{Packing, PackingError};
pub use profile::{Layout, Profile, ProfileError, Spread, Tier, UnsupportedProfile};
pub use storage_class::{StorageClass, StorageClassError};
pub use striate_codec::CodeSpec;

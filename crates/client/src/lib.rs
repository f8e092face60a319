//! The client service (EC-Store, Figure 3): what every gateway and tool uses.
//!
//! Above it are objects with S3's semantics: conditions, multipart uploads, listings, copies. Below it are stripes: a
//! block is encoded, its chunks are written to sites, and the metadata that names them commits last (design.md §10).
//! Reads take systematic chunks where they can, work around missing, slow or corrupt ones, and never return
//! unverified bytes.
//!
//! This crate does no HTTP (the `s3` crate translates) and no background work (the `control` crate).

pub mod error;
pub mod object;

mod blocks;
mod bucket;
mod bucket_change;
mod bucket_profiles;
mod client;
mod commit;
mod condition;
mod copy;
mod delete;
mod digest;
mod exist;
mod explain;
mod gathering;
mod get;
mod in_memory;
mod ingest;
mod list;
mod many;
mod multipart;
mod packed_row;
mod put;
mod put_many;
mod read_ahead;
mod reader;
mod recoding;
mod record;
mod tagging;
mod task;
mod uncommitted_memory;
mod walk;

pub use bucket::{MAX_BLOCK_LEN, MAX_GROUP_LEN, check_bucket_name};
pub use bucket_change::{BucketChange, ColdChange, SettingChange, USUAL_COLD_AFTER};
pub use client::Client;
pub use condition::{check_read, resolve_range, wanted_range};
pub use digest::{DEFAULT_CHECKSUM, RunningChecksum};
pub use error::ClientError;
pub use explain::{MAX_EXPLAINED_BLOCKS, ObjectExplanation, ReadExplanation};
pub use many::{ObjectHead, ObjectPart, PartStream, ReadOrder};
pub use object::*;
pub use put::{MAX_INLINE_LEN, inline_limit};
pub use record::check_key;
pub use striate_stripe::Payer;

//! The memory tier (EC-Cache, OSDI'16): blocks that are read repeatedly are kept in the memory of many sites, each
//! block coded on its own.
//!
//! A cached block is a stripe of the memory tier. It has no row: its name follows from its content ([`names`]), and the
//! places of its splits follow from the name and the memory sites that answer (`plan::cache::splits`). So a gateway
//! finds it without a lookup, and it is never stale: a block that replaces it has another name. Everything here can be
//! lost at any time.
//!
//! - [`cache`]: a gateway's side: its settings, its sites, and the entry points of the read engine in `stripe`.
//! - [`reads`]: which blocks of a query are read from the tier, and the work that is due after a read.
//! - [`known_blocks`]: what a gateway knows of cached blocks.
//! - [`homes`]: requests to the homes of blocks; [`answer`]: a home's answer, which returns its grants if it is not
//!   taken.
//! - [`filling`]: writes blocks to the tier that were read from where they are stored.
//! - [`splits`]: cuts, encodes and writes a block.
//! - [`popularity`]: gives popular blocks more parities.
//! - [`explain`]: explains what a read would find; [`miss_reasons`]: why blocks are not in memory; [`view`]: counters
//!   of the tier's work.
//! - [`origin_blocks`]: blocks of objects in other S3 stores.
//! - [`refill`]: rewrites splits that memory sites have lost.
//! - [`volatile`]: blocks that are in memory only.
//! - [`keeper`]: the side of a block's *home*, the site of its first split: who fills it, and how many parities it
//!   should have.
//!
//! This crate does not know objects or keys. The bytes themselves are in `site::cache`.

mod answer;
mod cache;
mod explain;
mod filling;
mod homes;
mod keeper;
mod known_blocks;
mod miss_reasons;
mod names;
mod origin_blocks;
mod popularity;
mod reads;
mod refill;
mod splits;
mod view;
mod volatile;

pub use cache::{Cache, CacheSettings};
pub use keeper::Keeper;
pub use origin_blocks::{BlockFill, BlockLookup, PartialRead, longest_fetched};
pub use view::{CacheCounts, ReadOutcome};

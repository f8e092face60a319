//! The memory tier (EC-Cache, OSDI'16): blocks that are read again are kept in the memory of many sites, each coded by itself.
//!
//! A cached block is a stripe of the memory tier. It has no row: its name follows from what it holds ([`names`]), and where its
//! splits are from the name and the memory sites that answer (`plan::splits`). So it is found without asking, and never out of
//! date: what replaces a block has another name. Everything here can be lost at any time.
//!
//! - [`cache`]: a gateway's side: which blocks are read from the tier, for the read engine of `stripe`.
//! - [`elsewhere`]: blocks of objects that are kept elsewhere.
//! - [`known`]: what a gateway knows of cached blocks.
//! - [`fill`]: blocks that were read elsewhere are split, coded and written to the tier.
//! - [`refill`]: splits that memory sites have lost are written again.
//! - [`volatile`]: blocks that are in memory only.
//! - [`keeper`]: the side of a block's *home*, the site of its first split: who fills it, and how many parities it should have.
//!
//! What this crate does not know: objects and keys. The bytes themselves are in `site::cache`.

mod answer;
mod cache;
mod elsewhere;
mod fill;
mod keeper;
mod known;
mod names;
mod refill;
mod view;
mod volatile;

pub use cache::{Cache, CacheSettings};
pub use elsewhere::{BlockFill, Looked, Missed};
pub use keeper::Keeper;
pub use view::{CacheCounts, Served};

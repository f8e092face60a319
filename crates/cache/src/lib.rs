//! The memory tier (EC-Cache, OSDI'16): blocks that are read again are kept in the memory of many sites, each coded by itself.
//!
//! A cached block is a stripe of the memory tier. It has no row: its name follows from what it holds ([`names`]), and where its
//! splits are from the name and the memory sites that answer (`plan::splits`). So it is found without asking, and never out of
//! date: what replaces a block has another name. Everything here can be lost at any time.
//!
//! - [`cache`]: a gateway's side: its settings, its sites, and what the read engine of `stripe` calls.
//! - [`reads`]: which blocks of a query are read from the tier, and what is due once they were read.
//! - [`known`]: what a gateway knows of cached blocks.
//! - [`homes`]: what it asks and tells the homes of blocks; [`answer`]: a home's answer, whose grants are given up if nobody takes them.
//! - [`filling`]: blocks that were read from where they are kept are written to the tier.
//! - [`splits`]: how a block is cut, coded and written.
//! - [`popularity`]: popular blocks get more parities.
//! - [`explain`]: what a read would find, in words; [`fates`]: why blocks are not in memory; [`view`]: what the tier did for reads, counted.
//! - [`elsewhere`]: blocks of objects that are kept elsewhere.
//! - [`refill`]: splits that memory sites have lost are written again.
//! - [`volatile`]: blocks that are in memory only.
//! - [`keeper`]: the side of a block's *home*, the site of its first split: who fills it, and how many parities it should have.
//!
//! What this crate does not know: objects and keys. The bytes themselves are in `site::cache`.

mod answer;
mod cache;
mod elsewhere;
mod explain;
mod fates;
mod filling;
mod homes;
mod keeper;
mod known;
mod names;
mod popularity;
mod reads;
mod refill;
mod splits;
mod view;
mod volatile;

pub use cache::{Cache, CacheSettings};
pub use elsewhere::{BlockFill, Looked, Missed};
pub use keeper::Keeper;
pub use view::{CacheCounts, ReadOutcome};

//! Collection: removes what nothing names any more, after a grace, and what dead writers left behind.
//!
//! - [`garbage`]: chunks that garbage rows name; [`orphans`]: unnamed chunks that are in no row.
//! - [`abandoned`]: what dead writers left behind; [`entries`]: their unfinished changes of stripes.
//! - [`parts`]: parts of multipart uploads and objects that are gone.
//! - [`placements`]: rows of sets of sites without stripes.
//! - [`volatile`]: rows of memory-only objects that are gone.

pub mod abandoned;
pub(crate) mod entries;
pub mod garbage;
pub mod orphans;
pub mod parts;
pub mod placements;
pub mod volatile;

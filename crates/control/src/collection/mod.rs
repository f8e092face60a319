//! Collection: what nothing names any more is removed, after a grace, and so is what writers left behind that are gone.
//!
//! - [`garbage`]: chunks that nothing names and that are known to be garbage; [`orphans`]: those that are in no row.
//! - [`abandoned`]: what writers left behind; [`entries`]: changes of stripes that they had under way.
//! - [`parts`]: parts of multipart uploads and of objects that are gone.
//! - [`placements`]: rows of sets of sites that no stripe is on.
//! - [`volatile`]: rows of objects that were in memory only and are gone.

pub mod abandoned;
pub(crate) mod entries;
pub mod garbage;
pub mod orphans;
pub mod parts;
pub mod placements;
pub mod volatile;

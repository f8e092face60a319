//! Wide stripes: cold partitions of many stripes under one code (ECWide, FAST'21).
//!
//! - [`seal`]: partitions become members, step by step, and their own parities go.
//! - [`links`]: what a change of a chunk's place means for the wide stripe that it is a member of.

mod links;
mod seal;

pub(super) use links::{Links, is_same_file};
pub use seal::{WidePlan, WideStep};
pub(crate) use seal::{abort, advance};

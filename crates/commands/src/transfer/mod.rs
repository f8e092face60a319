//! Copies between files and any S3 store: `cp`, `ls`, `rm`, `cat`.

mod browse;
mod copy;
mod download;
pub mod location;
pub mod progress;
mod store;
mod upload;

pub use browse::{cat, ls, rm};
pub use copy::cp;
pub use location::ObjectLocation;
pub use store::ObjectStore;

//! Copies between files and any S3 store: `cp`, `ls`, `rm`, `cat`.
//!
//! A client of the S3 protocol and nothing else: it shares no code with the gateway, so it also tells whether
//! the gateway speaks S3.

mod browse;
mod copy;
mod download;
mod interruption;
mod location;
pub mod progress;
pub mod sign;
mod store;
mod tls;
mod upload;
mod xml;

pub use browse::{cat, ls, rm};
pub use copy::cp;

//! An S3 store and the access key for it: requests, signed and sent once. The users of this module, [`crate::transfer`]
//! and [`crate::bench`], decide what to request and when to retry.

mod endpoint;
mod refusal;

pub use endpoint::{Call, S3Endpoint, SendError};
pub use refusal::{Refusal, explain};

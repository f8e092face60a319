//! An S3 store and the key to use it with: requests, signed and sent once. What is built on it decides what to ask and when to
//! try again: [`crate::transfer`] and [`crate::bench`].

mod endpoint;
mod refusal;

pub use endpoint::{Call, S3Endpoint, SendError};
pub use refusal::{Refusal, explain};

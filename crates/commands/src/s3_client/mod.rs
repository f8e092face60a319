//! A small S3 client over hyper: requests to any S3 store, signed and sent once. What is built on it decides what to ask
//! and when to try again: [`crate::transfer`] and [`crate::bench`].
//!
//! A client of the S3 protocol and nothing else: it shares no code with the gateway, so it also tells whether the
//! gateway speaks S3.

mod endpoint;
mod refusal;
pub mod sign;
mod tls;
pub mod xml;

pub use endpoint::{Call, S3Endpoint, SendError};
pub use refusal::{Refusal, explain};
pub use tls::client_config;

//! Requests to S3 stores, Striate and others: signatures, connections, and documents.
//!
//! | module | content |
//! |--|--|
//! | [`signer`] | AWS Signature Version 4 for any request, by `aws-sigv4` |
//! | [`connection`] | connections over TCP and TLS, and the certificates that are trusted |
//! | [`uri`] | paths and queries in the form that is signed |
//! | [`xml`] | the documents that S3 sends and receives |
//!
//! The caller decides what to request, what a response means and when to retry. This crate shares nothing with the
//! gateway's parsing of requests, so that each verifies that the other speaks S3 (`docs/decisions/s3-client.md`).

pub mod connection;
pub mod signer;
pub mod uri;
pub mod xml;

pub use connection::{CaFileError, HttpClient, RequestBody, client_config, whole};
pub use signer::{Payload, SignError, Signer};
pub use uri::{encode_path, encode_query};

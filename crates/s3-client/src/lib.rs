//! Requests to S3 stores, ours and others': how they are signed, the connections they are sent over, and the documents in them.
//!
//! | module | what |
//! |--|--|
//! | [`signer`] | AWS Signature Version 4 for any request, by `aws-sigv4` |
//! | [`connection`] | connections over TCP and TLS, and whose certificates are trusted |
//! | [`uri`] | paths and queries in the form that is signed |
//! | [`xml`] | the documents that S3 answers with and is sent |
//!
//! What is asked, what an answer means and when to try again is up to the caller. Nothing here is shared with the gateway's
//! reading of requests, so that each tells whether the other speaks S3 (`docs/decisions/s3-client.md`).

pub mod connection;
pub mod signer;
pub mod uri;
pub mod xml;

pub use connection::{CaFileError, HttpClient, RequestBody, client_config, whole};
pub use signer::{Payload, SignError, Signer};
pub use uri::{encode_path, encode_query};

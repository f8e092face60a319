//! The protocol between control processes and sites, gateways and operators (`proto/control.proto`): gRPC over mutual
//! TLS.

pub mod access;
pub mod client;
pub mod service;

/// The generated messages, client and server.
#[allow(missing_docs, clippy::all, reason = "generated from proto/control.proto, which documents it")]
pub mod generated {
    include!("../../proto/control.rs");
}

pub use generated as messages;

/// Maximum size of a request or reply in bytes: ten thousand sites fit, and so does a gateway's longest report.
const MAX_MESSAGE_LEN: usize = 4 << 20;

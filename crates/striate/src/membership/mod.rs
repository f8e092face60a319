//! How sites, gateways and operators speak with control processes (`proto/control.proto`): gRPC over TLS on
//! which both ends are known.

pub mod access;
pub mod client;
pub mod service;

/// The generated messages, client and server.
#[allow(missing_docs, clippy::all, reason = "generated from proto/control.proto, which documents it")]
pub mod generated {
    include!("../../proto/control.rs");
}

pub use generated as messages;

/// Longest request or reply, in bytes: ten thousand sites fit, and the longest report of a gateway.
const MAX_MESSAGE_LEN: usize = 4 << 20;

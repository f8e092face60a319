//! The site protocol, version 2: what [`crate::service`] and [`crate::remote`] speak.
//!
//! *One port, two protocols.* Control (status, delete, list, verify, watch) is gRPC over HTTP/2; chunk bytes (read,
//! write, combine, assemble, amend) travel in pooled HTTP/1.1 connections, because that moves three times as many bytes per
//! processor second as gRPC messages do. Both share one listener, so a site has one address, one identity
//! and one hole in the firewall; the first bytes of a connection tell which of the two it is.
//!
//! | request | body | reply |
//! |--|--|--|
//! | `POST /striate/v1/hello` | [`hello::encode_hello`] | [`hello::Welcome`] |
//! | `POST /striate/v1/read` | [`frame::ReadBody`] | a frame for each range, in order of arrival |
//! | `POST /striate/v1/cancel` | [`frame::encode_cancel`] | one frame |
//! | `PUT /striate/v1/chunk` | [`frame::WriteHead`], then the chunk | one frame |
//! | `POST /striate/v1/combine` | `striate.site.v1.Combine` | a frame for each slice |
//! | `POST /striate/v1/assemble` | `striate.site.v1.Assemble` | one frame |
//! | `POST /striate/v1/amend` | length (u32, little-endian), `striate.site.v1.Assemble`, the bytes of its windows | one frame |
//! | `POST /striate.site.v1.SiteControl/…` | gRPC | gRPC |
//!
//! A cancelled read ends its reply early and leaves the connection open; closing the connection cancels its request
//! too. Every reply carries the site's load report, and `Watch` sends one whenever the queue has changed. Every connection
//! begins with a hello, which settles the version and the cluster ([`hello`]). Who the peer is, TLS has settled before
//! ([`crate::secure`]); what its role has no right to, malformed and too large requests are answered by an HTTP status
//! and a text.

pub mod control;
pub mod frame;
pub mod hello;
pub mod limits;

/// The version of this protocol. Another one is refused.
pub(crate) const PROTOCOL_VERSION: u32 = 2;

/// Path of the handshake.
pub const HELLO_PATH: &str = "/striate/v1/hello";
/// Path of reads.
pub(crate) const READ_PATH: &str = "/striate/v1/read";
/// Path of cancellations.
pub(crate) const CANCEL_PATH: &str = "/striate/v1/cancel";
/// Path of writes.
pub(crate) const CHUNK_PATH: &str = "/striate/v1/chunk";
/// Path of combinations.
pub(crate) const COMBINE_PATH: &str = "/striate/v1/combine";
/// Path of chunks that a site is to make. A site of 0.1.0 does not know it, and refuses it as a bad request.
pub(crate) const ASSEMBLE_PATH: &str = "/striate/v1/assemble";
/// Path of chunks that a site is to make with windows. A site of before 0.5.0 does not know it, and refuses it as a bad request.
pub(crate) const AMEND_PATH: &str = "/striate/v1/amend";

//! The site protocol, version 2, between [`crate::remote`] and [`crate::service`].
//!
//! *One port, two protocols.* Control (status, delete, list, verify, watch) is gRPC over HTTP/2. Chunk bytes (read,
//! write, combine, assemble, amend) travel over pooled HTTP/1.1 connections, because these move three times as many
//! bytes per processor second as gRPC messages do. Both share one listener, so a site has one address, one identity and
//! one hole in the firewall; the first bytes of a connection tell the protocols apart.
//!
//! | request | body | reply |
//! |--|--|--|
//! | `POST /striate/v1/hello` | [`hello::encode_hello`] | [`hello::HelloReply`] |
//! | `POST /striate/v1/read` | [`frame::ReadBody`] | a frame for each range, in order of arrival |
//! | `POST /striate/v1/cancel` | [`frame::encode_cancel`] | one frame |
//! | `PUT /striate/v1/chunk` | [`frame::WriteHead`], then the chunk | one frame |
//! | `POST /striate/v1/combine` | `striate.site.v1.Combine` | a frame for each slice |
//! | `POST /striate/v1/assemble` | `striate.site.v1.Assemble` | one frame |
//! | `POST /striate/v1/amend` | length (u32, little-endian), `striate.site.v1.Assemble`, the bytes of its windows | one frame |
//! | `POST /striate.site.v1.SiteControl/…` | gRPC | gRPC |
//!
//! A cancelled read ends its reply early and leaves the connection open; closing the connection cancels its request
//! too. Every reply carries the site's load report, and `Watch` sends one whenever the queue has changed. Every
//! connection begins with a hello, which settles the version and the cluster ([`hello`]). TLS has authenticated the
//! peer before ([`crate::secure`]). Requests that its role does not permit, malformed requests and requests that are
//! too large are answered with an HTTP status and a text.

pub mod control;
pub mod frame;
pub mod hello;
pub mod limits;

/// Version of this protocol. Any other is refused.
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
/// Path of assembled chunks. A site of 0.1.0 does not know it, and refuses it as a bad request.
pub(crate) const ASSEMBLE_PATH: &str = "/striate/v1/assemble";
/// Path of assembled chunks with windows. A site older than 0.5.0 does not know it, and refuses it as a bad request.
pub(crate) const AMEND_PATH: &str = "/striate/v1/amend";

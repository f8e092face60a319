//! Certificates by which the processes of a cluster authenticate each other.
//!
//! A cluster has an authority ([`Authority`]). Every process trusts its certificate, and no process has its key. Each
//! process has a certificate that states its cluster, its [`Role`] and its name ([`PeerName`]). Connections between
//! processes are TLS 1.3 in which both ends present a certificate ([`Trust`]). A peer without one, of another cluster,
//! or with a role that is not admitted is refused in the handshake, before any of its requests is read. There is no
//! resumption and no early data, so recorded traffic cannot be replayed.
//!
//! This crate does not know what is said over the connections, or what a role may ask for.

mod authority;
mod files;
mod peer;
mod tls;
mod verify;

pub use authority::{AUTHORITY_KEY_FILE, Authority, AuthorityError, IssuedCertificate};
pub use files::{AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, TrustError};
pub use peer::{ExpectedPeer, PeerName, Role};
pub use tls::{RELOAD_EVERY, TlsStream, Trust};

//! Who is at the other end: the processes of a cluster know each other by certificates.
//!
//! A cluster has an authority ([`Authority`]), whose certificate every process trusts and whose key none of them has.
//! Each process has a certificate that says which cluster it belongs to, what it is (a [`Role`]), and its name
//! ([`PeerName`]). Connections between processes are TLS 1.3 in which both ends show theirs ([`Trust`]): a peer
//! without one, of another cluster, or with a role that has no business there is refused in the handshake, before any
//! of its requests is read. There is no resumption and no early data, so nothing that was recorded can be sent again.
//!
//! What this crate does not know: what is said over the connections, and what a role may ask for.

mod authority;
mod files;
mod peer;
mod tls;
mod verify;

pub use authority::{AUTHORITY_KEY_FILE, Authority, AuthorityError, Issued};
pub use files::{AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, TrustError};
pub use peer::{Expected, PeerName, Role};
pub use tls::{RELOAD_EVERY, Trust};

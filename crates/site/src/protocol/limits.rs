//! Limits on everything that a peer can send.

use std::time::Duration;

use striate_listen::Networks;

/// Maximum number of ranges in one read.
pub(crate) const MAX_RANGES: usize = 4096;
/// Maximum number of reads that one message cancels.
pub const MAX_CANCELLED: usize = 1024;
/// Maximum length of a chunk in bytes.
pub(crate) const MAX_CHUNK_LEN: u32 = 64 << 20;
/// Maximum number of inner nodes between the root and a leaf of a combine tree.
pub(crate) const MAX_TREE_DEPTH: usize = 32;
/// Maximum length of an error's detail in bytes.
pub(crate) const MAX_ERROR_LEN: usize = 4096;
/// Maximum length in bytes of the body of a request other than a write.
pub const MAX_REQUEST_LEN: usize = 1 << 20;
/// Maximum length of a reply of the control protocol in bytes.
pub(crate) const MAX_CONTROL_REPLY_LEN: usize = 4 << 20;
/// Maximum length of a rack label in bytes.
pub(crate) const MAX_RACK_LEN: usize = 256;
/// Maximum number of chunks in one delete.
pub(crate) const MAX_DELETED_CHUNKS: usize = 8192;
/// Maximum number of chunks in one page of a list.
pub(crate) const MAX_LISTED_CHUNKS: usize = 8192;
/// Maximum number of cached blocks in one message.
pub(crate) const MAX_TENDED_BLOCKS: usize = 4096;
/// Maximum number of chunks in one message that asks whether the site has them.
pub(crate) const MAX_ASKED_CHUNKS: usize = 8192;
/// Maximum number of header fields in a request.
pub(crate) const MAX_HEADERS: usize = 32;
/// Maximum length of a list of header fields in bytes.
pub const MAX_HEADER_LIST_LEN: u32 = 16 << 10;
/// Maximum number of concurrent requests on one control connection.
pub(crate) const MAX_CONTROL_STREAMS: u32 = 64;

/// Timeout for an operation that has no deadline of its own. For a site in another process it is the default timeout
/// for the beginning of a reply.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Limits that a listening site imposes on its peers.
#[derive(Clone, Debug)]
pub struct ServiceLimits {
    /// Maximum number of connections; more are closed at once.
    pub connections: usize,
    /// Maximum number of bytes of chunks being received; more writes are refused as busy.
    pub receiving_bytes: u64,
    /// Maximum number of connections that have not yet authenticated. One more closes another, of the address with the
    /// most of them. They do not count against `connections`.
    pub handshakes: usize,
    /// Maximum number of such connections of one address; one more closes another of that address.
    pub handshakes_per_address: usize,
    /// Proxies, whose addresses stand for many peers and are not counted.
    pub trusted_proxies: Networks,
    /// Timeout for a new connection to authenticate, and then for its hello.
    pub handshake: Duration,
    /// Timeout for a connection to stay idle between requests, and for a request's header.
    pub idle: Duration,
    /// Timeout for the next bytes of a request's body, and for the peer to take bytes of a reply.
    pub stall: Duration,
    /// Time that running requests get to finish when the site stops.
    pub drain: Duration,
}

impl Default for ServiceLimits {
    fn default() -> Self {
        Self {
            connections: 4096,
            handshakes: 1024,
            handshakes_per_address: 256,
            trusted_proxies: Networks::default(),
            receiving_bytes: 256 << 20,
            handshake: Duration::from_secs(5),
            idle: Duration::from_secs(60),
            stall: Duration::from_secs(20),
            drain: Duration::from_secs(20),
        }
    }
}

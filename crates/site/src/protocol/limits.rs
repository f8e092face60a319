//! Limits on everything that a peer can send.

use std::time::Duration;

/// Most ranges of one read.
pub(crate) const MAX_RANGES: usize = 4096;
/// Most reads that one message cancels.
pub const MAX_CANCELLED: usize = 1024;
/// Longest chunk, in bytes.
pub(crate) const MAX_CHUNK_LEN: u32 = 64 << 20;
/// Most inner nodes of a combine tree on the way from the root to a leaf.
pub(crate) const MAX_TREE_DEPTH: usize = 32;
/// Longest detail of an error, in bytes.
pub(crate) const MAX_ERROR_LEN: usize = 4096;
/// Longest body of a request other than a write, in bytes.
pub const MAX_REQUEST_LEN: usize = 1 << 20;
/// Longest reply of the control protocol, in bytes.
pub(crate) const MAX_CONTROL_REPLY_LEN: usize = 4 << 20;
/// Longest rack label, in bytes.
pub(crate) const MAX_RACK_LEN: usize = 256;
/// Most chunks that one delete names.
pub(crate) const MAX_DELETED_CHUNKS: usize = 8192;
/// Most chunks of one page of a list.
pub(crate) const MAX_LISTED_CHUNKS: usize = 8192;
/// Most cached blocks that one message tells of.
pub(crate) const MAX_TENDED_BLOCKS: usize = 4096;
/// Most chunks of which one message asks whether the site has them.
pub(crate) const MAX_ASKED_CHUNKS: usize = 8192;
/// Most header fields of a request.
pub(crate) const MAX_HEADERS: usize = 32;
/// Longest list of header fields, in bytes.
pub const MAX_HEADER_LIST_LEN: u32 = 16 << 10;
/// Requests at the same time on one control connection.
pub(crate) const MAX_CONTROL_STREAMS: u32 = 64;

/// How long a caller waits for an operation that has no deadline of its own. For a site in another process it is the default time
/// until a reply begins.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// What a listening site allows its peers.
#[derive(Clone, Debug)]
pub struct ServiceLimits {
    /// Connections at the same time; more are closed at once.
    pub connections: usize,
    /// Bytes of chunks that are being received at the same time; more writes are refused as busy.
    pub receiving_bytes: u64,
    /// Connections at the same time that have not shown who they are; more are closed at once. They take none of the
    /// places of known peers.
    pub handshakes: usize,
    /// Time for a new connection to show who it is, and then for its hello.
    pub handshake: Duration,
    /// Time a connection may be idle between requests, and for a request's header.
    pub idle: Duration,
    /// Time for the next bytes of a request's body, and for the peer to take bytes of a reply.
    pub stall: Duration,
    /// Time for requests under way when the site stops.
    pub drain: Duration,
}

impl Default for ServiceLimits {
    fn default() -> Self {
        Self {
            connections: 4096,
            handshakes: 256,
            receiving_bytes: 256 << 20,
            handshake: Duration::from_secs(5),
            idle: Duration::from_secs(60),
            stall: Duration::from_secs(20),
            drain: Duration::from_secs(20),
        }
    }
}

//! Options of a gateway: names, limits and timeouts.
//!
//! Every size and every duration that an unknown peer can choose has a limit here (design.md §8).

use std::time::Duration;

use striate_listen::Networks;

use crate::address::Domains;
use crate::gateway::GatewayError;

/// Options of a gateway. [`Default`] gives what a server starts with.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// The region that signatures must name (us-east-1 is also accepted), and that `GetBucketLocation` returns for a
    /// bucket without one of its own.
    pub region: String,
    /// Domains below which the first label of a host name is a bucket (virtual-hosted style). Empty: path style only.
    pub domains: Vec<String>,
    /// Whether presigned URLs and forms may be signed with Signature Version 2.
    pub allow_signature_v2: bool,
    /// Limits and timeouts.
    pub limits: Limits,
}

/// Limits and timeouts of the HTTP front.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum number of connections. When all are in use, one whose sender has signed nothing, or an idle one, is closed
    /// to make room for the next; if there is none, the next gets a 503 and is closed.
    pub connections: usize,
    /// Maximum number of connections, and so of requests in flight, of one address (for IPv6: one network of 64 bits).
    /// One more closes an idle one of that address; if none is idle, it gets a 503 and is closed.
    pub connections_per_address: usize,
    /// Proxies, whose addresses stand for many clients and are not counted.
    pub trusted_proxies: Networks,
    /// Maximum number of requests in flight of one access key; more get 503 SlowDown.
    pub requests_per_key: usize,
    /// Maximum number of bytes in one request's head (request line and headers).
    pub header_bytes: usize,
    /// Maximum number of headers in one request.
    pub header_count: usize,
    /// Timeout for the arrival of a request's head; also how long an idle connection is kept.
    pub header_timeout: Duration,
    /// Timeout for a TLS handshake.
    pub handshake_timeout: Duration,
    /// Minimum rate in bytes per second at which a peer must move data while it is waited for: as sender of its body,
    /// or as receiver of its response.
    pub min_rate: u64,
    /// Amount of such waiting time over which the rate is measured.
    pub rate_window: Duration,
    /// As `rate_window`, while memory is short; at most `rate_window`.
    pub pressed_window: Duration,
    /// Bytes of responses that the system may hold for receivers that do not take them; beyond
    /// this, memory counts as short.
    pub unsent_bytes: u64,
    /// Maximum number of bytes in a request body that is a document (XML, or the JSON of a batch read).
    pub xml_bytes: usize,
    /// Maximum number of bytes of all such documents and fields of forms in memory; more get a 503.
    pub buffered_bytes: usize,
    /// Time that requests in flight get to finish after a shutdown began.
    pub drain: Duration,
}

impl GatewayOptions {
    /// Checks the options, as [`crate::Gateway::new`] does.
    ///
    /// # Errors
    /// When one is invalid.
    pub fn check(&self) -> Result<(), GatewayError> {
        Domains::new(&self.domains).map(drop).map_err(GatewayError::Domain)
    }
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self {
            region: "us-east-1".to_owned(),
            domains: Vec::new(),
            allow_signature_v2: false,
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4_096,
            connections_per_address: 1_024,
            trusted_proxies: Networks::default(),
            requests_per_key: 2_048,
            header_bytes: 64 << 10,
            header_count: 128,
            header_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(10),
            min_rate: 8 << 10,
            rate_window: Duration::from_secs(300),
            pressed_window: Duration::from_secs(15),
            unsent_bytes: 256 << 20,
            xml_bytes: 4 << 20,
            buffered_bytes: 256 << 20,
            drain: Duration::from_secs(30),
        }
    }
}

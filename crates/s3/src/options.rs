//! What a gateway is told at its start: names, limits and time-outs.
//!
//! Every size and every duration that a stranger can choose has a limit here (design.md §8).

use std::time::Duration;

/// A gateway's settings. [`Default`] gives what a server starts with.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// The region that signatures name (us-east-1 is accepted besides), and that `GetBucketLocation` answers
    /// where a bucket has none of its own.
    pub region: String,
    /// Domains below which the first label of a host name is a bucket (virtual-hosted style). Empty: path
    /// style only.
    pub domains: Vec<String>,
    /// Limits and time-outs.
    pub limits: Limits,
}

/// Limits and time-outs of the HTTP front.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at once. Where all are taken, an idle one makes room for the next; where none is idle, it is
    /// answered 503 and closed.
    pub connections: usize,
    /// Connections, and so requests in flight, of one address (of IPv6: one network of 64 bits); more are answered
    /// 503 and closed.
    pub connections_per_address: usize,
    /// Requests in flight of one access key; more are answered 503 SlowDown.
    pub requests_per_key: usize,
    /// Bytes of one request's head (request line and headers).
    pub header_bytes: usize,
    /// Headers of one request.
    pub header_count: usize,
    /// A request's head must arrive within this time; also how long an idle connection is kept.
    pub header_timeout: Duration,
    /// A TLS handshake must end within this time.
    pub handshake_timeout: Duration,
    /// Bytes a second that a peer must move while it is waited for: a sender of its body, a receiver of its answer.
    pub min_rate: u64,
    /// Over how much of such waiting the rate is measured.
    pub rate_window: Duration,
    /// And while memory is short; at most `rate_window`.
    pub pressed_window: Duration,
    /// Bytes of answers that the system may hold for receivers that do not take them; beyond it memory is short.
    pub unsent_bytes: u64,
    /// Bytes of a request body that is a document (XML, or the JSON of a batch read).
    pub xml_bytes: usize,
    /// Bytes of all such documents and fields of forms held in memory at once; more are answered 503.
    pub buffered_bytes: usize,
    /// Requests in flight may go on for this long after a shutdown began.
    pub drain: Duration,
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self { region: "us-east-1".to_owned(), domains: Vec::new(), limits: Limits::default() }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4_096,
            connections_per_address: 1_024,
            requests_per_key: 2_048,
            header_bytes: 64 << 10,
            header_count: 128,
            header_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(10),
            min_rate: 8 << 10,
            rate_window: Duration::from_secs(30),
            pressed_window: Duration::from_secs(15),
            unsent_bytes: 256 << 20,
            xml_bytes: 4 << 20,
            buffered_bytes: 256 << 20,
            drain: Duration::from_secs(30),
        }
    }
}

//! The audit log and the metrics of requests: what the gateway tells, and to whom is the binary's choice.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

/// One request, told when its answer has been sent or has failed. Serialises to one JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct AuditEntry {
    /// Wall time at the request's arrival, since the Unix epoch, in milliseconds.
    pub time_unix_ms: u64,
    /// The request's id, as in `x-amz-request-id`.
    pub request_id: String,
    /// Who asked.
    pub remote: SocketAddr,
    /// The access key whose signature was verified; absent for requests that were refused before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_key: Option<String>,
    /// The S3 operation's name, or a word for what is none: `Health`, `Preflight`, `Unknown`.
    pub operation: &'static str,
    /// The method.
    pub method: String,
    /// The bucket, where there is one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bucket: String,
    /// The key, where there is one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// The answer's status.
    pub status: u16,
    /// The S3 error code, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Bytes of the request's body that were read.
    pub bytes_in: u64,
    /// Bytes of the answer's body that were sent.
    pub bytes_out: u64,
    /// False when the answer broke off before its end.
    pub complete: bool,
    /// From the request's arrival to the answer's first byte, in microseconds.
    pub first_byte_us: u64,
    /// From the request's arrival to the answer's end, in microseconds.
    pub duration_us: u64,
    /// User-Agent.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user_agent: String,
}

/// Takes audit entries. Called on the event loop: it must not block.
pub trait AuditSink: Send + Sync {
    /// Takes one entry. Entries come in the order in which requests end.
    fn record(&self, entry: &AuditEntry);
}

/// Takes counts and durations of requests. Called on the event loop: it must not block.
pub trait RequestMetrics: Send + Sync {
    /// A request ended.
    fn request(
        &self,
        operation: &'static str,
        status: u16,
        bytes_in: u64,
        bytes_out: u64,
        duration: Duration,
    );

    /// A connection was accepted (`true`) or has ended (`false`).
    fn connection(&self, opened: bool);

    /// Something was refused: before it became a request, for `connections`, `connections_of_address`, `handshake`
    /// or `headers`; as a request, for `requests_of_key` or `documents` (memory for bodies that are held whole).
    fn refused(&self, reason: &'static str);

    /// A connection was cut because of its peer's pace: it was below the minimum `rate`, one of the slowest while
    /// `memory` was short, or made `room` for another connection.
    fn cut(&self, reason: &'static str);
}

/// Takes nothing down.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl AuditSink for Silent {
    fn record(&self, _entry: &AuditEntry) {}
}

impl RequestMetrics for Silent {
    fn request(&self, _: &'static str, _: u16, _: u64, _: u64, _: Duration) {}

    fn connection(&self, _opened: bool) {}

    fn refused(&self, _reason: &'static str) {}

    fn cut(&self, _reason: &'static str) {}
}

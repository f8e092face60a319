//! The audit log and the request metrics that the gateway reports. The binary chooses where they go.

use std::net::SocketAddr;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::Serialize;

/// One request, recorded when its response has been sent or has failed. Serialises to one JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct AuditEntry {
    /// Wall time of the request's arrival, in milliseconds since the Unix epoch.
    pub time_unix_ms: u64,
    /// Identifier of the request, as in `x-amz-request-id`.
    pub request_id: String,
    /// Address of the client.
    pub remote: SocketAddr,
    /// The access key whose signature was verified; absent if the request was refused before that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_key: Option<String>,
    /// The access key that a refused request claimed, if its signature was not verified. Anybody may claim any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimed_key: Option<String>,
    /// Name of the S3 operation, or a word if it is none: `Health`, `Preflight`, `Unknown`.
    pub operation: &'static str,
    /// HTTP method.
    pub method: String,
    /// Bucket, if any.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bucket: String,
    /// Object key, if any.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Keys of the objects that a DeleteObjects or a batch names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// The object that the request copies, as `bucket/key`, with its `?versionId=` if it names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy_source: Option<String>,
    /// HTTP status of the response.
    pub status: u16,
    /// S3 error code, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Bytes of the request's body that were read.
    pub bytes_in: u64,
    /// Bytes of the response's body that were sent.
    pub bytes_out: u64,
    /// False if the response broke off before its end.
    pub complete: bool,
    /// Time from the request's arrival to the first byte of the response, in microseconds.
    pub first_byte_us: u64,
    /// Time from the request's arrival to the end of the response, in microseconds.
    pub duration_us: u64,
    /// Value of the User-Agent header.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user_agent: String,
}

/// Receives audit entries. Called on the event loop, so it must not block.
pub trait AuditSink: Send + Sync {
    /// Records one entry. Entries come in the order in which requests end.
    fn record(&self, entry: &AuditEntry);

    /// Returns a future that completes when there is room for the entry of another signed request, if there is none now.
    /// The request does nothing before.
    fn await_room(&self) -> Option<BoxFuture<'_, ()>> {
        None
    }

    /// Returns whether entries go anywhere, so that what costs time to collect is worth it.
    fn keeps_entries(&self) -> bool {
        true
    }
}

/// Receives counts and durations of requests. Called on the event loop, so it must not block.
pub trait RequestMetrics: Send + Sync {
    /// Records the end of a request.
    fn request(
        &self,
        operation: &'static str,
        status: u16,
        bytes_in: u64,
        bytes_out: u64,
        duration: Duration,
    );

    /// Records that a connection was accepted (`true`) or has ended (`false`).
    fn connection(&self, opened: bool);

    /// Records a refusal: of a connection, for `connections`, `connections_of_address`, `handshake` or `headers`; or of
    /// a request, for `requests_of_key`, `documents` (memory for bodies that are held whole) or `audit` (no room in the
    /// audit log).
    fn refused(&self, reason: &'static str);

    /// Records that a connection was cut because of its peer's pace: it was below the minimum `rate`, one of the
    /// slowest while `memory` was short, or made `room` for another connection.
    fn cut(&self, reason: &'static str);
}

/// Records nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullSink;

impl AuditSink for NullSink {
    fn record(&self, _entry: &AuditEntry) {}

    fn keeps_entries(&self) -> bool {
        false
    }
}

impl RequestMetrics for NullSink {
    fn request(&self, _: &'static str, _: u16, _: u64, _: u64, _: Duration) {}

    fn connection(&self, _opened: bool) {}

    fn refused(&self, _reason: &'static str) {}

    fn cut(&self, _reason: &'static str) {}
}

//! The facts of one request while it runs, for the audit log, the metrics and the response's headers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use striate_runtime::{Instant, Runtime};
use tracing::{Span, field};

use crate::address::{Address, percent_decode};
use crate::audit::AuditEntry;
use crate::gateway::Hooks;
use crate::refusal::Refusal;

/// Maximum length of a claimed access key in the audit log, in characters: anybody may claim anything.
const LONGEST_CLAIM: usize = 128;

/// State of one request, shared by the front, the handlers and the bodies of request and response.
pub(crate) struct Trace {
    runtime: Runtime,
    hooks: Hooks,
    started: Instant,
    /// Bytes read of the request's body, including framing.
    pub bytes_in: AtomicU64,
    /// Open until the response has ended; work done for the request belongs to it.
    pub span: Span,
    facts: Mutex<TraceRecord>,
}

struct TraceRecord {
    entry: AuditEntry,
    body_refusal: Option<Refusal>,
}

impl Trace {
    pub fn begin(runtime: &Runtime, hooks: &Hooks, remote: SocketAddr, method: &http::Method) -> Arc<Self> {
        let entry = AuditEntry {
            time_unix_ms: runtime.wall_time().as_millis() as u64,
            request_id: format!("{:016X}", runtime.random_u64()),
            remote,
            access_key: None,
            claimed_key: None,
            operation: "Unknown",
            method: method.to_string(),
            bucket: String::new(),
            key: String::new(),
            keys: Vec::new(),
            copy_source: None,
            status: 0,
            error: None,
            bytes_in: 0,
            bytes_out: 0,
            complete: false,
            first_byte_us: 0,
            duration_us: 0,
            user_agent: String::new(),
        };
        let span = tracing::debug_span!(
            "request",
            operation = field::Empty,
            bucket = field::Empty,
            key = field::Empty,
            status = field::Empty,
            request_id = entry.request_id,
        );
        Arc::new(Self {
            span,
            runtime: runtime.clone(),
            hooks: hooks.clone(),
            started: runtime.now(),
            bytes_in: AtomicU64::new(0),
            facts: Mutex::new(TraceRecord { entry, body_refusal: None }),
        })
    }

    pub fn request_id(&self) -> String {
        self.facts.lock().entry.request_id.clone()
    }

    pub fn set_address(&self, address: &Address, user_agent: &str) {
        self.span.record("bucket", &*address.bucket).record("key", &*address.key);
        let entry = &mut self.facts.lock().entry;
        entry.bucket.clone_from(&address.bucket);
        entry.key.clone_from(&address.key);
        user_agent.clone_into(&mut entry.user_agent);
    }

    pub fn set_access_key(&self, access_key: &str) {
        let entry = &mut self.facts.lock().entry;
        entry.access_key = Some(access_key.to_owned());
        entry.claimed_key = None;
    }

    /// Records the access key that the request claims, until its signature is verified.
    pub fn set_claimed_key(&self, claimed: &str) {
        let shown: String = claimed.chars().take(LONGEST_CLAIM).collect();
        self.facts.lock().entry.claimed_key = Some(shown);
    }

    /// Records the objects that the body of a deletion of many, or of a batch, names.
    pub fn add_keys<'a>(&self, keys: impl Iterator<Item = &'a str>) {
        if self.hooks.audit.keeps_entries() {
            self.facts.lock().entry.keys.extend(keys.map(str::to_owned));
        }
    }

    /// Records the object that the request copies, as its header names it.
    pub fn set_copy_source(&self, source: &str) {
        let source = percent_decode(source).unwrap_or_else(|| source.to_owned());
        self.facts.lock().entry.copy_source = Some(source.trim_start_matches('/').to_owned());
    }

    pub fn set_operation(&self, operation: &'static str) {
        self.span.record("operation", operation);
        self.facts.lock().entry.operation = operation;
    }

    pub fn set_error(&self, code: &str) {
        self.facts.lock().entry.error = Some(code.to_owned());
    }

    /// Stores why a body was refused, so that the response can use S3's code for it.
    pub fn set_body_refusal(&self, refusal: Refusal) {
        self.facts.lock().body_refusal = Some(refusal);
    }

    pub fn body_refusal(&self) -> Option<Refusal> {
        self.facts.lock().body_refusal.clone()
    }

    /// Records that the head of the response is ready.
    pub fn answered(&self, status: http::StatusCode) {
        let elapsed = self.elapsed_us();
        let entry = &mut self.facts.lock().entry;
        entry.status = status.as_u16();
        self.span.record("status", i64::from(status.as_u16()));
        entry.first_byte_us = elapsed;
    }

    /// Records that the response has ended or broken off. Called once.
    pub fn ended(&self, bytes_out: u64, complete: bool) {
        let duration = self.runtime.now().saturating_duration_since(self.started);
        let entry = &mut self.facts.lock().entry;
        entry.bytes_in = self.bytes_in.load(Ordering::Relaxed);
        entry.bytes_out = bytes_out;
        entry.complete = complete;
        entry.duration_us = duration.as_micros() as u64;
        self.hooks.audit.record(entry);
        let (operation, status) = (entry.operation, entry.status);
        self.hooks.metrics.request(operation, status, entry.bytes_in, bytes_out, duration);
    }

    fn elapsed_us(&self) -> u64 {
        self.runtime.now().saturating_duration_since(self.started).as_micros() as u64
    }
}

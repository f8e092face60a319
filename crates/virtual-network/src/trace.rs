//! The event log: every event of a run, folded into one hash (I14).
//!
//! Two runs of one seed have the same hash and count. If not, something outside the seed (a wall clock, an address, a
//! hash map's order) decided something.

use std::sync::Arc;

use parking_lot::Mutex;
use striate_runtime::{Instant, Runtime};

/// Kind of an event, with the two numbers that describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Event {
    /// A read request left its client: site, chunks.
    Sent = 1,
    /// A disk began a chunk: site, stripe.
    Begun,
    /// A reply reached its client: site, bytes.
    Delivered,
    /// A read was cancelled: site, chunks outstanding.
    Cancelled,
    /// A message was lost or its link is cut: receiver, 0 if lost or 1 if cut.
    Lost,
    /// A query ended: client, its response time in nanoseconds.
    Answered,
    /// A site crashed or restarted, a link was cut or mended: site, what.
    Fault,
    /// A chunk was written or deleted: site, stripe.
    Changed,
}

/// A run's event log. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Trace {
    runtime: Runtime,
    started: Instant,
    state: Arc<Mutex<Digest>>,
}

/// The digest of an event log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    /// Hash of all events, in order.
    pub hash: u64,
    /// Number of events.
    pub events: u64,
}

impl Trace {
    /// Creates an empty log.
    pub fn new(runtime: Runtime) -> Self {
        Self { started: runtime.now(), runtime, state: Arc::default() }
    }

    /// Logs an event with two numbers that describe it.
    pub fn record(&self, event: Event, a: u64, b: u64) {
        let at_ns = (self.runtime.now() - self.started).as_nanos() as u64;
        let mut state = self.state.lock();
        state.events += 1;
        state.hash = [at_ns, event as u64, a, b].into_iter().fold(state.hash, mix);
    }

    /// Returns the digest of the log so far.
    pub fn digest(&self) -> Digest {
        *self.state.lock()
    }
}

/// One step of a multiplicative hash. Not for adversaries, but every input bit reaches the upper half of the product
/// and, by the rotation, everything after it.
fn mix(hash: u64, value: u64) -> u64 {
    (hash.rotate_left(29) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (value >> 31)
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x} over {} events", self.hash, self.events)
    }
}

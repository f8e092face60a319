//! What was asked of origins, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one gateway. They only grow.
#[derive(Debug, Default)]
pub struct OriginCounts {
    /// Requests to origins, repeated ones included.
    pub requests: AtomicU64,
    /// Of these, those that failed: no answer, or an error of the server.
    pub failures: AtomicU64,
    /// Bytes of objects that origins sent.
    pub bytes: AtomicU64,
    /// Questions whether what is known of an object still holds.
    pub revalidations: AtomicU64,
    /// Of these, those after which it did not.
    pub changes: AtomicU64,
    /// Objects of which what was known does not hold any more, because somebody wrote them through Striate.
    pub fenced: AtomicU64,
    /// Reads beside the cache: while the key was written, or because the request cannot be answered from memory.
    pub passed_by: AtomicU64,
    /// Writes that were put into memory.
    pub cached_writes: AtomicU64,
    /// Writes that were not, because there was no memory to hold them on their way.
    pub uncached_writes: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

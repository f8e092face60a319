//! Counters of requests to origins.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one gateway. They never decrease.
#[derive(Debug, Default)]
pub struct OriginCounts {
    /// Requests to origins, retries included.
    pub requests: AtomicU64,
    /// Requests to origins that failed: without an answer, or with a server error.
    pub failures: AtomicU64,
    /// Bytes of objects that origins sent.
    pub bytes: AtomicU64,
    /// Requests that checked whether a known object is unchanged.
    pub revalidations: AtomicU64,
    /// Checks that found the object changed.
    pub changes: AtomicU64,
    /// Known objects that were invalidated by a write through Striate.
    pub fenced: AtomicU64,
    /// Reads past the cache: while the key was being written, or because the request cannot be answered from memory.
    pub passed_by: AtomicU64,
    /// Writes that were put into memory.
    pub cached_writes: AtomicU64,
    /// Writes that were not put into memory because no memory was free to hold their bytes.
    pub uncached_writes: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

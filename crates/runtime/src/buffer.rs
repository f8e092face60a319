//! A pool of large buffers.
//!
//! Chunks and blocks are allocated and dropped by the megabyte, often by different threads. Left to the allocator, that
//! costs a page fault per 4 KiB, and memory stays with the thread that used it last. A [`BufferPool`] keeps dropped
//! buffers and hands them out again, to any thread, as long as the buffers in use and the kept ones are within a limit
//! together.
//!
//! The pool does not bound the buffers in use (byte budgets do that), and does not clear the buffers that it hands out:
//! they contain whatever they held before.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

/// Shorter buffers come from the allocator, which handles them well. The lengths of longer ones are multiples of this.
const STEP: usize = 32 << 10;

/// Keeps dropped buffers for reuse. Cheap to clone.
#[derive(Clone, Debug)]
pub struct BufferPool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Limit on the bytes in use and kept, together. Beyond it, no buffer is kept.
    limit: usize,
    free_buffers: Mutex<FreeBuffers>,
}

/// Memory of a pooled buffer. Its length is a multiple of [`STEP`].
type Memory = Box<[u8]>;

#[derive(Debug, Default)]
struct FreeBuffers {
    /// Kept buffers by length.
    buffers: BTreeMap<usize, Vec<Memory>>,
    bytes: usize,
    in_use: usize,
}

/// Bytes with a single owner. Their initial content is arbitrary.
#[derive(Debug)]
pub struct Buffer {
    bytes: Box<[u8]>,
    len: usize,
    pool: Option<BufferPool>,
}

impl BufferPool {
    /// Creates a pool that keeps dropped buffers while they and the buffers in use have at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { inner: Arc::new(Inner { limit, free_buffers: Mutex::default() }) }
    }

    /// Returns a buffer of `len` bytes with arbitrary content.
    pub fn take(&self, len: usize) -> Buffer {
        if len < STEP {
            return Buffer { bytes: vec![0; len].into(), len, pool: None };
        }
        let rounded = len.next_multiple_of(STEP);
        let (bytes, _dropped) = self.inner.free_buffers.lock().take(rounded, self.inner.limit);
        let bytes = bytes.unwrap_or_else(|| vec![0; rounded].into());
        Buffer { bytes, len, pool: Some(self.clone()) }
    }

    /// Frees all kept buffers.
    pub fn drop_kept(&self) {
        let dropped = self.inner.free_buffers.lock().shrink(0, 0);
        // Drop outside the lock: the allocator may take its time.
        drop(dropped);
    }

    /// Bytes of buffers that are kept for reuse.
    pub fn kept_bytes(&self) -> usize {
        self.inner.free_buffers.lock().bytes
    }
}

impl FreeBuffers {
    /// Takes a kept buffer of at least `len` bytes and at most twice as many. Without one, the caller allocates `len`
    /// bytes. Also returns the buffers to drop to make room for it.
    fn take(&mut self, len: usize, limit: usize) -> (Option<Memory>, Vec<Memory>) {
        let fitting = self.buffers.range(len..=2 * len).next().map(|(&found, _)| found);
        let bytes = fitting.map(|found| self.remove(found));
        self.in_use += bytes.as_ref().map_or(len, |bytes| bytes.len());
        (bytes, self.shrink(limit, len))
    }

    /// Takes a buffer back. Returns the buffers to drop.
    fn put_back(&mut self, bytes: Memory, limit: usize) -> Vec<Memory> {
        let len = bytes.len();
        self.in_use -= len;
        self.bytes += len;
        self.buffers.entry(len).or_default().push(bytes);
        self.shrink(limit, len)
    }

    /// Removes kept buffers until the limit holds. Buffers of other lengths than `len` go first, since they fit the
    /// present load less.
    fn shrink(&mut self, limit: usize, len: usize) -> Vec<Memory> {
        let mut dropped = Vec::new();
        while self.bytes > 0 && self.bytes + self.in_use > limit {
            let other = self.buffers.keys().copied().find(|other| *other != len).unwrap_or(len);
            dropped.push(self.remove(other));
        }
        dropped
    }

    /// Removes a kept buffer of exactly this length, which must exist.
    fn remove(&mut self, len: usize) -> Memory {
        let buffers = self.buffers.get_mut(&len).expect("a length is listed while there are buffers of it");
        let bytes = buffers.pop().expect("an empty list is removed");
        if buffers.is_empty() {
            self.buffers.remove(&len);
        }
        self.bytes -= len;
        bytes
    }
}

impl Buffer {
    /// Shortens the buffer to `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Makes the buffer immutable and shared, without a copy. Its memory returns to the pool when the last slice is
    /// dropped.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            let dropped =
                pool.inner.free_buffers.lock().put_back(std::mem::take(&mut self.bytes), pool.inner.limit);
            // Drop outside the lock: the allocator may take its time.
            drop(dropped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_buffers_come_back_also_behind_slices() {
        let pool = BufferPool::new(4 * STEP);
        let mut first = pool.take(STEP + 1);
        first.fill(7);
        let shared = first.freeze();
        let slice = shared.slice(5..10);
        drop(shared);
        assert_eq!(pool.kept_bytes(), 0, "a slice still holds it");
        assert_eq!(slice, [7; 5][..]);
        drop(slice);
        assert_eq!(pool.kept_bytes(), 2 * STEP);
        let again = pool.take(2 * STEP);
        assert_eq!((again.len(), again[0], pool.kept_bytes()), (2 * STEP, 7, 0));
    }

    #[test]
    fn nothing_is_kept_beyond_the_limit_and_buffers_in_use_count() {
        let pool = BufferPool::new(4 * STEP);
        let mut held: Vec<_> = (0..6).map(|_| pool.take(STEP)).collect();
        held.pop();
        assert_eq!(pool.kept_bytes(), 0, "five are in use, more than the limit");
        held.truncate(2);
        assert_eq!(pool.kept_bytes(), 2 * STEP);
        drop(held);
        assert_eq!(pool.kept_bytes(), 4 * STEP);
        drop(pool.take(5 * STEP));
        assert_eq!(
            pool.kept_bytes(),
            0,
            "what is longer than the limit pushes everything out and is not kept"
        );
    }

    #[test]
    fn kept_buffers_are_given_up_and_those_in_use_are_not() {
        let pool = BufferPool::new(4 * STEP);
        let held = pool.take(STEP);
        drop((pool.take(STEP), pool.take(2 * STEP)));
        pool.drop_kept();
        assert_eq!(pool.kept_bytes(), 0);
        drop(held);
        assert_eq!(pool.kept_bytes(), STEP);
    }

    #[test]
    fn a_load_of_another_size_pushes_the_buffers_of_the_last_one_out() {
        let pool = BufferPool::new(4 * STEP);
        drop((0..4).map(|_| pool.take(STEP)).collect::<Vec<_>>());
        assert_eq!(pool.kept_bytes(), 4 * STEP);
        let long = pool.take(4 * STEP);
        assert_eq!(pool.kept_bytes(), 0);
        drop(long);
        assert_eq!(pool.kept_bytes(), 4 * STEP);
    }

    #[test]
    fn short_buffers_are_not_pooled_and_a_truncated_one_ends_where_told() {
        let pool = BufferPool::new(4 * STEP);
        let mut short = pool.take(100);
        short.truncate(10);
        assert_eq!(short.freeze().len(), 10);
        assert_eq!(pool.kept_bytes(), 0);
    }
}

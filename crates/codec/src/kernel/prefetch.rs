//! Prefetching on x86-64.
//!
//! Lines go into the L2 cache. Chunks lie at distances of powers of two, so the same offset in more than 8 or 12 of
//! them falls into one set of the L1 cache, and lines prefetched into it would be evicted before they are used.
//!
//! The AVX-512 kernel prefetches a little with each input, not all lines of a step at once: a core has a few dozen
//! requests to memory in flight, and one request more stalls the arithmetic behind it. The narrower kernels execute so
//! many instructions per byte that this costs more than it saves. `docs/decisions/codec-kernels.md` has the figures.

use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

use super::LINE_BYTES;

/// Prefetches `LINES` cache lines at `offset` of each of these streams, which need not be valid there.
#[inline]
pub(super) fn prefetch<const LINES: usize>(streams: &[*const u8], offset: usize) {
    for stream in streams {
        for line in 0..LINES {
            let next = stream.wrapping_add(offset + line * LINE_BYTES);
            // SAFETY: SSE is part of x86-64, and a prefetch cannot fault.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(next.cast()) };
        }
    }
}

/// The part of `upcoming` that is prefetched with the inputs `first..` of a step of `count` inputs.
#[inline]
pub(super) fn share(upcoming: &[*const u8], first: usize, count: usize) -> &[*const u8] {
    let end = upcoming.len().min(first + count);
    &upcoming[first.min(end)..end]
}

//! Asking for what is read next, on x86-64.
//!
//! Into the L2 cache: chunks lie at distances of powers of two, so that the same offset in more than 8 or 12 of them
//! falls into one set of the L1 cache, and lines that were prefetched to there would be gone before they are used.
//!
//! The AVX-512 kernel asks for a little with each input, not for all of a step at once: a core has a few dozen requests
//! to memory in flight, and one more than those makes the arithmetic behind it wait. The narrower kernels have so many
//! instructions for each byte that this costs more than it saves. `docs/decisions/codec-kernels.md` has the figures.

use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

use super::LINE_BYTES;

/// Asks for `LINES` cache lines at `offset` of each of these streams, which need not be valid there.
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

/// The part of `upcoming` that is asked for with inputs first.. of a step that takes `count` of them.
#[inline]
pub(super) fn share(upcoming: &[*const u8], first: usize, count: usize) -> &[*const u8] {
    let end = upcoming.len().min(first + count);
    &upcoming[first.min(end)..end]
}

//! Memory for the stripes.

use std::collections::HashMap;

use super::cases::Case;

/// Memory in ordinary pages (no huge pages are requested), filled with pseudo-random bytes. Stripes lie one after the
/// other from its start.
pub struct Arena {
    bytes: Vec<u8>,
    /// Next stripe for each stripe shape. Libraries that are timed in turn advance together.
    next: HashMap<(usize, usize), usize>,
}

/// Chunks to read and chunks to write of one stripe.
type Chunks<'a> = (Vec<&'a [u8]>, Vec<&'a mut [u8]>);

const PAGE_BYTES: usize = 4096;

impl Arena {
    pub fn new(len: usize) -> Arena {
        let mut state = 88_172_645_463_325_252u64;
        let mut bytes = vec![0u8; len + PAGE_BYTES];
        for word in bytes.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        Arena { bytes, next: HashMap::new() }
    }

    pub fn bytes(&self) -> usize {
        self.bytes.len() - PAGE_BYTES
    }

    /// Returns the chunks `sources` and `targets` (disjoint, both ascending) of the next stripe in the case's
    /// rotation.
    pub fn next_stripe(&mut self, case: &Case, sources: &[usize], targets: &[usize]) -> Chunks<'_> {
        let stripes = case.stripes(self.bytes());
        let next = self.next.entry((case.stripe_bytes(), case.chunk_bytes)).or_default();
        let start = *next % stripes * case.stripe_bytes();
        *next += 1;
        let aligned = self.bytes.as_ptr().align_offset(PAGE_BYTES);
        let stripe = &mut self.bytes[aligned + start..][..case.stripe_bytes()];
        let (mut inputs, mut outputs) =
            (Vec::with_capacity(sources.len()), Vec::with_capacity(targets.len()));
        for (index, chunk) in stripe.chunks_exact_mut(case.chunk_bytes).enumerate() {
            if sources.get(inputs.len()) == Some(&index) {
                inputs.push(&*chunk);
            } else if targets.get(outputs.len()) == Some(&index) {
                outputs.push(chunk);
            }
        }
        (inputs, outputs)
    }
}

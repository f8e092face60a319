//! Names of objects that were known and then evicted from the table of known objects. Keeps nearly all of them in
//! little memory.
//!
//! Blocks of such an object may still be in memory. A read of it first asks the origin for the head, instead of
//! requesting bytes that memory may have. A Bloom filter remembers the names, so a few other objects count as evicted
//! too; their first read costs one request more. The filter has two halves: when one is full, the older names are
//! forgotten.

use std::hash::{DefaultHasher, Hash, Hasher};

use parking_lot::Mutex;

/// Bits per half: one MiB.
const BITS: u64 = 8 << 20;
/// Bits set per name. At most one percent of other names then match.
const BITS_OF_NAME: u64 = 4;
/// Maximum number of names per half.
const MOST_NAMES: usize = 750_000;

/// Bloom filter of the names of objects that were known and evicted.
#[derive(Debug)]
pub(crate) struct EvictedNames {
    halves: Mutex<FilterHalves>,
}

#[derive(Debug)]
struct FilterHalves {
    newer: Vec<u64>,
    older: Vec<u64>,
    names: usize,
}

/// The positions of a name's bits: the word, and the mask in it.
fn places(name: &impl Hash) -> impl Iterator<Item = (usize, u64)> {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    let hash = hasher.finish();
    let (first, step) = (hash, hash.rotate_left(32) | 1);
    (0..BITS_OF_NAME).map(move |number| {
        let bit = first.wrapping_add(step.wrapping_mul(number)) % BITS;
        ((bit / 64) as usize, 1 << (bit % 64))
    })
}

impl EvictedNames {
    pub(crate) fn new() -> Self {
        // Pages that were never written to take no memory.
        let half = || vec![0; (BITS / 64) as usize];
        Self { halves: Mutex::new(FilterHalves { newer: half(), older: half(), names: 0 }) }
    }

    pub(crate) fn add(&self, name: &impl Hash) {
        let mut halves = self.halves.lock();
        let FilterHalves { newer, older, names } = &mut *halves;
        if *names == MOST_NAMES {
            std::mem::swap(newer, older);
            newer.fill(0);
            *names = 0;
        }
        places(name).for_each(|(word, mask)| newer[word] |= mask);
        *names += 1;
    }

    /// Whether a name was added. Rarely true for another name.
    pub(crate) fn has(&self, name: &impl Hash) -> bool {
        let halves = self.halves.lock();
        let is_in = |half: &[u64]| places(name).all(|(word, mask)| half[word] & mask != 0);
        is_in(&halves.newer) || is_in(&halves.older)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_names_are_there_and_few_others_seem_to_be() {
        let evicted = EvictedNames::new();
        let last = 2 * MOST_NAMES + 10;
        (0..last).for_each(|name| evicted.add(&name));
        assert!((last - MOST_NAMES..last).all(|name| evicted.has(&name)));
        let others = (last..last + 100_000).filter(|name| evicted.has(name)).count();
        assert!(others < 2_000, "{others} of 100,000");
    }
}

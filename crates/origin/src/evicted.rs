//! Objects that were known and had to make room, nearly all of them, in little memory.
//!
//! Of an object that was known blocks may still be in memory. Its origin is then asked what it says of the object, and not for bytes that
//! nobody would take. A Bloom filter remembers the names, so a few others count as evicted, at the price of one question more when they are
//! read first. It has two halves: when one is full, the older names are forgotten.

use std::hash::{DefaultHasher, Hash, Hasher};

use parking_lot::Mutex;

/// Bits of a half: a mebibyte.
const BITS: u64 = 8 << 20;
/// Bits that a name sets. Of others a hundredth then looks as if it were there, at the most.
const BITS_OF_NAME: u64 = 4;
/// Names of a half.
const MOST_NAMES: usize = 750_000;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Evicted {
    halves: Mutex<Halves>,
}

#[derive(Debug)]
struct Halves {
    newer: Vec<u64>,
    older: Vec<u64>,
    names: usize,
}

/// The places of a name's bits: word, and mask in it.
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

impl Evicted {
    pub(crate) fn new() -> Self {
        // Pages that nobody has written to take no memory.
        let half = || vec![0; (BITS / 64) as usize];
        Self { halves: Mutex::new(Halves { newer: half(), older: half(), names: 0 }) }
    }

    pub(crate) fn add(&self, name: &impl Hash) {
        let mut halves = self.halves.lock();
        let Halves { newer, older, names } = &mut *halves;
        if *names == MOST_NAMES {
            std::mem::swap(newer, older);
            newer.fill(0);
            *names = 0;
        }
        places(name).for_each(|(word, mask)| newer[word] |= mask);
        *names += 1;
    }

    /// Whether a name is there; rarely true where it is not.
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
        let evicted = Evicted::new();
        let last = 2 * MOST_NAMES + 10;
        (0..last).for_each(|name| evicted.add(&name));
        assert!((last - MOST_NAMES..last).all(|name| evicted.has(&name)));
        let others = (last..last + 100_000).filter(|name| evicted.has(name)).count();
        assert!(others < 2_000, "{others} of 100,000");
    }
}

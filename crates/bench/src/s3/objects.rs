//! The written objects: for every index a key and an incompressible body that can be recomputed without storing it.

use std::ops::Range;

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

/// Bytes of the random pool beyond the size of one object; bounds the number of different bodies.
const POOL_SPARE_BYTES: usize = 16 << 20;

/// The objects of a run: index → key and body.
#[derive(Clone)]
pub struct Objects {
    pool: Bytes,
    size: usize,
    prefix: String,
    keys_per_directory: Option<u64>,
}

impl Objects {
    /// Objects of `size` bytes each. The pool's seed is fixed, so that one process can verify what another wrote.
    pub fn new(size: usize, prefix: &str, keys_per_directory: Option<u64>) -> Self {
        let mut pool = vec![0; size + POOL_SPARE_BYTES];
        SmallRng::seed_from_u64(0x0005_7121_A7E0).fill_bytes(&mut pool);
        Self { pool: pool.into(), size, prefix: prefix.into(), keys_per_directory }
    }

    /// Returns the key of object `index`. Keys sort in the order of the indices.
    pub fn key(&self, index: u64) -> String {
        match self.keys_per_directory {
            Some(keys) => format!("{}{:05}/{index:010}", self.prefix, index / keys),
            None => format!("{}{index:010}", self.prefix),
        }
    }

    /// Returns the body of object `index`: a slice of the pool at a place that depends on the index (no copy).
    pub fn body(&self, index: u64) -> Bytes {
        let start = (striate_splitmix::hash(index) % (POOL_SPARE_BYTES as u64 + 1)) as usize;
        self.pool.slice(start..start + self.size)
    }

    /// Returns the `len` bytes of an object that the `turn`-th GET reads, starting at a multiple of `len`.
    pub fn part(&self, turn: u64, len: usize) -> Range<usize> {
        let len = len.min(self.size);
        let parts = (self.size / len.max(1)).max(1) as u64;
        let start = (striate_splitmix::hash(turn) % parts) as usize * len;
        start..start + len
    }

    /// Returns the index that the `turn`-th GET reads: every object once, out of order, before any is read again.
    pub fn visit(turn: u64, count: u64) -> u64 {
        let stride = (count / 2 + count / 9 + 1..).find(|s| gcd(*s, count) == 1).unwrap_or(1);
        ((turn as u128 * stride as u128) % count as u128) as u64
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_of_visits_reads_every_object_once() {
        for count in [1, 2, 3, 10, 16, 97, 360, 1000] {
            let mut seen: Vec<u64> = (0..count).map(|turn| Objects::visit(turn, count)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn bodies_have_the_size_and_differ() {
        let objects = Objects::new(1000, "x", None);
        assert_eq!(objects.body(1).len(), 1000);
        assert_ne!(objects.body(1), objects.body(2));
        assert_eq!(Objects::new(0, "x", None).body(7).len(), 0);
    }

    #[test]
    fn keys_sort_as_their_indices() {
        let objects = Objects::new(0, "a", Some(10));
        assert_eq!(objects.key(9), "a00000/0000000009");
        assert_eq!(objects.key(10), "a00001/0000000010");
    }
}

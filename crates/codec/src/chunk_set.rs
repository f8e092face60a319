//! A set of chunk indices of one stripe: 256 bits, no allocation.

use std::fmt;

/// The largest number of chunks in a stripe: the code word positions that GF(2^8) allows.
pub const MAX_CHUNKS: usize = 256;

/// A set of chunk indices in 0..256, for instance those available.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ChunkSet([u64; 4]);

impl ChunkSet {
    /// The empty set.
    pub const EMPTY: ChunkSet = ChunkSet([0; 4]);

    /// The set {0, 1, …, n−1}.
    ///
    /// # Panics
    /// If n > 256.
    pub fn first(n: usize) -> ChunkSet {
        (0..n).collect()
    }

    /// Adds an index. Returns true if it was not in the set.
    ///
    /// # Panics
    /// If the index is 256 or more.
    pub fn insert(&mut self, index: usize) -> bool {
        let before = self.contains(index);
        self.0[index / 64] |= 1 << (index % 64);
        !before
    }

    /// Removes an index. Returns true if it was in the set.
    pub fn remove(&mut self, index: usize) -> bool {
        let before = self.contains(index);
        if before {
            self.0[index / 64] &= !(1 << (index % 64));
        }
        before
    }

    /// Whether the index is in the set; false for indices of 256 and more.
    pub fn contains(&self, index: usize) -> bool {
        index < MAX_CHUNKS && self.0[index / 64] >> (index % 64) & 1 == 1
    }

    /// Number of indices in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    /// The indices in both sets.
    pub fn intersection(&self, other: &ChunkSet) -> ChunkSet {
        ChunkSet(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// The indices of this set that are not in the other.
    pub fn difference(&self, other: &ChunkSet) -> ChunkSet {
        ChunkSet(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    /// Iterates over the indices in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(word, bits)| {
            let mut rest = *bits;
            std::iter::from_fn(move || {
                (rest != 0).then(|| {
                    let bit = rest.trailing_zeros() as usize;
                    rest &= rest - 1;
                    word * 64 + bit
                })
            })
        })
    }
}

impl FromIterator<usize> for ChunkSet {
    fn from_iter<I: IntoIterator<Item = usize>>(indices: I) -> ChunkSet {
        let mut set = ChunkSet::EMPTY;
        for index in indices {
            set.insert(index);
        }
        set
    }
}

impl fmt::Debug for ChunkSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_like_a_set_of_numbers(a in proptest::collection::btree_set(0usize..256, 0..80),
                                         b in proptest::collection::btree_set(0usize..256, 0..80)) {
            let (x, y): (ChunkSet, ChunkSet) = (a.iter().copied().collect(), b.iter().copied().collect());
            prop_assert_eq!(x.iter().collect::<BTreeSet<_>>(), a.clone());
            prop_assert_eq!(x.len(), a.len());
            prop_assert_eq!(x.intersection(&y), a.intersection(&b).copied().collect::<ChunkSet>());
            prop_assert_eq!(x.difference(&y), a.difference(&b).copied().collect::<ChunkSet>());
            let mut less = x;
            for index in 0..256 {
                prop_assert_eq!(less.remove(index), a.contains(&index));
            }
            prop_assert!(less.is_empty());
        }
    }
}

//! The index in memory: the location of each chunk.
//!
//! Sorted pages of at most [`PAGE_ENTRIES`] entries, in a map by their first name. It takes little more than 40 bytes
//! per chunk, since stripe names mostly ascend and a page that is appended to is left full when it splits. Ten million
//! chunks take some 420 MB.

use std::collections::BTreeMap;
use std::ops::Bound;

use striate_core::ChunkId;

use super::form::Form;
use crate::store::ChunkInfo;

const PAGE_ENTRIES: usize = 128;

type Key = [u8; ChunkId::ENCODED_LEN];

/// The location of a chunk's record, and what is known of the chunk without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// Number of the segment.
    pub segment: u32,
    /// Offset of the record in the segment, in bytes.
    pub offset: u32,
    /// Length of the payload in bytes.
    pub len: u32,
    /// CRC-32C of the payload.
    pub crc32c: u32,
    /// Form of the record.
    pub form: Form,
}

/// A location in four words: segment, offset, length with the form in its two highest bits, CRC-32C. The index and its
/// snapshot store it so.
pub(super) type PackedLocation = [u32; 4];

/// Chunk names in order, with their locations.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Non-empty sorted pages. The key of a page is at most its first name, and above all names of the page before.
    pages: BTreeMap<Key, Vec<(Key, PackedLocation)>>,
    len: usize,
}

impl Index {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn get(&self, chunk: ChunkId) -> Option<Location> {
        let key = chunk.to_bytes();
        let (_, page) = self.pages.range(..=key).next_back()?;
        let found = page.binary_search_by(|(name, _)| name.cmp(&key)).ok()?;
        Location::unpack(page[found].1)
    }

    /// Sets the location of a chunk; returns the previous one.
    pub fn insert(&mut self, chunk: ChunkId, location: Location) -> Option<Location> {
        let (key, location) = (chunk.to_bytes(), location.pack());
        let Some((_, page)) = self.pages.range_mut(..=key).next_back() else {
            return self.insert_first(key, location);
        };
        match page.binary_search_by(|(name, _)| name.cmp(&key)) {
            Ok(found) => return Location::unpack(std::mem::replace(&mut page[found].1, location)),
            Err(at) if page.len() < PAGE_ENTRIES => page.insert(at, (key, location)),
            Err(at) if at == PAGE_ENTRIES => {
                self.pages.insert(key, vec![(key, location)]);
            }
            Err(at) => {
                let mut upper = page.split_off(PAGE_ENTRIES / 2);
                match at.checked_sub(PAGE_ENTRIES / 2) {
                    Some(at) if at > 0 => upper.insert(at, (key, location)),
                    _ => page.insert(at, (key, location)),
                }
                self.pages.insert(upper[0].0, upper);
            }
        }
        self.len += 1;
        None
    }

    /// Inserts before every page: the first page takes the entry, under a new key.
    fn insert_first(&mut self, key: Key, location: PackedLocation) -> Option<Location> {
        let page = match self.pages.pop_first() {
            Some((_, mut page)) if page.len() < PAGE_ENTRIES => {
                page.insert(0, (key, location));
                page
            }
            Some((first, page)) => {
                self.pages.insert(first, page);
                vec![(key, location)]
            }
            None => vec![(key, location)],
        };
        self.pages.insert(key, page);
        self.len += 1;
        None
    }

    pub fn remove(&mut self, chunk: ChunkId) -> Option<Location> {
        let key = chunk.to_bytes();
        let (first, page) = self.pages.range_mut(..=key).next_back()?;
        let found = page.binary_search_by(|(name, _)| name.cmp(&key)).ok()?;
        let (_, location) = page.remove(found);
        if page.is_empty() {
            let first = *first;
            self.pages.remove(&first);
        }
        self.len -= 1;
        Location::unpack(location)
    }

    /// Returns the chunks in order, starting with `from`.
    pub fn range(&self, from: ChunkId) -> impl Iterator<Item = (ChunkId, Location)> {
        let key = from.to_bytes();
        let first = self.pages.range(..=key).next_back();
        let rest = self.pages.range((Bound::Excluded(key), Bound::Unbounded));
        first.into_iter().chain(rest).flat_map(|(_, page)| page).skip_while(move |(name, _)| *name < key).map(
            |(name, location)| {
                let chunk = ChunkId::from_bytes(name).expect("a name of the right length");
                (chunk, Location::unpack(*location).expect("packed by this index"))
            },
        )
    }

    pub fn iter(&self) -> impl Iterator<Item = (ChunkId, Location)> {
        self.range(ChunkId::from_bytes(&[0; ChunkId::ENCODED_LEN]).expect("a name of the right length"))
    }
}

impl Location {
    /// Lengths fit below this bit, because `MAX_CHUNK_LEN` does.
    const FORM_SHIFT: u32 = 30;

    pub fn pack(self) -> PackedLocation {
        let form = match self.form {
            Form::Coarse => 0,
            Form::Fine => 1,
            Form::Paged => 2,
        };
        [self.segment, self.offset, self.len | form << Self::FORM_SHIFT, self.crc32c]
    }

    /// The inverse of [`Location::pack`]; `None` for an unknown form.
    pub fn unpack([segment, offset, word, crc32c]: PackedLocation) -> Option<Self> {
        let form = match word >> Self::FORM_SHIFT {
            0 => Form::Coarse,
            1 => Form::Fine,
            2 => Form::Paged,
            _ => return None,
        };
        let len = word & ((1 << Self::FORM_SHIFT) - 1);
        Some(Self { segment, offset, len, crc32c, form })
    }

    /// Returns the length in bytes of the whole record on disk.
    pub fn record_len(&self) -> u64 {
        self.form.record_len(self.len)
    }

    pub fn info(&self, chunk: ChunkId) -> ChunkInfo {
        ChunkInfo { chunk, len: self.len, crc32c: self.crc32c }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::conformance::chunk_id;

    proptest! {
        #[test]
        fn the_index_behaves_as_a_sorted_map(
            operations in prop::collection::vec((any::<bool>(), any::<bool>(), 0u64..700), 0..3000), from in 0u64..700) {
            let (mut index, mut model) = (Index::default(), BTreeMap::new());
            let mut ascending = 1000;
            for (i, (insert, ascend, number)) in operations.into_iter().enumerate() {
                ascending += u64::from(ascend && insert);
                let chunk = chunk_id(if ascend && insert { ascending } else { number }, 0, 1);
                let form = [Form::Coarse, Form::Fine, Form::Paged][i % 3];
                let location = Location { segment: i as u32, offset: 8, len: 1 << 28, crc32c: 0, form };
                if insert {
                    prop_assert_eq!(index.insert(chunk, location), model.insert(chunk, location));
                } else {
                    prop_assert_eq!(index.remove(chunk), model.remove(&chunk));
                }
                prop_assert_eq!(index.get(chunk), model.get(&chunk).copied());
            }
            prop_assert_eq!(index.len(), model.len());
            prop_assert!(index.iter().eq(model.iter().map(|(k, v)| (*k, *v))));
            let from = chunk_id(from, 0, 1);
            prop_assert!(index.range(from).eq(model.range(from..).map(|(k, v)| (*k, *v))));
        }
    }
}

//! Bounded cache of chunk headers with their checksum tables.
//!
//! A range far from a chunk's beginning is verified by the table at the chunk's beginning; without this cache, every
//! such read would take two reads of the disk. The cache holds records that were verified when they were read. Records
//! never change, and one that a compaction has moved is not looked up again.
//!
//! There are two generations. A hit moves a record to the younger one; when that has half of the bytes, it replaces the
//! older one, which is dropped. There is no list to keep in order, and the cache never exceeds its budget.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use parking_lot::Mutex;

use super::index::Location;
use super::record::ChunkRecord;

/// The place of a record: segment number, offset.
type Key = (u32, u32);

/// A cache of chunk headers with their checksum tables, in two generations.
#[derive(Debug)]
pub(super) struct Tables {
    /// Maximum number of bytes in one generation.
    limit: usize,
    generations: Mutex<Generations>,
}

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Key, Arc<ChunkRecord>>,
    young_bytes: usize,
    old: HashMap<Key, Arc<ChunkRecord>>,
}

impl Tables {
    /// Creates a cache of at most `budget` bytes.
    pub fn new(budget: usize) -> Self {
        Self { limit: budget / 2, generations: Mutex::default() }
    }

    /// Returns the record at `location`, if it is cached.
    pub fn get(&self, location: &Location) -> Option<Arc<ChunkRecord>> {
        let key = (location.segment, location.offset);
        let mut generations = self.generations.lock();
        if let Some(found) = generations.young.get(&key) {
            return Some(found.clone());
        }
        let found = generations.old.remove(&key)?;
        generations.insert(key, found.clone(), self.limit);
        Some(found)
    }

    /// Caches the record at `location`, which was verified.
    pub fn keep(&self, location: &Location, record: Arc<ChunkRecord>) {
        self.generations.lock().insert((location.segment, location.offset), record, self.limit);
    }
}

impl Generations {
    fn insert(&mut self, key: Key, record: Arc<ChunkRecord>, limit: usize) {
        let bytes = kept_bytes(&record);
        if bytes > limit {
            return;
        }
        if self.young_bytes + bytes > limit {
            self.old = mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        if self.young.insert(key, record).is_none() {
            self.young_bytes += bytes;
        }
    }
}

/// Returns the memory that a cached record takes, in bytes: its table, itself and an entry of a half-full map.
fn kept_bytes(record: &ChunkRecord) -> usize {
    const ENTRY: usize = 2 * (mem::size_of::<Key>() + mem::size_of::<Arc<ChunkRecord>>());
    4 * record.table.capacity() + mem::size_of::<ChunkRecord>() + ENTRY
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{chunk_id, payload};
    use crate::disk::form::Form;
    use crate::granule::granule_crcs;

    fn record(number: u64) -> (Location, Arc<ChunkRecord>) {
        let bytes = payload(number, 100_000);
        let plain = granule_crcs(&bytes, Form::Fine.granule_len());
        let record = ChunkRecord::new(chunk_id(number, 0, 1), Form::Fine, 100_000, 7, &plain);
        (record.location(1, 8 * number as u32), Arc::new(record))
    }

    #[test]
    fn what_is_asked_for_stays_and_the_budget_holds() {
        let (hot, first) = record(0);
        let budget = 20 * kept_bytes(&first);
        let tables = Tables::new(budget);
        tables.keep(&hot, first.clone());
        for number in 1..1000 {
            let (location, record) = record(number);
            tables.keep(&location, record.clone());
            assert_eq!(tables.get(&location), Some(record));
            assert_eq!(tables.get(&hot).as_ref(), Some(&first), "asked for all the time");
            let generations = tables.generations.lock();
            let kept = generations.young.values().chain(generations.old.values());
            assert!(kept.map(|record| kept_bytes(record)).sum::<usize>() <= budget);
        }
        assert_eq!(tables.get(&record(1).0), None);
    }

    #[test]
    fn without_a_budget_nothing_is_kept() {
        let (location, record) = record(1);
        let tables = Tables::new(0);
        tables.keep(&location, record);
        assert_eq!(tables.get(&location), None);
    }
}

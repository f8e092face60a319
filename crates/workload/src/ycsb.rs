//! YCSB's core workloads A to F (Cooper et al., SoCC'10), with its key distribution: Zipf with exponent 0.99,
//! scrambled by default. Scans of workload E read up to 100 neighbouring blocks at once.

use std::collections::BTreeSet;

use rand::Rng;
use rand::rngs::SmallRng;

use super::{DEFAULT_SIZE, KeyDistribution, Keys, Operation, Workload};

/// YCSB's Zipf constant.
pub const EXPONENT: f64 = 0.99;
/// The longest scan of workload E.
pub const MAX_SCAN: u64 = 100;

/// One of the core workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YcsbWorkload {
    /// Half reads, half updates.
    A,
    /// 95% reads, 5% updates.
    B,
    /// Reads only.
    C,
    /// 95% reads of the latest keys, 5% inserts.
    D,
    /// 95% scans, 5% inserts.
    E,
    /// Half reads, half read-modify-writes.
    F,
}

/// A core workload over a key space.
#[derive(Clone, Debug)]
pub struct Ycsb {
    workload: YcsbWorkload,
    /// Readable keys: the loaded ones, and the inserted ones below the first that is not confirmed.
    keys: Keys,
    loaded: u64,
    size: u64,
    next_insert: u64,
    /// Inserted keys above one that is not confirmed.
    ahead: BTreeSet<u64>,
    /// Keys whose insert failed.
    again: Vec<u64>,
}

impl Ycsb {
    /// Creates the workload with YCSB's own key distribution.
    pub fn new(workload: YcsbWorkload, blocks: u64) -> Self {
        let distribution = match workload {
            YcsbWorkload::D => KeyDistribution::Latest { exponent: EXPONENT },
            _ => KeyDistribution::ScrambledZipf { exponent: EXPONENT },
        };
        Self::with_keys(workload, Keys::new(distribution, blocks))
    }

    /// Creates the workload with another key distribution.
    pub fn with_keys(workload: YcsbWorkload, keys: Keys) -> Self {
        Self {
            workload,
            keys,
            loaded: keys.count(),
            size: DEFAULT_SIZE,
            next_insert: keys.count(),
            ahead: BTreeSet::new(),
            again: Vec::new(),
        }
    }

    /// Sets the block size, in bytes.
    pub fn with_size(self, size: u64) -> Self {
        Self { size, ..self }
    }

    fn insert(&mut self) -> Operation {
        let key = self.again.pop().unwrap_or(self.next_insert);
        self.next_insert = self.next_insert.max(key + 1);
        Operation::Insert(key)
    }
}

impl Workload for Ycsb {
    fn objects(&self) -> u64 {
        self.loaded
    }

    fn size(&self, _block: u64) -> u64 {
        self.size
    }

    fn next(&mut self, rng: &mut SmallRng) -> Operation {
        let percent = rng.random_range(0..100);
        let first = self.keys.draw(rng);
        let read = Operation::read_one(first);
        match (self.workload, percent) {
            (YcsbWorkload::C, _) | (YcsbWorkload::A | YcsbWorkload::F, ..50) => read,
            (YcsbWorkload::B | YcsbWorkload::D, ..95) => read,
            (YcsbWorkload::E, ..95) => {
                let count = rng.random_range(1..=MAX_SCAN).min(self.keys.count() - first);
                Operation::read_run(first, count)
            }
            (YcsbWorkload::A | YcsbWorkload::B, _) => Operation::Update(first),
            (YcsbWorkload::F, _) => Operation::ReadModifyWrite(first),
            (YcsbWorkload::D | YcsbWorkload::E, _) => self.insert(),
        }
    }

    fn inserted(&mut self, object: u64, is_there: bool) {
        if !is_there {
            self.again.push(object);
            return;
        }
        self.ahead.insert(object);
        let mut count = self.keys.count();
        while self.ahead.remove(&count) {
            count += 1;
        }
        if count > self.keys.count() {
            self.keys.grow_to(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn each_workload_has_its_mix() {
        let share = |workload: YcsbWorkload, wanted: fn(&Operation) -> bool| {
            let (mut ycsb, mut rng) = (Ycsb::new(workload, 1_000), SmallRng::seed_from_u64(1));
            let hits = (0..20_000).filter(|_| wanted(&ycsb.next(&mut rng))).count();
            (hits as f64 / 200.0).round()
        };
        let is_read =
            |operation: &Operation| matches!(operation, Operation::Read(objects) if objects.count() == 1);
        let is_scan = |operation: &Operation| matches!(operation, Operation::Read(_));
        let is_update = |operation: &Operation| matches!(operation, Operation::Update(_));
        let is_insert = |operation: &Operation| matches!(operation, Operation::Insert(_));
        let is_rmw = |operation: &Operation| matches!(operation, Operation::ReadModifyWrite(_));
        let near =
            |seen: f64, expected: f64| assert!((seen - expected).abs() <= 1.0, "{seen} for {expected}");
        near(share(YcsbWorkload::A, is_read), 50.0);
        near(share(YcsbWorkload::A, is_update), 50.0);
        near(share(YcsbWorkload::B, is_update), 5.0);
        near(share(YcsbWorkload::C, is_read), 100.0);
        near(share(YcsbWorkload::D, is_insert), 5.0);
        near(share(YcsbWorkload::E, is_scan), 95.0);
        near(share(YcsbWorkload::E, is_insert), 5.0);
        near(share(YcsbWorkload::F, is_rmw), 50.0);
    }

    #[test]
    fn inserts_take_the_next_numbers() {
        let (mut ycsb, mut rng) = (Ycsb::new(YcsbWorkload::D, 10), SmallRng::seed_from_u64(2));
        let inserted: Vec<u64> = (0..2_000)
            .filter_map(|_| match ycsb.next(&mut rng) {
                Operation::Insert(key) => Some(key),
                _ => None,
            })
            .collect();
        assert!(inserted.iter().copied().eq(10..10 + inserted.len() as u64) && !inserted.is_empty());
    }

    #[test]
    fn an_inserted_block_is_read_only_once_it_and_all_before_it_are_there() {
        let (mut ycsb, mut rng) = (Ycsb::new(YcsbWorkload::D, 10), SmallRng::seed_from_u64(3));
        let mut highest_read = |ycsb: &mut Ycsb| {
            let read = (0..2_000).filter_map(|_| match ycsb.next(&mut rng) {
                Operation::Read(objects) => objects.iter().max(),
                _ => None,
            });
            read.max().unwrap()
        };
        assert_eq!(highest_read(&mut ycsb), 9);
        ycsb.inserted(11, true);
        assert_eq!(highest_read(&mut ycsb), 9);
        ycsb.inserted(10, true);
        assert_eq!(highest_read(&mut ycsb), 11);
        ycsb.inserted(12, false);
        assert_eq!(ycsb.insert(), Operation::Insert(12));
    }
}

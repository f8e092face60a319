//! Compares an engine with an ordered map, over any sequence of operations.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{Store, fresh_id};
use crate::store::{Commit, Precondition, Revision, Row, ScanRange, Transaction, TxId};

/// One operation of a sequence. Keys are drawn from a small set, so that operations meet.
#[derive(Clone, Debug)]
pub enum Operation {
    /// A transaction with preconditions that hold or fail in the model, as requested.
    Commit {
        /// Keys to check, and the check of each.
        checks: Vec<(Bytes, Check)>,
        /// Keys to set, or to remove (`None`). The last write to a key counts.
        writes: Vec<(Bytes, Option<Bytes>)>,
    },
    /// Submits the `n`-th last commit again.
    Resubmit(usize),
    /// Reads rows.
    Get(Vec<Bytes>),
    /// Scans `[start, end)` with a limit, both ways.
    Scan(Bytes, Bytes, usize),
}

/// The kind of a precondition on a key.
#[derive(Clone, Copy, Debug)]
pub enum Check {
    /// The row is as in the model; holds.
    Unchanged,
    /// The row is absent; holds if it is.
    Absent,
    /// The row exists; holds if it does.
    Exists,
    /// The row has a version that never existed; fails.
    WrongVersion,
}

/// The reference model: rows with the revisions that the engine returned.
#[derive(Debug, Default)]
pub struct Model {
    rows: BTreeMap<Bytes, (Bytes, Revision)>,
    last: Revision,
    history: Vec<(Transaction, Revision)>,
}

impl Model {
    /// Runs one operation on `store` and on the model.
    ///
    /// # Panics
    /// If the two differ.
    pub async fn step(&mut self, store: &Store, operation: &Operation) {
        match operation {
            Operation::Commit { checks, writes } => self.commit(store, checks, writes).await,
            Operation::Resubmit(back) => self.resubmit(store, *back).await,
            Operation::Get(keys) => {
                let expected: Vec<_> = keys.iter().map(|key| self.row(key)).collect();
                assert_eq!(store.get_many(keys).await.unwrap(), expected);
                for (key, expected) in keys.iter().zip(expected) {
                    assert_eq!(store.get(key).await.unwrap(), expected);
                }
            }
            Operation::Scan(start, end, limit) => self.scan(store, start, end, *limit).await,
        }
    }

    /// Compares all rows.
    ///
    /// # Panics
    /// If they differ.
    pub async fn compare(&self, store: &Store) {
        let rows = store.scan(ScanRange::prefix(b""), usize::MAX).await.unwrap();
        let expected: Vec<_> = self.rows.keys().filter_map(|key| self.row(key)).collect();
        assert_eq!(rows, expected);
    }

    fn row(&self, key: &Bytes) -> Option<Row> {
        let (value, version) = self.rows.get(key)?;
        Some(Row { key: key.clone(), value: value.clone(), version: *version })
    }

    fn precondition(&self, key: &Bytes, check: Check) -> (Precondition, bool) {
        let row = self.rows.get(key);
        match check {
            Check::Unchanged => match row {
                Some((_, version)) => (Precondition::Version(key.clone(), *version), true),
                None => (Precondition::Absent(key.clone()), true),
            },
            Check::Absent => (Precondition::Absent(key.clone()), row.is_none()),
            Check::Exists => (Precondition::Exists(key.clone()), row.is_some()),
            Check::WrongVersion => (Precondition::Version(key.clone(), Revision(u64::MAX)), false),
        }
    }

    async fn commit(&mut self, store: &Store, checks: &[(Bytes, Check)], writes: &[(Bytes, Option<Bytes>)]) {
        let mut tx = Transaction::new(fresh_id());
        let mut failed = None;
        for (position, (key, check)) in checks.iter().enumerate() {
            let (precondition, holds) = self.precondition(key, *check);
            tx.require(precondition);
            if !holds && failed.is_none() {
                failed = Some(position);
            }
        }
        let writes: BTreeMap<_, _> = writes.iter().cloned().collect();
        for (key, value) in &writes {
            match value {
                Some(value) => tx.put(key.clone(), value.clone()),
                None => tx.delete(key.clone()),
            };
        }
        let outcome = store.commit(tx.clone()).await.unwrap();
        if let Some(failed) = failed {
            assert_eq!(outcome, Commit::Conflict { failed });
            return;
        }
        let Commit::Done(revision) = outcome else { panic!("{tx:?} must commit") };
        assert!(revision > self.last, "revisions only grow");
        self.last = revision;
        for (key, value) in writes {
            match value {
                Some(value) => self.rows.insert(key, (value, revision)),
                None => self.rows.remove(&key),
            };
        }
        self.history.push((tx, revision));
    }

    async fn resubmit(&mut self, store: &Store, back: usize) {
        let Some(position) = self.history.len().checked_sub(back + 1) else { return };
        let (tx, revision) = &self.history[position];
        assert_eq!(store.commit(tx.clone()).await.unwrap(), Commit::Done(*revision));
    }

    async fn scan(&self, store: &Store, start: &Bytes, end: &Bytes, limit: usize) {
        let inside = |key: &&Bytes| *key >= start && (end.is_empty() || *key < end);
        let mut expected: Vec<_> = self.rows.keys().filter(inside).filter_map(|key| self.row(key)).collect();
        let range = ScanRange { start: start.clone(), end: end.clone() };
        let forward = store.scan(range.clone(), limit).await.unwrap();
        assert_eq!(forward, expected[..limit.min(expected.len())]);
        expected.reverse();
        expected.truncate(limit);
        assert_eq!(store.scan_back(range, limit).await.unwrap(), expected);
    }

    /// Returns the committed transactions, oldest first, with their revisions.
    pub fn history(&self) -> impl Iterator<Item = (TxId, Revision)> {
        self.history.iter().map(|(tx, revision)| (tx.id, *revision))
    }
}

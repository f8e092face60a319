//! The engine in memory: an ordered map under a lock.
//!
//! It serves tests and the lab, and is the reference that other engines are compared with. It is deterministic: it has
//! no threads, and its only clock is the runtime's (for leases). Nothing survives the process.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::RwLock;
use striate_runtime::Runtime;

use crate::lease::Leases;
use crate::outcomes::Outcomes;
use crate::store::{
    Commit, Lease, LeaseId, MetaError, MetaStore, Precondition, Revision, Row, ScanRange, Transaction, Watch,
    WatchEvent, Write,
};
use crate::watch::Watchers;
use crate::{keys, migration};

/// Metadata in memory.
#[derive(Debug)]
pub struct MemoryStore {
    state: RwLock<State>,
    leases: Leases,
    watchers: Watchers,
}

#[derive(Debug, Default)]
struct State {
    rows: BTreeMap<Bytes, (Bytes, Revision)>,
    revision: Revision,
    outcomes: Outcomes,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new(runtime: Runtime) -> Self {
        Self { state: RwLock::default(), leases: Leases::new(runtime, 1), watchers: Watchers::default() }
    }

    fn holds(&self, state: &State, precondition: &Precondition) -> bool {
        match precondition {
            Precondition::Absent(key) => !state.rows.contains_key(key),
            Precondition::Exists(key) => state.rows.contains_key(key),
            Precondition::Version(key, version) => {
                state.rows.get(key).is_some_and(|(_, current)| current == version)
            }
            Precondition::LeaseAlive(lease) => self.leases.is_alive(*lease),
        }
    }

    /// Applies `write` and notifies the watchers.
    fn apply(&self, state: &mut State, write: Write, revision: Revision) {
        let (key, value) = match write {
            Write::Put(key, value) => {
                state.rows.insert(key.clone(), (value.clone(), revision));
                (key, Some(value))
            }
            Write::Delete(key) => match state.rows.remove(&key) {
                Some(_) => (key, None),
                None => return,
            },
        };
        self.watchers.publish(&WatchEvent { key, value, revision });
    }
}

impl State {
    fn row(&self, key: &[u8]) -> Option<Row> {
        let (key, (value, version)) = self.rows.get_key_value(key)?;
        Some(Row { key: key.clone(), value: value.clone(), version: *version })
    }

    fn range(&self, range: &ScanRange) -> impl DoubleEndedIterator<Item = Row> {
        let end = match range.end.is_empty() {
            true => Bound::Unbounded,
            // An inverted range is empty; `BTreeMap::range` would panic.
            false => Bound::Excluded(range.end.clone().max(range.start.clone())),
        };
        let rows = self.rows.range((Bound::Included(range.start.clone()), end));
        rows.map(|(key, (value, version))| Row { key: key.clone(), value: value.clone(), version: *version })
    }
}

#[async_trait]
impl MetaStore for MemoryStore {
    async fn get(&self, key: &[u8]) -> Result<Option<Row>, MetaError> {
        Ok(self.state.read().row(key))
    }

    async fn get_many(&self, keys: &[Bytes]) -> Result<Vec<Option<Row>>, MetaError> {
        let state = self.state.read();
        Ok(keys.iter().map(|key| state.row(key)).collect())
    }

    async fn scan(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        Ok(self.state.read().range(&range).take(limit).collect())
    }

    async fn scan_back(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        Ok(self.state.read().range(&range).rev().take(limit).collect())
    }

    async fn commit(&self, transaction: Transaction) -> Result<Commit, MetaError> {
        transaction.check_limits()?;
        let mut state = self.state.write();
        if let Some(revision) = state.outcomes.get(transaction.id) {
            return Ok(Commit::Done(revision));
        }
        if let Some((mark, _)) = state.rows.get(&keys::migration())
            && !transaction.writes_migration()
        {
            return Err(MetaError::Moved(migration::describe(mark)));
        }
        let mut preconditions = transaction.preconditions.iter();
        if let Some(failed) = preconditions.position(|precondition| !self.holds(&state, precondition)) {
            return Ok(Commit::Conflict { failed });
        }
        let revision = Revision(state.revision.0 + 1);
        state.revision = revision;
        state.outcomes.insert(transaction.id, revision);
        for write in transaction.writes {
            self.apply(&mut state, write, revision);
        }
        Ok(Commit::Done(revision))
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<Lease, MetaError> {
        Ok(self.leases.grant(ttl))
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        Ok(self.leases.keep_alive(lease))
    }

    async fn is_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        Ok(self.leases.is_alive(lease))
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.leases.revoke(lease);
        Ok(())
    }

    async fn watch(&self, prefix: &[u8]) -> Result<Watch, MetaError> {
        // Registers under the lock, so that the first event is that of the next commit.
        let _state = self.state.read();
        Ok(self.watchers.watch(prefix))
    }
}

//! Turns a group of transactions into one set of writes, by the state that the server returned.
//!
//! The transactions are checked in order, each against that state plus the writes of earlier ones in the group; each
//! transaction that commits takes one revision.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;

use crate::store::{Commit, LeaseId, MetaError, Precondition, Revision, Transaction, TxId, Write};
use crate::{keys, migration};

/// The server's state of everything that the group's transactions depend on.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) revision: Revision,
    /// Versions of those requested rows that exist.
    pub(super) versions: HashMap<Bytes, Revision>,
    /// Mark of a migration.
    pub(super) mark: Option<Bytes>,
    /// Transactions that had already committed.
    pub(super) outcomes: HashMap<TxId, Revision>,
    /// Leases that are alive.
    pub(super) leases: BTreeSet<LeaseId>,
    /// Prefixes that are watched.
    pub(super) watched: Vec<Bytes>,
}

/// The writes of a group.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// Last change of each key: value and version, or removal.
    pub(super) rows: BTreeMap<Bytes, Option<(Bytes, Revision)>>,
    /// Committed transactions with their revisions.
    pub(super) outcomes: Vec<(TxId, Revision)>,
    /// Changes of watched keys, in order.
    pub(super) changes: Vec<(Revision, Bytes, Option<Bytes>)>,
    /// Revision of the last transaction.
    pub(super) last: Revision,
}

/// Returns the keys that the outcome of `transactions` depends on. They include the rows that are only written, because
/// the removal of an absent row is no change.
pub(super) fn keys_of<'t>(transactions: impl IntoIterator<Item = &'t Transaction>) -> BTreeSet<Bytes> {
    let mut needed_keys = BTreeSet::from([keys::migration()]);
    for tx in transactions {
        needed_keys.extend(tx.preconditions.iter().filter_map(Precondition::key).cloned());
        needed_keys.extend(tx.writes.iter().map(|write| write.key().clone()));
    }
    needed_keys
}

/// Returns the leases that the outcome of `transactions` depends on.
pub(super) fn leases_of<'t>(transactions: impl IntoIterator<Item = &'t Transaction>) -> BTreeSet<LeaseId> {
    let preconditions = transactions.into_iter().flat_map(|tx| &tx.preconditions);
    let lease = |precondition: &Precondition| match precondition {
        Precondition::LeaseAlive(lease) => Some(*lease),
        _ => None,
    };
    preconditions.filter_map(lease).collect()
}

impl Group {
    /// Drafts the group of `transactions` after `state`, and their replies, which are due when the group is durable.
    pub(super) fn draft<'t>(
        mut state: State,
        transactions: impl IntoIterator<Item = &'t Transaction>,
    ) -> (Self, Vec<Result<Commit, MetaError>>) {
        let mut group = Self { last: state.revision, ..Self::default() };
        let answers = transactions.into_iter().map(|tx| group.add(&mut state, tx)).collect();
        (group, answers)
    }

    fn add(&mut self, state: &mut State, tx: &Transaction) -> Result<Commit, MetaError> {
        if let Some(revision) = state.outcomes.get(&tx.id) {
            return Ok(Commit::Done(*revision));
        }
        if let Some(mark) = state.mark.as_ref().filter(|_| !tx.writes_migration()) {
            return Err(MetaError::Moved(migration::describe(mark)));
        }
        let holds = |precondition: &Precondition| match precondition {
            Precondition::Absent(key) => !state.versions.contains_key(key),
            Precondition::Exists(key) => state.versions.contains_key(key),
            Precondition::Version(key, version) => state.versions.get(key) == Some(version),
            Precondition::LeaseAlive(lease) => state.leases.contains(lease),
        };
        if let Some(failed) = tx.preconditions.iter().position(|precondition| !holds(precondition)) {
            return Ok(Commit::Conflict { failed });
        }
        self.last = Revision(self.last.0 + 1);
        for write in &tx.writes {
            self.write(state, write);
        }
        state.outcomes.insert(tx.id, self.last);
        self.outcomes.push((tx.id, self.last));
        Ok(Commit::Done(self.last))
    }

    fn write(&mut self, state: &mut State, write: &Write) {
        let (key, value) = match write {
            Write::Put(key, value) => (key, Some(value)),
            Write::Delete(key) => (key, None),
        };
        let before = match value {
            Some(_) => state.versions.insert(key.clone(), self.last),
            None => state.versions.remove(key),
        };
        if value.is_none() && before.is_none() {
            return;
        }
        if *key == keys::migration() {
            state.mark = value.cloned();
        }
        self.rows.insert(key.clone(), value.map(|value| (value.clone(), self.last)));
        if state.watched.iter().any(|prefix| key.starts_with(prefix)) {
            self.changes.push((self.last, key.clone(), value.cloned()));
        }
    }
}

//! Groups: transactions that become durable together.
//!
//! The committer checks the waiting transactions in order, each against the committed state plus the writes of earlier
//! ones in the group. The result is one set of writes, which every mirror applies in one redb transaction. Each
//! committed transaction takes one revision, in order, so the ids of a group are remembered in one row: the first
//! revision and the ids one after the other.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::snapshot::{Failure, Snapshot};
use crate::lease::Leases;
use crate::outcomes::{Outcomes, REMEMBERED_COMMITS};
use crate::store::{Commit, Precondition, Revision, Transaction, TxId, WatchEvent, Write};
use crate::{keys, migration};

/// A group's change of one key.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Put(Bytes, Revision),
    Delete,
}

/// The writes of one group.
#[derive(Debug)]
pub(super) struct Group {
    /// Revision of the state that the group follows.
    pub(super) base: Revision,
    /// Revision of its last transaction.
    pub(super) last: Revision,
    /// Last change of each key.
    pub(super) rows: BTreeMap<Bytes, Change>,
    /// Ids of its transactions, revisions `base + 1` to `last`.
    pub(super) ids: Vec<TxId>,
    /// Number of the engine's run, set once in a run.
    pub(super) run: Option<u32>,
}

impl Group {
    /// Creates an empty group that follows the state at `base`.
    pub(super) fn after(base: Revision) -> Self {
        Self { base, last: base, rows: BTreeMap::new(), ids: Vec::new(), run: None }
    }

    /// Returns the revision up to which remembered ids are forgotten.
    pub(super) fn forget_through(&self) -> u64 {
        self.last.0.saturating_sub(REMEMBERED_COMMITS as u64)
    }

    /// Returns the size of keys and values in bytes.
    pub(super) fn bytes(&self) -> usize {
        let row = |(key, change): (&Bytes, &Change)| match change {
            Change::Put(value, _) => key.len() + value.len(),
            Change::Delete => key.len(),
        };
        self.rows.iter().map(row).sum::<usize>() + 16 * self.ids.len()
    }
}

/// A group under construction.
pub(super) struct Draft<'a> {
    pub(super) group: Group,
    pub(super) events: Vec<WatchEvent>,
    committed: &'a Snapshot,
    outcomes: &'a Outcomes,
    leases: &'a Leases,
    /// The mark of a migration in the committed state, once it has been read.
    mark: Option<Option<Bytes>>,
}

/// The outcome of a transaction in a draft.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DraftOutcome {
    /// The reply, once the group is durable.
    Answer(Commit),
    /// Refused: it needs space, and there is none.
    NoSpace,
    /// Refused: the metadata was moved, or is being moved.
    Moved(String),
}

/// Bytes that a transaction may add to the metadata on a full disk, if it removes rows or adds none. An S3 delete
/// removes rows and adds a smaller garbage row. A starting process replaces the cluster's row to register: without
/// that, no process could start, read and delete.
const FULL_DISK_SLACK_BYTES: i64 = 256;

impl<'a> Draft<'a> {
    pub(super) fn new(committed: &'a Snapshot, outcomes: &'a Outcomes, leases: &'a Leases) -> Self {
        let group = Group::after(committed.revision());
        Self { group, events: Vec::new(), committed, outcomes, leases, mark: None }
    }

    /// Checks `tx` and adds its writes. If `full`, accepts only transactions that take no space.
    pub(super) fn add(&mut self, tx: &Transaction, full: bool) -> Result<DraftOutcome, Failure> {
        if let Some(revision) = self.outcomes.get(tx.id).or_else(|| self.drafted(tx.id)) {
            return Ok(DraftOutcome::Answer(Commit::Done(revision)));
        }
        if let Some(mark) = self.mark()?.filter(|_| !tx.writes_migration()) {
            return Ok(DraftOutcome::Moved(migration::describe(&mark)));
        }
        for (failed, precondition) in tx.preconditions.iter().enumerate() {
            if !self.holds(precondition)? {
                return Ok(DraftOutcome::Answer(Commit::Conflict { failed }));
            }
        }
        if full && self.takes_space(tx)? {
            return Ok(DraftOutcome::NoSpace);
        }
        let revision = Revision(self.group.last.0 + 1);
        self.group.last = revision;
        self.group.ids.push(tx.id);
        for write in &tx.writes {
            self.write(write, revision)?;
        }
        Ok(DraftOutcome::Answer(Commit::Done(revision)))
    }

    fn mark(&mut self) -> Result<Option<Bytes>, Failure> {
        let key = keys::migration();
        match self.group.rows.get(&key) {
            Some(Change::Put(value, _)) => Ok(Some(value.clone())),
            Some(Change::Delete) => Ok(None),
            None => {
                if self.mark.is_none() {
                    self.mark = Some(self.committed.get(&key)?.map(|row| row.value));
                }
                Ok(self.mark.clone().flatten())
            }
        }
    }

    fn drafted(&self, id: TxId) -> Option<Revision> {
        let position = self.group.ids.iter().position(|drafted| *drafted == id)?;
        Some(Revision(self.group.base.0 + 1 + position as u64))
    }

    fn version(&self, key: &[u8]) -> Result<Option<Revision>, Failure> {
        match self.group.rows.get(key) {
            Some(Change::Put(_, version)) => Ok(Some(*version)),
            Some(Change::Delete) => Ok(None),
            None => self.committed.version(key),
        }
    }

    fn holds(&self, precondition: &Precondition) -> Result<bool, Failure> {
        Ok(match precondition {
            Precondition::Absent(key) => self.version(key)?.is_none(),
            Precondition::Exists(key) => self.version(key)?.is_some(),
            Precondition::Version(key, version) => self.version(key)? == Some(*version),
            Precondition::LeaseAlive(lease) => self.leases.is_alive(*lease),
        })
    }

    fn takes_space(&self, tx: &Transaction) -> Result<bool, Failure> {
        let (mut growth, mut adds, mut removes) = (0, false, false);
        for write in &tx.writes {
            let (key, put) = match write {
                Write::Put(key, value) => (key, Some((key.len() + value.len()) as i64)),
                Write::Delete(key) => (key, None),
            };
            let existing_len = match self.group.rows.get(key) {
                Some(Change::Put(value, _)) => Some(value.len()),
                Some(Change::Delete) => None,
                None => self.committed.get(key)?.map(|row| row.value.len()),
            };
            growth += put.unwrap_or(0) - existing_len.map_or(0, |value| (key.len() + value) as i64);
            adds |= put.is_some() && existing_len.is_none();
            removes |= put.is_none() && existing_len.is_some();
        }
        Ok(growth > FULL_DISK_SLACK_BYTES || (adds && !removes))
    }

    fn write(&mut self, write: &Write, revision: Revision) -> Result<(), Failure> {
        let (key, value) = match write {
            Write::Put(key, value) => (key, Some(value.clone())),
            Write::Delete(key) if self.version(key)?.is_none() => return Ok(()),
            Write::Delete(key) => (key, None),
        };
        self.events.push(WatchEvent { key: key.clone(), value: value.clone(), revision });
        let change = value.map_or(Change::Delete, |value| Change::Put(value, revision));
        self.group.rows.insert(key.clone(), change);
        Ok(())
    }
}

//! One mirror: a redb database in a directory.
//!
//! ```text
//! table "rows":          key           → row value (drawing in `snapshot`)
//! table "transactions":  revision: 8   → ids (16 bytes each) of the transactions from that revision on
//! table "state":         "format"      → version of this layout
//!                        "revision"    → of the last group
//!                        "run"         → number of the engine's starts
//!                        "live"        → bytes of keys and stored values in "rows"
//! ```
//!
//! A group is one redb transaction with one fsync. redb's pages are copy-on-write and checksummed. After a crash that
//! lost any part of the unsynced writes, redb finds the last synced group (its one-phase commit), so a mirror holds
//! each group entirely or not at all.

use std::cmp::Ordering;
use std::io::ErrorKind;
use std::sync::Arc;

use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, Table, TableDefinition, TableHandle};

use super::group::{Change, Group};
use super::snapshot::{Failure, RowTable, Snapshot, encode_value, failure};
use super::volume::{RedbBackend, Storage, Volume, is_of_process};
use crate::store::{Revision, TxId};

/// Name of the database file.
pub const MIRROR_FILE: &str = "meta.redb";

const ROWS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("rows");
const TRANSACTIONS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("transactions");
const STATE: TableDefinition<&str, u64> = TableDefinition::new("state");

/// A table with byte strings as keys and values.
type ByteTable = TableDefinition<'static, &'static [u8], &'static [u8]>;

/// The tables that [`Snapshot::tables`] returns, in that order.
const COPIED: [ByteTable; 2] = [ROWS, TRANSACTIONS];

/// Newest layout that this program understands.
const FORMAT: u64 = 1;

/// File size in bytes below which compaction is not worthwhile.
const COMPACT_ABOVE_BYTES: u64 = 64 << 20;

/// Number of times that a file is looked up while the process is short of memory.
const LOOKS: usize = 100;

/// A copy commits whenever it has written this many bytes of rows.
const COPY_BATCH_BYTES: usize = 8 << 20;

/// An open mirror, used by one thread at a time.
pub(super) struct MirrorDb {
    db: Database,
    storage: Arc<dyn Storage>,
    volume: Arc<dyn Volume>,
    revision: Revision,
    run: u32,
    /// Bytes of keys and stored values.
    live_bytes: u64,
}

impl std::fmt::Debug for MirrorDb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MirrorDb").field("revision", &self.revision).finish_non_exhaustive()
    }
}

impl MirrorDb {
    /// Creates an empty mirror, and replaces an existing one.
    pub(super) fn create(volume: &Arc<dyn Volume>, cache_bytes: usize) -> Result<Self, Failure> {
        volume.remove_file(MIRROR_FILE)?;
        let storage = volume.open_storage(MIRROR_FILE, true)?;
        let db = open_database(&storage, cache_bytes)?;
        let tx = db.begin_write().map_err(failure)?;
        tx.open_table(ROWS).map_err(failure)?;
        tx.open_table(TRANSACTIONS).map_err(failure)?;
        tx.open_table(STATE).map_err(failure)?.insert("format", FORMAT).map_err(failure)?;
        tx.commit().map_err(failure)?;
        Ok(Self { db, storage, volume: volume.clone(), revision: Revision(0), run: 0, live_bytes: 0 })
    }

    /// Opens a mirror; repairs it after a crash, and compacts it if worthwhile.
    pub(super) fn open(volume: &Arc<dyn Volume>, cache_bytes: usize) -> Result<Self, Failure> {
        let storage = volume.open_storage(MIRROR_FILE, false)?;
        let db = open_database(&storage, cache_bytes)?;
        let state = db.begin_read().map_err(failure)?.open_table(STATE).map_err(failure)?;
        let number = |name: &str| match state.get(name) {
            Ok(value) => Ok(value.map_or(0, |value| value.value())),
            Err(error) => Err(failure(error)),
        };
        match number("format")? {
            FORMAT => {}
            newer if newer > FORMAT => {
                return Err(Failure::Broken(format!(
                    "its layout has version {newer}, this program knows {FORMAT}; start a newer striate"
                )));
            }
            _ => return Err(Failure::Broken("it was never completed".to_owned())),
        }
        let (revision, run) = (Revision(number("revision")?), number("run")? as u32);
        let live_bytes = number("live")?;
        drop(state);
        Ok(Self { db, storage, volume: volume.clone(), revision, run, live_bytes })
    }

    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    pub(super) fn run(&self) -> u32 {
        self.run
    }

    /// Applies the group, makes it durable, and checks that the file is still at its path.
    pub(super) fn apply(&mut self, group: &Group) -> Result<Arc<Snapshot>, Failure> {
        if group.base != self.revision {
            return Err(Failure::Broken(format!(
                "it is at revision {}, the next group follows {}",
                self.revision.0, group.base.0
            )));
        }
        let tx = self.db.begin_write().map_err(failure)?;
        let grown = write_rows(&mut tx.open_table(ROWS).map_err(failure)?, group)?;
        let live_bytes = self.live_bytes.saturating_add_signed(grown);
        if !group.ids.is_empty() {
            write_ids(&mut tx.open_table(TRANSACTIONS).map_err(failure)?, group)?;
        }
        {
            let mut state = tx.open_table(STATE).map_err(failure)?;
            state.insert("revision", group.last.0).map_err(failure)?;
            state.insert("live", live_bytes).map_err(failure)?;
            if let Some(run) = group.run {
                state.insert("run", u64::from(run)).map_err(failure)?;
                self.run = run;
            }
        }
        tx.commit().map_err(failure)?;
        (self.revision, self.live_bytes) = (group.last, live_bytes);
        self.verify()?;
        self.snapshot()
    }

    /// Fails if the file is no longer at its path, or if that cannot be found out.
    pub(super) fn verify(&self) -> Result<(), Failure> {
        let look = || self.volume.verify().and_then(|()| self.storage.verify());
        // The process may be short of memory for a moment, which says nothing about the disk.
        let found = (0..LOOKS).map(|_| look()).find(|found| !found.as_ref().is_err_and(is_of_process));
        found.unwrap_or_else(look).map_err(|error| match error.raw_os_error() {
            // An error of the system that is not about the name: the disk cannot say.
            Some(_) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Failure::Broken(error.to_string())
            }
            _ => Failure::Vanished(error.to_string()),
        })
    }

    /// Returns the state after the last group.
    pub(super) fn snapshot(&self) -> Result<Arc<Snapshot>, Failure> {
        let tx = self.read()?;
        let (rows, transactions) = (tx.open_table(ROWS), tx.open_table(TRANSACTIONS));
        let (rows, transactions) = (rows.map_err(failure)?, transactions.map_err(failure)?);
        Ok(Arc::new(Snapshot::new(rows, transactions, self.revision, self.run)))
    }

    fn read(&self) -> Result<ReadTransaction, Failure> {
        self.db.begin_read().map_err(failure)
    }

    /// Returns the remembered transactions, oldest first.
    pub(super) fn transactions(&self) -> Result<Vec<(TxId, Revision)>, Failure> {
        let table = self.read()?.open_table(TRANSACTIONS).map_err(failure)?;
        let mut transactions = Vec::new();
        for entry in table.iter().map_err(failure)? {
            let (first, ids) = entry.map_err(failure)?;
            let ids = ids.value().chunks_exact(16);
            let ids = ids.map(|id| u128::from_be_bytes(id.try_into().expect("16 bytes")));
            let numbers = number_in(first.value())?..;
            transactions.extend(ids.zip(numbers).map(|(id, number)| (TxId(id), Revision(number))));
        }
        Ok(transactions)
    }

    /// Makes this mirror equal to `source`, and writes only the differences. With `at_once`, it writes one transaction,
    /// as an in-sync mirror requires; otherwise it writes batches, for a mirror that is not yet in use.
    pub(super) fn level(&mut self, source: &Snapshot, at_once: bool) -> Result<(), Failure> {
        let mine = self.snapshot()?;
        let batch_bytes = if at_once { usize::MAX } else { COPY_BATCH_BYTES };
        let mut batch = Batch::default();
        for ((table, theirs), ours) in COPIED.into_iter().zip(source.tables()).zip(mine.tables()) {
            differences(theirs, ours, |key, value| {
                batch.add(table, key, value);
                match batch.bytes >= batch_bytes {
                    true => std::mem::take(&mut batch).write(&self.db, &mut self.live_bytes, None),
                    false => Ok(()),
                }
            })?;
        }
        batch.write(&self.db, &mut self.live_bytes, Some((source.revision(), source.run())))?;
        self.revision = source.revision();
        self.run = source.run();
        Ok(())
    }

    /// Compacts a large file of which more than two thirds are free. No snapshot may be open.
    pub(super) fn compact_if_worthwhile(&mut self) -> Result<bool, Failure> {
        let allocated = self.storage.allocated_bytes()?;
        if allocated < COMPACT_ABOVE_BYTES || allocated < 3 * self.live_bytes {
            return Ok(false);
        }
        self.db.compact().map_err(failure)
    }
}

/// Changes that make one mirror equal to another.
#[derive(Default)]
struct Batch {
    changes: Vec<(ByteTable, Vec<u8>, Option<Vec<u8>>)>,
    bytes: usize,
}

impl Batch {
    fn add(&mut self, table: ByteTable, key: &[u8], value: Option<&[u8]>) {
        self.bytes += key.len() + value.map_or(0, <[u8]>::len);
        self.changes.push((table, key.to_vec(), value.map(<[u8]>::to_vec)));
    }

    /// Writes the changes in one transaction; `reached` is the revision and run that they complete.
    fn write(
        self,
        db: &Database,
        live_bytes: &mut u64,
        reached: Option<(Revision, u32)>,
    ) -> Result<(), Failure> {
        let tx = db.begin_write().map_err(failure)?;
        for changes in self.changes.chunk_by(|a, b| a.0.name() == b.0.name()) {
            let mut table = tx.open_table(changes[0].0).map_err(failure)?;
            for (_, key, value) in changes {
                let grown = set(&mut table, key, value.as_deref())?;
                if changes[0].0.name() == ROWS.name() {
                    *live_bytes = live_bytes.saturating_add_signed(grown);
                }
            }
        }
        let mut state = tx.open_table(STATE).map_err(failure)?;
        state.insert("live", *live_bytes).map_err(failure)?;
        if let Some((revision, run)) = reached {
            state.insert("revision", revision.0).map_err(failure)?;
            state.insert("run", u64::from(run)).map_err(failure)?;
        }
        drop(state);
        tx.commit().map_err(failure)
    }
}

/// Calls `change` with the new value of each key that `ours` lacks or has differently, and with `None` for each key
/// that only `ours` has. Reads both tables once, in order.
fn differences(
    theirs: &RowTable,
    ours: &RowTable,
    mut change: impl FnMut(&[u8], Option<&[u8]>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (mut theirs, mut ours) = (theirs.iter().map_err(failure)?, ours.iter().map_err(failure)?);
    let mut their_row = theirs.next().transpose().map_err(failure)?;
    let mut our_row = ours.next().transpose().map_err(failure)?;
    loop {
        let order = match (&their_row, &our_row) {
            (None, None) => return Ok(()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((theirs, _)), Some((ours, _))) => theirs.value().cmp(ours.value()),
        };
        match (order, &their_row, &our_row) {
            (Ordering::Less, Some((key, value)), _) => change(key.value(), Some(value.value()))?,
            (Ordering::Equal, Some((key, value)), Some((_, ours))) if value.value() != ours.value() => {
                change(key.value(), Some(value.value()))?;
            }
            (Ordering::Greater, _, Some((key, _))) => change(key.value(), None)?,
            _ => {}
        }
        if order.is_le() {
            their_row = theirs.next().transpose().map_err(failure)?;
        }
        if order.is_ge() {
            our_row = ours.next().transpose().map_err(failure)?;
        }
    }
}

fn number_in(key: &[u8]) -> Result<u64, Failure> {
    let bytes =
        key.try_into().map_err(|_| Failure::Broken("a remembered transaction is damaged".to_owned()))?;
    Ok(u64::from_be_bytes(bytes))
}

fn open_database(storage: &Arc<dyn Storage>, cache_bytes: usize) -> Result<Database, Failure> {
    let backend = RedbBackend(storage.clone());
    Database::builder().set_cache_size(cache_bytes).create_with_backend(backend).map_err(failure)
}

/// Writes the group's rows and returns the growth of the table in bytes.
fn write_rows(table: &mut Table<'_, &[u8], &[u8]>, group: &Group) -> Result<i64, Failure> {
    let (mut stored, mut grown) = (Vec::new(), 0);
    for (key, change) in &group.rows {
        let added = match change {
            Change::Put(value, version) => {
                encode_value(key, *version, value, &mut stored);
                Some(&stored[..])
            }
            Change::Delete => None,
        };
        grown += set(table, key, added)?;
    }
    Ok(grown)
}

/// Sets or removes one row and returns the growth of the table in bytes.
fn set(table: &mut Table<'_, &[u8], &[u8]>, key: &[u8], value: Option<&[u8]>) -> Result<i64, Failure> {
    let before = match value {
        Some(value) => table.insert(key, value),
        None => table.remove(key),
    };
    let before = before.map_err(failure)?.map_or(0, |before| key.len() + before.value().len());
    Ok(value.map_or(0, |value| key.len() + value.len()) as i64 - before as i64)
}

fn write_ids(table: &mut Table<'_, &[u8], &[u8]>, group: &Group) -> Result<(), Failure> {
    let ids: Vec<u8> = group.ids.iter().flat_map(|id| id.0.to_be_bytes()).collect();
    table.insert(&(group.base.0 + 1).to_be_bytes()[..], &ids[..]).map_err(failure)?;
    loop {
        let (first, count) = match table.first().map_err(failure)? {
            Some((first, ids)) => (number_in(first.value())?, ids.value().len() as u64 / 16),
            None => return Ok(()),
        };
        if first + count > group.forget_through() {
            return Ok(());
        }
        table.remove(&first.to_be_bytes()[..]).map_err(failure)?;
    }
}

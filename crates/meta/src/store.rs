//! The trait that every metadata engine implements.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::keys;

/// The engine's commit counter. A row's version is the revision of the transaction that wrote it last.
/// Revisions only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

/// A transaction's own random id, so that a retry after an unknown outcome recognises itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TxId(pub u128);

/// A lease granted by the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// A row as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The key.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
    /// The version, to be used in [`Precondition::Version`].
    pub version: Revision,
}

/// The half-open interval of keys `[start, end)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanRange {
    /// First key, included.
    pub start: Bytes,
    /// First key after the range; empty means the end of the key space.
    pub end: Bytes,
}

/// What must hold when a transaction commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// The key has no row.
    Absent(Bytes),
    /// The key has a row, whatever its version.
    Exists(Bytes),
    /// The key's row has this version.
    Version(Bytes, Revision),
    /// The lease is alive.
    LeaseAlive(LeaseId),
}

/// One write of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Sets a row.
    Put(Bytes, Bytes),
    /// Removes a row, if there is one.
    Delete(Bytes),
}

/// An optimistic transaction: all preconditions hold and all writes are applied, or nothing is.
#[derive(Clone, Debug)]
pub struct Transaction {
    /// Its own id. Submitting the same id again answers what the first submission did.
    pub id: TxId,
    /// What must hold.
    pub preconditions: Vec<Precondition>,
    /// What is written; at most one write for a key.
    pub writes: Vec<Write>,
}

/// What became of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Commit {
    /// Durable and visible, with this revision.
    Done(Revision),
    /// Nothing was written: the precondition with this position does not hold.
    Conflict {
        /// Index into [`Transaction::preconditions`] of the first that failed.
        failed: usize,
    },
}

/// A live lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its id.
    pub id: LeaseId,
    /// The lease ends when it was not kept alive for this long.
    pub ttl: Duration,
}

/// One committed change, as a watch sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// The key.
    pub key: Bytes,
    /// The new value; `None` for a removal.
    pub value: Option<Bytes>,
    /// The transaction's revision.
    pub revision: Revision,
}

/// Events in commit order. When the receiver lags behind a bounded buffer and the engine cannot keep the events
/// elsewhere, or no longer, the channel is closed and the watcher must scan again and watch anew.
pub type Watch = mpsc::Receiver<WatchEvent>;

/// Why a metadata operation failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MetaError {
    /// The transaction breaks a limit (design.md §10.8); nothing was written.
    #[error("the transaction is too large: {0}")]
    TooLarge(String),
    /// The engine cannot serve now; nothing was written. Worth a retry.
    #[error("the metadata store is unavailable: {0}")]
    Unavailable(String),
    /// The transaction may or may not have been committed. Submit it again with the same id to learn which;
    /// until then nobody may delete what it named.
    #[error("the outcome of a metadata transaction is unknown: {0}")]
    UnknownOutcome(String),
    /// The disk under the metadata is full; nothing was written.
    #[error("no space for metadata: {0}")]
    NoSpace(String),
    /// A row or file is damaged or was written by a newer version.
    #[error("the metadata is damaged or newer than this program: {0}")]
    Corrupt(String),
    /// The metadata is being moved to or from another engine, or was moved (see [`crate::migration`]);
    /// nothing was written.
    #[error("nothing can be written to this metadata: {0}")]
    Moved(String),
}

/// Limits of a transaction, the same on every engine (etcd's are the narrowest).
pub mod limits {
    /// Preconditions and writes together.
    pub const MAX_OPERATIONS: usize = 100;
    /// Keys and values together, in bytes.
    pub const MAX_TRANSACTION_BYTES: usize = 1 << 20;
    /// One value, in bytes.
    pub const MAX_VALUE_BYTES: usize = 256 << 10;
    /// One key, in bytes.
    pub const MAX_KEY_BYTES: usize = 4 << 10;
}

/// A metadata engine.
///
/// Reads are linearizable: what was acknowledged before a read began is seen by it. A scan sees one
/// committed state for each call.
#[async_trait]
pub trait MetaStore: Send + Sync + std::fmt::Debug {
    /// The row of `key`.
    async fn get(&self, key: &[u8]) -> Result<Option<Row>, MetaError>;

    /// The rows of `keys`, in their order, all from one committed state.
    async fn get_many(&self, keys: &[Bytes]) -> Result<Vec<Option<Row>>, MetaError>;

    /// At most `limit` rows of `range` in key order.
    async fn scan(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError>;

    /// At most `limit` rows of `range` in descending key order.
    async fn scan_back(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError>;

    /// Commits a transaction. An answer [`Commit::Done`] means durable; after [`Commit::Conflict`] no
    /// earlier submission of the same id commits any more.
    async fn commit(&self, transaction: Transaction) -> Result<Commit, MetaError>;

    /// Grants a lease.
    async fn grant_lease(&self, ttl: Duration) -> Result<Lease, MetaError>;

    /// Keeps a lease alive for another `ttl`. `false`: it had ended, and stays ended.
    async fn keep_alive(&self, lease: LeaseId) -> Result<bool, MetaError>;

    /// Whether a lease is alive. Leases of earlier runs of an embedded engine are not.
    async fn is_alive(&self, lease: LeaseId) -> Result<bool, MetaError>;

    /// Ends a lease.
    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), MetaError>;

    /// Events of keys with `prefix` that commit from now on.
    async fn watch(&self, prefix: &[u8]) -> Result<Watch, MetaError>;
}

impl Precondition {
    /// The row that it is about, if it is about one.
    pub fn key(&self) -> Option<&Bytes> {
        match self {
            Self::Absent(key) | Self::Exists(key) | Self::Version(key, _) => Some(key),
            Self::LeaseAlive(_) => None,
        }
    }
}

impl Write {
    /// The row that it sets or removes.
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put(key, _) | Self::Delete(key) => key,
        }
    }
}

impl ScanRange {
    /// All keys that start with `prefix`.
    pub fn prefix(prefix: &[u8]) -> Self {
        Self { start: Bytes::copy_from_slice(prefix), end: prefix_end(prefix) }
    }
}

/// The first key after all keys with `prefix`; empty when there is none.
pub fn prefix_end(prefix: &[u8]) -> Bytes {
    let kept = prefix.iter().rposition(|&byte| byte != 0xff).map_or(0, |last| last + 1);
    let mut end = prefix[..kept].to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end.into()
}

impl Transaction {
    /// An empty transaction.
    pub fn new(id: TxId) -> Self {
        Self { id, preconditions: Vec::new(), writes: Vec::new() }
    }

    /// Adds a precondition.
    pub fn require(&mut self, precondition: Precondition) -> &mut Self {
        self.preconditions.push(precondition);
        self
    }

    /// Adds the precondition that `key` is as it was read: the row's version, or absent.
    pub fn require_unchanged(&mut self, key: impl Into<Bytes>, row: Option<&Row>) -> &mut Self {
        let key = key.into();
        self.require(match row {
            Some(row) => Precondition::Version(key, row.version),
            None => Precondition::Absent(key),
        })
    }

    /// Adds a write.
    pub fn put(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> &mut Self {
        self.writes.push(Write::Put(key.into(), value.into()));
        self
    }

    /// Adds a removal.
    pub fn delete(&mut self, key: impl Into<Bytes>) -> &mut Self {
        self.writes.push(Write::Delete(key.into()));
        self
    }

    /// Keys and values, in bytes.
    pub fn size(&self) -> usize {
        let value = |write: &Write| match write {
            Write::Put(_, value) => value.len(),
            Write::Delete(_) => 0,
        };
        let of_preconditions = self.preconditions.iter().filter_map(Precondition::key).map(Bytes::len);
        let of_writes = self.writes.iter().map(|write| write.key().len() + value(write));
        of_preconditions.chain(of_writes).sum()
    }

    /// Whether it writes the mark of a migration: only such a transaction commits while there is a mark.
    pub(crate) fn writes_migration(&self) -> bool {
        self.writes.iter().any(|write| write.key() == &keys::migration())
    }

    /// Checks the limits that hold on every engine.
    ///
    /// # Errors
    /// [`MetaError::TooLarge`] naming the limit that is broken.
    pub fn check_limits(&self) -> Result<(), MetaError> {
        use limits::*;
        let operations = self.preconditions.len() + self.writes.len();
        if operations > MAX_OPERATIONS {
            return Err(MetaError::TooLarge(format!("{operations} operations, {MAX_OPERATIONS} allowed")));
        }
        for write in &self.writes {
            let key = write.key();
            let value_len = match write {
                Write::Put(_, value) => value.len(),
                Write::Delete(_) => 0,
            };
            if key.len() > MAX_KEY_BYTES || key.is_empty() {
                return Err(MetaError::TooLarge(format!("a key of {} bytes", key.len())));
            }
            if value_len > MAX_VALUE_BYTES {
                return Err(MetaError::TooLarge(format!("a value of {value_len} bytes")));
            }
        }
        let total = self.size();
        if total > MAX_TRANSACTION_BYTES {
            return Err(MetaError::TooLarge(format!("{total} bytes, {MAX_TRANSACTION_BYTES} allowed")));
        }
        Ok(())
    }
}

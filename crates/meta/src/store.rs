//! The trait that every metadata engine implements.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use striate_runtime::Runtime;
use tokio::sync::mpsc;

use crate::keys;

/// The engine's commit counter. A row's version is the revision of the transaction that last wrote it. Revisions only
/// grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

/// A transaction's random id, by which a retry after an unknown outcome is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TxId(pub u128);

/// A lease granted by the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// A row that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Key of the row.
    pub key: Bytes,
    /// Value of the row.
    pub value: Bytes,
    /// Version of the row, for use in [`Precondition::Version`].
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

/// A condition that must hold when a transaction commits.
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
    /// Removes a row if it exists.
    Delete(Bytes),
}

/// An optimistic transaction: all preconditions hold and all writes are applied, or nothing is.
#[derive(Clone, Debug)]
pub struct Transaction {
    /// Id of the transaction. Submitting it again returns the outcome of the first submission.
    pub id: TxId,
    /// Conditions that must hold.
    pub preconditions: Vec<Precondition>,
    /// Writes, at most one per key.
    pub writes: Vec<Write>,
}

/// The outcome of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Commit {
    /// The transaction is durable and visible, with this revision.
    Done(Revision),
    /// Nothing was written: a precondition does not hold.
    Conflict {
        /// Index into [`Transaction::preconditions`] of the first that failed.
        failed: usize,
    },
}

/// A live lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Id of the lease.
    pub id: LeaseId,
    /// Time after which the lease ends unless it is kept alive.
    pub ttl: Duration,
}

/// One committed change, as a watch delivers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// Key that changed.
    pub key: Bytes,
    /// New value; `None` for a removal.
    pub value: Option<Bytes>,
    /// Revision of the transaction.
    pub revision: Revision,
}

/// Events in commit order. When the receiver lags behind a bounded buffer and the engine cannot keep the events
/// elsewhere, or no longer can, the channel is closed: the watcher must scan again and start a new watch.
pub type Watch = mpsc::Receiver<WatchEvent>;

/// Why a metadata operation failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MetaError {
    /// The transaction breaks a limit (design.md §10.8); nothing was written.
    #[error("the transaction is too large: {0}")]
    TooLarge(String),
    /// The engine cannot serve now; nothing was written. A retry may succeed.
    #[error("the metadata store is unavailable: {0}")]
    Unavailable(String),
    /// The transaction may or may not have been committed. Submit it again with the same id to find out; until then,
    /// nothing that it named may be deleted.
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

/// Limits of a transaction, the same on every engine (etcd's are the tightest).
pub mod limits {
    /// Maximum number of preconditions and writes together.
    pub const MAX_OPERATIONS: usize = 100;
    /// Maximum size of keys and values together, in bytes.
    pub const MAX_TRANSACTION_BYTES: usize = 1 << 20;
    /// Maximum size of one value, in bytes.
    pub const MAX_VALUE_BYTES: usize = 256 << 10;
    /// Maximum size of one key, in bytes.
    pub const MAX_KEY_BYTES: usize = 4 << 10;
}

/// A metadata engine.
///
/// Reads are linearizable: a read sees everything that was acknowledged before it started. Each scan call sees one
/// committed state.
#[async_trait]
pub trait MetaStore: Send + Sync + std::fmt::Debug {
    /// Reads the row of `key`.
    async fn get(&self, key: &[u8]) -> Result<Option<Row>, MetaError>;

    /// Reads the rows of `keys`, in their order, all from one committed state.
    async fn get_many(&self, keys: &[Bytes]) -> Result<Vec<Option<Row>>, MetaError>;

    /// Reads at most `limit` rows of `range` in key order.
    async fn scan(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError>;

    /// Reads at most `limit` rows of `range` in descending key order.
    async fn scan_back(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError>;

    /// Commits a transaction. [`Commit::Done`] means durable; after [`Commit::Conflict`] no earlier submission of the
    /// same id can commit any more.
    async fn commit(&self, transaction: Transaction) -> Result<Commit, MetaError>;

    /// Grants a lease.
    async fn grant_lease(&self, ttl: Duration) -> Result<Lease, MetaError>;

    /// Keeps a lease alive for another `ttl`. Returns false if it has ended; it then stays ended.
    async fn keep_alive(&self, lease: LeaseId) -> Result<bool, MetaError>;

    /// Returns true if a lease is alive. Leases of earlier runs of an embedded engine are not.
    async fn is_alive(&self, lease: LeaseId) -> Result<bool, MetaError>;

    /// Ends a lease.
    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), MetaError>;

    /// Watches the keys with `prefix` for commits from now on.
    async fn watch(&self, prefix: &[u8]) -> Result<Watch, MetaError>;
}

impl Precondition {
    /// Returns the key of the row that is checked, if there is one.
    pub fn key(&self) -> Option<&Bytes> {
        match self {
            Self::Absent(key) | Self::Exists(key) | Self::Version(key, _) => Some(key),
            Self::LeaseAlive(_) => None,
        }
    }
}

impl Write {
    /// Returns the key of the row that is set or removed.
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put(key, _) | Self::Delete(key) => key,
        }
    }
}

impl ScanRange {
    /// Returns the range of all keys that start with `prefix`.
    pub fn prefix(prefix: &[u8]) -> Self {
        Self { start: Bytes::copy_from_slice(prefix), end: prefix_end(prefix) }
    }
}

/// Returns the first key after all keys with `prefix`; empty if there is none.
pub fn prefix_end(prefix: &[u8]) -> Bytes {
    let kept_len = prefix.iter().rposition(|&byte| byte != 0xff).map_or(0, |last| last + 1);
    let mut end = prefix[..kept_len].to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end.into()
}

impl Transaction {
    /// Creates an empty transaction.
    pub fn new(id: TxId) -> Self {
        Self { id, preconditions: Vec::new(), writes: Vec::new() }
    }

    /// Creates an empty transaction with a random id.
    pub fn with_random_id(runtime: &Runtime) -> Self {
        Self::new(TxId(runtime.random_u128()))
    }

    /// Adds a precondition.
    pub fn require(&mut self, precondition: Precondition) -> &mut Self {
        self.preconditions.push(precondition);
        self
    }

    /// Adds the precondition that `key` is as it was read: with the row's version, or absent.
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

    /// Returns the size of keys and values in bytes.
    pub fn size(&self) -> usize {
        let value = |write: &Write| match write {
            Write::Put(_, value) => value.len(),
            Write::Delete(_) => 0,
        };
        let of_preconditions = self.preconditions.iter().filter_map(Precondition::key).map(Bytes::len);
        let of_writes = self.writes.iter().map(|write| write.key().len() + value(write));
        of_preconditions.chain(of_writes).sum()
    }

    /// Returns true if it writes the mark of a migration: only such a transaction commits while there is a mark.
    pub(crate) fn writes_migration(&self) -> bool {
        self.writes.iter().any(|write| write.key() == &keys::migration())
    }

    /// Checks the limits that hold on every engine.
    ///
    /// # Errors
    /// [`MetaError::TooLarge`], naming the limit that is exceeded.
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

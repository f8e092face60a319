//! Commits of object rows: optimistic, with conditions evaluated inside (design.md §10.2, §10.7).
//!
//! Every change of an object's current version goes through [`Client::commit_object`]. It requires the bucket's row
//! and the object's row as they were read. So a bucket that is being deleted takes no more objects, and two writers
//! never both replace the same version. The replaced version is released in the same transaction. After a conflict,
//! both rows are read and the conditions evaluated again; the stored body is kept.
//!
//! A commit whose outcome is unknown is submitted again under the same id. If the engine has forgotten the id
//! meanwhile, the writer looks for its own version. If it finds it, it has won. Otherwise the outcome stays unknown,
//! the caller gets an error, and no process deletes what the transaction named.

use std::time::Duration;

use bytes::Bytes;
use striate_core::StripeId;
use striate_meta::records::{AbandonedParts, Bucket, Object, encode, object::Body};
use striate_meta::{Commit, MetaError, Row, Transaction, keys};
use striate_stripe::{Invalidation, id16};

use crate::in_memory::may_be_in_memory;
use crate::{Client, ClientError, WriteCondition};

/// Maximum number of submissions of a transaction.
const MAX_SUBMISSIONS: u32 = 8;
/// Maximum number of attempts to change a key that others change at the same time.
const MAX_ATTEMPTS: u32 = 64;
/// Maximum pause between two attempts, in milliseconds.
const MAX_BACKOFF_MS: u64 = 100;

/// Current state of a key: bucket and object from one committed state.
pub(crate) struct KeyState {
    pub(crate) bucket: Bucket,
    pub(crate) bucket_row: Row,
    pub(crate) row: Option<Row>,
    pub(crate) object: Option<Object>,
    /// The object was in memory only and is gone. Its row still exists, to be replaced or removed.
    pub(crate) is_gone: bool,
}

/// Change of an object's row.
pub(crate) enum Change {
    /// A new version with its own body; the old version's body is released.
    Replace(NewVersion),
    /// The same body with a changed description: the row's new value.
    Describe(Bytes),
    /// Removes the object and releases its body.
    Remove,
    /// No change.
    Keep,
}

/// Id of a new version, and the value of its row.
#[derive(Clone)]
pub(crate) struct NewVersion {
    pub(crate) id: Bytes,
    pub(crate) row: Bytes,
}

/// Outcome of a change of an object.
#[derive(Debug)]
pub(crate) enum ChangeOutcome {
    /// The change is durable and visible.
    Done,
    /// A precondition added by the caller does not hold; nothing was written.
    Fenced,
}

/// Why a commit failed.
#[derive(Debug)]
pub(crate) struct CommitFailure {
    pub(crate) error: ClientError,
    /// The commit may still have happened: what it names must not be deleted.
    pub(crate) unknown: bool,
}

/// Outcome of a submitted transaction.
pub(crate) enum TransactionOutcome {
    Done,
    Conflict {
        failed: usize,
    },
    /// Its preconditions no longer hold, perhaps because an earlier submission was committed.
    Unsure,
}

impl<E: Into<ClientError>> From<E> for CommitFailure {
    fn from(error: E) -> Self {
        Self { error: error.into(), unknown: false }
    }
}

impl CommitFailure {
    /// Wraps the error of the last submission, which speaks for that one only. If an earlier one may have been
    /// committed, the caller must be told so.
    fn after_submissions(last: MetaError, unknown: bool) -> Self {
        let error = match last {
            MetaError::UnknownOutcome(_) => last,
            last if unknown => {
                MetaError::UnknownOutcome(format!("an earlier attempt may have been committed: {last}"))
            }
            last => last,
        };
        Self { error: error.into(), unknown }
    }

    pub(crate) fn into_error(self) -> ClientError {
        self.error
    }
}

impl NewVersion {
    /// Encodes a record once for all attempts.
    pub(crate) fn of(object: &Object) -> Self {
        Self { id: object.version.clone(), row: encode(object) }
    }
}

impl Change {
    /// Returns why the old version's blocks leave the memory; `None` if they stay.
    fn invalidation(&self) -> Option<Invalidation> {
        match self {
            Self::Replace(_) => Some(Invalidation::Overwritten),
            Self::Remove => Some(Invalidation::Deleted),
            Self::Keep | Self::Describe(_) => None,
        }
    }

    /// Returns the id of the new version, if there is one.
    fn version(&self) -> Option<Bytes> {
        match self {
            Self::Replace(new) => Some(new.id.clone()),
            Self::Keep | Self::Describe(_) | Self::Remove => None,
        }
    }
}

/// Returns the error of a put whose stripe names a collector took away, or whose site an operator is retiring.
pub(crate) fn fenced() -> CommitFailure {
    let reason = "the put took longer than its writer's lease, or a site that it wrote to is being retired; send it again";
    MetaError::Unavailable(reason.to_owned()).into()
}

impl KeyState {
    /// The current object; `None` for one that is gone.
    pub(crate) fn current(&self) -> Option<&Object> {
        self.object.as_ref().filter(|_| !self.is_gone)
    }
}

impl Client {
    /// Reads a key's current state in one request. If `condition` depends on an object that is in memory only, asks
    /// the memory sites whether it still exists.
    ///
    /// # Errors
    /// [`ClientError::NoSuchBucket`].
    pub(crate) async fn read_current(
        &self,
        bucket: &str,
        key: &str,
        condition: &WriteCondition,
    ) -> Result<KeyState, ClientError> {
        let keys = [keys::bucket(bucket), keys::object(bucket, key)];
        loop {
            let mut rows = self.inner.meta.get_many(&keys).await?.into_iter();
            let (bucket_row, row) = (rows.next().flatten(), rows.next().flatten());
            let bucket_row = bucket_row.ok_or_else(|| ClientError::NoSuchBucket(bucket.to_owned()))?;
            let record: Bucket = bucket_row.record()?;
            if record.deleting {
                self.settle_deletion(bucket, &bucket_row, record).await?;
                continue;
            }
            if record.origin.is_some() {
                return Err(ClientError::Elsewhere(bucket.to_owned()));
            }
            let object: Option<Object> = row.as_ref().map(Row::record).transpose()?;
            let is_gone = match &object {
                Some(object) if condition.is_any() => self.are_gone(&[object]).await?[0],
                _ => false,
            };
            return Ok(KeyState { bucket: record, bucket_row, row, object, is_gone });
        }
    }

    /// Returns a transaction that requires the bucket's row and the object's row as they were read.
    fn transaction_on(&self, bucket: &str, key: &str, now: &KeyState) -> Transaction {
        let mut tx = self.transaction();
        tx.require_unchanged(now.bucket_row.key.clone(), Some(&now.bucket_row));
        tx.require_unchanged(keys::object(bucket, key), now.row.as_ref());
        tx
    }

    /// Changes the object under `key`. `change` sees the current state, evaluates the request's conditions against
    /// it, may add preconditions and writes of its own, and returns the change. It is called again after a conflict.
    /// `current` is the state that the caller has already read under `condition`, if any.
    pub(crate) async fn commit_object<F>(
        &self,
        bucket: &str,
        key: &str,
        condition: &WriteCondition,
        mut current: Option<KeyState>,
        mut change: F,
    ) -> Result<ChangeOutcome, CommitFailure>
    where
        F: FnMut(&mut Transaction, &KeyState) -> Result<Change, ClientError>,
    {
        for attempt in 0..MAX_ATTEMPTS {
            let now = match current.take() {
                Some(current) => current,
                None => self.read_current(bucket, key, condition).await?,
            };
            let mut tx = self.transaction_on(bucket, key, &now);
            let change = change(&mut tx, &now)?;
            if matches!(change, Change::Keep) {
                return Ok(ChangeOutcome::Done);
            }
            let callers = 2..tx.preconditions.len();
            let (invalidation, version) = (change.invalidation(), change.version());
            self.apply(&mut tx, bucket, key, &now, change).await?;
            match self.submit(tx).await? {
                TransactionOutcome::Done => {
                    if let Some(cause) = invalidation {
                        self.forget_in_memory(now.object, cause);
                    }
                    return Ok(ChangeOutcome::Done);
                }
                TransactionOutcome::Conflict { failed } if callers.contains(&failed) => {
                    return Ok(ChangeOutcome::Fenced);
                }
                TransactionOutcome::Conflict { .. } => {}
                TransactionOutcome::Unsure => {
                    if let Some(version) = version {
                        return self.look_for(bucket, key, &version).await;
                    }
                }
            }
            self.back_off(attempt).await;
        }
        Err(ClientError::Conflict.into())
    }

    /// Adds the writes of `change` to `tx`.
    async fn apply(
        &self,
        tx: &mut Transaction,
        bucket: &str,
        key: &str,
        now: &KeyState,
        change: Change,
    ) -> Result<(), ClientError> {
        let row = keys::object(bucket, key);
        let releases = match change {
            Change::Keep => return Ok(()),
            Change::Describe(value) => {
                tx.put(row, value);
                false
            }
            Change::Replace(new) => {
                tx.put(row, new.row);
                true
            }
            Change::Remove => {
                tx.delete(row);
                true
            }
        };
        match now.object.as_ref().and_then(|object| object.body.as_ref()) {
            Some(body) if releases => self.release_body(tx, body).await,
            _ => Ok(()),
        }
    }

    /// Adds to `tx` the rows that make the bytes of a body garbage.
    async fn release_body(&self, tx: &mut Transaction, body: &Body) -> Result<(), ClientError> {
        match body {
            // Blocks in memory are dropped after the commit, or evicted in time.
            Body::Inline(_) | Body::Memory(_) => {}
            Body::Blocks(list) => self.inner.stripes.release_blocks(tx, &list.blocks).await?,
            Body::Manifest(manifest) => {
                for segment in &manifest.segments {
                    self.inner.stripes.release_segment(tx, segment);
                }
            }
            Body::Uploaded(uploaded) => {
                abandon_parts(tx, &id16(&uploaded.upload, "an upload")?, Vec::new());
            }
            // Its stripe holds other objects too: the repacker determines which of them still live.
            Body::Extent(extent) => {
                let stripe = StripeId::from_bytes(id16(&extent.stripe, "an extent's stripe")?);
                tx.put(keys::mark(stripe), Bytes::new());
            }
        }
        Ok(())
    }

    /// Frees the memory of an object that was replaced or removed, in the background. The collector of its parts frees
    /// what this leaves.
    fn forget_in_memory(&self, object: Option<Object>, cause: Invalidation) {
        let Some(object) = object.filter(may_be_in_memory) else { return };
        let stripes = self.inner.stripes.clone();
        self.inner.runtime.spawn(async move {
            match stripes.blocks_in_memory(&object).await {
                Ok(blocks) => stripes.forget_in_memory(&blocks, cause),
                Err(error) => tracing::debug!(%error, "the memory of a volatile object is freed later"),
            }
        });
    }

    /// Checks whether `version` exists after a commit that may have happened.
    async fn look_for(
        &self,
        bucket: &str,
        key: &str,
        version: &Bytes,
    ) -> Result<ChangeOutcome, CommitFailure> {
        let unknown = |error| CommitFailure { error, unknown: true };
        let now = self.read_current(bucket, key, &WriteCondition::default()).await.map_err(unknown)?;
        if now.object.is_some_and(|object| object.version == *version) {
            return Ok(ChangeOutcome::Done);
        }
        let reason = "the key was changed again before the outcome of a write became known".to_owned();
        Err(unknown(MetaError::UnknownOutcome(reason).into()))
    }

    /// Submits a transaction, retrying until its outcome is known.
    pub(crate) async fn submit(&self, tx: Transaction) -> Result<TransactionOutcome, CommitFailure> {
        let mut unknown = false;
        let mut last = MetaError::Unavailable("it did not answer".to_owned());
        for attempt in 0..MAX_SUBMISSIONS {
            match self.inner.meta.commit(tx.clone()).await {
                Ok(Commit::Done(_)) => return Ok(TransactionOutcome::Done),
                Ok(Commit::Conflict { .. }) if unknown => return Ok(TransactionOutcome::Unsure),
                Ok(Commit::Conflict { failed }) => return Ok(TransactionOutcome::Conflict { failed }),
                Err(error @ MetaError::UnknownOutcome(_)) => {
                    unknown = true;
                    last = error;
                }
                Err(error @ MetaError::Unavailable(_)) => last = error,
                Err(error) => return Err(CommitFailure::after_submissions(error, unknown)),
            }
            self.back_off(attempt + 2).await;
        }
        Err(CommitFailure::after_submissions(last, unknown))
    }

    /// Submits a transaction that names no chunks. Returns `false` if a precondition does not hold.
    ///
    /// # Errors
    /// When the metadata store fails, or the outcome stays unknown.
    pub(crate) async fn commit_rows(&self, tx: Transaction) -> Result<bool, CommitFailure> {
        match self.submit(tx).await? {
            TransactionOutcome::Done => Ok(true),
            TransactionOutcome::Conflict { .. } | TransactionOutcome::Unsure => Ok(false),
        }
    }

    /// Waits before the next attempt: not at all at first, then for random and growing times.
    pub(crate) async fn back_off(&self, attempt: u32) {
        if attempt < 2 {
            return;
        }
        let ceiling = (1u64 << attempt.min(16)).min(MAX_BACKOFF_MS) * 1_000;
        let pause = Duration::from_micros(self.inner.runtime.random_u64() % ceiling);
        self.inner.runtime.sleep(pause).await;
    }
}

/// Adds to `tx` the row that makes parts of an upload garbage; an empty `numbers` means all of them.
pub(crate) fn abandon_parts(tx: &mut Transaction, upload: &[u8; 16], numbers: Vec<u32>) {
    let record = AbandonedParts { upload: Bytes::copy_from_slice(upload), numbers };
    tx.put(keys::abandoned(upload, tx.id.0), encode(&record));
}

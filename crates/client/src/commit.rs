//! Commits of object rows: optimistic, with conditions evaluated inside (design.md §10.2, §10.7).
//!
//! Every change of an object's current version goes through [`Client::commit_object`]. It requires the
//! bucket's row and the object's row as they were read, so that a bucket that is being deleted takes no more
//! objects and two writers never both replace the same version. The version that goes is released in the
//! same transaction. A conflict reads both rows again and evaluates the conditions anew; the body that was
//! already stored is not touched.
//!
//! A commit whose outcome is unknown is submitted again under the same id. Where the engine has forgotten
//! the id meanwhile, the writer looks for its own version: found, it had won; otherwise the outcome stays
//! unknown, the caller gets an error, and nobody deletes what the transaction named.

use std::time::Duration;

use bytes::Bytes;
use striate_core::StripeId;
use striate_meta::records::{AbandonedParts, Bucket, Object, encode, object::Body};
use striate_meta::{Commit, MetaError, Row, Transaction, keys};
use striate_stripe::{Invalidation, id16};

use crate::{Client, ClientError, WriteCondition};

/// How often a transaction is submitted until its outcome is known.
const MAX_SUBMISSIONS: u32 = 8;
/// How often a change is tried against a key that others change at the same time.
const MAX_ATTEMPTS: u32 = 64;
/// The longest pause between two attempts.
const MAX_BACKOFF_MS: u64 = 100;

/// A key's current state: bucket and object from one committed state.
pub(crate) struct Current {
    pub(crate) bucket: Bucket,
    pub(crate) bucket_row: Row,
    pub(crate) row: Option<Row>,
    pub(crate) object: Option<Object>,
    /// The object was in memory only and is not there any more. Its row is still to be replaced or removed.
    pub(crate) is_gone: bool,
}

/// What becomes of an object's row.
pub(crate) enum Change {
    /// A new version with a body of its own; the old version's body is released.
    Replace(NewVersion),
    /// The same body under a changed description: the row's new value.
    Describe(Bytes),
    /// The object goes; its body is released.
    Remove,
    /// Nothing is to be done.
    Keep,
}

/// A new version's id, and the value of its row.
#[derive(Clone)]
pub(crate) struct NewVersion {
    pub(crate) id: Bytes,
    pub(crate) row: Bytes,
}

/// How a change of an object ended.
#[derive(Debug)]
pub(crate) enum Committed {
    /// Durable and visible.
    Done,
    /// A precondition that the caller added does not hold; nothing was written.
    Fenced,
}

/// Why a commit failed.
#[derive(Debug)]
pub(crate) struct CommitFailure {
    pub(crate) error: ClientError,
    /// It may have happened all the same: what it names must not be deleted.
    pub(crate) unknown: bool,
}

/// What became of a submitted transaction.
pub(crate) enum Submitted {
    Done,
    Conflict {
        failed: usize,
    },
    /// Its preconditions do not hold any more, perhaps because an earlier submission was committed.
    Unsure,
}

impl<E: Into<ClientError>> From<E> for CommitFailure {
    fn from(error: E) -> Self {
        Self { error: error.into(), unknown: false }
    }
}

impl CommitFailure {
    /// What the last submission says holds for that one only: if an earlier one may have been committed, the caller
    /// must hear that.
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

/// The answer to a put whose stripe names were taken away by a collector, or whose sites by an operator.
pub(crate) fn fenced() -> CommitFailure {
    let reason = "the put took longer than its writer's lease, or a site that it wrote to is being retired; send it again";
    MetaError::Unavailable(reason.to_owned()).into()
}

impl Current {
    /// The current object's ETag; none of one that is gone.
    pub(crate) fn etag(&self) -> Option<&str> {
        self.object.as_ref().filter(|_| !self.is_gone).map(|object| object.etag.as_str())
    }
}

impl Client {
    /// Reads a key's current state in one request. Where `condition` depends on whether there is an object, memory sites are asked for
    /// one that is in memory only.
    ///
    /// # Errors
    /// [`ClientError::NoSuchBucket`].
    pub(crate) async fn read_current(
        &self,
        bucket: &str,
        key: &str,
        condition: &WriteCondition,
    ) -> Result<Current, ClientError> {
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
            return Ok(Current { bucket: record, bucket_row, row, object, is_gone });
        }
    }

    /// Changes the object under `key`. `change` sees the current state, evaluates the request's conditions
    /// against it, may add preconditions and writes of its own, and says what to do. It is asked again after
    /// a conflict. `current` is what the caller has read already under `condition`, if it has.
    pub(crate) async fn commit_object<F>(
        &self,
        bucket: &str,
        key: &str,
        condition: &WriteCondition,
        mut current: Option<Current>,
        mut change: F,
    ) -> Result<Committed, CommitFailure>
    where
        F: FnMut(&mut Transaction, &Current) -> Result<Change, ClientError>,
    {
        for attempt in 0..MAX_ATTEMPTS {
            let now = match current.take() {
                Some(current) => current,
                None => self.read_current(bucket, key, condition).await?,
            };
            let mut tx = self.transaction();
            tx.require_unchanged(now.bucket_row.key.clone(), Some(&now.bucket_row));
            tx.require_unchanged(keys::object(bucket, key), now.row.as_ref());
            let change = change(&mut tx, &now)?;
            let callers = 2..tx.preconditions.len();
            let invalidation = match &change {
                Change::Replace(_) => Some(Invalidation::Overwritten),
                Change::Remove => Some(Invalidation::Deleted),
                Change::Keep | Change::Describe(_) => None,
            };
            let version = match &change {
                Change::Keep => return Ok(Committed::Done),
                Change::Replace(new) => Some(new.id.clone()),
                Change::Describe(_) | Change::Remove => None,
            };
            self.apply(&mut tx, bucket, key, &now, change).await?;
            match self.submit(tx).await? {
                Submitted::Done => {
                    if let Some(cause) = invalidation {
                        self.forget_in_memory(now.object.as_ref(), cause);
                    }
                    return Ok(Committed::Done);
                }
                Submitted::Conflict { failed } if callers.contains(&failed) => return Ok(Committed::Fenced),
                Submitted::Conflict { .. } => {}
                Submitted::Unsure => {
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
        now: &Current,
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

    /// Adds to `tx` what makes the bytes of a body garbage.
    async fn release_body(&self, tx: &mut Transaction, body: &Body) -> Result<(), ClientError> {
        match body {
            // What is in memory only goes after the commit, or is evicted in time.
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
            // Its stripe holds other objects too: the repacker finds out what still lives in it.
            Body::Extent(extent) => {
                let stripe = StripeId::from_bytes(id16(&extent.stripe, "an extent's stripe")?);
                tx.put(keys::mark(stripe), Bytes::new());
            }
        }
        Ok(())
    }

    /// The memory of an object that was replaced or removed is free for others.
    fn forget_in_memory(&self, object: Option<&Object>, cause: Invalidation) {
        let Some(Object { body: Some(Body::Memory(list)), .. }) = object else { return };
        let blocks = list.blocks.iter().filter_map(|block| block.try_into().ok());
        blocks.for_each(|block| self.inner.stripes.forget_in_memory(block, cause));
    }

    /// After a commit of `version` that may have happened: whether it is there.
    async fn look_for(&self, bucket: &str, key: &str, version: &Bytes) -> Result<Committed, CommitFailure> {
        let unknown = |error| CommitFailure { error, unknown: true };
        let now = self.read_current(bucket, key, &WriteCondition::default()).await.map_err(unknown)?;
        if now.object.is_some_and(|object| object.version == *version) {
            return Ok(Committed::Done);
        }
        let reason = "the key was changed again before the outcome of a write became known".to_owned();
        Err(unknown(MetaError::UnknownOutcome(reason).into()))
    }

    /// Submits a transaction until its outcome is known.
    pub(crate) async fn submit(&self, tx: Transaction) -> Result<Submitted, CommitFailure> {
        let mut unknown = false;
        let mut last = MetaError::Unavailable("it did not answer".to_owned());
        for attempt in 0..MAX_SUBMISSIONS {
            match self.inner.meta.commit(tx.clone()).await {
                Ok(Commit::Done(_)) => return Ok(Submitted::Done),
                Ok(Commit::Conflict { .. }) if unknown => return Ok(Submitted::Unsure),
                Ok(Commit::Conflict { failed }) => return Ok(Submitted::Conflict { failed }),
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

    /// Submits a transaction that names no chunks. `false`: a precondition does not hold.
    ///
    /// # Errors
    /// When the metadata store fails, or the outcome stays unknown.
    pub(crate) async fn commit_rows(&self, tx: Transaction) -> Result<bool, CommitFailure> {
        match self.submit(tx).await? {
            Submitted::Done => Ok(true),
            Submitted::Conflict { .. } | Submitted::Unsure => Ok(false),
        }
    }

    /// Waits before the next attempt: not at all at first, then longer and longer, by random amounts.
    pub(crate) async fn back_off(&self, attempt: u32) {
        if attempt < 2 {
            return;
        }
        let ceiling = (1u64 << attempt.min(16)).min(MAX_BACKOFF_MS) * 1_000;
        let pause = Duration::from_micros(self.inner.runtime.random_u64() % ceiling);
        self.inner.runtime.sleep(pause).await;
    }
}

/// Adds to `tx` the row that makes parts of an upload garbage; no numbers stand for all of them.
pub(crate) fn abandon_parts(tx: &mut Transaction, upload: &[u8; 16], numbers: Vec<u32>) {
    let record = AbandonedParts { upload: Bytes::copy_from_slice(upload), numbers };
    tx.put(keys::abandoned(upload, tx.id.0), encode(&record));
}

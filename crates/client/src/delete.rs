//! Deletes.

use futures::stream::{self, StreamExt};

use crate::commit::{Change, CommitFailure};
use crate::condition::check_write;
use crate::record::check_key;
use crate::{Client, ClientError, WriteCondition};

/// Maximum number of concurrent deletes in [`Client::delete_many`].
const CONCURRENT_DELETES: usize = 16;

impl Client {
    /// Deletes an object. Returns `false` if there was none; as in S3, that is no error even with `If-Match`.
    ///
    /// # Errors
    /// [`ClientError::PreconditionFailed`], [`ClientError::NoSuchBucket`].
    pub async fn delete(
        &self,
        bucket: &str,
        key: &str,
        condition: WriteCondition,
    ) -> Result<bool, ClientError> {
        check_key(key)?;
        let mut existed = false;
        // The leftover row of an object that is gone from memory is removed like any other.
        let unconditional = WriteCondition::default();
        let commit = self.commit_object(bucket, key, &unconditional, None, |_, now| {
            existed = now.object.is_some();
            if now.object.is_none() {
                return Ok(Change::Keep);
            }
            check_write(&condition, key, now.current())?;
            Ok(Change::Remove)
        });
        commit.await.map_err(CommitFailure::into_error)?;
        Ok(existed)
    }

    /// Deletes many objects, a few at a time. Returns the results in the order of the keys.
    pub async fn delete_many(
        &self,
        bucket: &str,
        keys: Vec<(String, WriteCondition)>,
    ) -> Vec<Result<bool, ClientError>> {
        let deletes = keys
            .into_iter()
            .map(|(key, condition)| async move { self.delete(bucket, &key, condition).await });
        stream::iter(deletes).buffered(CONCURRENT_DELETES).collect().await
    }
}

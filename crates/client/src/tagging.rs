//! Object tags.

use std::collections::BTreeMap;

use striate_meta::records::encode;

use crate::commit::{Change, CommitFailure};
use crate::record::check_key;
use crate::{Client, ClientError, WriteCondition};

impl Client {
    /// Returns the object's tags.
    ///
    /// # Errors
    /// [`ClientError::NoSuchKey`], [`ClientError::NoSuchBucket`].
    pub async fn object_tags(
        &self,
        bucket: &str,
        key: &str,
    ) -> Result<BTreeMap<String, String>, ClientError> {
        Ok(self.current_object(bucket, key).await?.tags)
    }

    /// Replaces the object's tags (an empty map removes them). Version, ETag and modification time stay.
    ///
    /// # Errors
    /// [`ClientError::NoSuchKey`], [`ClientError::NoSuchBucket`].
    pub async fn set_object_tags(
        &self,
        bucket: &str,
        key: &str,
        tags: BTreeMap<String, String>,
    ) -> Result<(), ClientError> {
        check_key(key)?;
        let unconditional = WriteCondition::default();
        let commit = self.commit_object(bucket, key, &unconditional, None, |_, now| {
            let mut object = now.object.clone().ok_or_else(|| ClientError::NoSuchKey(key.to_owned()))?;
            if object.tags == tags {
                return Ok(Change::Keep);
            }
            object.tags = tags.clone();
            Ok(Change::Describe(encode(&object)))
        });
        commit.await.map_err(CommitFailure::into_error)?;
        Ok(())
    }
}

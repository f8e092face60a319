//! Looks up which of many keys have objects.

use bytes::Bytes;
use striate_meta::keys;
use striate_meta::records::Object;

use crate::record::check_key;
use crate::{Client, ClientError};

/// Number of keys whose rows are looked up together.
const LOOKED_UP_AT_ONCE: usize = 512;

impl Client {
    /// Returns the size in bytes of each key's object, or `None` if there is none or it is gone from memory. With
    /// `until_gap` the result ends before the first key without an object, and the look-ups end with its window.
    ///
    /// # Errors
    /// [`ClientError::NoSuchBucket`], and when the metadata store fails.
    pub async fn sizes_of(
        &self,
        bucket: &str,
        keys: &[String],
        until_gap: bool,
    ) -> Result<Vec<Option<u64>>, ClientError> {
        let mut sizes = Vec::with_capacity(if until_gap { 0 } else { keys.len() });
        for window in keys.chunks(LOOKED_UP_AT_ONCE) {
            let named = window.iter().filter(|key| check_key(key).is_ok());
            let rows: Vec<Bytes> = named.map(|key| keys::object(bucket, key)).collect();
            let mut rows = self.inner.meta.get_many(&rows).await?.into_iter();
            let object = |key: &String| {
                let row = check_key(key).ok().and_then(|()| rows.next().flatten());
                row.map(|row| row.record::<Object>()).transpose()
            };
            let objects: Vec<Option<Object>> = window.iter().map(object).collect::<Result<_, _>>()?;
            let gap = objects.iter().position(Option::is_none).filter(|_| until_gap);
            let found: Vec<&Object> = objects[..gap.unwrap_or(objects.len())].iter().flatten().collect();
            let mut gone = self.are_gone(&found).await?.into_iter();
            for object in objects {
                let readable = object.filter(|_| !gone.next().unwrap_or_default());
                let size = readable.map(|object| object.size);
                if size.is_none() && until_gap {
                    return self.checked(bucket, sizes).await;
                }
                sizes.push(size);
            }
        }
        self.checked(bucket, sizes).await
    }

    /// Returns the sizes. If no object was found, checks that the bucket exists.
    async fn checked(&self, bucket: &str, sizes: Vec<Option<u64>>) -> Result<Vec<Option<u64>>, ClientError> {
        if !sizes.iter().any(Option::is_some) {
            self.bucket_here(bucket).await?;
        }
        Ok(sizes)
    }
}

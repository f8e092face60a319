//! The buckets that have an origin.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use striate_client::{Client, ClientError};
use striate_meta::records::{Bucket, Origin};
use striate_meta::{Row, keys};
use striate_s3::KeyStore;

use crate::failures::FailingOrigin;
use crate::origin_bucket::OriginBucket;

/// Interval after which all buckets are read again, even without a notification.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The buckets that have an origin, as far as this process knows.
pub(crate) struct Buckets {
    client: Client,
    keys: Arc<KeyStore>,
    table: RwLock<HashMap<String, Arc<OriginBucket>>>,
}

impl Buckets {
    pub(crate) fn new(client: Client, keys: Arc<KeyStore>) -> Self {
        Self { client, keys, table: RwLock::default() }
    }

    pub(crate) fn get(&self, bucket: &str) -> Option<Arc<OriginBucket>> {
        self.table.read().get(bucket).cloned()
    }

    pub(crate) fn has(&self, bucket: &str) -> bool {
        let table = self.table.read();
        !table.is_empty() && table.contains_key(bucket)
    }

    /// Returns the length of the longest blocks of a bucket; 0 if there are no buckets.
    pub(crate) fn longest_block(&self) -> u64 {
        self.table.read().values().map(|origin| origin.block_len).max().unwrap_or(0)
    }

    /// Returns the buckets whose origins do not answer, in the order of their names.
    pub(crate) fn failing(&self) -> Vec<FailingOrigin> {
        let now = self.client.runtime().now();
        let table = self.table.read();
        let views =
            table.iter().filter_map(|(name, origin)| origin.failures.view(now, name, &origin.endpoint));
        let mut failing: Vec<FailingOrigin> = views.collect();
        failing.sort_by(|a, b| a.bucket.cmp(&b.bucket));
        failing
    }

    /// Records the origin that a bucket's row names, and returns it.
    ///
    /// # Errors
    /// If the origin's secret cannot be decrypted.
    pub(crate) fn note(
        &self,
        bucket: &str,
        origin: Option<&Origin>,
    ) -> Result<Option<Arc<OriginBucket>>, ClientError> {
        let cached = self.get(bucket);
        let Some(origin) = origin else {
            if cached.is_some() {
                self.table.write().remove(bucket);
            }
            return Ok(None);
        };
        if let Some(cached) = cached.filter(|cached| cached.id[..] == origin.id[..]) {
            return Ok(Some(cached));
        }
        let opened = Arc::new(OriginBucket::new(origin, &self.keys)?);
        self.table.write().insert(bucket.to_owned(), opened.clone());
        Ok(Some(opened))
    }

    /// Reads the rows of all buckets.
    async fn refresh(&self) -> Result<(), ClientError> {
        let mut remote_buckets = self.client.list_buckets("", usize::MAX).await?;
        remote_buckets.retain(|bucket| bucket.origin.is_some());
        let names: Vec<&str> = remote_buckets.iter().map(|bucket| bucket.name.as_str()).collect();
        self.table.write().retain(|name, _| names.contains(&name.as_str()));
        remote_buckets.iter().for_each(|bucket| self.take(bucket));
        Ok(())
    }

    fn take(&self, bucket: &Bucket) {
        if let Err(error) = self.note(&bucket.name, bucket.origin.as_ref()) {
            tracing::error!(bucket = bucket.name, %error, "a bucket's origin cannot be used");
        }
    }

    /// Follows the rows of buckets until the task is dropped.
    pub(crate) async fn follow(self: Arc<Self>) {
        let runtime = self.client.runtime().clone();
        loop {
            let changes = self.client.meta().watch(keys::BUCKETS).await.ok();
            if let Err(error) = self.refresh().await {
                tracing::warn!(%error, "the buckets could not be read; those known to be elsewhere stay so");
            }
            let until = runtime.now() + LOOK_EVERY;
            let Some(mut changes) = changes else {
                runtime.sleep(Duration::from_secs(1)).await;
                continue;
            };
            while let Ok(Some(change)) =
                runtime.timeout(until.saturating_duration_since(runtime.now()), changes.recv()).await
            {
                let name = String::from_utf8_lossy(&change.key[keys::BUCKETS.len()..]).into_owned();
                let row = change.value.map(|value| Row { key: change.key, value, version: change.revision });
                match row.as_ref().map(Row::record::<Bucket>) {
                    Some(Ok(bucket)) if !bucket.deleting => self.take(&bucket),
                    _ => drop(self.note(&name, None)),
                }
            }
        }
    }
}

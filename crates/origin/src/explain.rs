//! What a read of an object elsewhere would find.

use std::time::Duration;

use striate_client::ClientError;

use crate::Origins;
use crate::known::ObjectName;

/// So many blocks of an object are looked up at most.
const MOST_COUNTED: u64 = 1 << 16;

/// What a gateway knows of an object elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectExplained {
    /// Its store, and the bucket there.
    pub origin: String,
    /// What a read would do now, in words.
    pub would: String,
    /// Its ETag; `None` where nothing is known.
    pub etag: Option<String>,
    /// Its size in bytes.
    pub size: u64,
    /// Since when it is known.
    pub known_for: Duration,
    /// For so long it is used.
    pub ttl: Duration,
    /// Its blocks,
    pub blocks: u64,
    /// and those of the first 65,536 that are in memory, as far as is known.
    pub blocks_in_memory: u64,
}

impl Origins {
    /// What a read of an object would do now. Asks the metadata store only.
    ///
    /// # Errors
    /// [`ClientError::NoSuchBucket`]; [`ClientError::Busy`] for a bucket that is here by now.
    pub async fn explain(&self, bucket: &str, key: &str) -> Result<ObjectExplained, ClientError> {
        let shared = &self.shared;
        let (origin, standing) = shared.fences.look(bucket, key).await?;
        let origin = shared.buckets.note(bucket, origin.as_ref())?.ok_or(ClientError::Busy)?;
        let mut explained = ObjectExplained {
            origin: format!("s3://{} at {}", origin.bucket, origin.endpoint),
            ttl: origin.ttl,
            ..ObjectExplained::default()
        };
        let Some(known) = shared.known.get(&ObjectName::new(&origin, key)) else {
            explained.would = "asks the origin for its bytes".to_owned();
            return Ok(explained);
        };
        let head = &known.head;
        let blocks = origin.blocks(key, &head.etag, head.size);
        explained.etag = Some(head.etag.clone());
        explained.size = head.size;
        explained.known_for = shared.client.runtime().now().saturating_duration_since(known.asked_at);
        explained.blocks = head.size.div_ceil(blocks.len);
        let is_there = |number: &u64| shared.cache.knows(&blocks.block(*number));
        explained.blocks_in_memory = (0..explained.blocks.min(MOST_COUNTED)).filter(is_there).count() as u64;
        explained.would = if standing.is_written {
            "passes by the cache: the object is being written"
        } else if known.epoch != standing.epoch {
            "asks whether it is still the same: it was written through Striate"
        } else if explained.known_for >= origin.ttl {
            "asks whether it is still the same: the ttl is over"
        } else if explained.blocks_in_memory == explained.blocks {
            "comes from memory"
        } else {
            "comes from memory as far as it is there, and from the origin"
        }
        .to_owned();
        Ok(explained)
    }
}

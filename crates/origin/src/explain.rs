//! What a read of an object of a bucket with an origin would find.

use std::time::Duration;

use striate_client::ClientError;
use striate_stripe::{BlockCache, Span};

use crate::Origins;
use crate::known_objects::ObjectName;

/// Maximum number of blocks of an object that are looked up.
const MOST_COUNTED: u64 = 1 << 16;
/// Maximum number of blocks, the first of the object, that memory sites are asked for.
const MOST_EXPLAINED: u64 = 64;

/// What a gateway knows of an object that an origin stores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectExplanation {
    /// The origin's endpoint and bucket.
    pub origin: String,
    /// What a read would do now, as text.
    pub would: String,
    /// ETag of the object; `None` if the object is not known.
    pub etag: Option<String>,
    /// Size of the object in bytes.
    pub size: u64,
    /// Time since the origin was asked for the object.
    pub known_for: Duration,
    /// Time for which this knowledge is used.
    pub ttl: Duration,
    /// Number of blocks of the object.
    pub blocks: u64,
    /// Number of blocks in memory among the first 65,536, as far as is known.
    pub blocks_in_memory: u64,
    /// What a read would find in memory of each of the first 64 blocks, or why it would find nothing, as text.
    pub first_blocks: Vec<String>,
}

impl Origins {
    /// Explains what a read of an object would do now. Asks the metadata store and memory sites only.
    ///
    /// # Errors
    /// [`ClientError::NoSuchBucket`]; [`ClientError::Busy`] if the bucket has no origin any more.
    pub async fn explain(&self, bucket: &str, key: &str) -> Result<ObjectExplanation, ClientError> {
        let shared = &self.shared;
        let (origin, fence_state) = shared.fences.state_of(bucket, key).await?;
        let origin = shared.buckets.note(bucket, origin.as_ref())?.ok_or(ClientError::Busy)?;
        let mut explained = ObjectExplanation {
            origin: format!("s3://{} at {}", origin.bucket, origin.endpoint),
            ttl: origin.ttl,
            ..ObjectExplanation::default()
        };
        let (name, now) = (ObjectName::new(&origin, key), shared.client.runtime().now());
        let Some(cached_head) = shared.known_objects.get(&name) else {
            explained.would = match shared.known_objects.is_uncacheable(&name, now) {
                true => "passes by the cache: the origin sends no strong ETag".to_owned(),
                false => "asks the origin for its bytes".to_owned(),
            };
            return Ok(explained);
        };
        let head = &cached_head.head;
        let blocks = origin.blocks(key, &head.etag, head.size);
        explained.etag = Some(head.etag.clone());
        explained.size = head.size;
        explained.known_for = now.saturating_duration_since(cached_head.asked_at);
        explained.blocks = head.size.div_ceil(blocks.len);
        let first = (0..explained.blocks.min(MOST_EXPLAINED)).map(|number| Span::whole(blocks.block(number)));
        let first = shared.cache.explain(&first.collect::<Vec<_>>()).await;
        let is_there = |number: &u64| shared.cache.knows(&blocks.block(*number));
        let others = (MOST_EXPLAINED..explained.blocks.min(MOST_COUNTED)).filter(is_there).count();
        explained.blocks_in_memory =
            (first.iter().filter(|block| block.is_in_memory).count() + others) as u64;
        explained.first_blocks = first.into_iter().map(|block| block.text).collect();
        explained.would = if fence_state.is_written {
            "passes by the cache: the object is being written"
        } else if cached_head.epoch != fence_state.epoch {
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

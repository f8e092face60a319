//! Explains the plan of reading objects.

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use striate_meta::records::object::Body;
use striate_plan::ReadPolicy;
use striate_stripe::{QueryExplanation, Span};

use crate::blocks::BlockWalk;
use crate::record::{self, ShowParts};
use crate::{Client, ClientError};

/// Maximum number of blocks in one explanation: 40 GiB of objects in blocks of 4 MiB.
pub const MAX_EXPLAINED_BLOCKS: usize = 10_000;

/// Plan of a query that reads some objects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadExplanation {
    /// Objects in the order in which they were named.
    pub objects: Vec<ObjectExplanation>,
    /// Plan of all their blocks together.
    pub query: QueryExplanation,
}

/// An object of a query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectExplanation {
    /// Bucket of the object.
    pub bucket: String,
    /// Key of the object.
    pub key: String,
    /// Size in bytes.
    pub size: u64,
    /// True if the object is kept in the metadata, so that no site is asked for it.
    pub is_inline: bool,
    /// Position of the object's first block in the query.
    pub first_block: usize,
    /// Number of blocks.
    pub block_count: usize,
}

impl Client {
    /// Explains how these objects, each a bucket and a key, would be read now in one query: which chunks of which
    /// sites, at what cost, and why. Uses `policy`, or the client's own. Reads metadata only.
    ///
    /// # Errors
    /// [`ClientError::NoSuchKey`], [`ClientError::NoSuchBucket`]; [`ClientError::InvalidArgument`] for objects of
    /// more than [`MAX_EXPLAINED_BLOCKS`] blocks; [`ClientError::Unreadable`] when too few chunks of a block are
    /// available.
    pub fn explain<'a>(
        &'a self,
        objects: &'a [(String, String)],
        policy: Option<ReadPolicy>,
    ) -> BoxFuture<'a, Result<ReadExplanation, ClientError>> {
        Box::pin(async move {
            let mut explained = Vec::with_capacity(objects.len());
            let mut blocks = Vec::new();
            for (bucket, key) in objects {
                let object = self.current_object(bucket, key).await?;
                let (info, body) =
                    record::open(key.clone(), object, self.inner.stripes.profiles(), ShowParts::No)?;
                let is_inline = matches!(body, Body::Inline(_));
                let first_block = blocks.len();
                let mut walk = BlockWalk::new(self.clone(), body, 0..info.size)?;
                while let Some(span) = walk.next().await? {
                    blocks.push(Span::whole(span.of));
                    if blocks.len() > MAX_EXPLAINED_BLOCKS {
                        let reason = format!(
                            "these objects have more than {MAX_EXPLAINED_BLOCKS} blocks; name fewer or smaller ones"
                        );
                        return Err(ClientError::InvalidArgument(reason));
                    }
                }
                explained.push(ObjectExplanation {
                    bucket: bucket.clone(),
                    key: key.clone(),
                    size: info.size,
                    is_inline,
                    first_block,
                    block_count: blocks.len() - first_block,
                });
            }
            let policy = policy.as_ref().unwrap_or(&self.inner.options.stripes.read_policy);
            let query = self.inner.stripes.explain(&blocks, policy).await?;
            Ok(ReadExplanation { objects: explained, query })
        })
    }
}

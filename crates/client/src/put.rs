//! Puts.
//!
//! A put takes one read of the bucket's and the object's rows, the writes of the chunks, and one commit. Very small
//! objects live in the metadata itself if that takes less space ([`inline_limit`]).

use striate_core::{Profile, StorageClass, Tier};
use striate_meta::records::{Bucket, Object};
use striate_stripe::Neighbours;

use crate::commit::{Change, ChangeOutcome, KeyState, NewVersion};
use crate::condition::check_write;
use crate::ingest::{Ingest, IngestedBody};
use crate::record::{self, ShowParts, check_key};
use crate::{Client, ClientError, ObjectInfo, PutRequest, WriteCondition};

/// Maximum size of an inline object in bytes: LIST reads inline bodies along with the rows.
pub const MAX_INLINE_LEN: usize = 4 << 10;
/// Overhead of a chunk in a site's segment, in bytes: header, granule checksum, padding.
const CHUNK_OVERHEAD: usize = 64;
/// Size of a stripe's rows in the metadata, in bytes, without the locations: keys and fixed fields.
const STRIPE_ROWS_OVERHEAD: usize = 96;
/// Size of each chunk's location in a stripe's row, in bytes.
const LOCATION_LEN: usize = 13;

/// Returns the maximum size of an object, in bytes, that is kept inline in metadata with `mirrors` copies: the
/// largest size up to [`MAX_INLINE_LEN`] at which `mirrors × size` is less than the size of a stripe of the profile.
///
/// A stripe of n chunks takes `n × (⌈size/k⌉ + 64)` bytes on the sites, and its rows `mirrors × (96 + 13 n)`.
/// So with three mirrors `rs(4,2)` keeps some 600 bytes inline, and profiles that store a byte at least as
/// often as the metadata does, like `replica(3)`, all 4 KiB.
pub fn inline_limit(profile: &Profile, mirrors: usize) -> usize {
    if profile.tier == Tier::Memory {
        return 0;
    }
    let (n, k) = (profile.code.chunk_count(), profile.code.data_count().max(1));
    let rows = mirrors * (STRIPE_ROWS_OVERHEAD + n * LOCATION_LEN);
    let striped = |size: usize| n * (size.div_ceil(k) + CHUNK_OVERHEAD) + rows;
    let smaller = |size: usize| mirrors * size < striped(size);
    match smaller(MAX_INLINE_LEN) {
        true => MAX_INLINE_LEN,
        // The difference is a line with steps: no size after the last smaller one is smaller again.
        false => (0..MAX_INLINE_LEN).rev().find(|&size| smaller(size)).unwrap_or(0),
    }
}

impl Client {
    /// Stores an object. It returns once the object is durable and visible.
    ///
    /// # Errors
    /// Errors of the conditions, the body, its digests, the sites and the metadata store. A failed put leaves
    /// nothing visible (I5), except after [`striate_meta::MetaError::UnknownOutcome`], where it may have
    /// happened.
    pub async fn put(&self, request: PutRequest) -> Result<ObjectInfo, ClientError> {
        check_key(&request.key)?;
        let current = self.read_current(&request.bucket, &request.key, &request.condition).await?;
        self.put_over(current, request).await
    }

    /// Stores an object over the state that was read.
    pub(crate) async fn put_over(
        &self,
        current: KeyState,
        request: PutRequest,
    ) -> Result<ObjectInfo, ClientError> {
        self.put_replacing(None, current, request, 1).await
    }

    /// As [`Client::put_over`]; with `replaces`, only that object may be replaced. Every block takes `shares` of the byte
    /// budget.
    ///
    /// # Errors
    /// [`ClientError::Inconsistent`] when another version is current.
    pub(crate) async fn put_replacing(
        &self,
        replaces: Option<ReplacedVersion>,
        current: KeyState,
        request: PutRequest,
        shares: usize,
    ) -> Result<ObjectInfo, ClientError> {
        // A condition that fails here saves the transfer of the body; the commit evaluates all conditions again.
        check_write(&request.condition, &request.key, current.current())?;
        let class = StorageClass::of_row(&request.attributes.storage_class);
        let profile = self.profile_for(request.profile, class, &current.bucket)?;
        if request.profile.is_some() {
            self.check_placeable(&profile).await?;
        }
        let how = Ingest {
            profile,
            block_len: self.block_len_for(&current.bucket),
            neighbours: Neighbours::new(&request.bucket, &request.key, self.group_len_for(&current.bucket)),
            inline_limit: self.inline_limit_for(&profile),
            content_len: request.content_len,
            digests: request.digests,
            shares,
        };
        let ingested = self.ingest(request.body, how).await?;
        let mut object = record::described(request.attributes);
        object.profile = profile.to_string();
        let commit = PutCommit {
            client: self.clone(),
            bucket: request.bucket,
            key: request.key,
            condition: request.condition,
            replaces,
            object,
        };
        self.finish_regardless(commit.run(current, ingested)).await
    }

    /// Returns the block length of a new object.
    pub(crate) fn block_len_for(&self, bucket: &Bucket) -> u32 {
        match bucket.block_len {
            0 => self.inner.options.block_len.max(1),
            len => len,
        }
    }

    /// Returns the number of neighbouring blocks that go to the same sites.
    pub(crate) fn group_len_for(&self, bucket: &Bucket) -> u32 {
        match bucket.group_len {
            0 => self.inner.options.group_len,
            len => len,
        }
    }

    fn inline_limit_for(&self, profile: &Profile) -> usize {
        inline_limit(profile, self.inner.options.mirrors)
    }

    /// Draws a version id.
    pub(crate) fn new_version(&self) -> [u8; 16] {
        self.inner.runtime.random_u128().to_be_bytes()
    }

    /// Returns the wall-clock time for `Last-Modified`. Nothing is ordered by it.
    pub(crate) fn now_unix_ms(&self) -> u64 {
        self.inner.runtime.wall_time().as_millis() as u64
    }
}

/// The only object that a put may replace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplacedVersion {
    /// Version of the object.
    pub(crate) version: [u8; 16],
    /// Whether the new object takes over the tags that this one has at the commit: they may change while its bytes
    /// are copied.
    pub(crate) keeps_tags: bool,
}

/// Checks that the current object is the one that the put may replace.
fn check_replaced(replaces: Option<ReplacedVersion>, key: &str, now: &KeyState) -> Result<(), ClientError> {
    let Some(ReplacedVersion { version, .. }) = replaces else { return Ok(()) };
    match &now.object {
        Some(object) if object.version == version[..] => Ok(()),
        _ => Err(ClientError::Inconsistent {
            what: format!("object {key:?}"),
            reason: "it was replaced while it was copied onto itself".to_owned(),
        }),
    }
}

/// The last step of a put.
struct PutCommit {
    client: Client,
    bucket: String,
    key: String,
    condition: WriteCondition,
    /// The only object that it may replace, if limited.
    replaces: Option<ReplacedVersion>,
    /// Record with the object's attributes.
    object: Object,
}

impl PutCommit {
    async fn run(self, current: KeyState, ingested: IngestedBody) -> Result<ObjectInfo, ClientError> {
        let Self { client, bucket, key, condition, replaces, mut object } = self;
        let mut stored = ingested.stored;
        object.version = client.new_version().to_vec().into();
        object.etag = ingested.digests.etag(&object.version);
        object.size = ingested.size;
        object.modified_unix_ms = client.now_unix_ms();
        object.checksums = ingested.digests.checksums;
        object.body = Some(stored.object_body());
        if let Err(error) = stored.committing().await {
            return stored.settle(Err(error.into())).await;
        }
        let new = NewVersion::of(&object);
        let commit = client.commit_object(&bucket, &key, &condition, Some(current), |tx, now| {
            check_write(&condition, &key, now.current())?;
            check_replaced(replaces, &key, now)?;
            stored.name(tx);
            Ok(Change::Replace(match (replaces, &now.object) {
                (Some(ReplacedVersion { keeps_tags: true, .. }), Some(old)) => {
                    NewVersion::of(&Object { tags: old.tags.clone(), ..object.clone() })
                }
                _ => new.clone(),
            }))
        });
        let outcome = match commit.await {
            Ok(ChangeOutcome::Done) => Ok(()),
            Ok(ChangeOutcome::Fenced) => Err(stored.fenced()),
            Err(failure) => Err(failure),
        };
        stored.settle(outcome).await?;
        Ok(record::open(key, object, client.inner.stripes.profiles(), ShowParts::Yes)?.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_objects_take_less_space_than_striped_ones_and_the_next_size_does_not() {
        let mut limits = Vec::new();
        for (text, mirrors) in [
            ("none", 1),
            ("replica(2)", 2),
            ("replica(3)", 3),
            ("rs(2,1)", 2),
            ("rs(2,2)", 3),
            ("rs(4,2)", 3),
        ] {
            let profile: Profile = text.parse().unwrap();
            let limit = inline_limit(&profile, mirrors);
            let (n, k) = (profile.code.chunk_count(), profile.code.data_count());
            let striped = |size: usize| {
                n * (size.div_ceil(k) + CHUNK_OVERHEAD) + mirrors * (STRIPE_ROWS_OVERHEAD + n * LOCATION_LEN)
            };
            assert!(mirrors * limit < striped(limit), "{text}");
            assert!(limit == MAX_INLINE_LEN || mirrors * (limit + 1) >= striped(limit + 1), "{text}");
            limits.push(limit);
        }
        assert_eq!(limits[..3], [MAX_INLINE_LEN; 3]);
        assert!((400..800).contains(&limits[5]), "{limits:?}");
    }
}

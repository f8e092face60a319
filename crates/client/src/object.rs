//! Objects as callers see them: requests, results, conditions.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use striate_core::{Packing, Profile, StorageClass};
use striate_meta::Revision;
use striate_meta::records::{self, Checksum, checksum::Algorithm};
use striate_stripe::StripeOptions;

use crate::error::ClientError;

/// Maximum size of an object, in bytes (S3's 5 TiB).
pub const MAX_OBJECT_LEN: u64 = 5 << 40;
/// Maximum size of a single put or part, in bytes (S3's 5 GiB).
pub const MAX_PUT_LEN: u64 = 5 << 30;
/// Maximum part number.
pub const MAX_PART_NUMBER: u32 = 10_000;
/// Minimum size of a part, in bytes, except for the last one.
pub const MIN_PART_LEN: u64 = 5 << 20;
/// Maximum length of a key in bytes.
pub const MAX_KEY_LEN: usize = 1_024;

/// Attributes of an object, as its writer set them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObjectAttributes {
    /// Content-Type; empty means `binary/octet-stream`.
    pub content_type: String,
    /// Content-Encoding, `aws-chunked` removed.
    pub content_encoding: String,
    /// Content-Disposition.
    pub content_disposition: String,
    /// Content-Language.
    pub content_language: String,
    /// Cache-Control.
    pub cache_control: String,
    /// Expires, as it was sent.
    pub expires: String,
    /// x-amz-website-redirect-location.
    pub website_redirect: String,
    /// `x-amz-meta-*`, names in lower case without the prefix.
    pub user_metadata: BTreeMap<String, String>,
    /// Object tags.
    pub tags: BTreeMap<String, String>,
    /// x-amz-storage-class; empty means STANDARD.
    pub storage_class: String,
    /// Access key of the owner.
    pub owner: String,
}

/// Current state of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectInfo {
    /// Key of the object.
    pub key: String,
    /// Id of the version.
    pub version: [u8; 16],
    /// Size in bytes.
    pub size: u64,
    /// Time of the last modification, in milliseconds since the Unix epoch.
    pub modified_unix_ms: u64,
    /// ETag, without quotes.
    pub etag: String,
    /// Attributes that the writer set.
    pub attributes: ObjectAttributes,
    /// Verified checksums.
    pub checksums: Vec<Checksum>,
    /// Numbers and sizes of a multipart object's parts, in order; empty for a single put and in listings. A read of
    /// [`ReadRange::Part`] also fills in that part's ETag and checksums; for those of many parts use
    /// [`crate::Client::object_parts`].
    pub parts: Vec<records::Part>,
    /// Profile of the stored object; for an inline object the one its size would otherwise have had.
    pub profile: Option<Profile>,
}

/// Conditions of a write, evaluated inside the commit (design.md §10.7).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteCondition {
    /// `If-None-Match: *`: the key must have no current object.
    pub if_absent: bool,
    /// `If-Match`: one of these ETags (without quotes), or `*` for any object.
    pub if_match: Option<Vec<String>>,
    /// The object was last modified in this second (Unix time). Deletes have it.
    pub if_modified_at: Option<u64>,
    /// The object has this many bytes. Deletes have it.
    pub if_size: Option<u64>,
}

impl WriteCondition {
    /// Whether any condition is set.
    pub fn is_any(&self) -> bool {
        let Self { if_absent, if_match, if_modified_at, if_size } = self;
        *if_absent || if_match.is_some() || if_modified_at.is_some() || if_size.is_some()
    }
}

/// Conditions of a read, with S3's precedence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadCondition {
    /// `If-Match`.
    pub if_match: Option<Vec<String>>,
    /// `If-None-Match`.
    pub if_none_match: Option<Vec<String>>,
    /// `If-Modified-Since`, Unix seconds.
    pub if_modified_since: Option<u64>,
    /// `If-Unmodified-Since`, Unix seconds.
    pub if_unmodified_since: Option<u64>,
    /// `If-Range`. Batches have none.
    pub if_range: Option<RangeVersion>,
}

/// Version of an object that a range is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeVersion {
    /// The version with this ETag (without quotes).
    Etag(String),
    /// The version of this time, Unix seconds.
    ModifiedAt(u64),
    /// None that can be identified: a weak ETag, for example.
    Unknown,
}

/// Range of an object to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadRange {
    /// The whole object.
    #[default]
    Whole,
    /// From `first` to `last`, both included; clipped to the object's end.
    Bytes {
        /// First byte.
        first: u64,
        /// Last byte; `None` is the object's end.
        last: Option<u64>,
    },
    /// The last `len` bytes.
    Suffix {
        /// Number of bytes.
        len: u64,
    },
    /// One part of a multipart object, from 1.
    Part(u32),
}

/// Bytes of an upload as they arrive, followed by its trailers.
#[async_trait::async_trait]
pub trait PutBody: Send {
    /// Returns the next bytes; `None` at the end. An error means that the body must not be stored.
    async fn next(&mut self) -> Option<Result<Bytes, ClientError>>;

    /// Returns the checksums that the sender announced in trailers. Called once, after the end.
    async fn trailing_checksums(&mut self) -> Result<Vec<Checksum>, ClientError> {
        Ok(Vec::new())
    }
}

/// Digests to verify and keep of a body.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExpectedDigests {
    /// Content-MD5.
    pub md5: Option<[u8; 16]>,
    /// Checksums sent in headers.
    pub checksums: Vec<Checksum>,
    /// Algorithms to compute and keep, because a trailer follows or the upload asked for them.
    pub compute: Vec<Algorithm>,
    /// Source of the ETag.
    pub etag: EtagSource,
}

/// Source of an object's ETag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EtagSource {
    /// MD5 of the bytes, as S3 clients expect it of a put.
    #[default]
    Md5,
    /// Random id of the version, followed by `-0` so that it is not mistaken for an MD5. Saves the MD5, which takes
    /// longer than all other processing of the bytes.
    Version,
}

/// A put.
pub struct PutRequest {
    /// Bucket to write to.
    pub bucket: String,
    /// Key to write.
    pub key: String,
    /// Attributes of the object.
    pub attributes: ObjectAttributes,
    /// Conditions of the write.
    pub condition: WriteCondition,
    /// Profile that overrides those of the storage class and of the bucket.
    pub profile: Option<Profile>,
    /// Announced length of the body in bytes, if any; verified.
    pub content_len: Option<u64>,
    /// Digests to verify and keep.
    pub digests: ExpectedDigests,
    /// Bytes of the body.
    pub body: Box<dyn PutBody>,
}

/// A get.
#[derive(Clone, Debug, Default)]
pub struct GetRequest {
    /// Bucket to read from.
    pub bucket: String,
    /// Key to read.
    pub key: String,
    /// Conditions of the read.
    pub condition: ReadCondition,
    /// Range to read.
    pub range: ReadRange,
    /// Bytes that the receiver's connection has taken so far. The more, the larger the parts it is given while memory
    /// is short.
    pub taken_bytes: u64,
}

/// An object's bytes, in order, in pieces. Ends with an error, never short, when they are unavailable.
pub type ObjectStream = BoxStream<'static, Result<Bytes, ClientError>>;

/// An opened object.
pub struct GetObject {
    /// State of the object.
    pub info: ObjectInfo,
    /// Range of the bytes in `body`.
    pub range: Range<u64>,
    /// Bytes of the object.
    pub body: ObjectStream,
    /// Revision of the row that led to the bytes.
    pub(crate) revision: Revision,
}

/// A copy inside the store.
#[derive(Clone, Debug, Default)]
pub struct CopyRequest {
    /// Source bucket.
    pub source_bucket: String,
    /// Source key.
    pub source_key: String,
    /// `x-amz-copy-source-if-*`.
    pub source_condition: ReadCondition,
    /// Destination bucket.
    pub bucket: String,
    /// Destination key.
    pub key: String,
    /// New attributes (REPLACE); `None` copies them.
    pub attributes: Option<ObjectAttributes>,
    /// New tags; `None` copies them.
    pub tags: Option<BTreeMap<String, String>>,
    /// Storage class of the copy when attributes are copied; never the source's. `None` for the default one.
    pub storage_class: Option<String>,
    /// Website redirect of the copy when attributes are copied; never the source's.
    pub website_redirect: Option<String>,
    /// Conditions on the destination.
    pub condition: WriteCondition,
    /// Checksum to compute and keep; otherwise the source's full-object checksums are kept.
    pub checksum: Option<Algorithm>,
    /// Profile that overrides those of the storage class and of the destination bucket.
    pub profile: Option<Profile>,
    /// Access key of the copy's owner.
    pub owner: String,
}

/// A listing of current objects, with S3's semantics.
#[derive(Clone, Debug, Default)]
pub struct ListRequest {
    /// Bucket to list.
    pub bucket: String,
    /// Prefix of the keys to list.
    pub prefix: String,
    /// Delimiter at which keys are rolled up after the prefix; empty for none.
    pub delimiter: String,
    /// Key (or common prefix) after which the listing starts.
    pub after: String,
    /// Maximum number of objects and common prefixes together.
    pub max_keys: usize,
}

/// One page of a listing.
#[derive(Clone, Debug, Default)]
pub struct ListPage {
    /// Objects in key order.
    pub objects: Vec<ObjectInfo>,
    /// Common prefixes in order.
    pub common_prefixes: Vec<String>,
    /// Position to pass as [`ListRequest::after`]; `None` after the last page.
    pub next: Option<String>,
}

/// Request to begin a multipart upload.
#[derive(Clone, Debug, Default)]
pub struct CreateUpload {
    /// Bucket to upload to.
    pub bucket: String,
    /// Key of the object.
    pub key: String,
    /// Attributes of the future object.
    pub attributes: ObjectAttributes,
    /// Profile that overrides those of the storage class and of the bucket.
    pub profile: Option<Profile>,
    /// Checksum algorithm, if one was named.
    pub checksum: Option<Algorithm>,
    /// True for a FULL_OBJECT checksum, false for COMPOSITE.
    pub full_object_checksum: bool,
    /// Access key of the initiator.
    pub initiator: String,
}

/// State of a multipart upload.
#[derive(Clone, Debug, PartialEq)]
pub struct UploadInfo {
    /// Id of the upload, as users see it (hexadecimal).
    pub id: String,
    /// Key of the object.
    pub key: String,
    /// Time of creation, in milliseconds since the Unix epoch.
    pub created_unix_ms: u64,
    /// Attributes of the future object.
    pub attributes: ObjectAttributes,
    /// Checksum algorithm, if one was named.
    pub checksum: Option<Algorithm>,
    /// True for a FULL_OBJECT checksum.
    pub full_object_checksum: bool,
    /// Access key of the initiator.
    pub initiator: String,
}

/// Request to upload a part.
pub struct UploadPartRequest {
    /// Bucket of the upload.
    pub bucket: String,
    /// Key of the upload.
    pub key: String,
    /// Id of the upload.
    pub upload: String,
    /// Number of the part, from 1 to 10,000.
    pub number: u32,
    /// Announced length of the body in bytes, if any; verified.
    pub content_len: Option<u64>,
    /// Digests to verify and keep.
    pub digests: ExpectedDigests,
    /// Bytes of the part.
    pub body: Box<dyn PutBody>,
}

/// Request to copy a part from an object.
#[derive(Clone, Debug, Default)]
pub struct CopyPartRequest {
    /// Bucket of the upload.
    pub bucket: String,
    /// Key of the upload.
    pub key: String,
    /// Id of the upload.
    pub upload: String,
    /// Number of the part, from 1 to 10,000.
    pub number: u32,
    /// Source bucket.
    pub source_bucket: String,
    /// Source key.
    pub source_key: String,
    /// Range of the source to copy.
    pub source_range: ReadRange,
    /// `x-amz-copy-source-if-*`.
    pub source_condition: ReadCondition,
}

/// An uploaded part.
#[derive(Clone, Debug, PartialEq)]
pub struct PartInfo {
    /// Number of the part.
    pub number: u32,
    /// Size in bytes.
    pub size: u64,
    /// ETag, without quotes.
    pub etag: String,
    /// Time of the upload, in milliseconds since the Unix epoch.
    pub modified_unix_ms: u64,
    /// Verified checksums.
    pub checksums: Vec<Checksum>,
}

/// A part as named by the caller that completes the upload.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletedPart {
    /// Number of the part.
    pub number: u32,
    /// ETag, without quotes; empty if the caller named none.
    pub etag: String,
    /// Checksums that must match the part's.
    pub checksums: Vec<Checksum>,
}

/// Request to complete a multipart upload.
#[derive(Clone, Debug, Default)]
pub struct CompleteUpload {
    /// Bucket of the upload.
    pub bucket: String,
    /// Key of the upload.
    pub key: String,
    /// Id of the upload.
    pub upload: String,
    /// Parts in ascending order.
    pub parts: Vec<CompletedPart>,
    /// Conditions of the write.
    pub condition: WriteCondition,
    /// Checksums of the whole object, if the caller named any.
    pub checksums: Vec<Checksum>,
    /// Whether the caller expects the upload's checksum to be FULL_OBJECT, if it said so.
    pub full_object_checksum: Option<bool>,
    /// Size of the whole object in bytes, if the caller named it.
    pub size: Option<u64>,
}

/// One page of uploads or parts.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// Items of the page.
    pub items: Vec<T>,
    /// Common prefixes, for uploads listed with a delimiter.
    pub common_prefixes: Vec<String>,
    /// True if more items follow the last one.
    pub truncated: bool,
}

/// A listing of uploads.
#[derive(Clone, Debug, Default)]
pub struct ListUploads {
    /// Bucket to list.
    pub bucket: String,
    /// Prefix of the keys to list.
    pub prefix: String,
    /// Delimiter at which keys are rolled up; empty for none.
    pub delimiter: String,
    /// Key after which the listing starts; uploads of this key are included from after `after_upload` on.
    pub after_key: String,
    /// Upload id after which the listing starts within `after_key`.
    pub after_upload: String,
    /// Maximum number of uploads.
    pub max: usize,
}

/// Request to create a bucket.
#[derive(Clone, Debug, Default)]
pub struct CreateBucket {
    /// Name of the bucket.
    pub name: String,
    /// Access key of the owner.
    pub owner: String,
    /// Profile that overrides the cluster's default.
    pub profile: Option<Profile>,
    /// Region of the bucket.
    pub region: String,
    /// Maximum block length in bytes; `None` for the default.
    pub block_len: Option<u32>,
    /// Number of neighbouring blocks that go to the same sites, at most [`crate::MAX_GROUP_LEN`]; `None` for the
    /// default.
    pub group_len: Option<u32>,
    /// Whether small objects are packed; `None` follows the profile, or else the store.
    pub packing: Option<Packing>,
    /// Store that holds the bucket's objects, if they are not here.
    pub origin: Option<records::Origin>,
    /// Sealing of cold data; `None` for none.
    pub cold: Option<ColdSetting>,
    /// Storage classes with profiles of their own.
    pub classes: Vec<ClassSetting>,
    /// Tags of the bucket.
    pub tags: BTreeMap<String, String>,
}

/// Wide stripes into which a bucket's cold partitions are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColdSetting {
    /// Wide profile of cold data.
    pub profile: Profile,
    /// Time without changes after which data is cold.
    pub after: Duration,
    /// True if the profile may use every rack: a lost rack then cannot be rebuilt until it is back.
    pub without_spare_rack: bool,
}

/// Profile of a storage class in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassSetting {
    /// Storage class concerned.
    pub class: StorageClass,
    /// Profile of the class, wide or not; `None` for none of its own.
    pub profile: Option<Profile>,
    /// True if a wide profile may use every rack, as in [`ColdSetting`].
    pub without_spare_rack: bool,
}

/// Limits and defaults of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Profile of buckets without one.
    pub profile: Profile,
    /// Maximum block length in bytes.
    pub block_len: u32,
    /// Number of neighbouring blocks (of one object, and of keys in one folder that are written one after the other)
    /// that go to the same sites, unless the bucket overrides it. 1 gives each block sites of its own.
    pub group_len: u32,
    /// Maximum number of blocks of one put that are encoded and written at the same time.
    pub blocks_in_flight: usize,
    /// Minimum size in bytes of all parts of an upload but the last; S3's is [`MIN_PART_LEN`].
    pub min_part_len: u64,
    /// Number of metadata copies, which decides up to which size objects are kept inline.
    pub mirrors: usize,
    /// Options of the stripe service.
    pub stripes: StripeOptions,
}

impl Default for ClientOptions {
    /// Returns `rs(4,2)`, blocks of 4 MiB in groups of 8.
    fn default() -> Self {
        Self {
            profile: Profile::from(striate_core::CodeSpec::Rs { data: 4, parity: 2 }),
            block_len: 4 << 20,
            group_len: 8,
            blocks_in_flight: 2,
            min_part_len: MIN_PART_LEN,
            mirrors: 3,
            stripes: StripeOptions::default(),
        }
    }
}

//! Objects as callers see them: requests, answers, conditions.

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

/// The largest object, in bytes (S3's 5 TiB).
pub const MAX_OBJECT_LEN: u64 = 5 << 40;
/// The largest single put or part, in bytes (S3's 5 GiB).
pub const MAX_PUT_LEN: u64 = 5 << 30;
/// The largest part number.
pub const MAX_PART_NUMBER: u32 = 10_000;
/// All parts but the last have at least this many bytes.
pub const MIN_PART_LEN: u64 = 5 << 20;
/// The longest key in bytes.
pub const MAX_KEY_LEN: usize = 1_024;

/// What a caller says of an object when it writes it.
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

/// An object's current state.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectInfo {
    /// The key.
    pub key: String,
    /// This version's id.
    pub version: [u8; 16],
    /// Bytes.
    pub size: u64,
    /// Last modification, since the Unix epoch, in milliseconds.
    pub modified_unix_ms: u64,
    /// Without quotes.
    pub etag: String,
    /// What its writer said of it.
    pub attributes: ObjectAttributes,
    /// Verified checksums.
    pub checksums: Vec<Checksum>,
    /// Numbers and sizes of a multipart object's parts, in order; empty for a single put and in listings. A
    /// read of [`ReadRange::Part`] tells that part's ETag and checksums too; for those of many parts there is
    /// [`crate::Client::object_parts`].
    pub parts: Vec<records::Part>,
    /// The profile it is stored in; for an inline object the one its size would have had.
    pub profile: Option<Profile>,
}

/// Conditions of a write, evaluated inside the commit (design.md §10.7).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteCondition {
    /// `If-None-Match: *`: the key must have no current object.
    pub if_absent: bool,
    /// `If-Match`: one of these ETags (without quotes), or `*` for any object.
    pub if_match: Option<Vec<String>>,
}

impl WriteCondition {
    /// Whether there is one.
    pub fn is_any(&self) -> bool {
        self.if_absent || self.if_match.is_some()
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
}

/// Which part of an object to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadRange {
    /// All of it.
    #[default]
    Whole,
    /// From `first` to `last`, both included; cut at the object's end.
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

/// The bytes of an upload as they arrive, and what is known only after them.
#[async_trait::async_trait]
pub trait PutBody: Send {
    /// The next bytes; `None` at the end. An error means that the body must not be stored.
    async fn next(&mut self) -> Option<Result<Bytes, ClientError>>;

    /// Checksums that the sender announced for after the body (trailers). Called once, after the end.
    async fn trailing_checksums(&mut self) -> Result<Vec<Checksum>, ClientError> {
        Ok(Vec::new())
    }
}

/// What to verify of a body, and what to keep.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExpectedDigests {
    /// Content-MD5.
    pub md5: Option<[u8; 16]>,
    /// Checksums sent in headers.
    pub checksums: Vec<Checksum>,
    /// An algorithm to compute and keep, because a trailer with it follows or the upload asked for it.
    pub compute: Vec<Algorithm>,
    /// What the ETag is made from.
    pub etag: EtagSource,
}

/// What an object's ETag is made from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EtagSource {
    /// The bytes' MD5, as S3 clients expect it of a put.
    #[default]
    Md5,
    /// The version's random id, followed by `-0` so that nobody takes it for an MD5. Saves the time of the MD5, which is
    /// longer than that of everything else that is done with the bytes.
    Version,
}

/// A put.
pub struct PutRequest {
    /// The bucket.
    pub bucket: String,
    /// The key.
    pub key: String,
    /// What is said of the object.
    pub attributes: ObjectAttributes,
    /// Conditions.
    pub condition: WriteCondition,
    /// Another profile than that of its storage class, or of the bucket.
    pub profile: Option<Profile>,
    /// The body's length in bytes, if it was announced; verified.
    pub content_len: Option<u64>,
    /// What to verify and keep.
    pub digests: ExpectedDigests,
    /// The bytes.
    pub body: Box<dyn PutBody>,
}

/// A get.
#[derive(Clone, Debug, Default)]
pub struct GetRequest {
    /// The bucket.
    pub bucket: String,
    /// The key.
    pub key: String,
    /// Conditions.
    pub condition: ReadCondition,
    /// Which part.
    pub range: ReadRange,
    /// Bytes that the receiver's connection has taken until now. The more, the larger the parts that it is given while
    /// memory is short.
    pub taken: u64,
}

/// An object's bytes: ready pieces in order. Ends with an error, never short, when they cannot be had.
pub type ObjectStream = BoxStream<'static, Result<Bytes, ClientError>>;

/// An opened object.
pub struct GetObject {
    /// The object.
    pub info: ObjectInfo,
    /// The bytes that follow.
    pub range: Range<u64>,
    /// The bytes.
    pub body: ObjectStream,
    /// The revision of the row that they were found by.
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
    /// `Some`: REPLACE the attributes with these; `None`: copy them.
    pub attributes: Option<ObjectAttributes>,
    /// `Some`: replace the tags with these.
    pub tags: Option<BTreeMap<String, String>>,
    /// The copy's storage class where attributes are copied: never the source's. `None` for the default one.
    pub storage_class: Option<String>,
    /// The copy's website redirect where attributes are copied: never the source's.
    pub website_redirect: Option<String>,
    /// Conditions on the destination.
    pub condition: WriteCondition,
    /// A checksum to compute and keep; otherwise the source's full-object checksums are kept.
    pub checksum: Option<Algorithm>,
    /// Another profile than that of its storage class, or of the destination bucket.
    pub profile: Option<Profile>,
    /// Access key of the owner of the copy.
    pub owner: String,
}

/// A listing of current objects, S3's semantics.
#[derive(Clone, Debug, Default)]
pub struct ListRequest {
    /// The bucket.
    pub bucket: String,
    /// Only keys that start with this.
    pub prefix: String,
    /// Roll up keys that contain this after the prefix; empty for none.
    pub delimiter: String,
    /// Only keys (and common prefixes) after this.
    pub after: String,
    /// At most so many objects and common prefixes together.
    pub max_keys: usize,
}

/// One page of a listing.
#[derive(Clone, Debug, Default)]
pub struct ListPage {
    /// Objects in key order.
    pub objects: Vec<ObjectInfo>,
    /// Common prefixes in order.
    pub common_prefixes: Vec<String>,
    /// `Some`: there is more; pass it as [`ListRequest::after`].
    pub next: Option<String>,
}

/// The beginning of a multipart upload.
#[derive(Clone, Debug, Default)]
pub struct CreateUpload {
    /// The bucket.
    pub bucket: String,
    /// The key.
    pub key: String,
    /// What is said of the object to be.
    pub attributes: ObjectAttributes,
    /// Another profile than that of its storage class, or of the bucket.
    pub profile: Option<Profile>,
    /// The checksum algorithm, if one was named.
    pub checksum: Option<Algorithm>,
    /// True for a FULL_OBJECT checksum, false for COMPOSITE.
    pub full_object_checksum: bool,
    /// Access key of the initiator.
    pub initiator: String,
}

/// A multipart upload.
#[derive(Clone, Debug, PartialEq)]
pub struct UploadInfo {
    /// The id, as users see it (hexadecimal).
    pub id: String,
    /// The key.
    pub key: String,
    /// Since the Unix epoch, in milliseconds.
    pub created_unix_ms: u64,
    /// What is said of the object to be.
    pub attributes: ObjectAttributes,
    /// The checksum algorithm, if one was named.
    pub checksum: Option<Algorithm>,
    /// True for a FULL_OBJECT checksum.
    pub full_object_checksum: bool,
    /// Access key of the initiator.
    pub initiator: String,
}

/// A part to be uploaded.
pub struct UploadPartRequest {
    /// The bucket.
    pub bucket: String,
    /// The key.
    pub key: String,
    /// The upload's id.
    pub upload: String,
    /// From 1 to 10,000.
    pub number: u32,
    /// The body's length in bytes, if it was announced; verified.
    pub content_len: Option<u64>,
    /// What to verify and keep.
    pub digests: ExpectedDigests,
    /// The bytes.
    pub body: Box<dyn PutBody>,
}

/// A part that is copied from an object.
#[derive(Clone, Debug, Default)]
pub struct CopyPartRequest {
    /// The bucket.
    pub bucket: String,
    /// The key.
    pub key: String,
    /// The upload's id.
    pub upload: String,
    /// From 1 to 10,000.
    pub number: u32,
    /// Source bucket.
    pub source_bucket: String,
    /// Source key.
    pub source_key: String,
    /// Which part of the source.
    pub source_range: ReadRange,
    /// `x-amz-copy-source-if-*`.
    pub source_condition: ReadCondition,
}

/// An uploaded part.
#[derive(Clone, Debug, PartialEq)]
pub struct PartInfo {
    /// Its number.
    pub number: u32,
    /// Bytes.
    pub size: u64,
    /// Without quotes.
    pub etag: String,
    /// Since the Unix epoch, in milliseconds.
    pub modified_unix_ms: u64,
    /// Verified checksums.
    pub checksums: Vec<Checksum>,
}

/// A part as the completing caller names it.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletedPart {
    /// Its number.
    pub number: u32,
    /// Without quotes; empty if the caller named none.
    pub etag: String,
    /// Checksums that must match the part's.
    pub checksums: Vec<Checksum>,
}

/// The end of a multipart upload.
#[derive(Clone, Debug, Default)]
pub struct CompleteUpload {
    /// The bucket.
    pub bucket: String,
    /// The key.
    pub key: String,
    /// The upload's id.
    pub upload: String,
    /// The parts, in ascending order.
    pub parts: Vec<CompletedPart>,
    /// Conditions.
    pub condition: WriteCondition,
    /// The checksum of the whole, if the caller named it.
    pub checksums: Vec<Checksum>,
    /// Whether the caller believes the upload's checksum to be FULL_OBJECT, if it said so.
    pub full_object_checksum: Option<bool>,
    /// The size of the whole, if the caller named it.
    pub size: Option<u64>,
}

/// One page of uploads or parts.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Common prefixes, for uploads listed with a delimiter.
    pub common_prefixes: Vec<String>,
    /// True when there is more after the last item.
    pub truncated: bool,
}

/// A listing of uploads.
#[derive(Clone, Debug, Default)]
pub struct ListUploads {
    /// The bucket.
    pub bucket: String,
    /// Only keys that start with this.
    pub prefix: String,
    /// Roll up keys; empty for none.
    pub delimiter: String,
    /// Only keys after this, or of this key uploads after `after_upload`.
    pub after_key: String,
    /// See `after_key`.
    pub after_upload: String,
    /// At most so many.
    pub max: usize,
}

/// A bucket to be created.
#[derive(Clone, Debug, Default)]
pub struct CreateBucket {
    /// The name.
    pub name: String,
    /// Access key of the owner.
    pub owner: String,
    /// Another profile than the cluster's default.
    pub profile: Option<Profile>,
    /// The region.
    pub region: String,
    /// The largest block in bytes; `None` for the default.
    pub block_len: Option<u32>,
    /// Neighbouring blocks that go to the same sites, at most [`crate::MAX_GROUP_LEN`]; `None` for the default.
    pub group_len: Option<u32>,
    /// Whether its small objects are packed; `None`: as its profile says, or else the store.
    pub packing: Option<Packing>,
    /// Its objects are in this store, and not here.
    pub origin: Option<records::Origin>,
    /// What becomes of what is cold; `None`: nothing.
    pub cold: Option<ColdSetting>,
    /// Storage classes that have profiles of their own.
    pub classes: Vec<ClassSetting>,
}

/// Into which wide stripes a bucket's cold partitions are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColdSetting {
    /// A wide profile.
    pub profile: Profile,
    /// What was not changed for so long is cold.
    pub after: Duration,
    /// It may ask for all racks that there are: then a lost one cannot be rebuilt before it is back.
    pub without_spare_rack: bool,
}

/// What profile a storage class has in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassSetting {
    /// The class.
    pub class: StorageClass,
    /// Its profile, wide or not; `None`: it has none of its own.
    pub profile: Option<Profile>,
    /// A wide one may ask for all racks that there are, as in [`ColdSetting`].
    pub without_spare_rack: bool,
}

/// Limits and defaults of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Profile where a bucket has none.
    pub profile: Profile,
    /// Largest block, in bytes.
    pub block_len: u32,
    /// Neighbouring blocks (of one object, and of keys in one folder that are written one after the other) that go to
    /// the same sites where a bucket does not say; 1: each goes to sites of its own.
    pub group_len: u32,
    /// Blocks of one put that are encoded and written at the same time.
    pub blocks_in_flight: usize,
    /// Least length of all parts of an upload but the last; S3's is [`MIN_PART_LEN`].
    pub min_part_len: u64,
    /// Copies of the metadata that are kept; decides up to which size an object is kept inline in it.
    pub mirrors: usize,
    /// Those of the stripes below.
    pub stripes: StripeOptions,
}

impl Default for ClientOptions {
    /// `rs(4,2)`, blocks of 4 MiB in groups of 8.
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

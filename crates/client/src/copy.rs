//! Copies (design.md §10.13). A copy copies the bytes, except for a self-copy that changes metadata only. A self-copy
//! that changes the storage class re-encodes the bytes if the bucket gives the new class another profile.

use futures::StreamExt;
use striate_core::StorageClass;
use striate_meta::Revision;
use striate_meta::records::{Object, checksum::Algorithm, encode};

use crate::commit::{Change, ChangeOutcome, CommitFailure};
use crate::condition::{check_source, check_write};
use crate::get::Budget;
use crate::object::{ExpectedDigests, MAX_PUT_LEN, ObjectAttributes, ObjectStream, PutBody};
use crate::put::ReplacedVersion;
use crate::record::{self, ShowParts, check_key};
use crate::{Client, ClientError, CopyRequest, GetRequest, ObjectInfo, PutRequest};

/// Maximum number of restarts of a copy because its source was replaced while it was read.
pub(crate) const MAX_RESTARTS: usize = 4;

/// Error of a copy, with the revision of the row whose bytes were being read, if any.
pub(crate) type CopyFailure = (Option<Revision>, ClientError);

/// Bytes of an object as the body of a put.
pub(crate) struct StoredBody(pub(crate) ObjectStream);

#[async_trait::async_trait]
impl PutBody for StoredBody {
    async fn next(&mut self) -> Option<Result<bytes::Bytes, ClientError>> {
        self.0.next().await
    }
}

impl Client {
    /// Copies an object inside the store. A self-copy with new attributes changes metadata only, unless its new
    /// storage class has another profile. New attributes leave the tags alone, and new tags the attributes: the
    /// request replaces only those it has.
    ///
    /// A copy is a single put: its ETag is the MD5 of the bytes, even if the source was uploaded in parts.
    ///
    /// # Errors
    /// [`ClientError::InvalidRequest`] for a self-copy that changes nothing and for sources over 5 GiB;
    /// [`ClientError::NoSuchKey`] and [`ClientError::NoSuchBucket`] of either side; those of the conditions.
    pub async fn copy(&self, request: CopyRequest) -> Result<ObjectInfo, ClientError> {
        check_key(&request.key)?;
        let same = request.source_bucket == request.bucket && request.source_key == request.key;
        if same
            && request.profile.is_none()
            && request.checksum.is_none()
            && let Some(info) = self.replace_description(&request).await?
        {
            return Ok(info);
        }
        for _ in 0..MAX_RESTARTS {
            let failure = match self.copy_bytes(&request).await {
                Ok(info) => return Ok(info),
                Err(failure) => failure,
            };
            self.check_replaced(&request.source_bucket, &request.source_key, failure).await?;
        }
        Err(ClientError::Busy)
    }

    /// Returns `Ok` if a copy failed because its source was replaced while it was read, so that it may start again;
    /// otherwise the copy's error.
    pub(crate) async fn check_replaced(
        &self,
        bucket: &str,
        key: &str,
        (revision, error): CopyFailure,
    ) -> Result<(), ClientError> {
        if matches!(&error, ClientError::Elsewhere(other_bucket) if other_bucket == bucket) {
            let reason =
                format!("the objects of {bucket:?} are in another store: read the source and write it");
            return Err(ClientError::NotForwarded(reason));
        }
        let (Some(revision), ClientError::Inconsistent { .. }) = (revision, &error) else {
            return Err(error);
        };
        match self.current_row(bucket, key).await?.version == revision {
            true => Err(error),
            false => Ok(()),
        }
    }

    /// Streams the source into a put.
    async fn copy_bytes(&self, request: &CopyRequest) -> Result<ObjectInfo, CopyFailure> {
        let current = self.read_current(&request.bucket, &request.key, &request.condition).await;
        let current = current.map_err(|error| (None, error))?;
        let source = GetRequest {
            bucket: request.source_bucket.clone(),
            key: request.source_key.clone(),
            condition: request.source_condition.clone(),
            ..GetRequest::default()
        };
        let source = self.get_with(source, Budget::Readers, None, check_source).await;
        let source = source.map_err(|error| (None, error))?;
        let revision = source.revision;
        // A copy onto itself never replaces an object written meanwhile.
        let same = request.source_bucket == request.bucket && request.source_key == request.key;
        let keeps_tags = request.tags.is_none();
        let replaces = same.then_some(ReplacedVersion { version: source.info.version, keeps_tags });
        if source.info.size > MAX_PUT_LEN {
            let reason = format!("a copy has at most {MAX_PUT_LEN} bytes; copy this object in parts");
            return Err((None, ClientError::InvalidRequest(reason)));
        }
        let digests = digests_of_copy(&source.info, request.checksum);
        let mut attributes = ObjectAttributes {
            storage_class: request.storage_class.clone().unwrap_or_default(),
            website_redirect: request.website_redirect.clone().unwrap_or_default(),
            ..source.info.attributes
        };
        let tags = request.tags.clone().unwrap_or_else(|| std::mem::take(&mut attributes.tags));
        let mut attributes = request.attributes.clone().unwrap_or(attributes);
        (attributes.tags, attributes.owner) = (tags, request.owner.clone());
        let put = PutRequest {
            bucket: request.bucket.clone(),
            key: request.key.clone(),
            attributes,
            condition: request.condition.clone(),
            profile: request.profile,
            content_len: Some(source.info.size),
            digests,
            body: Box::new(StoredBody(source.body)),
        };
        self.put_replacing(replaces, current, put, 2).await.map_err(|error| (Some(revision), error))
    }

    /// Replaces the description of an object by a self-copy; the bytes stay where they are. Returns `None`, with
    /// nothing changed, if the bytes must be re-encoded.
    async fn replace_description(&self, request: &CopyRequest) -> Result<Option<ObjectInfo>, ClientError> {
        check_description(request)?;
        let (version, modified_unix_ms) = (self.new_version().to_vec(), self.now_unix_ms());
        let class = StorageClass::of_row(class_of_copy(request));
        let current = self.read_current(&request.bucket, &request.key, &request.condition).await?;
        let sealed_otherwise = match &current.object {
            Some(old) if self.is_sealed_otherwise(&current.bucket, old, class).await? => old.body.clone(),
            _ => None,
        };
        let (mut described, mut is_recoded) = (None, false);
        let commit =
            self.commit_object(&request.bucket, &request.key, &request.condition, Some(current), |_, now| {
                let old =
                    now.object.clone().ok_or_else(|| ClientError::NoSuchKey(request.source_key.clone()))?;
                let open = |object| {
                    record::open(request.key.clone(), object, self.inner.stripes.profiles(), ShowParts::Yes)
                };
                check_source(&request.source_condition, &open(old.clone())?.0)?;
                check_write(&request.condition, &request.key, now.current())?;
                let is_sealed_otherwise = sealed_otherwise.is_some() && old.body == sealed_otherwise;
                is_recoded = is_sealed_otherwise || self.is_recoded(&now.bucket, &old, class)?;
                if is_recoded {
                    return Ok(Change::Keep);
                }
                let new =
                    Object { version: version.clone().into(), modified_unix_ms, ..redescribed(request, old) };
                let row = encode(&new);
                described = Some(open(new)?.0);
                Ok(Change::Describe(row))
            });
        match commit.await.map_err(CommitFailure::into_error)? {
            ChangeOutcome::Done if is_recoded => Ok(None),
            ChangeOutcome::Done => described.map(Some).ok_or(ClientError::Conflict),
            ChangeOutcome::Fenced => Err(ClientError::Conflict),
        }
    }
}

/// Refuses a self-copy that changes nothing of the description.
fn check_description(request: &CopyRequest) -> Result<(), ClientError> {
    let copied =
        request.tags.is_none() && request.storage_class.is_none() && request.website_redirect.is_none();
    if request.attributes.is_none() && copied {
        return Err(ClientError::InvalidRequest(
            "this copy of an object to itself changes neither its metadata, storage class nor tags"
                .to_owned(),
        ));
    }
    Ok(())
}

/// Returns the record of an object with the description that a self-copy gives it. Its bytes and what describes them
/// stay.
fn redescribed(request: &CopyRequest, old: Object) -> Object {
    let mut new = match &request.attributes {
        Some(attributes) => record::described(attributes.clone()),
        None => Object {
            storage_class: request.storage_class.clone().unwrap_or_default(),
            website_redirect: request.website_redirect.clone().unwrap_or_default(),
            ..old.clone()
        },
    };
    new.tags = request.tags.clone().unwrap_or(old.tags);
    Object {
        owner: request.owner.clone(),
        size: old.size,
        etag: old.etag,
        checksums: old.checksums,
        profile: old.profile,
        body: old.body,
        ..new
    }
}

/// Returns the storage class that a copy asks for.
fn class_of_copy(request: &CopyRequest) -> &str {
    match &request.attributes {
        Some(attributes) => &attributes.storage_class,
        None => request.storage_class.as_deref().unwrap_or_default(),
    }
}

/// Returns the digests to verify and keep of a copy: the requested checksum, otherwise those of the source. A
/// checksum of part checksums becomes one of the whole, since the copy has no parts.
fn digests_of_copy(source: &ObjectInfo, wish: Option<Algorithm>) -> ExpectedDigests {
    let full = source.checksums.iter().filter(|checksum| !checksum.composite);
    let compute = match wish {
        Some(algorithm) => vec![algorithm],
        None => source.checksums.iter().map(|checksum| checksum.algorithm()).collect(),
    };
    let checksums = match wish {
        Some(algorithm) => full.filter(|checksum| checksum.algorithm() == algorithm).cloned().collect(),
        None => full.cloned().collect(),
    };
    // The MD5 of a single put is its ETag; copying verifies it on the way.
    let md5 = match source.parts.is_empty() {
        true => hex::decode(&source.etag).ok().and_then(|md5| md5.try_into().ok()),
        false => None,
    };
    ExpectedDigests { md5, checksums, compute, ..ExpectedDigests::default() }
}

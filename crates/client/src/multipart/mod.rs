//! Multipart uploads.
//!
//! An upload is a row, and every part is a row with its blocks. A part's commit requires the upload's row, so no part
//! is added after the upload's end. Completing names the part rows from the object's row and removes the upload's row
//! ([`complete`]); aborting leaves the part rows to a collector.

mod complete;
mod listing;
mod part;

use striate_meta::records::{Upload, checksum::Algorithm, encode};
use striate_meta::{Row, keys};

use crate::commit::{CommitFailure, abandon_parts};
use crate::record::{self, check_key};
use crate::{Client, ClientError, CreateUpload, UploadInfo, WriteCondition};

/// Attempts of an optimistic change of an upload's row.
const MAX_ATTEMPTS: u32 = 64;

/// Row of an upload as it was read.
struct OpenUpload {
    id: [u8; 16],
    row: Row,
    record: Upload,
}

/// Parses an upload's id; `None` for a malformed one.
fn parse_id(text: &str) -> Option<[u8; 16]> {
    let mut id = [0; 16];
    hex::decode_to_slice(text, &mut id).ok()?;
    Some(id)
}

/// Returns an upload's state for callers.
fn info(key: String, upload: Upload) -> UploadInfo {
    let checksum = match upload.checksum_algorithm() {
        Algorithm::None => None,
        algorithm => Some(algorithm),
    };
    UploadInfo {
        id: hex::encode(&upload.id),
        key,
        created_unix_ms: upload.created_unix_ms,
        checksum,
        full_object_checksum: upload.full_object_checksum,
        attributes: record::attributes(upload.template.unwrap_or_default()),
        initiator: upload.initiator,
    }
}

impl Client {
    /// Begins an upload.
    ///
    /// # Errors
    /// [`ClientError::NoSuchBucket`]; [`ClientError::InvalidRequest`] for a FULL_OBJECT checksum with an
    /// algorithm that cannot be combined from parts.
    pub async fn create_upload(&self, request: CreateUpload) -> Result<UploadInfo, ClientError> {
        check_key(&request.key)?;
        let algorithm = request.checksum.unwrap_or(Algorithm::None);
        if request.full_object_checksum && matches!(algorithm, Algorithm::Sha1 | Algorithm::Sha256) {
            return Err(ClientError::InvalidRequest(
                "FULL_OBJECT checksums of multipart uploads are CRCs; SHA-1 and SHA-256 are COMPOSITE"
                    .to_owned(),
            ));
        }
        let mut id = [0; 16];
        self.inner.runtime.fill_secret(&mut id);
        for attempt in 0..MAX_ATTEMPTS {
            let now = self.read_current(&request.bucket, &request.key, &WriteCondition::default()).await?;
            let mut template = record::described(request.attributes.clone());
            let profile = self.profile_for(request.profile, template.class(), &now.bucket)?;
            if request.profile.is_some() {
                self.check_placeable(&profile).await?;
            }
            template.profile = profile.to_string();
            let upload = Upload {
                id: id.to_vec().into(),
                created_unix_ms: self.now_unix_ms(),
                owner: template.owner.clone(),
                template: Some(template),
                checksum_algorithm: algorithm.into(),
                full_object_checksum: request.full_object_checksum || algorithm == Algorithm::Crc64nvme,
                initiator: request.initiator.clone(),
                completing: false,
                block_len: self.block_len_for(&now.bucket),
                group_len: self.group_len_for(&now.bucket),
            };
            let mut tx = self.transaction();
            tx.require_unchanged(now.bucket_row.key.clone(), Some(&now.bucket_row));
            tx.put(keys::upload(&request.bucket, &request.key, &id), encode(&upload));
            if self.commit_rows(tx).await.map_err(CommitFailure::into_error)? {
                return Ok(info(request.key, upload));
            }
            self.back_off(attempt).await;
        }
        Err(ClientError::Conflict)
    }

    /// Returns the upload's state.
    ///
    /// # Errors
    /// [`ClientError::NoSuchBucket`]; [`ClientError::NoSuchUpload`].
    pub async fn upload(&self, bucket: &str, key: &str, upload: &str) -> Result<UploadInfo, ClientError> {
        let upload = self.open_upload(bucket, key, upload).await?;
        Ok(info(key.to_owned(), upload.record))
    }

    async fn open_upload(&self, bucket: &str, key: &str, upload: &str) -> Result<OpenUpload, ClientError> {
        if let Some(id) = parse_id(upload)
            && let Some(row) = self.inner.meta.get(&keys::upload(bucket, key, &id)).await?
        {
            return Ok(OpenUpload { id, record: row.record()?, row });
        }
        self.bucket_here(bucket).await?;
        Err(ClientError::NoSuchUpload(upload.to_owned()))
    }

    /// Aborts an upload and its parts. Once it returns, no part is visible; a collector later makes the parts' chunks
    /// garbage.
    ///
    /// # Errors
    /// [`ClientError::NoSuchUpload`], also when it was completed meanwhile.
    pub async fn abort_upload(&self, bucket: &str, key: &str, upload: &str) -> Result<(), ClientError> {
        self.abort_upload_of(bucket, key, upload, None).await
    }

    /// Aborts an upload as [`abort_upload`](Self::abort_upload) does, if it was initiated in the second `initiated`
    /// (Unix time).
    ///
    /// # Errors
    /// [`ClientError::NoSuchUpload`]; [`ClientError::PreconditionFailed`].
    pub async fn abort_upload_of(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        initiated: Option<u64>,
    ) -> Result<(), ClientError> {
        for attempt in 0..MAX_ATTEMPTS {
            let open = self.open_upload(bucket, key, upload).await?;
            if initiated.is_some_and(|seconds| seconds != open.record.created_unix_ms / 1_000) {
                return Err(ClientError::PreconditionFailed("x-amz-if-match-initiated-time"));
            }
            let mut tx = self.transaction();
            tx.require_unchanged(open.row.key.clone(), Some(&open.row));
            tx.delete(open.row.key.clone());
            abandon_parts(&mut tx, &open.id, Vec::new());
            if self.commit_rows(tx).await.map_err(CommitFailure::into_error)? {
                return Ok(());
            }
            self.back_off(attempt).await;
        }
        Err(ClientError::Conflict)
    }
}

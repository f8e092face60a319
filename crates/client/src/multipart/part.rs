//! Parts of an upload.

use striate_meta::records::{Checksum, UploadPart, checksum::Algorithm, encode};
use striate_meta::{MetaError, Row, Transaction, keys};
use striate_stripe::{Invalidation, Neighbours};

use super::OpenUpload;
use crate::commit::{CommitFailure, TransactionOutcome};
use crate::condition::check_source;
use crate::copy::{CopyFailure, MAX_RESTARTS, StoredBody};
use crate::digest::{DEFAULT_CHECKSUM, algorithm_name};
use crate::get::Budget;
use crate::ingest::{BodyLocation, Ingest};
use crate::object::{EtagSource, ExpectedDigests, MAX_PART_NUMBER, MAX_PUT_LEN, PutBody};
use crate::{Client, ClientError, CopyPartRequest, GetRequest, PartInfo, UploadPartRequest};

/// Destination of a part.
struct Target {
    bucket: String,
    key: String,
    upload: String,
    number: u32,
}

/// A body that becomes a part.
struct Source {
    /// Whether the caller sends the bytes, and so must send the checksum that the upload promised.
    is_sent: bool,
    content_len: Option<u64>,
    digests: ExpectedDigests,
    body: Box<dyn PutBody>,
    /// Shares of the byte budget for each block.
    shares: usize,
}

/// Returns a part's state for callers.
pub(super) fn info(part: UploadPart) -> PartInfo {
    PartInfo {
        number: part.number,
        size: part.size,
        etag: part.etag,
        modified_unix_ms: part.modified_unix_ms,
        checksums: part.checksums,
    }
}

impl Client {
    /// Stores a part, replacing one with the same number.
    ///
    /// # Errors
    /// [`ClientError::NoSuchUpload`], also when the upload ends before the part does; and those of a put.
    pub async fn upload_part(&self, request: UploadPartRequest) -> Result<PartInfo, ClientError> {
        let target = Target {
            bucket: request.bucket,
            key: request.key,
            upload: request.upload,
            number: request.number,
        };
        let (content_len, digests, body) = (request.content_len, request.digests, request.body);
        self.store_part(target, Source { is_sent: true, content_len, digests, body, shares: 1 }).await
    }

    /// Stores a part copied from an object.
    ///
    /// # Errors
    /// Errors of [`Client::upload_part`] and of a read of the source.
    pub async fn copy_part(&self, request: CopyPartRequest) -> Result<PartInfo, ClientError> {
        for _ in 0..MAX_RESTARTS {
            let failure = match self.copy_part_once(&request).await {
                Ok(part) => return Ok(part),
                Err(failure) => failure,
            };
            self.check_replaced(&request.source_bucket, &request.source_key, failure).await?;
        }
        Err(ClientError::Busy)
    }

    async fn copy_part_once(&self, request: &CopyPartRequest) -> Result<PartInfo, CopyFailure> {
        let source = GetRequest {
            bucket: request.source_bucket.clone(),
            key: request.source_key.clone(),
            condition: request.source_condition.clone(),
            range: request.source_range,
            ..GetRequest::default()
        };
        let source = self.get_with(source, Budget::Readers, None, check_source).await;
        let source = source.map_err(|error| (None, error))?;
        let len = source.range.end - source.range.start;
        if len > MAX_PUT_LEN {
            let reason = format!("a part has at most {MAX_PUT_LEN} bytes; name a range of the source");
            return Err((None, ClientError::InvalidRequest(reason)));
        }
        let target = Target {
            bucket: request.bucket.clone(),
            key: request.key.clone(),
            upload: request.upload.clone(),
            number: request.number,
        };
        let revision = source.revision;
        let body = Box::new(StoredBody(source.body));
        let digests = ExpectedDigests::default();
        let source = Source { is_sent: false, content_len: Some(len), digests, body, shares: 2 };
        let stored = self.store_part(target, source).await;
        stored.map_err(|error| (Some(revision), error))
    }

    async fn store_part(&self, target: Target, source: Source) -> Result<PartInfo, ClientError> {
        if !(1..=MAX_PART_NUMBER).contains(&target.number) {
            let reason = format!("a part's number is from 1 to {MAX_PART_NUMBER}, not {}", target.number);
            return Err(ClientError::InvalidArgument(reason));
        }
        let upload = self.open_upload(&target.bucket, &target.key, &target.upload).await?;
        if source.is_sent {
            check_promised(&upload, &source.digests)?;
        }
        let mut digests = ExpectedDigests { etag: EtagSource::Md5, ..source.digests };
        match upload.record.checksum_algorithm() {
            Algorithm::None if digests.checksums.is_empty() && digests.compute.is_empty() => {
                digests.compute.push(DEFAULT_CHECKSUM);
            }
            Algorithm::None => {}
            algorithm => digests.compute.push(algorithm),
        }
        let template = upload.record.template.as_ref();
        let how = Ingest {
            profile: self
                .inner
                .stripes
                .profiles()
                .parse(template.map_or("", |template| &template.profile))?,
            block_len: upload.record.block_len.max(1),
            neighbours: Neighbours::new(&target.bucket, &target.key, upload.record.group_len),
            inline_limit: 0,
            content_len: source.content_len,
            digests,
            shares: source.shares,
        };
        let ingested = self.ingest(source.body, how).await?;
        let mut stored = ingested.stored;
        let part = UploadPart {
            number: target.number,
            size: ingested.size,
            etag: ingested.digests.etag(&[]),
            modified_unix_ms: self.now_unix_ms(),
            checksums: ingested.digests.checksums,
            body: Some(stored.part_body()),
        };
        let client = self.clone();
        let commit = async move {
            let outcome = match stored.committing().await {
                Ok(()) => client.commit_part(&target, upload, &part, &stored).await,
                Err(error) => Err(error.into()),
            };
            stored.settle(outcome).await?;
            Ok(info(part))
        };
        self.finish_regardless(commit).await
    }

    async fn commit_part(
        &self,
        target: &Target,
        upload: OpenUpload,
        part: &UploadPart,
        stored: &BodyLocation,
    ) -> Result<(), CommitFailure> {
        let keys = [upload.row.key.clone(), keys::part(&upload.id, target.number)];
        let value = encode(part);
        for attempt in 0..super::MAX_ATTEMPTS {
            let mut rows = self.inner.meta.get_many(&keys).await?.into_iter();
            let (upload_row, old) = (rows.next().flatten(), rows.next().flatten());
            let upload_row = upload_row.ok_or_else(|| ClientError::NoSuchUpload(target.upload.to_owned()))?;
            let mut tx = self.transaction();
            tx.require_unchanged(keys[0].clone(), Some(&upload_row));
            tx.require_unchanged(keys[1].clone(), old.as_ref());
            stored.name(&mut tx);
            let session = 2..tx.preconditions.len();
            tx.put(keys[1].clone(), value.clone());
            unmark(&mut tx, &upload_row)?;
            let old: Option<UploadPart> = old.as_ref().map(Row::record).transpose()?;
            if let Some(old) = &old {
                self.inner.stripes.release_part(&mut tx, old).await?;
            }
            match self.submit(tx).await? {
                TransactionOutcome::Done => {
                    if let Some(old) = &old {
                        self.inner.stripes.forget_part(old, Invalidation::Overwritten);
                    }
                    return Ok(());
                }
                TransactionOutcome::Conflict { failed } if session.contains(&failed) => {
                    return Err(stored.fenced());
                }
                TransactionOutcome::Conflict { .. } => {}
                TransactionOutcome::Unsure => return self.look_for_part(&keys[1], &value).await,
            }
            self.back_off(attempt).await;
        }
        Err(ClientError::Conflict.into())
    }

    /// Checks whether a part exists after a commit that may have happened.
    async fn look_for_part(&self, key: &bytes::Bytes, value: &bytes::Bytes) -> Result<(), CommitFailure> {
        let unknown = |error: MetaError| CommitFailure { error: error.into(), unknown: true };
        match self.inner.meta.get(key).await.map_err(unknown)? {
            Some(row) if row.value == *value => Ok(()),
            _ => {
                Err(unknown(MetaError::UnknownOutcome("a part was replaced or its upload ended".to_owned())))
            }
        }
    }
}

/// Checks that a part comes with the checksum that its upload was begun with, if with any. The whole's COMPOSITE
/// checksum is one of those that the sender computed, so there each part needs its own; a FULL_OBJECT one can be
/// computed here.
///
/// # Errors
/// [`ClientError::InvalidRequest`].
fn check_promised(upload: &OpenUpload, sent: &ExpectedDigests) -> Result<(), ClientError> {
    let promised = upload.record.checksum_algorithm();
    let mut sent = sent.checksums.iter().map(Checksum::algorithm).chain(sent.compute.iter().copied());
    let mismatch = |actual: &str| {
        ClientError::InvalidRequest(format!(
            "Checksum Type mismatch occurred, expected checksum Type: {}, actual checksum Type: {actual}",
            algorithm_name(promised).to_ascii_lowercase()
        ))
    };
    match (promised, sent.next()) {
        (Algorithm::None, _) => Ok(()),
        (_, None) if upload.record.full_object_checksum => Ok(()),
        (_, None) => Err(mismatch("null")),
        (promised, Some(sent)) if sent == promised => Ok(()),
        (_, Some(sent)) => Err(mismatch(&algorithm_name(sent).to_ascii_lowercase())),
    }
}

/// Removes the mark of a completion, so that it examines the parts again.
fn unmark(tx: &mut Transaction, row: &Row) -> Result<(), MetaError> {
    let mut upload: striate_meta::records::Upload = row.record()?;
    if upload.completing {
        upload.completing = false;
        tx.put(row.key.clone(), encode(&upload));
    }
    Ok(())
}

/// Whether all of `expected` are among `checksums`.
pub(super) fn has_checksums(checksums: &[Checksum], expected: &[Checksum]) -> bool {
    let has = |expected: &Checksum| {
        let mut same = checksums.iter().filter(|checksum| checksum.algorithm == expected.algorithm);
        same.any(|checksum| checksum.value == expected.value)
    };
    expected.iter().all(has)
}

//! Completes a multipart upload: its parts become an object.
//!
//! 1. The upload's row is *marked*. A part stored later removes the mark in its own commit.
//! 2. The part rows are read page by page, checked against the caller's list, and digested into the ETag, the
//!    checksum and the runs of [`UploadedParts`].
//! 3. One commit removes the upload's row, which it requires as it was marked, and writes the object's row. So the
//!    parts are exactly those that were checked. Parts that the caller left out are abandoned.
//!
//! The mark excludes no other operation: two completions, a completion and an abort, or a part may race, and the
//! upload's row decides which wins. A mark left by a dead completer has no effect. A completion repeated after its
//! success finds the object that names its upload, and succeeds again.

use striate_meta::records::{
    Checksum, Object, PartRun, UploadPart, UploadedParts, checksum::Algorithm, encode, object::Body,
};
use striate_meta::{Precondition, RowPages, ScanRange, keys};

use super::{OpenUpload, parse_id, part};
use crate::commit::{Change, ChangeOutcome, CommitFailure, NewVersion, abandon_parts};
use crate::condition::check_write;
use crate::digest::{MultipartDigests, algorithm_name, verify_whole};
use crate::object::{MAX_OBJECT_LEN, MAX_PART_NUMBER};
use crate::record::{self, ShowParts};
use crate::{Client, ClientError, CompleteUpload, CompletedPart, ObjectInfo};

/// Number of part rows read at once.
const PAGE: usize = 500;

/// Parts of an upload, checked and combined.
struct CheckedParts {
    size: u64,
    runs: Vec<PartRun>,
    etag: String,
    checksum: Option<Checksum>,
    /// Numbers of parts that the caller left out.
    left_out: Vec<u32>,
}

impl Client {
    /// Makes the parts an object. Succeeds again when repeated.
    ///
    /// # Errors
    /// [`ClientError::InvalidPart`], [`ClientError::InvalidPartOrder`], [`ClientError::EntityTooSmall`],
    /// [`ClientError::NoSuchUpload`], [`ClientError::BadDigest`], and those of the conditions. The upload
    /// stays as it was.
    pub async fn complete_upload(&self, request: CompleteUpload) -> Result<ObjectInfo, ClientError> {
        check_order(&request.parts)?;
        for attempt in 0..super::MAX_ATTEMPTS {
            let upload = match self.open_upload(&request.bucket, &request.key, &request.upload).await {
                Ok(upload) => upload,
                Err(error @ ClientError::NoSuchUpload(_)) => {
                    return self.completed_before(&request).await?.ok_or(error);
                }
                Err(error) => return Err(error),
            };
            let Some(upload) = self.mark(upload).await? else { continue };
            let checked = self.check_parts(&upload, &request).await?;
            if let Some(object) = self.flip(&upload, checked, &request).await? {
                return Ok(
                    record::open(request.key, object, self.inner.stripes.profiles(), ShowParts::Yes)?.0
                );
            }
            self.back_off(attempt).await;
        }
        Err(ClientError::Conflict)
    }

    /// Returns the object made by an earlier, successful call with the same parts, if it is still current.
    async fn completed_before(&self, request: &CompleteUpload) -> Result<Option<ObjectInfo>, ClientError> {
        let object = match self.current_object(&request.bucket, &request.key).await {
            Ok(object) => object,
            Err(ClientError::NoSuchKey(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(Body::Uploaded(uploaded)) = &object.body else { return Ok(None) };
        let numbers = uploaded.runs.iter().flat_map(|run| (0..run.count).map(move |i| run.first_number + i));
        let same_parts = numbers.eq(request.parts.iter().map(|part| part.number));
        if !same_parts || parse_id(&request.upload).is_none_or(|id| uploaded.upload != id[..]) {
            return Ok(None);
        }
        Ok(Some(record::open(request.key.clone(), object, self.inner.stripes.profiles(), ShowParts::Yes)?.0))
    }

    /// Marks the upload. Returns `None` if it changed or ended meanwhile.
    async fn mark(&self, mut upload: OpenUpload) -> Result<Option<OpenUpload>, ClientError> {
        if upload.record.completing {
            return Ok(Some(upload));
        }
        upload.record.completing = true;
        let mut tx = self.transaction();
        tx.require_unchanged(upload.row.key.clone(), Some(&upload.row));
        tx.put(upload.row.key.clone(), encode(&upload.record));
        if !self.commit_rows(tx).await.map_err(CommitFailure::into_error)? {
            return Ok(None);
        }
        let Some(row) = self.inner.meta.get(&upload.row.key).await? else { return Ok(None) };
        upload.record = row.record()?;
        upload.row = row;
        Ok(upload.record.completing.then_some(upload))
    }

    async fn check_parts(
        &self,
        upload: &OpenUpload,
        request: &CompleteUpload,
    ) -> Result<CheckedParts, ClientError> {
        let (algorithm, full) = checksum_of(upload, request)?;
        check_listed(algorithm, full, &request.parts)?;
        let mut checker = Checker {
            named_parts: &request.parts,
            min_part_len: self.inner.options.min_part_len,
            digests: match algorithm {
                Algorithm::None => MultipartDigests::with_default(),
                algorithm => MultipartDigests::new(algorithm, full),
            },
            size: 0,
            runs: Vec::new(),
            left_out: Vec::new(),
        };
        let mut pages = RowPages::new(ScanRange::prefix(&keys::parts(&upload.id)), PAGE);
        while let Some(page) = pages.next(&*self.inner.meta).await? {
            for row in &page {
                checker.add(row.record()?)?;
            }
        }
        let checked = checker.finish()?;
        if request.size.is_some_and(|size| size != checked.size) {
            let reason = format!("the parts have {} bytes, not the size that was given", checked.size);
            return Err(ClientError::InvalidRequest(reason));
        }
        verify_whole(&request.checksums, checked.checksum.as_ref())?;
        Ok(checked)
    }

    /// Commits the object. Returns `None` if the upload changed or ended meanwhile.
    async fn flip(
        &self,
        upload: &OpenUpload,
        checked: CheckedParts,
        request: &CompleteUpload,
    ) -> Result<Option<Object>, ClientError> {
        let uploaded = UploadedParts { upload: upload.record.id.clone(), runs: checked.runs };
        let object = Object {
            version: self.new_version().to_vec().into(),
            size: checked.size,
            modified_unix_ms: self.now_unix_ms(),
            etag: checked.etag,
            checksums: checked.checksum.into_iter().collect(),
            body: Some(Body::Uploaded(uploaded)),
            ..upload.record.template.clone().unwrap_or_default()
        };
        let new = NewVersion::of(&object);
        let commit =
            self.commit_object(&request.bucket, &request.key, &request.condition, None, |tx, now| {
                check_write(&request.condition, &request.key, now.current())?;
                tx.require(Precondition::Version(upload.row.key.clone(), upload.row.version));
                tx.delete(upload.row.key.clone());
                if !checked.left_out.is_empty() {
                    abandon_parts(tx, &upload.id, checked.left_out.clone());
                }
                Ok(Change::Replace(new.clone()))
            });
        match commit.await.map_err(CommitFailure::into_error)? {
            ChangeOutcome::Done => Ok(Some(object)),
            ChangeOutcome::Fenced => Ok(None),
        }
    }
}

/// Returns the algorithm of the whole's checksum, and whether it is FULL_OBJECT. Takes the upload's; for an upload
/// without one, the caller's, if all parts came with it.
fn checksum_of(upload: &OpenUpload, request: &CompleteUpload) -> Result<(Algorithm, bool), ClientError> {
    let chosen = match (upload.record.checksum_algorithm(), request.checksums.first()) {
        (Algorithm::None, Some(announced)) => (announced.algorithm(), !announced.composite),
        (algorithm, _) => (algorithm, upload.record.full_object_checksum),
    };
    let name = |full| if full { "FULL_OBJECT" } else { "COMPOSITE" };
    match request.full_object_checksum {
        Some(full) if chosen.0 != Algorithm::None && full != chosen.1 => Err(ClientError::InvalidRequest(
            format!("the upload's checksum is of the type {}, not {}", name(chosen.1), name(full)),
        )),
        _ => Ok(chosen),
    }
}

/// Checks the checksums that the caller lists for parts of a COMPOSITE upload: for all of them, or, as programs do that
/// know only ETags, for none.
fn check_listed(algorithm: Algorithm, full: bool, parts: &[CompletedPart]) -> Result<(), ClientError> {
    let is_listed = |part: &CompletedPart| part.checksums.iter().any(|sum| sum.algorithm() == algorithm);
    if algorithm == Algorithm::None || full || parts.iter().all(|part| part.checksums.is_empty()) {
        return Ok(());
    }
    match parts.iter().find(|part| !is_listed(part)) {
        None => Ok(()),
        Some(part) => Err(ClientError::InvalidRequest(format!(
            "The upload was created using a {} checksum. The complete request must include the checksum for each \
             part. It was missing for part {} in the request.",
            algorithm_name(algorithm).to_ascii_lowercase(),
            part.number
        ))),
    }
}

/// Checks the list of parts without reading them.
fn check_order(parts: &[CompletedPart]) -> Result<(), ClientError> {
    if parts.is_empty() || parts.len() > MAX_PART_NUMBER as usize {
        let reason = format!("an upload is completed from 1 to {MAX_PART_NUMBER} parts, not {}", parts.len());
        return Err(ClientError::InvalidRequest(reason));
    }
    match parts.windows(2).all(|pair| pair[0].number < pair[1].number) {
        true => Ok(()),
        false => Err(ClientError::InvalidPartOrder),
    }
}

/// Compares the part rows, in order, with the parts that the caller named.
struct Checker<'a> {
    /// Named parts not seen yet.
    named_parts: &'a [CompletedPart],
    min_part_len: u64,
    digests: MultipartDigests,
    size: u64,
    runs: Vec<PartRun>,
    left_out: Vec<u32>,
}

impl Checker<'_> {
    fn add(&mut self, row: UploadPart) -> Result<(), ClientError> {
        let number = row.number;
        let invalid = |reason: String| ClientError::InvalidPart { number, reason };
        let Some((named, rest)) = self.named_parts.split_first().filter(|(named, _)| named.number <= number)
        else {
            self.left_out.push(number);
            return Ok(());
        };
        if named.number < number {
            return Err(missing(named.number));
        }
        self.named_parts = rest;
        if !named.etag.is_empty() && named.etag != row.etag {
            return Err(invalid(format!("its ETag is {}, not {}", row.etag, named.etag)));
        }
        let is_kept = |named: &Checksum| row.checksums.iter().any(|kept| kept.algorithm == named.algorithm);
        if let Some(foreign) = named.checksums.iter().find(|named| !is_kept(named)) {
            let name = algorithm_name(foreign.algorithm());
            return Err(ClientError::BadDigest(format!("{name}: part {number} has none")));
        }
        if !part::has_checksums(&row.checksums, &named.checksums) {
            return Err(invalid("its checksum differs from the one that was given".to_owned()));
        }
        if !rest.is_empty() && row.size < self.min_part_len {
            return Err(ClientError::EntityTooSmall { number, size: row.size });
        }
        self.size += row.size;
        if self.size > MAX_OBJECT_LEN {
            return Err(ClientError::EntityTooLarge { limit: MAX_OBJECT_LEN });
        }
        self.digests.add(&row.etag, row.size, &row.checksums).map_err(invalid)?;
        match self.runs.last_mut() {
            Some(run) if run.size == row.size && run.first_number + run.count == number => run.count += 1,
            _ => self.runs.push(PartRun { first_number: number, count: 1, size: row.size }),
        }
        Ok(())
    }

    fn finish(self) -> Result<CheckedParts, ClientError> {
        if let Some(part) = self.named_parts.first() {
            return Err(missing(part.number));
        }
        let (etag, checksum) = self.digests.finish();
        Ok(CheckedParts { size: self.size, runs: self.runs, etag, checksum, left_out: self.left_out })
    }
}

fn missing(number: u32) -> ClientError {
    ClientError::InvalidPart { number, reason: "it was not uploaded".to_owned() }
}

//! Multipart uploads.

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};
use striate_client::{
    CompleteUpload, CopyPartRequest, CreateUpload, GetRequest, ListUploads, MAX_PART_NUMBER, Page, PartInfo,
    ReadRange, UploadInfo, UploadPartRequest,
};

use super::attributes::{attribute_fields, refuse_unsupported};
use super::bucket::owner;
use super::copy::{copy_failure, source_of};
use super::put::{Upload, content_len, digests_of};
use super::{
    AuthorisedRequest, Translator, etag, etags_of, not_implemented, page_size, profile_of, read_condition,
    timestamp, unix_seconds, write_condition,
};
use crate::address::{Endpoint, percent_encode};
use crate::authorize::Resource;
use crate::checksum::{self, checksum_fields, set_checksum_fields};
use crate::refusal::Refusal;

/// Checks the number of a part, from 1 to 10,000.
pub(super) fn part_number(number: i32) -> Result<u32, Refusal> {
    let number = u32::try_from(number).ok().filter(|number| (1..=MAX_PART_NUMBER).contains(number));
    let message = "Part number must be an integer between 1 and 10000, inclusive";
    number.ok_or_else(|| Refusal::bad("InvalidArgument", message))
}

fn initiator(upload: &UploadInfo) -> Initiator {
    Initiator { display_name: Some(upload.initiator.clone()), id: owner().id }
}

fn class_of(upload: &UploadInfo) -> StorageClass {
    let class = &upload.attributes.storage_class;
    StorageClass::from(if class.is_empty() { "STANDARD".to_owned() } else { class.clone() })
}

/// Parses `bytes=first-last` with both ends; copies support no other form.
fn copy_range(text: Option<&str>) -> Result<ReadRange, Refusal> {
    let Some(text) = text else { return Ok(ReadRange::Whole) };
    match Range::parse(text) {
        Ok(Range::Int { first, last: Some(last) }) if first <= last => {
            Ok(ReadRange::Bytes { first, last: Some(last) })
        }
        _ => Err(Refusal::bad(
            "InvalidArgument",
            "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are \
             the zero-based offsets of the first and last bytes to copy",
        )),
    }
}

impl Translator {
    pub(super) async fn upload_create(
        &self,
        mut request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let (bucket, key) = (request.input.bucket.clone(), request.input.key.clone());
        let resource = Resource::Object(&bucket, &key);
        let entered = self.enter(&request, "CreateMultipartUpload", resource)?;
        let input = &mut request.input;
        refuse_unsupported!(input)?;
        let checksum = input.checksum_algorithm.as_ref();
        let checksum = checksum.map(|algorithm| checksum::algorithm_named(algorithm.as_str())).transpose()?;
        let wish = input.checksum_type.as_ref();
        let full_object_checksum = match (checksum, wish) {
            (Some(algorithm), wish) => checksum::is_full_object(algorithm, wish)?,
            (None, None) => false,
            (None, Some(_)) => {
                let message = "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.";
                return Err(Refusal::bad("InvalidRequest", message).into());
            }
        };
        let create = CreateUpload {
            bucket: bucket.clone(),
            key: key.clone(),
            attributes: attribute_fields!(input).into_attributes(&entered)?,
            profile: profile_of(&request.headers)?,
            checksum,
            full_object_checksum,
            initiator: entered.identity.access_key.clone(),
        };
        let upload = self.client.create_upload(create).await.map_err(|error| entered.fail(error))?;
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(bucket),
            key: Some(key),
            upload_id: Some(upload.id),
            checksum_algorithm: checksum.and_then(checksum::name_of),
            checksum_type: checksum.map(|_| checksum::type_named(full_object_checksum)),
            ..CreateMultipartUploadOutput::default()
        }))
    }

    pub(super) async fn upload_put(
        &self,
        mut request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        let (bucket, key) = (request.input.bucket.clone(), request.input.key.clone());
        let entered = self.enter(&request, "UploadPart", Resource::Object(&bucket, &key))?;
        let input = &mut request.input;
        if input.sse_customer_key.is_some() {
            return Err(not_implemented("Server-side encryption is not available.").into());
        }
        let fields = checksum_fields!(input);
        let md5 = input.content_md5.as_deref();
        let (digests, announced) = digests_of(&request.headers, fields, md5)?;
        let part = UploadPartRequest {
            bucket,
            key,
            upload: std::mem::take(&mut input.upload_id),
            number: part_number(input.part_number)?,
            content_len: content_len(input.content_length)?,
            digests,
            body: Upload::new(input.body.take(), &entered, announced),
        };
        let part = entered.client.upload_part(part).await.map_err(|error| entered.fail(error))?;
        let mut output = UploadPartOutput { e_tag: Some(etag(part.etag)), ..UploadPartOutput::default() };
        set_checksum_fields!(output, checksum::Fields::of(&part.checksums, 0));
        Ok(S3Response::new(output))
    }

    pub(super) async fn upload_copy(
        &self,
        request: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        let resource = Resource::Object(&request.input.bucket, &request.input.key);
        let entered = self.enter(&request, "UploadPartCopy", resource)?;
        let input = request.input;
        if input.copy_source_sse_customer_key.is_some() || input.sse_customer_key.is_some() {
            return Err(not_implemented("Server-side encryption is not available.").into());
        }
        let (source_bucket, source_key) = source_of(&entered, &input.copy_source)?;
        let source_range = copy_range(input.copy_source_range.as_deref())?;
        if let ReadRange::Bytes { last: Some(last), .. } = source_range {
            self.check_source_end(&entered, &source_bucket, &source_key, last).await?;
        }
        let part = CopyPartRequest {
            bucket: input.bucket,
            key: input.key,
            upload: input.upload_id,
            number: part_number(input.part_number)?,
            source_bucket,
            source_key,
            source_range,
            source_condition: read_condition(
                etags_of(&entered.carried, "x-amz-copy-source-if-match", input.copy_source_if_match),
                etags_of(
                    &entered.carried,
                    "x-amz-copy-source-if-none-match",
                    input.copy_source_if_none_match,
                ),
                input.copy_source_if_modified_since,
                input.copy_source_if_unmodified_since,
            ),
        };
        let part = entered.client.copy_part(part).await.map_err(|error| copy_failure(&entered, error))?;
        let mut result = CopyPartResult {
            e_tag: Some(etag(part.etag)),
            last_modified: Some(timestamp(part.modified_unix_ms)),
            ..CopyPartResult::default()
        };
        set_checksum_fields!(result, checksum::Fields::of(&part.checksums, 0));
        Ok(S3Response::new(UploadPartCopyOutput {
            copy_part_result: Some(result),
            ..UploadPartCopyOutput::default()
        }))
    }

    /// Refuses the range of a copy whose last byte is not in the source.
    async fn check_source_end(
        &self,
        entered: &AuthorisedRequest,
        source_bucket: &str,
        source_key: &str,
        last: u64,
    ) -> S3Result<()> {
        let source = GetRequest {
            bucket: source_bucket.to_owned(),
            key: source_key.to_owned(),
            ..GetRequest::default()
        };
        let (info, _) = self.client.head(source).await.map_err(|error| entered.fail(error))?;
        if last >= info.size {
            let message = format!("Range specified is not valid for source object of size: {}", info.size);
            return Err(Refusal::bad("InvalidArgument", message).into());
        }
        Ok(())
    }

    pub(super) async fn upload_parts(
        &self,
        request: S3Request<ListPartsInput>,
    ) -> S3Result<S3Response<ListPartsOutput>> {
        let resource = Resource::Object(&request.input.bucket, &request.input.key);
        let entered = self.enter(&request, "ListParts", resource)?;
        let input = request.input;
        let max = page_size(input.max_parts, "max-parts")?;
        let after = input.part_number_marker.unwrap_or(0).max(0) as u32;
        let fail = |error| entered.fail(error);
        let upload = self.client.upload(&input.bucket, &input.key, &input.upload_id).await.map_err(fail)?;
        let page = self.client.list_parts(&input.bucket, &input.key, &input.upload_id, after, max);
        let page = page.await.map_err(fail)?;
        let last = page.items.last().map_or(after, |part| part.number);
        Ok(S3Response::new(ListPartsOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            checksum_algorithm: upload.checksum.and_then(checksum::name_of),
            checksum_type: upload.checksum.map(|_| checksum::type_named(upload.full_object_checksum)),
            initiator: Some(initiator(&upload)),
            is_truncated: Some(page.truncated),
            max_parts: Some(max as i32),
            next_part_number_marker: Some(last as i32),
            owner: Some(owner()),
            part_number_marker: Some(after as i32),
            parts: Some(page.items.into_iter().map(shown_part).collect()),
            storage_class: Some(class_of(&upload)),
            upload_id: Some(input.upload_id),
            ..ListPartsOutput::default()
        }))
    }

    pub(super) async fn uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "ListMultipartUploads", resource)?;
        let input = request.input;
        let encoded =
            input.encoding_type.as_ref().is_some_and(|encoding| encoding.as_str() == EncodingType::URL);
        let text = |text: String| if encoded { percent_encode(&text).into_owned() } else { text };
        let max = page_size(input.max_uploads, "max-uploads")?;
        let (key_marker, upload_marker) = (input.key_marker.as_deref(), input.upload_id_marker.as_deref());
        check_upload_marker(key_marker.unwrap_or_default(), upload_marker.unwrap_or_default())?;
        let list = ListUploads {
            bucket: input.bucket.clone(),
            prefix: input.prefix.clone().unwrap_or_default(),
            delimiter: input.delimiter.clone().unwrap_or_default(),
            after_key: input.key_marker.clone().unwrap_or_default(),
            after_upload: input.upload_id_marker.clone().unwrap_or_default(),
            max,
        };
        let page = self.client.list_uploads(list).await.map_err(|error| entered.fail(error))?;
        let (next_key, next_upload) = next_markers(&page).unzip();
        let uploads = page.items.into_iter().map(|upload| shown_upload(upload, text)).collect();
        let prefixes = page.common_prefixes.into_iter().map(|p| CommonPrefix { prefix: Some(text(p)) });
        Ok(S3Response::new(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            common_prefixes: Some(prefixes.collect()),
            delimiter: input.delimiter.filter(|delimiter| !delimiter.is_empty()).map(text),
            is_truncated: Some(page.truncated),
            key_marker: Some(text(input.key_marker.unwrap_or_default())),
            max_uploads: Some(max as i32),
            next_key_marker: next_key.map(text),
            next_upload_id_marker: next_upload,
            prefix: Some(text(input.prefix.unwrap_or_default())),
            upload_id_marker: Some(input.upload_id_marker.unwrap_or_default()),
            uploads: Some(uploads),
            encoding_type: input.encoding_type,
            ..ListMultipartUploadsOutput::default()
        }))
    }

    pub(super) async fn upload_complete(
        &self,
        mut request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let (bucket, key) = (request.input.bucket.clone(), request.input.key.clone());
        let resource = Resource::Object(&bucket, &key);
        let entered = self.enter(&request, "CompleteMultipartUpload", resource)?;
        let input = &mut request.input;
        let named = input.multipart_upload.take().and_then(|named| named.parts).unwrap_or_default();
        if named.is_empty() || named.len() > MAX_PART_NUMBER as usize {
            let message = format!("A multipart upload is completed with 1 to {MAX_PART_NUMBER} parts.");
            return Err(Refusal::bad("MalformedXML", message).into());
        }
        let parts = named.into_iter().map(completed_part).collect::<Result<_, Refusal>>()?;
        let size = input.mpu_object_size.map(u64::try_from).transpose();
        let complete = CompleteUpload {
            bucket: bucket.clone(),
            key: key.clone(),
            upload: std::mem::take(&mut input.upload_id),
            parts,
            condition: write_condition(
                etags_of(&entered.carried, "if-match", input.if_match.take()),
                etags_of(&entered.carried, "if-none-match", input.if_none_match.take()),
            )?,
            checksums: checksum_fields!(input).parse()?,
            full_object_checksum: input
                .checksum_type
                .as_ref()
                .map(|kind| kind.as_str() == ChecksumType::FULL_OBJECT),
            size: size.map_err(|_| {
                Refusal::bad("InvalidRequest", "Value for x-amz-mp-object-size header is invalid.")
            })?,
        };
        let info = self.client.complete_upload(complete).await.map_err(|error| entered.fail(error))?;
        let endpoint = request.extensions.get::<Endpoint>().cloned().unwrap_or_default();
        let mut output = CompleteMultipartUploadOutput {
            location: Some(endpoint.location(&bucket, &key)),
            bucket: Some(bucket),
            key: Some(key),
            checksum_type: checksum::type_of(&info.checksums),
            e_tag: Some(etag(info.etag)),
            ..CompleteMultipartUploadOutput::default()
        };
        set_checksum_fields!(output, checksum::Fields::of(&info.checksums, info.parts.len()));
        Ok(S3Response::new(output))
    }

    pub(super) async fn upload_abort(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let resource = Resource::Object(&request.input.bucket, &request.input.key);
        let entered = self.enter(&request, "AbortMultipartUpload", resource)?;
        let AbortMultipartUploadInput {
            bucket,
            key,
            upload_id,
            if_match_initiated_time,
            expected_bucket_owner: _,
            request_payer: _,
        } = request.input;
        let initiated = if_match_initiated_time.as_ref().map(unix_seconds);
        let aborted = self.client.abort_upload_of(&bucket, &key, &upload_id, initiated).await;
        aborted.map_err(|error| entered.fail(error))?;
        Ok(S3Response::with_status(AbortMultipartUploadOutput::default(), http::StatusCode::NO_CONTENT))
    }
}

/// Checks that an upload's marker is an upload's id. Without a key's marker it is ignored, as in S3.
fn check_upload_marker(key: &str, upload: &str) -> Result<(), Refusal> {
    let is_id = upload.len() == 32 && upload.bytes().all(|byte| byte.is_ascii_hexdigit());
    match key.is_empty() || upload.is_empty() || is_id {
        true => Ok(()),
        false => Err(Refusal::bad("InvalidArgument", "Invalid uploadId marker")),
    }
}

/// Returns the key and the upload after which the next page of a listing starts; `None` after the last page.
fn next_markers(page: &Page<UploadInfo>) -> Option<(String, String)> {
    let last = page.items.last().filter(|_| page.truncated).map(|last| (last.key.clone(), last.id.clone()));
    let last_prefix = page.common_prefixes.last().filter(|_| page.truncated).cloned();
    // The page ends at the later of the last upload and the last prefix.
    match (last, last_prefix) {
        (Some((key, _)), Some(prefix)) if prefix > key => Some((prefix, String::new())),
        (None, Some(prefix)) => Some((prefix, String::new())),
        (last, _) => last,
    }
}

fn shown_upload(upload: UploadInfo, text: impl Fn(String) -> String) -> MultipartUpload {
    MultipartUpload {
        checksum_algorithm: upload.checksum.and_then(checksum::name_of),
        checksum_type: upload.checksum.map(|_| checksum::type_named(upload.full_object_checksum)),
        initiated: Some(timestamp(upload.created_unix_ms)),
        initiator: Some(initiator(&upload)),
        owner: Some(owner()),
        storage_class: Some(class_of(&upload)),
        key: Some(text(upload.key)),
        upload_id: Some(upload.id),
    }
}

fn shown_part(part: PartInfo) -> Part {
    let mut shown = Part {
        e_tag: Some(etag(part.etag)),
        last_modified: Some(timestamp(part.modified_unix_ms)),
        part_number: Some(part.number as i32),
        size: Some(part.size as i64),
        ..Part::default()
    };
    set_checksum_fields!(shown, checksum::Fields::of(&part.checksums, 0));
    shown
}

fn completed_part(mut part: CompletedPart) -> Result<striate_client::CompletedPart, Refusal> {
    let missing = |what: &str| Refusal::bad("MalformedXML", format!("A part has no {what}."));
    let number = part.part_number.ok_or_else(|| missing("number"))?;
    let etag = part.e_tag.take().ok_or_else(|| missing("ETag"))?;
    let checksums = checksum_fields!(part).parse().ok().filter(|checksums| checksums.len() <= 1);
    let checksums = checksums.ok_or_else(|| {
        let message = "Invalid Base64 or multiple checksums present in request";
        Refusal::bad("InvalidArgument", message).with("ArgumentName", "Checksum")
    })?;
    Ok(striate_client::CompletedPart { number: part_number(number)?, checksums, etag: etag.into_value() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_numbers_go_from_one_to_ten_thousand() {
        assert_eq!(part_number(1), Ok(1));
        assert_eq!(part_number(10_000), Ok(10_000));
        for wrong in [i32::MIN, -1, 0, 10_001] {
            assert_eq!(part_number(wrong).unwrap_err().code, "InvalidArgument");
        }
    }

    #[test]
    fn an_uploads_marker_is_an_id_if_it_counts() {
        let id = "0123456789abcdef0123456789abcdef";
        for (key, upload) in [("", "nonsense"), ("k", ""), ("k", id)] {
            assert_eq!(check_upload_marker(key, upload), Ok(()));
        }
        assert_eq!(check_upload_marker("k", "nonsense").unwrap_err().code, "InvalidArgument");
    }

    #[test]
    fn copy_ranges_have_both_ends() {
        let both = ReadRange::Bytes { first: 3, last: Some(9) };
        assert_eq!(copy_range(Some("bytes=3-9")), Ok(both));
        assert_eq!(copy_range(None), Ok(ReadRange::Whole));
        for wrong in ["bytes=3-", "bytes=-9", "3-9", "bytes=9-3", ""] {
            assert_eq!(copy_range(Some(wrong)).unwrap_err().code, "InvalidArgument", "{wrong}");
        }
    }
}

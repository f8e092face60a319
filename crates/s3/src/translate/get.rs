//! GetObject, HeadObject, GetObjectAttributes.

use std::ops::Range as Bounds;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::Stream;
use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use s3s::dto::*;
use s3s::stream::{ByteStream, DynByteStream, RemainingLength};
use s3s::{Body, S3Error, S3Request, S3Response, S3Result, StdError};
use striate_client::{
    ClientError, GetRequest, ObjectInfo, ObjectStream, Page, PartInfo, RangeVersion, ReadCondition,
    ReadRange, wanted_range,
};

use super::{
    AuthorisedRequest, Translator, check_version, etag, etags_of, not_implemented, read_condition, timestamp,
    unix_seconds,
};
use crate::address::percent_decode;
use crate::authorize::Resource;
use crate::checksum::{self, set_checksum_fields};
use crate::gateway::{Instead, UnquotedEtag};
use crate::refusal::Refusal;

/// The body of an object's response, passed on without a copy.
struct ObjectBody {
    /// Never locked: the lock only makes the stream `Sync`, which s3s requires.
    stream: Mutex<ObjectStream>,
    left: u64,
}

/// Returns a response body of exactly `len` bytes from `stream`; if the stream ends early, the body breaks off.
pub fn object_body(stream: ObjectStream, len: u64) -> Body {
    Body::from(Box::pin(ObjectBody { stream: Mutex::new(stream), left: len }) as DynByteStream)
}

impl Stream for ObjectBody {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let piece = ready!(self.stream.get_mut().as_mut().poll_next(cx));
        Poll::Ready(match piece {
            Some(Ok(piece)) => {
                self.left = self.left.saturating_sub(piece.len() as u64);
                Some(Ok(piece))
            }
            Some(Err(error)) => Some(Err(error.into())),
            // Never a short 200: a body that ends early breaks the connection (design.md §10.6).
            None if self.left > 0 => Some(Err(format!("{} bytes are missing", self.left).into())),
            None => None,
        })
    }
}

impl ByteStream for ObjectBody {
    fn remaining_length(&self) -> RemainingLength {
        RemainingLength::new_exact(self.left as usize)
    }
}

/// Returns the range that a request asks for.
fn read_range(range: Option<Range>, part: Option<i32>) -> Result<ReadRange, Refusal> {
    match (range, part) {
        (None, None) => Ok(ReadRange::Whole),
        (Some(Range::Int { first, last }), None) => Ok(ReadRange::Bytes { first, last }),
        (Some(Range::Suffix { length }), None) => Ok(ReadRange::Suffix { len: length }),
        (None, Some(part)) => super::multipart::part_number(part).map(ReadRange::Part),
        (Some(_), Some(_)) => Err(Refusal::bad(
            "InvalidRequest",
            "Cannot specify both Range header and partNumber query parameter",
        )),
    }
}

/// Returns the version that the range of a request is of (`If-Range`).
pub fn range_version(headers: &HeaderMap) -> Option<RangeVersion> {
    let text = headers.get(http::header::IF_RANGE)?.to_str().unwrap_or_default();
    if let Some(etag) = text.strip_prefix('"').and_then(|etag| etag.strip_suffix('"')) {
        return Some(RangeVersion::Etag(etag.to_owned()));
    }
    let date = Timestamp::parse(TimestampFormat::HttpDate, text);
    Some(date.map_or(RangeVersion::Unknown, |date| RangeVersion::ModifiedAt(unix_seconds(&date))))
}

/// Returns `bytes 0-9/100`, for responses to a non-empty range.
pub(crate) fn content_range(answered: &Bounds<u64>, size: u64) -> String {
    format!("bytes {}-{}/{size}", answered.start, answered.end.saturating_sub(1))
}

/// Returns whether the response is partial.
fn is_partial(requested: ReadRange, answered: &Bounds<u64>) -> bool {
    requested != ReadRange::Whole && !answered.is_empty()
}

/// Returns the checksums of what is returned: the object's for all of it, a part's for a part.
fn checksums_of(info: &ObjectInfo, requested: ReadRange, answered: &Bounds<u64>) -> checksum::Fields {
    match requested {
        ReadRange::Part(number) if !info.parts.is_empty() => {
            let part = info.parts.iter().find(|part| part.number == number);
            part.map(|part| checksum::Fields::of(&part.checksums, 0)).unwrap_or_default()
        }
        _ if *answered == (0..info.size) => checksum::Fields::of(&info.checksums, info.parts.len()),
        _ => checksum::Fields::default(),
    }
}

/// Returns the number of parts, if the request asks for one of them.
fn parts_count(info: &ObjectInfo, requested: ReadRange) -> Option<i32> {
    let by_part = matches!(requested, ReadRange::Part(_)) && !info.parts.is_empty();
    by_part.then_some(info.parts.len() as i32)
}

fn wants_checksums(mode: Option<&ChecksumMode>) -> bool {
    mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED)
}

fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn content_type(text: &str) -> String {
    non_empty(text).unwrap_or_else(|| "binary/octet-stream".to_owned())
}

fn storage_class(text: &str) -> Option<StorageClass> {
    non_empty(text).map(StorageClass::from)
}

/// Returns `Expires` as it was sent, even if it is not a date.
fn expires_header(info: &ObjectInfo) -> HeaderMap {
    let value = non_empty(&info.attributes.expires).and_then(|text| HeaderValue::try_from(text).ok());
    value.into_iter().map(|value| (http::header::EXPIRES, value)).collect()
}

/// Returns the value of `response-expires` as it was sent.
fn asked_expires(uri: &http::Uri) -> Option<HeaderValue> {
    let pairs = uri.query()?.split('&').filter_map(|parameter| parameter.split_once('='));
    let (_, value) = pairs.into_iter().find(|(name, _)| *name == "response-expires")?;
    HeaderValue::try_from(percent_decode(&value.replace('+', " "))?).ok()
}

/// Builds the client service's request from what GET and HEAD have in common.
macro_rules! get_request {
    ($input:ident, $carried:expr, $requested:expr, $if_range:expr, $taken_bytes:expr) => {{
        let condition = read_condition(
            etags_of($carried, "if-match", $input.if_match),
            etags_of($carried, "if-none-match", $input.if_none_match),
            $input.if_modified_since,
            $input.if_unmodified_since,
        );
        GetRequest {
            bucket: $input.bucket,
            key: $input.key,
            condition: ReadCondition { if_range: $if_range, ..condition },
            range: $requested,
            taken_bytes: $taken_bytes,
        }
    }};
}

/// Fills in what the responses to GET and HEAD have in common.
macro_rules! describe {
    ($output:ident, $info:expr, $requested:expr, $range:expr, $mode:expr) => {{
        let (info, requested, range): (&ObjectInfo, ReadRange, &Bounds<u64>) = ($info, $requested, $range);
        let attributes = &info.attributes;
        let mut output = $output {
            accept_ranges: Some("bytes".to_owned()),
            cache_control: non_empty(&attributes.cache_control),
            content_disposition: non_empty(&attributes.content_disposition),
            content_encoding: non_empty(&attributes.content_encoding),
            content_language: non_empty(&attributes.content_language),
            content_length: Some((range.end - range.start) as i64),
            content_range: is_partial(requested, range).then(|| content_range(range, info.size)),
            content_type: Some(content_type(&attributes.content_type)),
            e_tag: Some(etag(info.etag.clone())),
            last_modified: Some(timestamp(info.modified_unix_ms)),
            metadata: Some(attributes.user_metadata.clone().into_iter().collect()),
            parts_count: parts_count(info, requested),
            storage_class: storage_class(&attributes.storage_class),
            website_redirect_location: non_empty(&attributes.website_redirect),
            ..$output::default()
        };
        if $mode {
            let fields = checksums_of(info, requested, range);
            if fields != checksum::Fields::default() {
                output.checksum_type = checksum::type_of(&info.checksums);
            }
            set_checksum_fields!(output, fields);
        }
        output
    }};
}

impl Translator {
    pub(super) async fn get(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let resource = Resource::Object(&request.input.bucket, &request.input.key);
        let entered = self.enter(&request, "GetObject", resource)?;
        let if_range = range_version(&request.headers);
        let instead = Instead { expires: asked_expires(&request.uri), ..Instead::default() };
        let input = request.input;
        check_version(input.version_id.as_deref())?;
        refuse_customer_key(input.sse_customer_key.is_some())?;
        let requested = read_range(input.range, input.part_number)?;
        let taken_bytes = entered.carried.taken_bytes;
        let get = get_request!(input, &entered.carried, requested, if_range.clone(), taken_bytes);
        let object = entered.client.get(get).await.map_err(|error| refused(&entered, requested, error))?;
        let (info, range) = (&object.info, &object.range);
        let requested = wanted_range(requested, if_range.as_ref(), info);
        let mode = wants_checksums(input.checksum_mode.as_ref());
        let mut output = describe!(GetObjectOutput, info, requested, range, mode);
        output.tag_count = (!info.attributes.tags.is_empty()).then_some(info.attributes.tags.len() as i32);
        let headers = match input.response_expires {
            Some(_) => HeaderMap::new(),
            None => expires_header(info),
        };
        let left = range.end - range.start;
        output.body = Some(StreamingBlob::new(ObjectBody { stream: Mutex::new(object.body), left }));
        let mut response = S3Response::with_headers(output, headers);
        response.extensions.insert(instead);
        Ok(response)
    }

    pub(super) async fn head(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let resource = Resource::Object(&request.input.bucket, &request.input.key);
        let entered = self.enter(&request, "HeadObject", resource)?;
        let if_range = range_version(&request.headers);
        let instead = Instead { expires: asked_expires(&request.uri), ..Instead::default() };
        let input = request.input;
        check_version(input.version_id.as_deref())?;
        refuse_customer_key(input.sse_customer_key.is_some())?;
        let requested = read_range(input.range, input.part_number)?;
        let get = get_request!(input, &entered.carried, requested, if_range.clone(), 0);
        let (info, range) =
            self.client.head(get).await.map_err(|error| refused(&entered, requested, error))?;
        let requested = wanted_range(requested, if_range.as_ref(), &info);
        let mode = wants_checksums(input.checksum_mode.as_ref());
        let mut output = describe!(HeadObjectOutput, &info, requested, &range, mode);
        let mut headers = expires_header(&info);
        // This s3s has no field for it.
        if !info.attributes.tags.is_empty() {
            headers.insert("x-amz-tagging-count", HeaderValue::from(info.attributes.tags.len()));
        }
        for (name, text, field) in [
            ("cache-control", input.response_cache_control, &mut output.cache_control),
            ("content-disposition", input.response_content_disposition, &mut output.content_disposition),
            ("content-encoding", input.response_content_encoding, &mut output.content_encoding),
            ("content-language", input.response_content_language, &mut output.content_language),
            ("content-type", input.response_content_type, &mut output.content_type),
        ] {
            if let Some(text) = text {
                HeaderValue::try_from(&text).map_err(|_| {
                    Refusal::bad("InvalidRequest", format!("response-{name} is not a header value."))
                })?;
                *field = Some(text);
            }
        }
        if input.response_expires.is_some() {
            headers.remove(http::header::EXPIRES);
        }
        let mut response = S3Response::with_headers(output, headers);
        response.extensions.insert(instead);
        Ok(response)
    }

    pub(super) async fn attributes(
        &self,
        request: S3Request<GetObjectAttributesInput>,
    ) -> S3Result<S3Response<GetObjectAttributesOutput>> {
        let resource = Resource::Object(&request.input.bucket, &request.input.key);
        let entered = self.enter(&request, "GetObjectAttributes", resource)?;
        let input = request.input;
        check_version(input.version_id.as_deref())?;
        let attribute_names = attribute_names(&input.object_attributes)?;
        let wants = |name: &str| attribute_names.contains(&name);
        let (bucket, key) = (input.bucket, input.key);
        let get = GetRequest { bucket: bucket.clone(), key: key.clone(), ..GetRequest::default() };
        let (info, _) = self.client.head(get).await.map_err(|error| entered.fail(error))?;
        let mut output = GetObjectAttributesOutput {
            last_modified: Some(timestamp(info.modified_unix_ms)),
            ..GetObjectAttributesOutput::default()
        };
        if wants(ObjectAttributes::ETAG) {
            output.e_tag = Some(etag(info.etag.clone()));
        }
        if wants(ObjectAttributes::OBJECT_SIZE) {
            output.object_size = Some(info.size as i64);
        }
        if wants(ObjectAttributes::STORAGE_CLASS) {
            let class = non_empty(&info.attributes.storage_class).unwrap_or_else(|| "STANDARD".to_owned());
            output.storage_class = Some(StorageClass::from(class));
        }
        if wants(ObjectAttributes::CHECKSUM) && !info.checksums.is_empty() {
            output.checksum = Some(checksum_element(&info));
        }
        if wants(ObjectAttributes::OBJECT_PARTS) && !info.parts.is_empty() {
            let max = super::page_size(input.max_parts, "x-amz-max-parts")?;
            let after = input.part_number_marker.unwrap_or(0).max(0) as u32;
            let page = self.client.object_parts(&bucket, &key, after, max).await;
            let page = page.map_err(|error| entered.fail(error))?;
            output.object_parts = Some(object_parts(&page, info.parts.len(), after, max));
        }
        let mut response = S3Response::new(output);
        response.extensions.insert(UnquotedEtag);
        Ok(response)
    }
}

/// Returns the attributes that a request names. SDKs send one header with commas, which s3s does not split.
fn attribute_names(headers: &[ObjectAttributes]) -> Result<Vec<&str>, Refusal> {
    const NAMES: [&str; 5] = [
        ObjectAttributes::CHECKSUM,
        ObjectAttributes::ETAG,
        ObjectAttributes::OBJECT_PARTS,
        ObjectAttributes::OBJECT_SIZE,
        ObjectAttributes::STORAGE_CLASS,
    ];
    let names = headers.iter().flat_map(|names| names.as_str().split(',')).map(str::trim);
    let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    if names.is_empty() {
        let message = "The x-amz-object-attributes header specifying the attributes to be retrieved is either missing or empty";
        return Err(Refusal::bad("InvalidRequest", message));
    }
    match names.iter().all(|name| NAMES.contains(name)) {
        true => Ok(names),
        false => Err(Refusal::bad("InvalidArgument", "Invalid attribute name specified.")),
    }
}

/// Converts an error: S3 has another code for a missing part than for a range.
fn refused(entered: &AuthorisedRequest, requested: ReadRange, error: ClientError) -> S3Error {
    match (requested, &error) {
        (ReadRange::Part(_), ClientError::InvalidRange { .. }) => {
            let status = http::StatusCode::RANGE_NOT_SATISFIABLE;
            Refusal::new(status, "InvalidPartNumber", "The requested partnumber is not satisfiable").into()
        }
        _ => entered.fail(error),
    }
}

fn refuse_customer_key(has_key: bool) -> Result<(), Refusal> {
    match has_key {
        true => Err(not_implemented("Server-side encryption is not available.")),
        false => Ok(()),
    }
}

/// Returns the element with an object's checksums.
fn checksum_element(info: &ObjectInfo) -> Checksum {
    let mut checksum = Checksum { checksum_type: checksum::type_of(&info.checksums), ..Checksum::default() };
    set_checksum_fields!(checksum, checksum::Fields::of(&info.checksums, info.parts.len()));
    checksum
}

fn object_parts(page: &Page<PartInfo>, total: usize, after: u32, max: usize) -> GetObjectAttributesParts {
    let parts = page.items.iter().map(|part| {
        let mut shown = ObjectPart {
            part_number: Some(part.number as i32),
            size: Some(part.size as i64),
            ..ObjectPart::default()
        };
        set_checksum_fields!(shown, checksum::Fields::of(&part.checksums, 0));
        shown
    });
    GetObjectAttributesParts {
        is_truncated: Some(page.truncated),
        max_parts: Some(max as i32),
        next_part_number_marker: Some(page.items.last().map_or(0, |part| part.number as i32)),
        part_number_marker: Some(after as i32),
        parts: Some(parts.collect()),
        total_parts_count: Some(total as i32),
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;

    use super::*;

    #[test]
    fn ranges_and_parts_exclude_each_other() {
        let range = Range::Suffix { length: 5 };
        assert_eq!(read_range(Some(range), None), Ok(ReadRange::Suffix { len: 5 }));
        assert_eq!(read_range(None, Some(3)), Ok(ReadRange::Part(3)));
        assert_eq!(read_range(Some(range), Some(3)).unwrap_err().code, "InvalidRequest");
        assert_eq!(read_range(None, Some(0)).unwrap_err().code, "InvalidArgument");
    }

    #[test]
    fn a_range_is_of_the_version_with_a_strong_etag_or_a_date() {
        let version = |text: &'static str| {
            let value = HeaderValue::from_static(text);
            range_version(&HeaderMap::from_iter([(http::header::IF_RANGE, value)])).unwrap()
        };
        assert_eq!(range_version(&HeaderMap::new()), None);
        assert_eq!(version("\"abc\""), RangeVersion::Etag("abc".to_owned()));
        assert_eq!(version("Tue, 25 Nov 2025 10:00:00 GMT"), RangeVersion::ModifiedAt(1_764_064_800));
        for text in ["abc", "W/\"abc\"", "\"", ""] {
            assert_eq!(version(text), RangeVersion::Unknown, "{text}");
        }
    }

    #[test]
    fn attributes_are_named_and_known() {
        let names = |texts: &[&str]| {
            let headers: Vec<ObjectAttributes> =
                texts.iter().map(|text| ObjectAttributes::from((*text).to_owned())).collect();
            attribute_names(&headers).map(|names| names.join("|")).map_err(|refusal| refusal.code)
        };
        assert_eq!(names(&["ETag, ObjectSize", "Checksum"]).as_deref(), Ok("ETag|ObjectSize|Checksum"));
        assert_eq!(names(&[""]), Err("InvalidRequest"));
        assert_eq!(names(&["ETag,Colour"]), Err("InvalidArgument"));
    }

    #[test]
    fn only_answers_to_ranges_have_a_content_range() {
        let requested = ReadRange::Bytes { first: 2, last: Some(4) };
        assert!(is_partial(requested, &(2..5)));
        assert!(!is_partial(ReadRange::Whole, &(0..9)));
        assert!(!is_partial(ReadRange::Part(1), &(0..0)));
        assert_eq!(content_range(&(2..5), 9), "bytes 2-4/9");
    }

    #[tokio::test]
    async fn a_body_that_ends_early_is_an_error_not_an_end() {
        let pieces = vec![Ok(Bytes::from_static(b"abc"))];
        let stream = Mutex::new(Box::pin(futures::stream::iter(pieces)) as ObjectStream);
        let mut body = ObjectBody { stream, left: 5 };
        assert_eq!(body.remaining_length().exact(), Some(5));
        assert_eq!(body.next().await.unwrap().unwrap(), "abc");
        assert!(body.next().await.unwrap().is_err());
    }
}

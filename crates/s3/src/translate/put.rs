//! PutObject, and the request body as the client service reads it.

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, HeaderName, HeaderValue};
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};
use striate_client::{
    ClientError, DEFAULT_CHECKSUM, ExpectedDigests, MAX_PUT_LEN, ObjectInfo, PutBody, PutRequest,
};
use striate_core::{Profile, Tier};
use striate_meta::records::Checksum as ChecksumRecord;
use striate_meta::records::checksum::Algorithm;

use super::attributes::{attribute_fields, refuse_unsupported};
use super::{
    AuthorisedRequest, RequestContext, Translator, etag, etags_of, not_implemented, profile_of,
    write_condition,
};
use crate::authorize::Resource;
use crate::body::Trailers;
use crate::checksum::{self, checksum_fields, set_checksum_fields};
use crate::refusal::Refusal;

/// A request's body for the client service.
pub(super) struct Upload {
    body: Option<StreamingBlob>,
    trailers: Option<Trailers>,
    announced: Vec<Algorithm>,
}

#[async_trait::async_trait]
impl PutBody for Upload {
    async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        let piece = self.body.as_mut()?.next().await?;
        Some(piece.map_err(|error| ClientError::Body(error.to_string())))
    }

    async fn trailing_checksums(&mut self) -> Result<Vec<ChecksumRecord>, ClientError> {
        if self.announced.is_empty() {
            return Ok(Vec::new());
        }
        let trailers = self.trailers.as_ref().and_then(|trailers| trailers.lock().take());
        let trailers =
            trailers.ok_or_else(|| ClientError::Body("the announced trailer did not come".into()))?;
        checksum::parse_trailers(&trailers).map_err(|refusal| ClientError::InvalidRequest(refusal.message))
    }
}

/// Returns what a request says about its body's digests, checked for consistency.
pub(super) fn digests_of(
    headers: &http::HeaderMap,
    fields: checksum::Fields,
    md5: Option<&str>,
) -> Result<(ExpectedDigests, Vec<Algorithm>), Refusal> {
    let announced = checksum::check_headers(headers)?;
    let checksums = fields.parse()?;
    // s3s reads this header for no operation.
    let wish = headers.get("x-amz-sdk-checksum-algorithm").map(|name| name.to_str().unwrap_or_default());
    let wish = wish.map(checksum::algorithm_named).transpose()?;
    let sent: Vec<Algorithm> =
        checksums.iter().map(ChecksumRecord::algorithm).chain(announced.iter().copied()).collect();
    if sent.len() > 1 {
        let message = "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.";
        return Err(Refusal::bad("InvalidRequest", message));
    }
    if checksums.iter().any(|checksum| checksum.composite) {
        return Err(Refusal::bad("InvalidRequest", "A checksum of parts cannot be that of one body."));
    }
    if let Some(wish) = wish
        && !sent.contains(&wish)
    {
        let message = "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or \
                       x-amz-trailer headers were found.";
        return Err(Refusal::bad("InvalidRequest", message));
    }
    // s3s takes an empty header for none.
    let md5 = md5.or_else(|| headers.get("content-md5")?.to_str().ok());
    let md5 = md5.map(checksum::parse_md5).transpose()?;
    let digests =
        ExpectedDigests { md5, checksums, compute: announced.clone(), ..ExpectedDigests::default() };
    Ok((digests, announced))
}

/// Returns the body's announced length, within S3's limit.
pub(super) fn content_len(len: Option<i64>) -> Result<Option<u64>, Refusal> {
    let len = len.map(u64::try_from).transpose();
    let len = len.map_err(|_| Refusal::bad("InvalidArgument", "Content-Length must not be negative."))?;
    match len {
        Some(len) if len > MAX_PUT_LEN => Err(Refusal::bad(
            "EntityTooLarge",
            format!(
                "Your proposed upload exceeds the maximum allowed size of {MAX_PUT_LEN} bytes; use a multipart upload."
            ),
        )),
        len => Ok(len),
    }
}

impl Upload {
    pub fn new(
        body: Option<StreamingBlob>,
        entered: &AuthorisedRequest,
        announced: Vec<Algorithm>,
    ) -> Box<Self> {
        Box::new(Self { body, trailers: entered.carried.trailers.clone(), announced })
    }
}

impl Translator {
    pub(super) async fn put(
        &self,
        mut request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let (bucket, key) = (request.input.bucket.clone(), request.input.key.clone());
        let by_form = request.extensions.get::<RequestContext>().is_some_and(|carried| carried.by_form);
        let operation = if by_form { "PostObject" } else { "PutObject" };
        let entered = self.enter(&request, operation, Resource::Object(&bucket, &key))?;
        let input = &mut request.input;
        refuse_unsupported!(input)?;
        if input.write_offset_bytes.is_some() {
            return Err(not_implemented("Appending to an object is not available.").into());
        }
        let fields = checksum_fields!(input);
        let md5 = input.content_md5.as_deref();
        let (mut digests, announced) = digests_of(&request.headers, fields, md5)?;
        if digests.checksums.is_empty() && digests.compute.is_empty() {
            digests.compute.push(DEFAULT_CHECKSUM);
        }
        let put = PutRequest {
            bucket,
            key,
            condition: write_condition(
                etags_of(&entered.carried, "if-match", input.if_match.take()),
                etags_of(&entered.carried, "if-none-match", input.if_none_match.take()),
            )?,
            profile: profile_of(&request.headers)?,
            content_len: content_len(input.content_length)?,
            digests,
            body: Upload::new(input.body.take(), &entered, announced),
            attributes: attribute_fields!(input).into_attributes(&entered)?,
        };
        let info = entered.client.put(put).await.map_err(|error| entered.fail(error))?;
        let headers = volatile_header(info.profile);
        Ok(S3Response::with_headers(put_output(info), headers))
    }
}

/// Returns the header that marks an object as being in memory only.
pub(super) fn volatile_header(profile: Option<Profile>) -> HeaderMap {
    let is_volatile = profile.is_some_and(|profile| profile.tier == Tier::Memory);
    let header = (HeaderName::from_static("x-striate-volatile"), HeaderValue::from_static("true"));
    is_volatile.then_some(header).into_iter().collect()
}

fn put_output(info: ObjectInfo) -> PutObjectOutput {
    let mut output = PutObjectOutput {
        checksum_type: checksum::type_of(&info.checksums),
        e_tag: Some(etag(info.etag)),
        ..PutObjectOutput::default()
    };
    set_checksum_fields!(output, checksum::Fields::of(&info.checksums, info.parts.len()));
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|&(n, v)| (n.parse().unwrap(), HeaderValue::from_static(v))).collect()
    }

    fn crc32(text: &str) -> checksum::Fields {
        checksum::Fields { crc32: Some(text.to_owned()), ..checksum::Fields::default() }
    }

    #[test]
    fn a_trailer_is_computed_and_a_header_is_expected() {
        let none = checksum::Fields::default;
        let sdk =
            headers(&[("x-amz-trailer", "x-amz-checksum-crc32"), ("x-amz-sdk-checksum-algorithm", "CRC32")]);
        let (digests, announced) = digests_of(&sdk, none(), None).unwrap();
        assert_eq!((digests.compute, announced), (vec![Algorithm::Crc32], vec![Algorithm::Crc32]));
        let (digests, _) = digests_of(&headers(&[]), crc32("y/Q5Jg=="), None).unwrap();
        assert_eq!(&digests.checksums[0].value[..], [0xcb, 0xf4, 0x39, 0x26]);
        assert!(digests.compute.is_empty());
    }

    #[test]
    fn senseless_digests_are_refused() {
        let none = headers(&[]);
        let sha = headers(&[("x-amz-sdk-checksum-algorithm", "SHA256")]);
        let unknown = headers(&[("x-amz-sdk-checksum-algorithm", "XXH3")]);
        let both = headers(&[("x-amz-trailer", "x-amz-checksum-sha1")]);
        let code = |result: Result<_, Refusal>| result.map(|_| ()).unwrap_err().code;
        assert_eq!(code(digests_of(&sha, crc32("y/Q5Jg=="), None)), "InvalidRequest");
        assert_eq!(code(digests_of(&unknown, crc32("y/Q5Jg=="), None)), "InvalidRequest");
        assert_eq!(code(digests_of(&both, crc32("y/Q5Jg=="), None)), "InvalidRequest");
        assert_eq!(code(digests_of(&none, crc32("AAAA"), None)), "InvalidRequest");
        assert_eq!(code(digests_of(&none, crc32("y/Q5Jg==-2"), None)), "InvalidRequest");
        assert_eq!(code(digests_of(&none, checksum::Fields::default(), Some("x"))), "InvalidDigest");
        let empty = headers(&[("content-md5", "")]);
        assert_eq!(code(digests_of(&empty, checksum::Fields::default(), None)), "InvalidDigest");
    }

    #[test]
    fn lengths_are_bounded() {
        assert_eq!(content_len(Some(5 << 30)), Ok(Some(5 << 30)));
        assert_eq!(content_len(Some((5 << 30) + 1)).unwrap_err().code, "EntityTooLarge");
        assert_eq!(content_len(Some(-1)).unwrap_err().code, "InvalidArgument");
    }
}

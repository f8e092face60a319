//! CopyObject, and the sources that it and UploadPartCopy name.

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};
use striate_client::CopyRequest;

use super::attributes::{attribute_fields, parse_tags, refuse_unsupported, storage_class};
use super::{
    AuthorisedRequest, Translator, check_version, etag, not_implemented, profile_of, read_condition,
    timestamp,
};
use crate::authorize::Resource;
use crate::checksum::{self, set_checksum_fields};
use crate::refusal::Refusal;

/// Returns the bucket and key of a copy source, which the caller must be allowed to read.
pub(super) fn source_of(entered: &AuthorisedRequest, source: &CopySource) -> S3Result<(String, String)> {
    let CopySource::Bucket { bucket, key, version_id } = source else {
        return Err(not_implemented("Copy sources are written as bucket/key.").into());
    };
    check_version(version_id.as_deref())?;
    entered.also("s3:GetObject", Resource::Object(bucket, key))?;
    Ok((bucket.to_string(), key.to_string()))
}

/// Returns true for REPLACE, false for COPY.
fn replaces(directive: Option<&str>, name: &str) -> Result<bool, Refusal> {
    match directive {
        None | Some("COPY") => Ok(false),
        Some("REPLACE") => Ok(true),
        Some(_) => Err(Refusal::bad("InvalidArgument", format!("Unknown {name} directive."))),
    }
}

impl Translator {
    pub(super) async fn copy(
        &self,
        mut request: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        let (bucket, key) = (request.input.bucket.clone(), request.input.key.clone());
        let entered = self.enter(&request, "CopyObject", "s3:PutObject", Resource::Object(&bucket, &key))?;
        let input = &mut request.input;
        let (source_bucket, source_key) = source_of(&entered, &input.copy_source)?;
        refuse_unsupported!(input)?;
        if input.copy_source_sse_customer_key.is_some() {
            return Err(not_implemented("Server-side encryption is not available.").into());
        }
        let metadata = replaces(input.metadata_directive.as_ref().map(|d| d.as_str()), "metadata")?;
        let tagging = replaces(input.tagging_directive.as_ref().map(|d| d.as_str()), "tagging")?;
        let same = source_bucket == bucket && source_key == key;
        let profile = profile_of(&request.headers)?;
        let changes = metadata
            || tagging
            || profile.is_some()
            || input.storage_class.is_some()
            || input.website_redirect_location.is_some();
        if same && !changes {
            let message = "This copy request is illegal because it is trying to copy an object to itself \
                           without changing the object's metadata, storage class, website redirect location \
                           or encryption attributes.";
            return Err(Refusal::bad("InvalidRequest", message).into());
        }
        let tags = match tagging {
            true => Some(input.tagging.as_deref().map(parse_tags).transpose()?.unwrap_or_default()),
            false => None,
        };
        input.tagging = None;
        let checksum = input.checksum_algorithm.as_ref();
        let checksum = checksum.map(|algorithm| checksum::algorithm_named(algorithm.as_str())).transpose()?;
        let source_condition = read_condition(
            input.copy_source_if_match.take(),
            input.copy_source_if_none_match.take(),
            input.copy_source_if_modified_since.take(),
            input.copy_source_if_unmodified_since.take(),
        );
        let condition = destination_condition(&request.headers)?;
        let input = &mut request.input;
        let storage_class =
            input.storage_class.clone().map(|class| storage_class(Some(class))).transpose()?;
        let website_redirect = input.website_redirect_location.clone();
        let attributes = match metadata {
            true => Some(attribute_fields!(input).into_attributes(&entered)?),
            false => None,
        };
        let copy = CopyRequest {
            source_bucket,
            source_key,
            source_condition,
            bucket,
            key,
            attributes,
            tags,
            storage_class,
            website_redirect,
            condition,
            checksum,
            profile,
            owner: entered.identity.access_key.clone(),
        };
        let info = self.client.copy(copy).await.map_err(|error| match error {
            // A copy returns 412 for every condition on its source.
            striate_client::ClientError::NotModified(_) => entered
                .fail(striate_client::ClientError::PreconditionFailed("x-amz-copy-source-if-none-match")),
            error => entered.fail(error),
        })?;
        let mut result = CopyObjectResult {
            checksum_type: checksum::type_of(&info.checksums),
            e_tag: Some(etag(info.etag)),
            last_modified: Some(timestamp(info.modified_unix_ms)),
            ..CopyObjectResult::default()
        };
        set_checksum_fields!(result, checksum::Fields::of(&info.checksums, info.parts.len()));
        Ok(S3Response::new(CopyObjectOutput {
            copy_object_result: Some(result),
            ..CopyObjectOutput::default()
        }))
    }
}

/// Parses `If-Match` and `If-None-Match` on the destination, which this s3s does not parse for copies.
fn destination_condition(headers: &http::HeaderMap) -> Result<striate_client::WriteCondition, Refusal> {
    let parse = |name: http::HeaderName| {
        let value = headers.get(&name).map(|value| ETagCondition::parse_http_header(value.as_bytes()));
        value.transpose().map_err(|_| Refusal::bad("InvalidArgument", format!("{name} is not an ETag.")))
    };
    super::write_condition(parse(http::header::IF_MATCH)?, parse(http::header::IF_NONE_MATCH)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_copy_replace_or_refused() {
        assert_eq!(replaces(None, "metadata"), Ok(false));
        assert_eq!(replaces(Some("REPLACE"), "metadata"), Ok(true));
        assert_eq!(replaces(Some("MOVE"), "metadata").unwrap_err().code, "InvalidArgument");
    }
}

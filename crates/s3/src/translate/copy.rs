//! CopyObject, and the sources that it and UploadPartCopy name.

use std::collections::BTreeMap;

use s3s::dto::*;
use s3s::{S3Error, S3Request, S3Response, S3Result};
use striate_client::{ClientError, CopyRequest};
use striate_core::Profile;

use super::attributes::{
    attribute_fields, check_metadata, checked_redirect, parse_tags, refuse_unsupported, storage_class,
};
use super::{
    AuthorisedRequest, RequestContext, Translator, check_version, etag, etags_of, not_implemented,
    profile_of, read_condition, timestamp,
};
use crate::authorize::Resource;
use crate::checksum::{self, set_checksum_fields};
use crate::etags::parse_etags;
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

/// What a copy replaces, instead of copying it from its source.
struct Directives {
    metadata: bool,
    tags: bool,
}

impl Directives {
    fn of(input: &CopyObjectInput) -> Result<Self, Refusal> {
        Ok(Self {
            metadata: replaces(input.metadata_directive.as_ref().map(|d| d.as_str()), "metadata")?,
            tags: replaces(input.tagging_directive.as_ref().map(|d| d.as_str()), "tagging")?,
        })
    }
}

/// Refuses a copy of an object to itself that changes nothing.
fn check_changes(
    input: &CopyObjectInput,
    directives: &Directives,
    profile: Option<Profile>,
) -> Result<(), Refusal> {
    let changes = directives.metadata
        || directives.tags
        || profile.is_some()
        || input.storage_class.is_some()
        || input.website_redirect_location.is_some();
    if changes {
        return Ok(());
    }
    let message = "This copy request is illegal because it is trying to copy an object to itself \
                   without changing the object's metadata, storage class, website redirect location \
                   or encryption attributes.";
    Err(Refusal::bad("InvalidRequest", message))
}

/// Takes the new tags out of the input, so that the attributes do not have them as well. `None` copies the source's.
fn take_tags(
    input: &mut CopyObjectInput,
    directives: &Directives,
) -> Result<Option<BTreeMap<String, String>>, Refusal> {
    let tagging = input.tagging.take();
    match directives.tags {
        true => Ok(Some(tagging.as_deref().map(parse_tags).transpose()?.unwrap_or_default())),
        false => Ok(None),
    }
}

/// Converts an authorised copy to the client service's request.
fn copy_request(
    entered: &AuthorisedRequest,
    headers: &http::HeaderMap,
    input: &mut CopyObjectInput,
) -> S3Result<CopyRequest> {
    let (source_bucket, source_key) = source_of(entered, &input.copy_source)?;
    refuse_unsupported!(input)?;
    if input.copy_source_sse_customer_key.is_some() {
        return Err(not_implemented("Server-side encryption is not available.").into());
    }
    let directives = Directives::of(input)?;
    let profile = profile_of(headers)?;
    if source_bucket == input.bucket && source_key == input.key {
        check_changes(input, &directives, profile)?;
    }
    check_metadata(input.metadata.as_ref())?;
    let tags = take_tags(input, &directives)?;
    let checksum = input.checksum_algorithm.as_ref();
    let checksum = checksum.map(|algorithm| checksum::algorithm_named(algorithm.as_str())).transpose()?;
    let source_condition = read_condition(
        etags_of(&entered.carried, "x-amz-copy-source-if-match", input.copy_source_if_match.take()),
        etags_of(&entered.carried, "x-amz-copy-source-if-none-match", input.copy_source_if_none_match.take()),
        input.copy_source_if_modified_since.take(),
        input.copy_source_if_unmodified_since.take(),
    );
    let condition = destination_condition(&entered.carried, headers)?;
    Ok(CopyRequest {
        source_bucket,
        source_key,
        source_condition,
        bucket: input.bucket.clone(),
        key: input.key.clone(),
        tags,
        storage_class: input.storage_class.clone().map(|class| storage_class(Some(class))).transpose()?,
        website_redirect: input.website_redirect_location.clone().map(checked_redirect).transpose()?,
        // Last, because it takes the fields out of the input.
        attributes: match directives.metadata {
            true => Some(attribute_fields!(input).into_attributes(entered)?),
            false => None,
        },
        condition,
        checksum,
        profile,
        owner: entered.identity.access_key.clone(),
    })
}

/// Converts the error of a copy: S3 answers 412 for every condition on the source.
pub(super) fn copy_failure(entered: &AuthorisedRequest, error: ClientError) -> S3Error {
    match error {
        ClientError::NotModified(_) => {
            entered.fail(ClientError::PreconditionFailed("x-amz-copy-source-if-none-match"))
        }
        error => entered.fail(error),
    }
}

impl Translator {
    pub(super) async fn copy(
        &self,
        mut request: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        let resource = Resource::Object(&request.input.bucket, &request.input.key);
        let entered = self.enter(&request, "CopyObject", resource)?;
        let copy = copy_request(&entered, &request.headers, &mut request.input)?;
        let info = entered.client.copy(copy).await.map_err(|error| copy_failure(&entered, error))?;
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
fn destination_condition(
    carried: &RequestContext,
    headers: &http::HeaderMap,
) -> Result<striate_client::WriteCondition, Refusal> {
    let parse = |name: &str| {
        let Some(value) = headers.get(name).or_else(|| carried.headers.get(name)) else { return Ok(None) };
        let malformed = || Refusal::bad("InvalidArgument", format!("{name} is not an ETag."));
        value.to_str().ok().and_then(parse_etags).ok_or_else(malformed).map(Some)
    };
    super::write_condition(parse("if-match")?, parse("if-none-match")?)
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

//! Tags of buckets and objects.

use std::collections::BTreeMap;

use s3s::dto::*;
use s3s::xml::Deserializer;
use s3s::{S3Request, S3Response, S3Result};
use striate_client::ClientError;

use super::attributes::{MAX_TAGS, check_tags, duplicate_tag};
use super::{Translator, check_version};
use crate::address::percent_encode;
use crate::authorize::Resource;
use crate::refusal::Refusal;

/// Maximum number of tags of one bucket.
const MAX_BUCKET_TAGS: usize = 50;

fn tags_of(tagging: Tagging, limit: usize) -> Result<BTreeMap<String, String>, Refusal> {
    let mut tags = BTreeMap::new();
    for tag in tagging.tag_set {
        if tags.insert(tag.key.unwrap_or_default(), tag.value.unwrap_or_default()).is_some() {
            return Err(duplicate_tag());
        }
    }
    check_tags(&tags, limit)?;
    Ok(tags)
}

/// Converts the XML of a form's tags to the format of the `x-amz-tagging` header.
pub(crate) fn tags_header(xml: &str) -> Result<String, Refusal> {
    let malformed = |_| {
        let message =
            "The XML you provided was not well-formed or did not validate against our published schema";
        Refusal::bad("MalformedXML", message)
    };
    let mut deserializer = Deserializer::new(xml.as_bytes());
    let tagging: Tagging =
        deserializer.named_element("Tagging", |inner| inner.content()).map_err(malformed)?;
    let pairs = tags_of(tagging, MAX_TAGS)?.into_iter();
    let pairs = pairs.map(|(name, value)| format!("{}={}", percent_encode(&name), percent_encode(&value)));
    Ok(pairs.collect::<Vec<_>>().join("&"))
}

fn tag_set(tags: impl IntoIterator<Item = (String, String)>) -> TagSet {
    let mut tags: Vec<(String, String)> = tags.into_iter().collect();
    tags.sort_unstable();
    tags.into_iter().map(|(key, value)| Tag { key: Some(key), value: Some(value) }).collect()
}

impl Translator {
    pub(super) async fn object_tags_get(
        &self,
        request: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        let resource = Resource::Object(&request.input.bucket, &request.input.key);
        let entered = self.enter(&request, "GetObjectTagging", "s3:GetObjectTagging", resource)?;
        let input = request.input;
        check_version(input.version_id.as_deref())?;
        let tags = self.client.object_tags(&input.bucket, &input.key).await;
        let tag_set = tag_set(tags.map_err(|error| entered.fail(error))?);
        Ok(S3Response::new(GetObjectTaggingOutput { tag_set, ..GetObjectTaggingOutput::default() }))
    }

    pub(super) async fn object_tags_put(
        &self,
        request: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<S3Response<PutObjectTaggingOutput>> {
        let resource = Resource::Object(&request.input.bucket, &request.input.key);
        let entered = self.enter(&request, "PutObjectTagging", "s3:PutObjectTagging", resource)?;
        let input = request.input;
        check_version(input.version_id.as_deref())?;
        let tags = tags_of(input.tagging, MAX_TAGS)?;
        let set = self.client.set_object_tags(&input.bucket, &input.key, tags).await;
        set.map_err(|error| entered.fail(error))?;
        Ok(S3Response::new(PutObjectTaggingOutput::default()))
    }

    pub(super) async fn object_tags_delete(
        &self,
        request: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        let resource = Resource::Object(&request.input.bucket, &request.input.key);
        let entered = self.enter(&request, "DeleteObjectTagging", "s3:DeleteObjectTagging", resource)?;
        let input = request.input;
        check_version(input.version_id.as_deref())?;
        let set = self.client.set_object_tags(&input.bucket, &input.key, BTreeMap::new()).await;
        set.map_err(|error| entered.fail(error))?;
        Ok(S3Response::with_status(DeleteObjectTaggingOutput::default(), http::StatusCode::NO_CONTENT))
    }

    pub(super) async fn bucket_tags_get(
        &self,
        request: S3Request<GetBucketTaggingInput>,
    ) -> S3Result<S3Response<GetBucketTaggingOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "GetBucketTagging", "s3:GetBucketTagging", resource)?;
        let bucket = self.client.bucket(&request.input.bucket).await.map_err(|error| entered.fail(error))?;
        if bucket.tags.is_empty() {
            return Err(entered.fail(ClientError::NotSet("NoSuchTagSet")));
        }
        Ok(S3Response::new(GetBucketTaggingOutput { tag_set: tag_set(bucket.tags) }))
    }

    pub(super) async fn bucket_tags_put(
        &self,
        request: S3Request<PutBucketTaggingInput>,
    ) -> S3Result<S3Response<PutBucketTaggingOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "PutBucketTagging", "s3:PutBucketTagging", resource)?;
        let tags = tags_of(request.input.tagging, MAX_BUCKET_TAGS)?;
        let set =
            |bucket: &mut striate_meta::records::Bucket| bucket.tags = tags.clone().into_iter().collect();
        self.client.update_bucket(&request.input.bucket, set).await.map_err(|error| entered.fail(error))?;
        Ok(S3Response::with_status(PutBucketTaggingOutput::default(), http::StatusCode::NO_CONTENT))
    }

    pub(super) async fn bucket_tags_delete(
        &self,
        request: S3Request<DeleteBucketTaggingInput>,
    ) -> S3Result<S3Response<DeleteBucketTaggingOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "DeleteBucketTagging", "s3:PutBucketTagging", resource)?;
        let clear = |bucket: &mut striate_meta::records::Bucket| bucket.tags.clear();
        self.client.update_bucket(&request.input.bucket, clear).await.map_err(|error| entered.fail(error))?;
        Ok(S3Response::with_status(DeleteBucketTaggingOutput::default(), http::StatusCode::NO_CONTENT))
    }
}

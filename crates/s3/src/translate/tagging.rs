//! Tags of buckets and objects.

use std::collections::BTreeMap;

use bytes::Bytes;
use s3s::dto::*;
use s3s::xml::Deserializer;
use s3s::{S3Request, S3Response, S3Result};
use striate_client::ClientError;

use super::attributes::{MAX_TAGS, check_tags, duplicate_tag};
use super::{Translator, check_version};
use crate::address::percent_encode;
use crate::authorize::Resource;
use crate::gateway::Instead;
use crate::refusal::Refusal;
use crate::xml::{malformed, plain};

/// Maximum number of tags of one bucket.
const MAX_BUCKET_TAGS: usize = 50;

/// Returns the tags of a document, checked against S3's bounds.
fn tags_of(tag_set: TagSet, limit: usize) -> Result<BTreeMap<String, String>, Refusal> {
    let mut tags = BTreeMap::new();
    for tag in tag_set {
        if tags.insert(tag.key.unwrap_or_default(), tag.value.unwrap_or_default()).is_some() {
            return Err(duplicate_tag());
        }
    }
    check_tags(&tags, limit)?;
    Ok(tags)
}

/// Returns the tags in a document of CreateBucket, which this s3s does not know.
///
/// # Errors
/// MalformedXML; InvalidTag.
pub(super) fn new_bucket_tags(document: &[u8]) -> Result<BTreeMap<String, String>, Refusal> {
    #[derive(serde::Deserialize)]
    struct Configuration {
        #[serde(rename = "Tags", default)]
        tags: Vec<Tags>,
    }
    #[derive(serde::Deserialize)]
    struct Tags {
        #[serde(rename = "Tag", default)]
        members: Vec<Member>,
    }
    #[derive(serde::Deserialize)]
    struct Member {
        #[serde(rename = "Key")]
        key: String,
        #[serde(rename = "Value", default)]
        value: String,
    }
    if memchr::memmem::find(document, b"<Tags").is_none() {
        return Ok(BTreeMap::new());
    }
    let configuration: Configuration = quick_xml::de::from_reader(document).map_err(|_| malformed())?;
    let members = configuration.tags.into_iter().flat_map(|tags| tags.members);
    let tag = |member: Member| Tag { key: Some(member.key), value: Some(member.value) };
    tags_of(members.map(tag).collect(), MAX_BUCKET_TAGS)
}

/// Converts the XML of a form's tags to the format of the `x-amz-tagging` header.
pub(crate) fn tags_header(xml: &str) -> Result<String, Refusal> {
    let plain = plain(Bytes::copy_from_slice(xml.as_bytes()))?;
    let mut deserializer = Deserializer::new(&plain);
    let tagging: Tagging =
        deserializer.named_element("Tagging", |inner| inner.content()).map_err(|_| malformed())?;
    let pairs = tags_of(tagging.tag_set, MAX_TAGS)?.into_iter();
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
        let entered = self.enter(&request, "GetObjectTagging", resource)?;
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
        let entered = self.enter(&request, "PutObjectTagging", resource)?;
        let input = request.input;
        check_version(input.version_id.as_deref())?;
        let tags = tags_of(input.tagging.tag_set, MAX_TAGS)?;
        let set = self.client.set_object_tags(&input.bucket, &input.key, tags).await;
        set.map_err(|error| entered.fail(error))?;
        Ok(S3Response::new(PutObjectTaggingOutput::default()))
    }

    pub(super) async fn object_tags_delete(
        &self,
        request: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        let resource = Resource::Object(&request.input.bucket, &request.input.key);
        let entered = self.enter(&request, "DeleteObjectTagging", resource)?;
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
        let entered = self.enter(&request, "GetBucketTagging", resource)?;
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
        let entered = self.enter(&request, "PutBucketTagging", resource)?;
        let tags = tags_of(request.input.tagging.tag_set, MAX_BUCKET_TAGS)?;
        let set =
            |bucket: &mut striate_meta::records::Bucket| bucket.tags = tags.clone().into_iter().collect();
        self.client.update_bucket(&request.input.bucket, set).await.map_err(|error| entered.fail(error))?;
        let mut response = S3Response::new(PutBucketTaggingOutput::default());
        response
            .extensions
            .insert(Instead { status: Some(http::StatusCode::NO_CONTENT), ..Instead::default() });
        Ok(response)
    }

    pub(super) async fn bucket_tags_delete(
        &self,
        request: S3Request<DeleteBucketTaggingInput>,
    ) -> S3Result<S3Response<DeleteBucketTaggingOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "DeleteBucketTagging", resource)?;
        let clear = |bucket: &mut striate_meta::records::Bucket| bucket.tags.clear();
        self.client.update_bucket(&request.input.bucket, clear).await.map_err(|error| entered.fail(error))?;
        Ok(S3Response::with_status(DeleteBucketTaggingOutput::default(), http::StatusCode::NO_CONTENT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_bucket_may_come_with_tags() {
        let tags = |xml: &str| {
            let document = format!("<CreateBucketConfiguration>{xml}</CreateBucketConfiguration>");
            new_bucket_tags(document.as_bytes()).map_err(|refusal| refusal.code)
        };
        assert_eq!(tags("<LocationConstraint>x</LocationConstraint>"), Ok(BTreeMap::new()));
        let one = "<Tag><Key>a&#43;</Key><Value>1</Value></Tag>";
        let expected = BTreeMap::from([("a+".to_owned(), "1".to_owned())]);
        assert_eq!(tags(&format!("<Tags>{one}</Tags><LocationConstraint/>")), Ok(expected));
        assert_eq!(tags(&format!("<Tags>{one}{one}</Tags>")), Err("InvalidTag"));
        assert_eq!(tags("<Tags><Tag><Value>1</Value></Tag></Tags>"), Err("MalformedXML"));
    }

    #[test]
    fn a_forms_tags_may_be_in_sections() {
        let xml = "<Tagging><TagSet><Tag><Key>k</Key><Value><![CDATA[v=w]]></Value></Tag></TagSet></Tagging>";
        assert_eq!(tags_header(xml).as_deref(), Ok("k=v%3Dw"));
    }
}

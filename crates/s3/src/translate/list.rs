//! ListObjects, ListObjectsV2, ListObjectVersions.
//!
//! Continuation tokens are opaque: base64 of the last entry behind a format byte. Versioning is not available, so every
//! object is listed as its only version `null`, as S3 does for such buckets.

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};
use striate_client::{ListPage, ListRequest, ObjectInfo};

use super::bucket::owner;
use super::{AuthorisedRequest, NULL_VERSION, Translator, etag, page_size, timestamp};
use crate::address::percent_encode;
use crate::authorize::Resource;
use crate::checksum;
use crate::refusal::Refusal;

const TOKEN_FORMAT: u8 = b'1';

pub(super) fn seal_token(after: &str) -> String {
    base64_simd::URL_SAFE_NO_PAD.encode_to_string([&[TOKEN_FORMAT], after.as_bytes()].concat())
}

pub(super) fn open_token(token: &str) -> Result<String, Refusal> {
    let bytes = base64_simd::URL_SAFE_NO_PAD.decode_to_vec(token).ok();
    let after = bytes.and_then(|bytes| String::from_utf8(bytes.strip_prefix(&[TOKEN_FORMAT])?.to_vec()).ok());
    after.ok_or_else(|| Refusal::bad("InvalidArgument", "The continuation token provided is incorrect"))
}

/// Whether names in the response are URL-encoded.
struct Encoding(bool);

impl Encoding {
    fn of(wish: Option<&EncodingType>) -> Result<Self, Refusal> {
        match wish.map(EncodingType::as_str) {
            None => Ok(Self(false)),
            Some("url") => Ok(Self(true)),
            Some(_) => Err(Refusal::bad("InvalidArgument", "Invalid Encoding Method specified in Request")),
        }
    }

    fn text(&self, text: String) -> String {
        if self.0 { percent_encode(&text).into_owned() } else { text }
    }

    /// Returns the delimiter that a response names; an empty one is none.
    fn delimiter(&self, delimiter: Option<String>) -> Option<String> {
        delimiter.filter(|delimiter| !delimiter.is_empty()).map(|delimiter| self.text(delimiter))
    }

    fn prefixes(&self, prefixes: Vec<String>) -> Option<CommonPrefixList> {
        let shown = prefixes.into_iter().map(|prefix| CommonPrefix { prefix: Some(self.text(prefix)) });
        Some(shown.collect::<Vec<_>>()).filter(|prefixes| !prefixes.is_empty())
    }

    fn object(&self, info: ObjectInfo, with_owner: bool) -> Object {
        let algorithms: Vec<ChecksumAlgorithm> =
            info.checksums.iter().filter_map(|checksum| checksum::name_of(checksum.algorithm())).collect();
        Object {
            checksum_type: checksum::type_of(&info.checksums),
            checksum_algorithm: (!algorithms.is_empty()).then_some(algorithms),
            e_tag: Some(etag(info.etag)),
            key: Some(self.text(info.key)),
            last_modified: Some(timestamp(info.modified_unix_ms)),
            owner: with_owner.then(owner),
            size: Some(info.size as i64),
            storage_class: Some(ObjectStorageClass::from(class(&info.attributes.storage_class))),
            ..Object::default()
        }
    }
}

fn class(text: &str) -> String {
    if text.is_empty() { ObjectStorageClass::STANDARD.to_owned() } else { text.to_owned() }
}

impl Translator {
    /// Returns one page. With `max_keys` 0 it is empty, but the bucket must exist.
    async fn page(&self, entered: &AuthorisedRequest, list: ListRequest) -> S3Result<ListPage> {
        if list.max_keys == 0 {
            self.client.bucket(&list.bucket).await.map_err(|error| entered.fail(error))?;
            return Ok(ListPage::default());
        }
        self.client.list(list).await.map_err(|error| entered.fail(error))
    }

    pub(super) async fn list_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "ListObjectsV2", resource)?;
        let input = request.input;
        let encoding = Encoding::of(input.encoding_type.as_ref())?;
        let max_keys = page_size(input.max_keys, "max-keys")?;
        let after = match input.continuation_token.as_deref() {
            // An empty token is that of the first page.
            None | Some("") => input.start_after.clone().unwrap_or_default(),
            Some(token) => open_token(token)?,
        };
        let list = ListRequest {
            bucket: input.bucket.clone(),
            prefix: input.prefix.clone().unwrap_or_default(),
            delimiter: input.delimiter.clone().unwrap_or_default(),
            after,
            max_keys,
        };
        let page = self.page(&entered, list).await?;
        let with_owner = input.fetch_owner == Some(true);
        let key_count = page.objects.len() + page.common_prefixes.len();
        Ok(S3Response::new(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(encoding.text(input.prefix.unwrap_or_default())),
            max_keys: Some(max_keys as i32),
            key_count: Some(key_count as i32),
            continuation_token: input.continuation_token,
            is_truncated: Some(page.next.is_some()),
            next_continuation_token: page.next.as_deref().map(seal_token),
            contents: Some(page.objects.into_iter().map(|info| encoding.object(info, with_owner)).collect()),
            common_prefixes: encoding.prefixes(page.common_prefixes),
            delimiter: encoding.delimiter(input.delimiter),
            encoding_type: input.encoding_type,
            start_after: input.start_after.map(|start_after| encoding.text(start_after)),
            request_charged: None,
        }))
    }

    pub(super) async fn list_v1(
        &self,
        request: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "ListObjects", resource)?;
        let input = request.input;
        let encoding = Encoding::of(input.encoding_type.as_ref())?;
        let max_keys = page_size(input.max_keys, "max-keys")?;
        let list = ListRequest {
            bucket: input.bucket.clone(),
            prefix: input.prefix.clone().unwrap_or_default(),
            delimiter: input.delimiter.clone().unwrap_or_default(),
            after: input.marker.clone().unwrap_or_default(),
            max_keys,
        };
        let page = self.page(&entered, list).await?;
        Ok(S3Response::new(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: Some(encoding.text(input.prefix.unwrap_or_default())),
            marker: Some(encoding.text(input.marker.unwrap_or_default())),
            max_keys: Some(max_keys as i32),
            is_truncated: Some(page.next.is_some()),
            next_marker: page.next.map(|next| encoding.text(next)),
            contents: Some(page.objects.into_iter().map(|info| encoding.object(info, true)).collect()),
            common_prefixes: encoding.prefixes(page.common_prefixes),
            delimiter: encoding.delimiter(input.delimiter),
            encoding_type: input.encoding_type,
            request_charged: None,
        }))
    }

    pub(super) async fn list_versions(
        &self,
        request: S3Request<ListObjectVersionsInput>,
    ) -> S3Result<S3Response<ListObjectVersionsOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "ListObjectVersions", resource)?;
        let input = request.input;
        let encoding = Encoding::of(input.encoding_type.as_ref())?;
        let max_keys = page_size(input.max_keys, "max-keys")?;
        let list = ListRequest {
            bucket: input.bucket.clone(),
            prefix: input.prefix.clone().unwrap_or_default(),
            delimiter: input.delimiter.clone().unwrap_or_default(),
            after: input.key_marker.clone().unwrap_or_default(),
            max_keys,
        };
        let page = self.page(&entered, list).await?;
        let versions = page.objects.into_iter().map(|info| version(encoding.object(info, true)));
        Ok(S3Response::new(ListObjectVersionsOutput {
            versions: Some(versions.collect()),
            common_prefixes: encoding.prefixes(page.common_prefixes),
            delimiter: encoding.delimiter(input.delimiter),
            encoding_type: input.encoding_type,
            is_truncated: Some(page.next.is_some()),
            key_marker: Some(encoding.text(input.key_marker.unwrap_or_default())),
            max_keys: Some(max_keys as i32),
            name: Some(input.bucket),
            next_version_id_marker: page.next.as_ref().map(|_| NULL_VERSION.to_owned()),
            next_key_marker: page.next.map(|next| encoding.text(next)),
            prefix: Some(encoding.text(input.prefix.unwrap_or_default())),
            version_id_marker: input.version_id_marker,
            ..ListObjectVersionsOutput::default()
        }))
    }
}

fn version(object: Object) -> ObjectVersion {
    let class = object.storage_class.map(|class| class.as_str().to_owned());
    ObjectVersion {
        checksum_algorithm: object.checksum_algorithm,
        checksum_type: object.checksum_type,
        e_tag: object.e_tag,
        is_latest: Some(true),
        key: object.key,
        last_modified: object.last_modified,
        owner: object.owner,
        size: object.size,
        storage_class: class.map(ObjectVersionStorageClass::from),
        version_id: Some(NULL_VERSION.to_owned()),
        ..ObjectVersion::default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn tokens_bring_back_what_they_hold(after: String) {
            prop_assert_eq!(open_token(&seal_token(&after)), Ok(after));
        }

        #[test]
        fn no_token_panics(token: String) {
            let _ = open_token(&token);
        }
    }

    #[test]
    fn foreign_tokens_and_encodings_are_refused() {
        assert_eq!(open_token("!").unwrap_err().code, "InvalidArgument");
        assert_eq!(open_token("Mg").unwrap_err().code, "InvalidArgument");
        assert!(Encoding::of(Some(&EncodingType::from("hex".to_owned()))).is_err());
        assert_eq!(Encoding(true).text("a b/ü".to_owned()), "a%20b/%C3%BC");
        assert_eq!(Encoding(false).text("a b".to_owned()), "a b");
        assert_eq!(Encoding(true).delimiter(Some(String::new())), None);
        assert_eq!(Encoding(true).delimiter(Some(" ".to_owned())).as_deref(), Some("%20"));
    }
}

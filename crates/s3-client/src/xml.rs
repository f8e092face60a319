//! The XML that an S3 client reads and writes.

use percent_encoding::percent_decode_str;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

/// An error response.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Error {
    /// The error code, such as `NoSuchKey`.
    pub code: String,
    /// The message for people.
    pub message: String,
}

/// Response to ListBuckets.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ListBucketsResult {
    /// The list of buckets.
    #[serde(default)]
    pub buckets: Buckets,
}

/// The buckets of a [`ListBucketsResult`].
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Buckets {
    /// The buckets in the store's order.
    #[serde(default)]
    pub bucket: Vec<Bucket>,
}

/// A bucket.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Bucket {
    /// Name of the bucket.
    pub name: String,
    /// Creation date, as written by the store.
    #[serde(default)]
    pub creation_date: String,
}

/// Response to ListObjectsV2. Names are as the store wrote them: see [`ListBucketResult::decode`].
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ListBucketResult {
    /// Encoding of names: `url` if they are encoded.
    encoding_type: String,
    /// Whether more pages follow.
    pub is_truncated: bool,
    /// Token of the next page.
    pub next_continuation_token: String,
    /// The listed objects.
    pub contents: Vec<Contents>,
    /// The common prefixes of keys up to the delimiter.
    pub common_prefixes: Vec<CommonPrefix>,
}

/// An object of a [`ListBucketResult`].
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Contents {
    /// Key of the object.
    pub key: String,
    /// Size of the object in bytes.
    pub size: u64,
    /// Time of the last change, as written by the store.
    #[serde(default)]
    pub last_modified: String,
}

/// A prefix of a [`ListBucketResult`].
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct CommonPrefix {
    /// The prefix, delimiter included.
    pub prefix: String,
}

impl ListBucketResult {
    /// Decodes a name of the listing. Stores form-encode names on request, because XML can neither contain all
    /// characters nor preserve spaces at the ends.
    pub fn decode(&self, name: &str) -> String {
        if self.encoding_type != "url" {
            return name.to_owned();
        }
        let spaced = name.replace('+', " ");
        percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
    }
}

/// Response to CreateMultipartUpload.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct InitiateMultipartUploadResult {
    /// Id of the upload.
    pub upload_id: String,
}

/// Response to a request that may fail after the status 200 was sent.
#[derive(Debug, Deserialize)]
pub enum LateResponse {
    /// An object was copied.
    CopyObjectResult(IgnoredAny),
    /// An upload was completed.
    CompleteMultipartUploadResult(IgnoredAny),
    /// The request failed.
    Error(Error),
}

/// Body of CompleteMultipartUpload.
#[derive(Debug, Serialize)]
pub struct CompleteMultipartUpload {
    /// The parts, ordered by number.
    #[serde(rename = "Part")]
    pub parts: Vec<Part>,
}

/// A part of an upload.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Part {
    /// Number of the part, from 1 on.
    pub part_number: u32,
    /// ETag in the response to the upload of the part.
    #[serde(rename = "ETag")]
    pub etag: String,
}

/// Body of CreateBucket for a region of its own.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct CreateBucketConfiguration<'a> {
    /// Region of the bucket.
    pub location_constraint: &'a str,
}

/// A document in a store's response.
pub trait Answer: Sized {
    /// Parses the document.
    ///
    /// # Errors
    /// What is wrong with the document.
    fn read(document: &[u8]) -> Result<Self, String>;
}

/// A document that a client sends.
pub trait Message {
    /// Serialises the document.
    fn write(&self) -> String;
}

fn read<T: DeserializeOwned>(document: &[u8]) -> Result<T, String> {
    let text = String::from_utf8_lossy(document);
    quick_xml::de::from_str(&text).map_err(|error| format!("cannot parse the store's answer: {error}"))
}

fn write(document: &impl Serialize) -> String {
    quick_xml::se::to_string(document).expect("names and texts can be written as XML")
}

// Compiles the parsers and serialisers here, where they are optimised, and not in the calling crates.
macro_rules! documents {
    ($($answer:ty),*; $($message:ty),*) => {
        $(impl Answer for $answer {
            fn read(document: &[u8]) -> Result<Self, String> {
                read(document)
            }
        })*
        $(impl Message for $message {
            fn write(&self) -> String {
                write(self)
            }
        })*
    };
}

documents!(Error, ListBucketsResult, ListBucketResult, InitiateMultipartUploadResult, LateResponse;
    CompleteMultipartUpload, CreateBucketConfiguration<'_>);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(text: &str) -> ListBucketResult {
        read(text.as_bytes()).unwrap()
    }

    #[test]
    fn listings_are_read_in_any_order_of_their_elements() {
        let listing = list(
            "<?xml version=\"1.0\"?>\n<ListBucketResult xmlns=\"x\"><Name>b</Name><Prefix/>\
             <Contents><Key>a&amp;b&#x20;c</Key><Size>7</Size><LastModified>t</LastModified><Owner><ID>1</ID></Owner></Contents>\
             <CommonPrefixes><Prefix>d/</Prefix></CommonPrefixes><IsTruncated>true</IsTruncated>\
             <Contents><Key>e</Key><Size>0</Size><LastModified>t</LastModified></Contents>\
             <NextContinuationToken>n</NextContinuationToken></ListBucketResult>",
        );
        assert_eq!(listing.contents.iter().map(|object| &object.key).collect::<Vec<_>>(), ["a&b c", "e"]);
        assert_eq!((listing.contents[0].size, listing.common_prefixes[0].prefix.as_str()), (7, "d/"));
        assert!(listing.is_truncated && listing.next_continuation_token == "n");
        let empty = list("<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>");
        assert!(empty.contents.is_empty() && !empty.is_truncated);
    }

    #[test]
    fn names_are_decoded_when_they_were_encoded() {
        let encoded = list("<ListBucketResult><EncodingType>url</EncodingType></ListBucketResult>");
        assert_eq!(encoded.decode("%20a+b%2Bc/%0A%C3%BC"), " a b+c/\nü");
        assert_eq!(ListBucketResult::default().decode("a+b%20"), "a+b%20");
    }

    #[test]
    fn buckets_are_read_and_there_may_be_none() {
        let text = "<ListAllMyBucketsResult><Owner/><Buckets><Bucket><Name>b</Name><CreationDate>d</CreationDate></Bucket>\
                    </Buckets></ListAllMyBucketsResult>";
        let result: ListBucketsResult = read(text.as_bytes()).unwrap();
        assert_eq!(result.buckets.bucket[0].name, "b");
        for none in ["<R><Buckets/></R>", "<R/>", "<R><Buckets></Buckets></R>"] {
            assert!(read::<ListBucketsResult>(none.as_bytes()).unwrap().buckets.bucket.is_empty());
        }
    }

    #[test]
    fn late_failures_are_told_from_success() {
        let failed = read(b"<Error><Code>InternalError</Code><Message>m</Message></Error>").unwrap();
        assert!(matches!(failed, LateResponse::Error(Error { code, .. }) if code == "InternalError"));
        let done = b"<?xml version=\"1.0\"?>\n\n<CompleteMultipartUploadResult xmlns=\"x\"><ETag>e</ETag></CompleteMultipartUploadResult>";
        assert!(matches!(read(done).unwrap(), LateResponse::CompleteMultipartUploadResult(_)));
        assert!(matches!(
            read(b"<CopyObjectResult><ETag>e</ETag></CopyObjectResult>").unwrap(),
            LateResponse::CopyObjectResult(_)
        ));
        assert!(read::<LateResponse>(b"<html/>").is_err() && read::<LateResponse>(b"").is_err());
    }

    #[test]
    fn documents_are_written_as_s3_wants_them() {
        let parts = vec![Part { part_number: 1, etag: "\"a\"".to_owned() }];
        assert_eq!(
            write(&CompleteMultipartUpload { parts }),
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>\"a\"</ETag></Part></CompleteMultipartUpload>"
        );
        assert_eq!(
            write(&CreateBucketConfiguration { location_constraint: "a<b" }),
            "<CreateBucketConfiguration><LocationConstraint>a&lt;b</LocationConstraint></CreateBucketConfiguration>"
        );
    }

    #[test]
    fn cut_and_deep_answers_are_refused() {
        for text in ["<a><b>".to_owned(), String::new(), "<a>".repeat(100_000)] {
            assert!(read::<ListBucketResult>(text.as_bytes()).is_err());
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(junk in "\\PC{0,60}") {
            let _ = read::<ListBucketResult>(junk.as_bytes());
            let _ = read::<LateResponse>(junk.as_bytes());
        }
    }
}

//! The documents of batch requests.
//!
//! The JSON is parsed strictly: a misspelt `range` would otherwise return whole objects. A bad range or ETag fails its
//! item only; a bad document fails the request.

use std::fmt;
use std::marker::PhantomData;

use s3s::dto::Range;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error, SeqAccess, Visitor};
use striate_client::{GetRequest, ReadCondition, ReadRange};

use super::Item;
use crate::refusal::Refusal;

/// Maximum number of items in one request.
pub(crate) const MAX_ITEMS: usize = 4_096;

/// Format of the response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    #[default]
    Frames,
    Tar,
}

/// The document of a batch read.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchRequest {
    pub items: BoundedList<RequestedItem>,
    #[serde(default)]
    pub format: Format,
}

/// One object or range.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestedItem {
    pub key: String,
    pub range: Option<String>,
    pub if_match: Option<String>,
}

/// The document of a batch put.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchPut {
    pub items: BoundedList<NewItem>,
}

/// One object to create.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewItem {
    pub key: String,
    /// Length of the body in bytes.
    pub content_length: u64,
    #[serde(default)]
    pub content_type: String,
}

/// The document of a query of which keys exist.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchExists {
    pub keys: BoundedList<String>,
    /// Whether keys after the first missing one need not be looked up.
    #[serde(default)]
    pub until_gap: bool,
}

/// A list of at least one and at most [`MAX_ITEMS`] items, with never more in memory.
#[derive(Debug)]
pub(crate) struct BoundedList<T>(pub Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for BoundedList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "1 to {MAX_ITEMS} items")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut all = Vec::new();
                while let Some(item) = items.next_element()? {
                    if all.len() == MAX_ITEMS {
                        return Err(A::Error::custom(format!("more than {MAX_ITEMS} items")));
                    }
                    all.push(item);
                }
                if all.is_empty() {
                    return Err(A::Error::invalid_length(0, &self));
                }
                Ok(all)
            }
        }

        deserializer.deserialize_seq(Reader(PhantomData)).map(Self)
    }
}

/// A kind of document, with its name and an example for error messages.
pub(crate) trait Document: DeserializeOwned {
    const NAME: &'static str;
    const EXAMPLE: &'static str;
}

impl Document for BatchRequest {
    const NAME: &'static str = "batch read";
    const EXAMPLE: &'static str = r#"{"items": [{"key": "a"}]}"#;
}

impl Document for BatchPut {
    const NAME: &'static str = "batch put";
    const EXAMPLE: &'static str = r#"{"items": [{"key": "a", "content_length": 3}]}"#;
}

impl Document for BatchExists {
    const NAME: &'static str = "batch of keys";
    const EXAMPLE: &'static str = r#"{"keys": ["a", "b"]}"#;
}

/// Parses a document.
///
/// # Errors
/// 400 with the fault and its place.
pub(crate) fn parse<T: Document>(json: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(json).map_err(|error| {
        let message = format!("The body is not a {}: {error}. It is JSON such as {}.", T::NAME, T::EXAMPLE);
        Refusal::bad("InvalidRequest", message)
    })
}

impl RequestedItem {
    /// Returns the item, and its read request or the reason why it is refused.
    pub fn open(self, bucket: &str) -> (Item, Result<GetRequest, Refusal>) {
        let (range, condition) = (self.read_range(), self.condition());
        let item = Item { key: self.key, is_range: self.range.is_some() };
        let request = range.and_then(|range| {
            let (bucket, key) = (bucket.to_owned(), item.key.clone());
            Ok(GetRequest { bucket, key, condition: condition?, range, taken_bytes: 0 })
        });
        (item, request)
    }

    fn read_range(&self) -> Result<ReadRange, Refusal> {
        let Some(text) = &self.range else { return Ok(ReadRange::Whole) };
        match Range::parse(text) {
            Ok(Range::Int { first, last }) => Ok(ReadRange::Bytes { first, last }),
            Ok(Range::Suffix { length }) => Ok(ReadRange::Suffix { len: length }),
            Err(_) => Err(Refusal::bad(
                "InvalidArgument",
                "range must be one range of bytes: bytes=0-99, bytes=100- or bytes=-100.",
            )),
        }
    }

    /// Parses the ETag, with quotes, as in responses, or without.
    fn condition(&self) -> Result<ReadCondition, Refusal> {
        let Some(text) = &self.if_match else { return Ok(ReadCondition::default()) };
        let unquoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        let etag = unquoted.unwrap_or(text);
        if etag.is_empty() || etag.contains('"') {
            return Err(Refusal::bad("InvalidArgument", "if_match must be one ETag or *."));
        }
        Ok(ReadCondition { if_match: Some(vec![etag.to_owned()]), ..ReadCondition::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(count: usize) -> String {
        format!("{{\"items\": [{}]}}", vec!["{\"key\": \"k\"}"; count].join(","))
    }

    #[test]
    fn one_to_4096_items_are_read_and_frames_are_the_default() {
        let request: BatchRequest = parse(items(MAX_ITEMS).as_bytes()).unwrap();
        assert_eq!((request.items.0.len(), request.format), (MAX_ITEMS, Format::Frames));
        let tar: BatchRequest = parse(br#"{"items": [{"key": "a"}], "format": "tar"}"#).unwrap();
        assert_eq!(tar.format, Format::Tar);
    }

    #[test]
    fn what_is_no_batch_read_is_refused_with_the_place() {
        for (json, reason) in [
            (items(0), "1 to 4096 items"),
            (items(MAX_ITEMS + 1), "more than 4096 items"),
            ("{\"items\": [{\"key\": \"a\", \"rnage\": \"x\"}]}".to_owned(), "`rnage`"),
            ("{\"items\": [{}]}".to_owned(), "missing field `key`"),
            ("{\"items\": [{\"key\": \"a\"}], \"format\": \"zip\"}".to_owned(), "`zip`"),
            ("{\"items\": [{\"key\": \"a\"}]} x".to_owned(), "trailing characters"),
            ("{\"items\": ".to_owned(), "EOF"),
            (String::new(), "EOF"),
            ("[".repeat(100_000), "expected a string"),
        ] {
            let refusal = parse::<BatchRequest>(json.as_bytes()).unwrap_err();
            assert_eq!((refusal.code, refusal.status.as_u16()), ("InvalidRequest", 400));
            assert!(refusal.message.contains(reason), "{reason}: {}", refusal.message);
        }
    }

    #[test]
    fn puts_name_key_and_length_and_questions_name_keys() {
        let put: BatchPut = parse(br#"{"items": [{"key": "a", "content_length": 3}]}"#).unwrap();
        assert_eq!((put.items.0[0].key.as_str(), put.items.0[0].content_length), ("a", 3));
        for json in [r#"{"items": [{"key": "a"}]}"#, r#"{"items": [{"key": "a", "content_length": -1}]}"#] {
            let refusal = parse::<BatchPut>(json.as_bytes()).unwrap_err();
            assert!(refusal.message.contains("not a batch put"), "{}", refusal.message);
        }
        let exists: BatchExists = parse(br#"{"keys": ["a", "b"], "until_gap": true}"#).unwrap();
        assert_eq!((exists.keys.0.len(), exists.until_gap), (2, true));
        let many = format!("{{\"keys\": [{}]}}", vec!["\"k\""; MAX_ITEMS + 1].join(","));
        assert!(parse::<BatchExists>(many.as_bytes()).unwrap_err().message.contains("more than 4096"));
    }

    fn open(range: Option<&str>, if_match: Option<&str>) -> Result<GetRequest, Refusal> {
        let own = |text: Option<&str>| text.map(str::to_owned);
        let item = RequestedItem { key: "k".to_owned(), range: own(range), if_match: own(if_match) };
        let (opened, request) = item.open("b");
        assert_eq!(opened, Item { key: "k".to_owned(), is_range: range.is_some() });
        request
    }

    #[test]
    fn ranges_and_etags_are_those_of_headers() {
        let range = |text| open(Some(text), None).unwrap().range;
        assert_eq!(range("bytes=0-99"), ReadRange::Bytes { first: 0, last: Some(99) });
        assert_eq!(range("bytes=7-"), ReadRange::Bytes { first: 7, last: None });
        assert_eq!(range("bytes=-5"), ReadRange::Suffix { len: 5 });
        for text in ["", "0-99", "bytes=0-1,3-4", "bytes=9-3", "lines=1-2"] {
            assert_eq!(open(Some(text), None).unwrap_err().code, "InvalidArgument", "{text}");
        }
        for (text, etag) in [("\"abc\"", "abc"), ("abc", "abc"), ("*", "*")] {
            let condition = open(None, Some(text)).unwrap().condition;
            assert_eq!(condition.if_match, Some(vec![etag.to_owned()]));
        }
        for text in ["\"a\", \"b\"", "W/\"a\"", "", "\"\""] {
            assert_eq!(open(None, Some(text)).unwrap_err().code, "InvalidArgument", "{text}");
        }
    }
}

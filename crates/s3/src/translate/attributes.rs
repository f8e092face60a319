//! Converts the headers that describe an object to the client service's attributes.

use std::collections::BTreeMap;

use s3s::dto::{Metadata, StorageClass, Timestamp, TimestampFormat};
use striate_client::ObjectAttributes;

use super::{AuthorisedRequest, not_implemented};
use crate::refusal::Refusal;

/// Maximum number of bytes of user metadata, names and values together.
const MAX_USER_METADATA_BYTES: usize = 2 << 10;
/// Maximum number of tags of one object.
pub(super) const MAX_TAGS: usize = 10;

/// The attribute fields that several of s3s's inputs have.
pub(super) struct Fields {
    pub cache_control: Option<String>,
    pub content_disposition: Option<String>,
    pub content_encoding: Option<String>,
    pub content_language: Option<String>,
    pub content_type: Option<String>,
    pub expires: Option<Timestamp>,
    pub metadata: Option<Metadata>,
    pub storage_class: Option<StorageClass>,
    pub tagging: Option<String>,
    pub website_redirect_location: Option<String>,
}

/// Takes the attribute fields out of one of s3s's inputs.
macro_rules! attribute_fields {
    ($input:expr) => {
        $crate::translate::attributes::Fields {
            cache_control: $input.cache_control.take(),
            content_disposition: $input.content_disposition.take(),
            content_encoding: $input.content_encoding.take(),
            content_language: $input.content_language.take(),
            content_type: $input.content_type.take(),
            expires: $input.expires.take(),
            metadata: $input.metadata.take(),
            storage_class: $input.storage_class.take(),
            tagging: $input.tagging.take(),
            website_redirect_location: $input.website_redirect_location.take(),
        }
    };
}

/// Refuses requests for features that the gateway does not have: encryption with the client's or a service's keys,
/// locks, and access lists other than the owner's. Storing the object without them would be a broken promise.
macro_rules! refuse_unsupported {
    ($input:expr) => {{
        let encrypted = $input.sse_customer_algorithm.is_some()
            || $input.sse_customer_key.is_some()
            || $input.ssekms_key_id.is_some()
            || $input.server_side_encryption.is_some();
        let locked = $input.object_lock_mode.is_some()
            || $input.object_lock_retain_until_date.is_some()
            || $input.object_lock_legal_hold_status.as_ref().is_some_and(|hold| hold.as_str() == "ON");
        let granted = $input.grant_full_control.is_some()
            || $input.grant_read.is_some()
            || $input.grant_read_acp.is_some()
            || $input.grant_write_acp.is_some();
        let acl = $input.acl.as_ref().map(|acl| acl.as_str());
        $crate::translate::attributes::refuse(encrypted, locked, granted, acl)
    }};
}

pub(super) use {attribute_fields, refuse_unsupported};

pub(super) fn refuse(encrypted: bool, locked: bool, granted: bool, acl: Option<&str>) -> Result<(), Refusal> {
    let is_owners = super::acl::is_owners(acl.unwrap_or_default())?;
    if encrypted {
        return Err(not_implemented("Server-side encryption is not available."));
    }
    if locked {
        return Err(Refusal::bad("InvalidRequest", "Bucket is missing Object Lock Configuration"));
    }
    if granted || !is_owners {
        return Err(super::acl::not_supported());
    }
    Ok(())
}

impl Fields {
    /// Returns the attributes of an object that `entered` writes.
    pub fn into_attributes(self, entered: &AuthorisedRequest) -> Result<ObjectAttributes, Refusal> {
        check_metadata(self.metadata.as_ref())?;
        let user_metadata: BTreeMap<String, String> = self
            .metadata
            .unwrap_or_default()
            .into_iter()
            .map(|(name, value)| (name.to_lowercase(), value))
            .collect();
        let text = |parsed: Option<String>, name: &str| {
            parsed.or_else(|| entered.carried.text(name)).unwrap_or_default()
        };
        Ok(ObjectAttributes {
            content_type: text(self.content_type, "content-type"),
            content_encoding: text(self.content_encoding, "content-encoding"),
            content_disposition: text(self.content_disposition, "content-disposition"),
            content_language: text(self.content_language, "content-language"),
            cache_control: text(self.cache_control, "cache-control"),
            expires: text(self.expires.as_ref().and_then(http_date), "expires"),
            website_redirect: checked_redirect(text(
                self.website_redirect_location,
                "x-amz-website-redirect-location",
            ))?,
            user_metadata,
            tags: self.tagging.as_deref().map(parse_tags).transpose()?.unwrap_or_default(),
            storage_class: storage_class(self.storage_class)?,
            owner: entered.identity.access_key.clone(),
        })
    }
}

/// Checks the size of user metadata, names and values together.
pub(super) fn check_metadata(metadata: Option<&Metadata>) -> Result<(), Refusal> {
    let bytes: usize = metadata.into_iter().flatten().map(|(name, value)| name.len() + value.len()).sum();
    match bytes > MAX_USER_METADATA_BYTES {
        false => Ok(()),
        true => Err(Refusal::bad(
            "MetadataTooLarge",
            format!("Your metadata headers have {bytes} bytes; {MAX_USER_METADATA_BYTES} are allowed."),
        )),
    }
}

/// Returns a website redirect location, which is a path or an address; empty for none.
pub(super) fn checked_redirect(location: String) -> Result<String, Refusal> {
    let is_valid = ["/", "http://", "https://"].iter().any(|start| location.starts_with(start));
    match is_valid || location.is_empty() {
        true => Ok(location),
        false => Err(Refusal::bad(
            "InvalidRedirectLocation",
            "The website redirect location must have a prefix of 'http://' or 'https://' or '/'.",
        )),
    }
}

fn http_date(time: &Timestamp) -> Option<String> {
    let mut text = Vec::new();
    time.format(TimestampFormat::HttpDate, &mut text).ok()?;
    String::from_utf8(text).ok()
}

/// Returns a storage class as rows store it, where the standard class is empty. The bucket
/// determines what a class means.
pub(super) fn storage_class(class: Option<StorageClass>) -> Result<String, Refusal> {
    let Some(class) = class else { return Ok(String::new()) };
    match class.as_str().parse() {
        Ok(striate_core::StorageClass::Standard) => Ok(String::new()),
        Ok(class) => Ok(class.to_string()),
        Err(error) => Err(Refusal::bad("InvalidStorageClass", format!("{error}."))),
    }
}

/// Parses tags as in the `x-amz-tagging` header: `a=1&b=2`, form-encoded.
pub(super) fn parse_tags(text: &str) -> Result<BTreeMap<String, String>, Refusal> {
    let invalid = || {
        let message = "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query parameters \
                       without tag name duplicates.";
        Refusal::bad("InvalidArgument", message)
    };
    let mut tags = BTreeMap::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let decode = |text: &str| form_decode(text).ok_or_else(invalid);
        if name.is_empty() || tags.insert(decode(name)?, decode(value)?).is_some() {
            return Err(invalid());
        }
    }
    check_tags(&tags, MAX_TAGS)?;
    Ok(tags)
}

pub(super) fn duplicate_tag() -> Refusal {
    Refusal::bad("InvalidTag", "Cannot provide multiple Tags with the same key")
}

/// Decodes form-encoded text; `None` if it is not UTF-8, or a `%` has no two digits.
fn form_decode(text: &str) -> Option<String> {
    let is_encoded = |after: &str| {
        after.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    let is_valid = text.split('%').skip(1).all(is_encoded);
    is_valid.then(|| crate::address::percent_decode(&text.replace('+', " "))).flatten()
}

/// Whether a character may be in a tag: letters, digits and white space of any script, and eight signs.
fn is_of_tag(character: char) -> bool {
    let is_space = character.is_whitespace() && !character.is_control();
    character.is_alphanumeric() || is_space || "+-=._:/@".contains(character)
}

/// Checks S3's bounds: `limit` tags, names of 1 to 128 and values of at most 256 characters, all of which
/// [may be in tags](is_of_tag).
pub(super) fn check_tags(tags: &BTreeMap<String, String>, limit: usize) -> Result<(), Refusal> {
    if tags.len() > limit {
        return Err(Refusal::bad("BadRequest", format!("Tags cannot be more than {limit}")));
    }
    for (name, value) in tags {
        if name.is_empty() || name.chars().count() > 128 || !name.chars().all(is_of_tag) {
            return Err(Refusal::bad("InvalidTag", "The TagKey you have provided is invalid"));
        }
        if value.chars().count() > 256 || !value.chars().all(is_of_tag) {
            return Err(Refusal::bad("InvalidTag", "The TagValue you have provided is invalid"));
        }
        if name.starts_with("aws:") {
            return Err(Refusal::bad("InvalidTag", "System tags cannot be added/updated by requester"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_form_decoded_and_bounded() {
        let tags = parse_tags("&a=1&b+c=%C3%BC%2F&d&").unwrap();
        let pairs: Vec<(&str, &str)> = tags.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(pairs, [("a", "1"), ("b c", "ü/"), ("d", "")]);
        for malformed in ["a=1&a=2", "=", "=1", "a%", "a=%f", "a=%ff"] {
            assert_eq!(parse_tags(malformed).unwrap_err().code, "InvalidArgument", "{malformed}");
        }
        let many: Vec<String> = (0..11).map(|number| format!("t{number}=")).collect();
        assert_eq!(parse_tags(&many.join("&")).unwrap_err().code, "BadRequest");
        assert_eq!(parse_tags(&format!("{}=", "k".repeat(129))).unwrap_err().code, "InvalidTag");
        for refused in ["aws:x=1", "a?=1", "a=1*", "a=%26", "a=%0A", "a=\u{1F600}"] {
            assert_eq!(parse_tags(refused).unwrap_err().code, "InvalidTag", "{refused}");
        }
    }

    #[test]
    fn redirects_lead_to_paths_or_addresses() {
        for valid in ["", "/k", "http://h/", "https://h"] {
            assert_eq!(checked_redirect(valid.to_owned()).as_deref(), Ok(valid));
        }
        for invalid in ["k", "ftp://h", " /k", "javascript:x"] {
            assert_eq!(checked_redirect(invalid.to_owned()).unwrap_err().code, "InvalidRedirectLocation");
        }
    }

    #[test]
    fn promises_that_cannot_be_kept_are_refused() {
        assert_eq!(refuse(true, false, false, None).unwrap_err().status, 501);
        assert_eq!(refuse(false, true, false, None).unwrap_err().code, "InvalidRequest");
        let code = |granted, acl| refuse(false, false, granted, acl).unwrap_err().code;
        assert_eq!(code(false, Some("public-read")), "AccessControlListNotSupported");
        assert_eq!(code(true, None), "AccessControlListNotSupported");
        assert_eq!(code(false, Some("public")), "InvalidArgument");
        assert_eq!(refuse(false, false, false, Some("private")), Ok(()));
    }
}

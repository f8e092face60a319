//! Object records, and how callers see them.

use striate_core::{Formats, Profile};
use striate_meta::records::{Object, Part, UploadedParts, object::Body};
use striate_stripe::ProfileTexts;

use crate::error::ClientError;
use crate::object::{MAX_KEY_LEN, ObjectAttributes, ObjectInfo};

/// Refuses a profile under which this program cannot store objects while `formats` are in force.
///
/// # Errors
/// [`ClientError::InvalidArgument`]; the message says what is not supported.
pub(crate) fn check_supported(profile: &Profile, formats: Formats) -> Result<(), ClientError> {
    profile.check_supported(formats).map_err(|error| ClientError::InvalidArgument(error.to_string()))
}

/// Checks a key against S3's limits and our own: NUL ends keys in metadata rows.
///
/// # Errors
/// [`ClientError::KeyTooLong`], or [`ClientError::InvalidArgument`] for an empty key or one with a NUL.
pub fn check_key(key: &str) -> Result<(), ClientError> {
    if key.len() > MAX_KEY_LEN {
        return Err(ClientError::KeyTooLong(key.len()));
    }
    if key.is_empty() || key.contains('\0') {
        return Err(ClientError::InvalidArgument("a key has at least one byte and no NUL".to_owned()));
    }
    Ok(())
}

/// Creates a record with only the attributes that the writer set.
pub(crate) fn described(attributes: ObjectAttributes) -> Object {
    Object {
        content_type: attributes.content_type,
        content_encoding: attributes.content_encoding,
        content_disposition: attributes.content_disposition,
        content_language: attributes.content_language,
        cache_control: attributes.cache_control,
        expires: attributes.expires,
        website_redirect: attributes.website_redirect,
        user_metadata: attributes.user_metadata,
        tags: attributes.tags,
        storage_class: attributes.storage_class,
        owner: attributes.owner,
        ..Object::default()
    }
}

/// Returns the attributes in a record: the inverse of [`described`].
pub(crate) fn attributes(object: Object) -> ObjectAttributes {
    ObjectAttributes {
        content_type: object.content_type,
        content_encoding: object.content_encoding,
        content_disposition: object.content_disposition,
        content_language: object.content_language,
        cache_control: object.cache_control,
        expires: object.expires,
        website_redirect: object.website_redirect,
        user_metadata: object.user_metadata,
        tags: object.tags,
        storage_class: object.storage_class,
        owner: object.owner,
    }
}

/// Whether the parts of a multipart object are listed in its [`ObjectInfo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShowParts {
    Yes,
    No,
}

/// Returns an object's state for callers, and its body.
///
/// # Errors
/// [`ClientError::Inconsistent`] for a record that no version of this program writes.
pub(crate) fn open(
    key: String,
    mut object: Object,
    profiles: &ProfileTexts,
    show: ShowParts,
) -> Result<(ObjectInfo, Body), ClientError> {
    let inconsistent = |reason: &str| ClientError::Inconsistent {
        what: format!("object {key:?}"),
        reason: reason.to_owned(),
    };
    let version = object.version.as_ref().try_into();
    let version = version.map_err(|_| inconsistent("its version id does not have 16 bytes"))?;
    let body = object.body.take().ok_or_else(|| inconsistent("its record has no body"))?;
    let profile = match object.profile.as_str() {
        "" => None,
        text => Some(profiles.parse(text).map_err(|error| inconsistent(&error.to_string()))?),
    };
    let parts = match (&body, show) {
        (Body::Uploaded(uploaded), ShowParts::Yes) => parts_of(uploaded),
        _ => Vec::new(),
    };
    let info = ObjectInfo {
        version,
        size: object.size,
        modified_unix_ms: object.modified_unix_ms,
        etag: std::mem::take(&mut object.etag),
        checksums: std::mem::take(&mut object.checksums),
        parts,
        profile,
        attributes: attributes(object),
        key,
    };
    Ok((info, body))
}

/// Returns the numbers and sizes of a multipart object's parts.
fn parts_of(uploaded: &UploadedParts) -> Vec<Part> {
    let numbered =
        uploaded.runs.iter().flat_map(|run| (0..run.count).map(move |i| (run.first_number + i, run.size)));
    numbered.map(|(number, size)| Part { number, size, ..Part::default() }).collect()
}

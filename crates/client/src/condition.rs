//! Conditions of reads and writes, and the byte range of a read: S3's rules as pure functions.

use std::ops::Range;

use striate_meta::records::Object;

use crate::error::ClientError;
use crate::object::{ObjectInfo, RangeVersion, ReadCondition, ReadRange, WriteCondition};

/// Whether an ETag is one of `etags`; `*` matches any.
fn names(etags: &[String], etag: &str) -> bool {
    etags.iter().any(|candidate| candidate == "*" || candidate == etag)
}

/// Checks a write's conditions against the current object. Call it with the row that the commit requires unchanged, so
/// that the result is part of the transaction (design.md §10.7).
///
/// # Errors
/// [`ClientError::PreconditionFailed`]; [`ClientError::NoSuchKey`] for a condition on an object where there is none.
pub(crate) fn check_write(
    condition: &WriteCondition,
    key: &str,
    current: Option<&Object>,
) -> Result<(), ClientError> {
    let WriteCondition { if_absent, if_match, if_modified_at, if_size } = condition;
    let needs_object = if_match.is_some() || if_modified_at.is_some() || if_size.is_some();
    let Some(object) = current else {
        return if needs_object { Err(ClientError::NoSuchKey(key.to_owned())) } else { Ok(()) };
    };
    let failed = |name| Err(ClientError::PreconditionFailed(name));
    if *if_absent {
        return failed("If-None-Match");
    }
    if if_match.as_ref().is_some_and(|etags| !names(etags, &object.etag)) {
        return failed("If-Match");
    }
    if if_modified_at.is_some_and(|seconds| seconds != object.modified_unix_ms / 1_000) {
        return failed("x-amz-if-match-last-modified-time");
    }
    if if_size.is_some_and(|size| size != object.size) {
        return failed("x-amz-if-match-size");
    }
    Ok(())
}

/// Checks a read's conditions. `If-Match` overrides `If-Unmodified-Since` and `If-None-Match` overrides
/// `If-Modified-Since`; dates have a resolution of one second.
///
/// # Errors
/// [`ClientError::PreconditionFailed`] (412) or [`ClientError::NotModified`] (304).
pub fn check_read(condition: &ReadCondition, info: &ObjectInfo) -> Result<(), ClientError> {
    let modified = info.modified_unix_ms / 1_000;
    match (&condition.if_match, condition.if_unmodified_since) {
        (Some(etags), _) if !names(etags, &info.etag) => {
            return Err(ClientError::PreconditionFailed("If-Match"));
        }
        (None, Some(date)) if modified > date => {
            return Err(ClientError::PreconditionFailed("If-Unmodified-Since"));
        }
        _ => {}
    }
    let unchanged = match (&condition.if_none_match, condition.if_modified_since) {
        (Some(etags), _) => names(etags, &info.etag),
        (None, Some(date)) => modified <= date,
        (None, None) => false,
    };
    if unchanged { Err(ClientError::NotModified(Box::new(info.clone()))) } else { Ok(()) }
}

/// Checks the conditions on a copy's source: where a read returns 304, a copy returns 412.
///
/// # Errors
/// [`ClientError::PreconditionFailed`].
pub(crate) fn check_source(condition: &ReadCondition, info: &ObjectInfo) -> Result<(), ClientError> {
    check_read(condition, info).map_err(|error| match error {
        ClientError::NotModified(_) if condition.if_none_match.is_some() => {
            ClientError::PreconditionFailed("x-amz-copy-source-if-none-match")
        }
        ClientError::NotModified(_) => ClientError::PreconditionFailed("x-amz-copy-source-if-modified-since"),
        other => other,
    })
}

/// Returns the range that a read gets: the whole object if its range is of another version.
pub fn wanted_range(range: ReadRange, if_range: Option<&RangeVersion>, info: &ObjectInfo) -> ReadRange {
    let is_of_version = match if_range {
        None => true,
        Some(RangeVersion::Etag(etag)) => *etag == info.etag,
        Some(RangeVersion::ModifiedAt(seconds)) => *seconds == info.modified_unix_ms / 1_000,
        Some(RangeVersion::Unknown) => false,
    };
    if is_of_version { range } else { ReadRange::Whole }
}

/// Resolves the range of a read to byte offsets.
///
/// # Errors
/// [`ClientError::InvalidRange`] when the range contains no byte of the object, except for a read of the whole.
pub fn resolve_range(range: ReadRange, info: &ObjectInfo) -> Result<Range<u64>, ClientError> {
    let size = info.size;
    let invalid = Err(ClientError::InvalidRange { size });
    match range {
        ReadRange::Whole => Ok(0..size),
        ReadRange::Bytes { first, last } => {
            let last = last.unwrap_or(u64::MAX);
            if first >= size || last < first {
                return invalid;
            }
            Ok(first..last.saturating_add(1).min(size))
        }
        ReadRange::Suffix { len } if len == 0 || size == 0 => invalid,
        ReadRange::Suffix { len } => Ok(size.saturating_sub(len)..size),
        ReadRange::Part(1) if info.parts.is_empty() => Ok(0..size),
        ReadRange::Part(number) => {
            let Some(position) = info.parts.iter().position(|part| part.number == number) else {
                return invalid;
            };
            let start: u64 = info.parts[..position].iter().map(|part| part.size).sum();
            Ok(start..start + info.parts[position].size)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use striate_meta::records::Part;

    use super::*;
    use crate::object::ObjectAttributes;

    fn object(size: u64, parts: &[(u32, u64)]) -> ObjectInfo {
        ObjectInfo {
            key: "key".to_owned(),
            version: [0; 16],
            size,
            modified_unix_ms: 10_500,
            etag: "e".to_owned(),
            attributes: ObjectAttributes::default(),
            checksums: Vec::new(),
            parts: parts.iter().map(|&(number, size)| Part { number, size, ..Part::default() }).collect(),
            profile: None,
        }
    }

    fn status(condition: ReadCondition) -> u32 {
        match check_read(&condition, &object(1, &[])) {
            Ok(()) => 200,
            Err(ClientError::NotModified(_)) => 304,
            Err(ClientError::PreconditionFailed(_)) => 412,
            Err(other) => panic!("{other}"),
        }
    }

    /// The whole table of S3's (and RFC 9110's) precedence.
    #[test]
    fn read_conditions_have_s3s_precedence() {
        let etags = |etag: Option<&str>| etag.map(|etag| vec!["x".to_owned(), etag.to_owned()]);
        let dates = [None, Some(9), Some(10), Some(11)];
        for (if_match, if_none_match) in [None, Some("e"), Some("*"), Some("f")]
            .into_iter()
            .flat_map(|a| [None, Some("e"), Some("f")].map(|b| (a, b)))
        {
            for (unmodified, modified) in dates.into_iter().flat_map(|a| dates.map(|b| (a, b))) {
                let expected_412 = match if_match {
                    Some(etag) => etag == "f",
                    None => unmodified == Some(9),
                };
                let expected_304 = match if_none_match {
                    Some(etag) => etag == "e",
                    None => modified.is_some_and(|date| date >= 10),
                };
                let condition = ReadCondition {
                    if_match: etags(if_match),
                    if_none_match: etags(if_none_match),
                    if_modified_since: modified,
                    if_unmodified_since: unmodified,
                    if_range: None,
                };
                let expected = if expected_412 {
                    412
                } else if expected_304 {
                    304
                } else {
                    200
                };
                assert_eq!(status(condition.clone()), expected, "{condition:?}");
            }
        }
    }

    #[test]
    fn write_conditions_look_at_the_current_object() {
        let object = Object { etag: "e".to_owned(), size: 10, modified_unix_ms: 10_500, ..Object::default() };
        let status = |condition: &WriteCondition, current| match check_write(condition, "k", current) {
            Ok(()) => 200,
            Err(ClientError::PreconditionFailed(_)) => 412,
            Err(ClientError::NoSuchKey(_)) => 404,
            Err(other) => panic!("{other}"),
        };
        let none = WriteCondition::default;
        let absent = WriteCondition { if_absent: true, ..none() };
        assert_eq!((status(&absent, None), status(&absent, Some(&object))), (200, 412));
        assert_eq!((status(&none(), None), status(&none(), Some(&object))), (200, 200));
        let matching = |etag: &str| WriteCondition { if_match: Some(vec![etag.to_owned()]), ..none() };
        let modified = |seconds| WriteCondition { if_modified_at: Some(seconds), ..none() };
        let sized = |size| WriteCondition { if_size: Some(size), ..none() };
        for (condition, expected) in [
            (matching("e"), 200),
            (matching("*"), 200),
            (matching("f"), 412),
            (modified(10), 200),
            (modified(11), 412),
            (modified(0), 412),
            (sized(10), 200),
            (sized(9), 412),
            (WriteCondition { if_size: Some(9), ..matching("e") }, 412),
            (WriteCondition { if_modified_at: Some(10), ..sized(10) }, 200),
        ] {
            assert_eq!(status(&condition, Some(&object)), expected, "{condition:?}");
            assert_eq!(status(&condition, None), 404, "{condition:?}");
            assert!(condition.is_any());
        }
    }

    #[test]
    fn a_range_of_another_version_is_the_whole() {
        let (object, range) = (object(9, &[]), ReadRange::Suffix { len: 5 });
        let wanted = |if_range: Option<&RangeVersion>| wanted_range(range, if_range, &object);
        let etag = |etag: &str| RangeVersion::Etag(etag.to_owned());
        assert_eq!(wanted(None), range);
        for (version, expected) in [
            (etag("e"), range),
            (etag("f"), ReadRange::Whole),
            (RangeVersion::ModifiedAt(10), range),
            (RangeVersion::ModifiedAt(11), ReadRange::Whole),
            (RangeVersion::Unknown, ReadRange::Whole),
        ] {
            assert_eq!(wanted(Some(&version)), expected, "{version:?}");
        }
    }

    #[test]
    fn parts_are_found_by_their_numbers() {
        let object = object(60, &[(2, 10), (5, 20), (6, 30)]);
        assert_eq!(resolve_range(ReadRange::Part(5), &object).unwrap(), 10..30);
        assert_eq!(resolve_range(ReadRange::Part(6), &object).unwrap(), 30..60);
        assert!(resolve_range(ReadRange::Part(1), &object).is_err());
    }

    proptest! {
        #[test]
        fn ranges_are_the_bytes_a_filter_would_keep(
            size in 0u64..50, first in 0u64..60, last in prop::option::of(0u64..60), suffix in 0u64..60,
        ) {
            let object = object(size, &[]);
            let kept: Vec<u64> = (0..size).filter(|&at| at >= first && last.is_none_or(|last| at <= last)).collect();
            let range = resolve_range(ReadRange::Bytes { first, last }, &object).ok();
            prop_assert_eq!(range.map(|range| range.collect()), (!kept.is_empty()).then_some(kept));
            let kept: Vec<u64> = (0..size).filter(|at| at + suffix >= size).collect();
            let range = resolve_range(ReadRange::Suffix { len: suffix }, &object).ok();
            prop_assert_eq!(range.map(|range| range.collect()), (!kept.is_empty()).then_some(kept));
            prop_assert_eq!(resolve_range(ReadRange::Whole, &object).unwrap(), 0..size);
        }
    }
}

//! Conditions of requests: evaluated or refused, never dropped.
//!
//! A client that sends a condition relies on it. So every header that makes a request conditional, in S3 or in another
//! dialect of it, is either in the row of the request's operation, and then its handler evaluates it, or refused here.

use http::HeaderMap;

use super::Operation;
use crate::refusal::Refusal;

/// Prefixes of the headers of S3 and of stores that speak nearly the same.
const VENDORS: [&str; 6] = ["x-amz-", "x-goog-", "x-oss-", "x-cos-", "x-obs-", "x-wasabi-"];
/// Validators of caches: an answer in full is always right.
const VALIDATORS: [&str; 2] = ["if-none-match", "if-modified-since"];

/// Whether a header, or a form's field, makes a request conditional or applies it to a part of an object. `name` is in
/// lower case.
pub(crate) fn is_condition(name: &str) -> bool {
    let vendors_own = || {
        VENDORS.iter().find_map(|vendor| name.strip_prefix(vendor)).filter(|rest| !rest.starts_with("meta-"))
    };
    name == "if"
        || name == "content-range"
        || name.starts_with("if-")
        || vendors_own().is_some_and(|rest| {
            let is_other = ["forbid-overwrite", "write-offset-bytes"].contains(&rest);
            is_other || rest.starts_with("if-") || rest.contains("-if-")
        })
}

/// Refuses a request with a condition that its operation does not evaluate.
///
/// # Errors
/// 400 for `Content-Range` (RFC 9110 §14.4: such a PUT is of a part of the object); 501 for other conditions.
pub(crate) fn check_conditions(row: &Operation, headers: &HeaderMap) -> Result<(), Refusal> {
    let named = headers.keys().map(http::HeaderName::as_str).filter(|name| is_condition(name));
    for name in named {
        let is_harmless = row.is_read() && (VALIDATORS.contains(&name) || name == "content-range");
        if row.conditions.contains(&name) || is_harmless {
            continue;
        }
        return Err(match name {
            "content-range" => Refusal::bad(
                "InvalidRequest",
                "Content-Range is not allowed: an object is written as a whole.",
            ),
            name => Refusal::not_implemented(format!("{name} is not available for {}.", row.name)),
        });
    }
    Ok(())
}

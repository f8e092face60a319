//! Presigned URLs of Signature Version 2.
//!
//! Off unless the operator allows it. boto3 still presigns with it unless another version is configured. It signs less
//! than Version 4: method, path, sub-resources, `x-amz-*` headers, content type and MD5, with HMAC-SHA1 (“Signing and
//! Authenticating REST Requests”, S3 developer guide). Expiry is bounded as for Version 4. A request that carries anything
//! else is refused, because anyone who has the URL could have added it. The Authorization header of Version 2 is refused.

use std::sync::LazyLock;

use hmac::{Hmac, Mac};
use http::HeaderMap;
use http::request::Parts;
use sha1::Sha1;
use subtle::ConstantTimeEq;

use super::request::{has_meaning, query_value, secrets_of, usable};
use super::{MAX_EXPIRES_SECONDS, SignatureContext, check_token, mismatch};
use crate::operations::RESPONSE_PARAMETERS;
use crate::refusal::Refusal;

/// Query parameters that are signed, beside those that replace headers of the answer.
const SUB_RESOURCES: [&str; 24] = [
    "accelerate",
    "acl",
    "cors",
    "delete",
    "encryption",
    "lifecycle",
    "location",
    "logging",
    "notification",
    "object-lock",
    "partNumber",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "replication",
    "requestPayment",
    "restore",
    "tagging",
    "torrent",
    "uploadId",
    "uploads",
    "versionId",
    "versioning",
    "website",
];

/// Query parameters that are signed, in order.
static SIGNED_PARAMETERS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let mut all = [&SUB_RESOURCES[..], &RESPONSE_PARAMETERS].concat();
    all.sort_unstable();
    all
});

/// Query parameters that need no signature: the signature's own, what botocore repeats there from the signed headers,
/// and a label without meaning.
const FREE_PARAMETERS: [&str; 6] =
    ["AWSAccessKeyId", "Expires", "Signature", "content-md5", "content-type", "x-id"];

/// Checks that the signature covers all that gives the request its meaning, and each parameter only once.
fn check_coverage(parts: &Parts, query: &str) -> Result<(), Refusal> {
    let mut seen = Vec::new();
    let names = query.split('&').map(|parameter| parameter.split('=').next().unwrap_or(""));
    for name in names.filter(|name| !name.is_empty()) {
        let is_signed = SIGNED_PARAMETERS.contains(&name) || name.starts_with("x-amz-");
        if !is_signed && !FREE_PARAMETERS.contains(&name) {
            return Err(uncovered(&format!("the parameter {name}")));
        }
        if seen.contains(&name) {
            return Err(uncovered(&format!("a second parameter {name}")));
        }
        seen.push(name);
    }
    let unsigned = |name: &&str| has_meaning(name) && !name.starts_with("x-amz-");
    match parts.headers.keys().map(http::HeaderName::as_str).find(unsigned) {
        None => Ok(()),
        Some(name) => Err(uncovered(&format!("the header {name}"))),
    }
}

fn uncovered(what: &str) -> Refusal {
    let message = format!("Signature Version 2 does not cover {what}; sign with AWS4-HMAC-SHA256.");
    Refusal::denied("AccessDenied", message)
}

/// Verifies a presigned request. Returns its access key.
pub(super) async fn verify(
    parts: &Parts,
    query: &str,
    context: &SignatureContext<'_>,
) -> Result<String, Refusal> {
    context.check_version_2()?;
    check_coverage(parts, query)?;
    let SignatureContext { keys, bucket_host, now, .. } = *context;
    let value = |name: &str| {
        let message =
            "Query-string authentication requires the Signature, Expires and AWSAccessKeyId parameters";
        query_value(query, name).ok_or_else(|| Refusal::denied("AccessDenied", message))
    };
    let (access_key, signature, expires) = (value("AWSAccessKeyId")?, value("Signature")?, value("Expires")?);
    let until: u64 = expires
        .parse()
        .map_err(|_| Refusal::denied("AccessDenied", "Invalid date (should be seconds since epoch)"))?;
    if now > until {
        return Err(Refusal::denied("AccessDenied", "Request has expired"));
    }
    if until - now > MAX_EXPIRES_SECONDS {
        let message = "Expires must be less than a week (604800 seconds) ahead";
        return Err(Refusal::bad("AuthorizationQueryParametersError", message));
    }
    let secrets = secrets_of(keys, &access_key).await?;
    check_token(query_value(query, "x-amz-security-token").as_deref())?;
    let text = string_to_sign(parts, query, bucket_host, &expires);
    let claimed = base64_simd::STANDARD.decode_to_vec(&signature).unwrap_or_default();
    let fits = |secret: &str| bool::from(hmac_sha1(secret.as_bytes(), &text).ct_eq(&claimed));
    match usable(&secrets, now).any(fits) {
        true => Ok(access_key),
        false => Err(mismatch(&access_key, &signature, &text)),
    }
}

pub(super) fn hmac_sha1(key: &[u8], text: &str) -> [u8; 20] {
    let mut mac = <Hmac<Sha1> as Mac>::new_from_slice(key).expect("any length is a key");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().into()
}

fn string_to_sign(parts: &Parts, query: &str, bucket_host: Option<&str>, expires: &str) -> String {
    let header =
        |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut text =
        format!("{}\n{}\n{}\n{expires}\n", parts.method, header("content-md5"), header("content-type"));
    amz_headers(&mut text, &parts.headers, query);
    if let Some(bucket) = bucket_host {
        text.extend(["/", bucket]);
    }
    text.push_str(parts.uri.path());
    let mut separator = '?';
    for name in SIGNED_PARAMETERS.iter().copied() {
        let found = query.split('&').find(|parameter| parameter.split('=').next() == Some(name));
        let Some(parameter) = found else { continue };
        text.push(separator);
        text.push_str(name);
        if parameter.contains('=')
            && let Some(value) = query_value(query, name)
        {
            text.extend(["=", &value]);
        }
        separator = '&';
    }
    text
}

/// Appends the `x-amz-*` headers, which a presigned URL may carry in its query instead.
fn amz_headers(text: &mut String, headers: &HeaderMap, query: &str) {
    let names = headers.keys().map(http::HeaderName::as_str).filter(|name| name.starts_with("x-amz-"));
    let mut lines: Vec<String> = names
        .map(|name| {
            let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
            format!("{name}:{}\n", values.map(str::trim).collect::<Vec<_>>().join(","))
        })
        .collect();
    let parameters = query.split('&').filter_map(|parameter| parameter.split_once('='));
    for (name, _) in parameters.filter(|(name, _)| name.starts_with("x-amz-") && !headers.contains_key(*name))
    {
        lines.push(format!("{name}:{}\n", query_value(query, name).unwrap_or_default()));
    }
    lines.sort_unstable();
    lines.iter().for_each(|line| text.push_str(line));
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    /// The examples of the developer guide, with its example credentials.
    #[test]
    fn the_guides_example_of_a_presigned_url_has_its_signature() {
        let uri = "/photos/puppy.jpg?AWSAccessKeyId=AKIAIOSFODNN7EXAMPLE&Signature=x&Expires=1175139620";
        let (parts, ()) = Request::get(uri).body(()).unwrap().into_parts();
        let query = parts.uri.query().unwrap().to_owned();
        let text = string_to_sign(&parts, &query, Some("johnsmith"), "1175139620");
        assert_eq!(text, "GET\n\n\n1175139620\n/johnsmith/photos/puppy.jpg");
        let signature = hmac_sha1(b"wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", &text);
        assert_eq!(base64_simd::STANDARD.encode_to_string(signature), "NpgCjnDzrM+WFzoENXmpNDUsSn8=");
    }

    #[test]
    fn what_version_2_does_not_sign_is_not_served_under_it() {
        let covered = |uri: &str, header: (&str, &str)| {
            let (parts, ()) = Request::get(uri).header(header.0, header.1).body(()).unwrap().into_parts();
            check_coverage(&parts, parts.uri.query().unwrap_or("")).is_ok()
        };
        let plain = ("range", "bytes=0-1");
        assert!(covered(
            "/b/k?AWSAccessKeyId=a&Signature=s&Expires=1&response-expires=x&x-id=GetObject",
            plain
        ));
        assert!(covered("/b/k?content-type=text%2Fplain&x-amz-meta-a=1", ("x-amz-meta-b", "2")));
        for query in ["batch=exists", "prefix=a", "attributes", "response%2Dcontent%2Dtype=a", "t%61gging"] {
            assert!(!covered(&format!("/b/k?{query}"), plain), "{query}");
        }
        assert!(!covered("/b/k?versionId=a&versionId=b", plain));
        assert!(!covered("/b/k", ("x-striate-profile", "none")));
    }

    #[test]
    fn signed_parameters_are_sorted_and_decoded_and_others_left_out() {
        let uri = "/b/k?uploadId=a%2Fb&partNumber=2&Expires=1&acl&x-id=1";
        let (parts, ()) = Request::put(uri).header("x-amz-meta-a", " 1 ").body(()).unwrap().into_parts();
        let query = parts.uri.query().unwrap().to_owned();
        let text = string_to_sign(&parts, &query, None, "1");
        assert_eq!(text, "PUT\n\n\n1\nx-amz-meta-a:1\n/b/k?acl&partNumber=2&uploadId=a/b");
    }
}

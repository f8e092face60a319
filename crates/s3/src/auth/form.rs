//! The signature of a POST form, which covers its policy and is in its fields, in Version 4 or 2. The
//! policy says when it expires.

use subtle::ConstantTimeEq;

use super::canonical::{ALGORITHM, hmac};
use super::request::{check_region, parse_credential, parse_hash, secrets_of, usable};
use super::version_2::hmac_sha1;
use super::{SignatureContext, check_token, mismatch};
use crate::refusal::Refusal;

/// Returns the access key that a form claims, whether or not its signature is right: for the audit log.
pub(crate) fn claimed_key_of_form<'a>(field: impl Fn(&str) -> Option<&'a str>) -> Option<&'a str> {
    let of_credential = |credential: &'a str| credential.split('/').next();
    field("x-amz-credential").and_then(of_credential).or_else(|| field("awsaccesskeyid"))
}

/// Verifies a form's signature. `field` finds a field's value by its name in lower case.
/// Returns the access key.
///
/// # Errors
/// AccessDenied for a form without a policy; SignatureDoesNotMatch; InvalidAccessKeyId; InvalidArgument for malformed
/// signature fields.
pub(crate) async fn verify_form<'a>(
    field: impl Fn(&str) -> Option<&'a str>,
    context: &SignatureContext<'_>,
) -> Result<String, Refusal> {
    if field("x-amz-signature").is_some() {
        return verify_version_4(field, context).await;
    }
    if field("signature").is_some() {
        context.check_version_2()?;
        return verify_version_2(field, context).await;
    }
    match field("policy") {
        Some(_) => Err(missing("x-amz-signature")),
        None => Err(Refusal::anonymous()),
    }
}

fn required<'a>(field: &impl Fn(&str) -> Option<&'a str>, name: &str) -> Result<&'a str, Refusal> {
    field(name).ok_or_else(|| missing(name))
}

fn missing(name: &str) -> Refusal {
    let message = format!("Bucket POST must contain a field named '{name}', before the file.");
    Refusal::bad("InvalidArgument", message)
}

fn invalid(message: &str) -> Refusal {
    Refusal::bad("InvalidArgument", message)
}

async fn verify_version_4<'a>(
    field: impl Fn(&str) -> Option<&'a str>,
    context: &SignatureContext<'_>,
) -> Result<String, Refusal> {
    if required(&field, "x-amz-algorithm")? != ALGORITHM {
        return Err(invalid("X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256\""));
    }
    let (access_key, scope) = parse_credential(required(&field, "x-amz-credential")?).map_err(invalid)?;
    check_region(&scope, context.region, "InvalidArgument")?;
    if !required(&field, "x-amz-date")?.starts_with(&scope.date) {
        return Err(invalid("the credential's date is not that of X-Amz-Date"));
    }
    let policy = required(&field, "policy")?;
    let signature = required(&field, "x-amz-signature")?;
    let secrets = secrets_of(context.keys, &access_key).await?;
    check_token(field("x-amz-security-token"))?;
    let fits = |claimed: [u8; 32]| {
        let mut computed =
            usable(&secrets, context.now).map(|secret| hmac(&*scope.signing_key(secret), policy.as_bytes()));
        computed.any(|computed| bool::from(computed.ct_eq(&claimed)))
    };
    match parse_hash(signature).is_some_and(fits) {
        true => Ok(access_key),
        false => Err(mismatch(&access_key, signature, policy)),
    }
}

async fn verify_version_2<'a>(
    field: impl Fn(&str) -> Option<&'a str>,
    context: &SignatureContext<'_>,
) -> Result<String, Refusal> {
    let access_key = required(&field, "awsaccesskeyid")?;
    let policy = required(&field, "policy")?;
    let signature = required(&field, "signature")?;
    let claimed = base64_simd::STANDARD.decode_to_vec(signature).unwrap_or_default();
    let secrets = secrets_of(context.keys, access_key).await?;
    let fits = |secret: &str| bool::from(hmac_sha1(secret.as_bytes(), policy).ct_eq(&claimed));
    match usable(&secrets, context.now).any(fits) {
        true => Ok(access_key.to_owned()),
        false => Err(mismatch(access_key, signature, policy)),
    }
}

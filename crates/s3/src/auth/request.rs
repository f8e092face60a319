//! Verifies the signature of one request.

use http::HeaderMap;
use http::request::Parts;
use subtle::ConstantTimeEq;

use super::canonical::{
    ALGORITHM, Scope, Signable, UNSIGNED_PAYLOAD, canonical_request, hmac, string_to_sign,
};
use super::chunked::ChunkSigner;
use super::date::{format_amz_date, parse_amz_date};
use super::{MAX_EXPIRES_SECONDS, MAX_SKEW_SECONDS, SignatureContext, check_token, mismatch, version_2};
use crate::keys::{KeyStore, Secrets};
use crate::refusal::Refusal;

const CONTENT_SHA256: &str = "x-amz-content-sha256";

/// How the body of a verified request is verified.
pub(crate) enum Payload {
    /// Not at all.
    Unsigned,
    /// By its signed SHA-256.
    Sha256([u8; 32]),
    /// As aws-chunked. `signer` is set if chunks are signed.
    Chunked { signer: Option<Box<ChunkSigner>>, trailer: bool },
}

/// A request whose signature was verified.
pub(crate) struct VerifiedRequest {
    pub access_key: String,
    pub payload: Payload,
    pub presigned: bool,
}

/// A signature as the request states it.
struct Claim {
    access_key: String,
    scope: Scope,
    signed_headers: Vec<String>,
    /// In hexadecimal digits, if it is a signature at all.
    signature: String,
    amz_date: String,
}

/// Returns whether a request carries a signature, good or bad, in a header or in its query.
pub(crate) fn is_signed(parts: &Parts) -> bool {
    const NAMES: [&str; 4] = ["X-Amz-Signature", "X-Amz-Algorithm", "AWSAccessKeyId", "Signature"];
    let query = parts.uri.query().unwrap_or("");
    let mut names = query.split('&').map(|parameter| parameter.split('=').next().unwrap_or(""));
    authorization_of(&parts.headers).is_some() || names.any(|name| NAMES.contains(&name))
}

/// Returns the Authorization header. An empty one authorises nothing.
fn authorization_of(headers: &HeaderMap) -> Option<&http::HeaderValue> {
    headers.get(http::header::AUTHORIZATION).filter(|authorization| !authorization.is_empty())
}

/// Returns the access key that a request claims, whether or not its signature is right: for the audit log.
pub(crate) fn claimed_key(parts: &Parts) -> Option<String> {
    let query = parts.uri.query().unwrap_or("");
    let of_credential = |text: &str| text.split('/').next().map(str::to_owned);
    if let Some(authorization) = header(&parts.headers, "authorization") {
        return match authorization.split_once("Credential=") {
            Some((_, credential)) => of_credential(credential),
            None => authorization.strip_prefix("AWS ")?.split(':').next().map(str::to_owned),
        };
    }
    query_value(query, "X-Amz-Credential")
        .and_then(|credential| of_credential(&credential))
        .or_else(|| query_value(query, "AWSAccessKeyId"))
}

/// Verifies a request's signature.
pub(crate) async fn verify(
    parts: &Parts,
    context: &SignatureContext<'_>,
) -> Result<VerifiedRequest, Refusal> {
    let SignatureContext { keys, region, now, .. } = *context;
    let query = parts.uri.query().unwrap_or("");
    if let Some(authorization) = authorization_of(&parts.headers) {
        let authorization = authorization.to_str().map_err(|_| malformed("it is not ASCII"))?;
        return verify_header(parts, query, authorization, keys, region, now).await;
    }
    let names = || query.split('&').map(|parameter| parameter.split('=').next().unwrap_or(""));
    let is_presigned = names().any(|name| name == "X-Amz-Signature" || name == "X-Amz-Algorithm");
    let is_version_2 = !is_presigned && names().any(|name| name == "AWSAccessKeyId" || name == "Signature");
    if is_presigned || is_version_2 {
        check_names(names())?;
    }
    if is_presigned {
        return verify_presigned(parts, query, keys, region, now).await;
    }
    if is_version_2 {
        let access_key = version_2::verify(parts, query, context).await?;
        return Ok(VerifiedRequest { access_key, payload: Payload::Unsigned, presigned: true });
    }
    Err(Refusal::anonymous())
}

/// Checks that the names of a presigned URL's parameters are not percent-encoded. Signatures cover decoded names, so
/// anyone who has the URL could encode one: the signature would still fit, and the parameter would lose or gain a meaning
/// wherever names are compared as written. No name that S3 knows needs encoding.
fn check_names<'a>(mut names: impl Iterator<Item = &'a str>) -> Result<(), Refusal> {
    match names.find(|name| name.contains(['%', '+'])) {
        None => Ok(()),
        Some(name) => Err(query_error(&format!("The name of the parameter {name} must not be encoded."))),
    }
}

async fn verify_header(
    parts: &Parts,
    query: &str,
    authorization: &str,
    keys: &KeyStore,
    region: &str,
    now: u64,
) -> Result<VerifiedRequest, Refusal> {
    let claim = parse_authorization(authorization, &parts.headers)?;
    check_region(&claim.scope, region, "AuthorizationHeaderMalformed")?;
    let date = parse_amz_date(&claim.amz_date).ok_or_else(no_date)?;
    if date.abs_diff(now) > MAX_SKEW_SECONDS {
        return Err(Refusal::denied(
            "RequestTimeTooSkewed",
            "The difference between the request time and the server's time is too large.",
        ));
    }
    let hash = header(&parts.headers, CONTENT_SHA256).ok_or_else(|| {
        Refusal::bad("InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
    })?;
    let payload = parse_payload(hash, &parts.headers)?;
    check_signed_headers(&claim, &parts.headers, false)?;
    let seed = check_signature(&claim, parts, query, hash, keys, now).await?;
    let payload = match payload {
        PayloadKind::Unsigned => Payload::Unsigned,
        PayloadKind::Sha256(hash) => Payload::Sha256(hash),
        PayloadKind::Chunked { signed, trailer } => {
            let Seed { key, .. } = seed;
            let signer = signed.then(|| {
                Box::new(ChunkSigner::new(
                    key,
                    &claim.amz_date,
                    &claim.scope,
                    claim.signature.to_ascii_lowercase(),
                ))
            });
            Payload::Chunked { signer, trailer }
        }
    };
    Ok(VerifiedRequest { access_key: claim.access_key, payload, presigned: false })
}

async fn verify_presigned(
    parts: &Parts,
    query: &str,
    keys: &KeyStore,
    region: &str,
    now: u64,
) -> Result<VerifiedRequest, Refusal> {
    let (claim, expires) = parse_presigned(query)?;
    check_region(&claim.scope, region, "AuthorizationQueryParametersError")?;
    let date = parse_amz_date(&claim.amz_date).ok_or_else(|| query_error("X-Amz-Date is not a date"))?;
    if date > now.saturating_add(MAX_SKEW_SECONDS) {
        return Err(Refusal::denied("AccessDenied", "Request is not valid yet"));
    }
    if now > date.saturating_add(expires) {
        return Err(Refusal::denied("AccessDenied", "Request has expired"));
    }
    check_signed_headers(&claim, &parts.headers, true)?;
    let signed_hash = presigned_hash(query, &parts.headers)?;
    let payload = match signed_hash.as_deref().or_else(|| header(&parts.headers, CONTENT_SHA256)) {
        None => Payload::Unsigned,
        Some(hash) => match parse_payload(hash, &parts.headers)? {
            PayloadKind::Unsigned => Payload::Unsigned,
            PayloadKind::Sha256(hash) => Payload::Sha256(hash),
            PayloadKind::Chunked { signed: false, trailer } => Payload::Chunked { signer: None, trailer },
            PayloadKind::Chunked { signed: true, .. } => {
                return Err(query_error("a presigned URL cannot sign chunks"));
            }
        },
    };
    let hash = signed_hash.unwrap_or_else(|| UNSIGNED_PAYLOAD.to_owned());
    let hash = match claim.signed_headers.iter().any(|name| name == CONTENT_SHA256) {
        true => header(&parts.headers, CONTENT_SHA256).unwrap_or(UNSIGNED_PAYLOAD).to_owned(),
        false => hash,
    };
    check_signature(&claim, parts, query, &hash, keys, now).await?;
    Ok(VerifiedRequest { access_key: claim.access_key, payload, presigned: true })
}

/// Returns the payload hash in a presigned URL's query, which the signature covers. A header beside it must not say
/// anything else: it could ask for less than what was signed.
fn presigned_hash(query: &str, headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let mut pairs = query.split('&').filter_map(|parameter| parameter.split_once('='));
    let found = pairs.find(|(name, _)| name.eq_ignore_ascii_case(CONTENT_SHA256));
    let Some((_, value)) = found else { return Ok(None) };
    let signed = crate::address::percent_decode(value).unwrap_or_default();
    match header(headers, CONTENT_SHA256).is_none_or(|sent| sent == signed) {
        true => Ok(Some(signed)),
        false => {
            Err(query_error("the header x-amz-content-sha256 is not the X-Amz-Content-Sha256 of the URL"))
        }
    }
}

/// Checks that the scope names this region. us-east-1 is always accepted, because clients ask
/// for a bucket's region with it.
pub(super) fn check_region(scope: &Scope, region: &str, code: &'static str) -> Result<(), Refusal> {
    let named = &scope.region;
    if named == region || named == "us-east-1" {
        return Ok(());
    }
    let message = format!("The region '{named}' is wrong; expecting '{region}'");
    Err(Refusal { region: Some(region.to_owned()), ..Refusal::bad(code, message) })
}

/// The signing key of the secret that matched.
struct Seed {
    key: zeroize::Zeroizing<[u8; 32]>,
}

async fn check_signature(
    claim: &Claim,
    parts: &Parts,
    query: &str,
    payload_hash: &str,
    keys: &KeyStore,
    now: u64,
) -> Result<Seed, Refusal> {
    let secrets = secrets_of(keys, &claim.access_key).await?;
    check_token(header(&parts.headers, "x-amz-security-token"))?;
    check_token(query_value(query, "X-Amz-Security-Token").as_deref())?;
    let signable = Signable {
        method: &parts.method,
        path: parts.uri.path(),
        query,
        headers: &parts.headers,
        signed_headers: &claim.signed_headers,
        payload_hash,
    };
    let encoded = string_to_sign(&signable, &claim.amz_date, &claim.scope, false);
    // Some clients send reserved characters unencoded and sign them so.
    let raw = parts.uri.path().bytes().any(|byte| !is_canonical(byte));
    let raw = raw.then(|| string_to_sign(&signable, &claim.amz_date, &claim.scope, true));
    // What is not hexadecimal is no signature of anything.
    if let Some(claimed) = parse_hash(&claim.signature) {
        for secret in usable(&secrets, now) {
            let key = claim.scope.signing_key(secret);
            for text in [Some(&encoded), raw.as_ref()].into_iter().flatten() {
                if bool::from(hmac(&*key, text.as_bytes()).ct_eq(&claimed)) {
                    return Ok(Seed { key });
                }
            }
        }
    }
    let canonical = canonical_request(&signable, false);
    let refusal = mismatch(&claim.access_key, &claim.signature, &encoded);
    Err(refusal.with("CanonicalRequest", String::from_utf8_lossy(&canonical)))
}

/// Returns the secrets of an access key, or the refusal of an unknown one.
pub(super) async fn secrets_of(
    keys: &KeyStore,
    access_key: &str,
) -> Result<std::sync::Arc<Secrets>, Refusal> {
    match keys.secrets(access_key).await {
        Ok(Some(secrets)) => Ok(secrets),
        Ok(None) => Err(Refusal::denied(
            "InvalidAccessKeyId",
            "The access key ID you provided does not exist in our records.",
        )),
        Err(error) => {
            tracing::error!(%error, access_key, "an access key cannot be read");
            let status = http::StatusCode::SERVICE_UNAVAILABLE;
            Err(Refusal::new(status, "ServiceUnavailable", "Access keys cannot be read now. Try again."))
        }
    }
}

/// Returns the secrets that are accepted at `now`, newest first.
pub(super) fn usable(secrets: &Secrets, now: u64) -> impl Iterator<Item = &str> {
    let previous = secrets.previous.as_ref().filter(move |(_, until_ms)| now < until_ms / 1_000);
    std::iter::once(secrets.current.as_str()).chain(previous.map(|(secret, _)| secret.as_str()))
}

fn is_canonical(byte: u8) -> bool {
    matches!(byte, b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' | b'%')
}

enum PayloadKind {
    Unsigned,
    Sha256([u8; 32]),
    Chunked { signed: bool, trailer: bool },
}

fn parse_payload(text: &str, headers: &HeaderMap) -> Result<PayloadKind, Refusal> {
    let kind = match text {
        UNSIGNED_PAYLOAD => PayloadKind::Unsigned,
        "STREAMING-UNSIGNED-PAYLOAD-TRAILER" => PayloadKind::Chunked { signed: false, trailer: true },
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" => PayloadKind::Chunked { signed: true, trailer: false },
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER" => PayloadKind::Chunked { signed: true, trailer: true },
        _ if text.starts_with("STREAMING-") => {
            let message = format!("{text} is not supported; sign with AWS4-HMAC-SHA256");
            return Err(Refusal::new(http::StatusCode::NOT_IMPLEMENTED, "NotImplemented", message));
        }
        _ => PayloadKind::Sha256(parse_hash(text).ok_or_else(|| {
            Refusal::bad(
                "InvalidArgument",
                "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-AWS4-HMAC-SHA256-PAYLOAD or a \
                 valid sha256 value.",
            )
        })?),
    };
    let announced = header(headers, "x-amz-trailer").is_some();
    if matches!(kind, PayloadKind::Chunked { signed: false, .. }) && !announced {
        // Old clients stream unsigned chunks without a trailer; then there is none to wait for.
        return Ok(PayloadKind::Chunked { signed: false, trailer: false });
    }
    Ok(kind)
}

pub(super) fn parse_hash(text: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    hex::decode_to_slice(text, &mut hash).ok()?;
    Some(hash)
}

/// Parses `AWS4-HMAC-SHA256 Credential=…, SignedHeaders=…, Signature=…`
fn parse_authorization(text: &str, headers: &HeaderMap) -> Result<Claim, Refusal> {
    let Some(fields) = text.strip_prefix(ALGORITHM).filter(|rest| rest.starts_with([' ', '\t'])) else {
        return Err(not_version_4(text));
    };
    let field = |field_name: &str| {
        let mut pairs = fields.split(',').filter_map(|field| field.trim().split_once('='));
        pairs.find(|(name, _)| *name == field_name).map(|(_, value)| value)
    };
    let missing = |name: &str| malformed(&format!("{name} is missing"));
    let credential = field("Credential").ok_or_else(|| missing("Credential"))?;
    let (access_key, scope) = parse_credential(credential).map_err(malformed)?;
    let signed_headers = field("SignedHeaders").ok_or_else(|| missing("SignedHeaders"))?;
    let signature = field("Signature").ok_or_else(|| missing("Signature"))?;
    let amz_date = match header(headers, "x-amz-date") {
        Some(date) => Some(date.to_owned()).filter(|date| parse_amz_date(date).is_some()),
        None => header(headers, "date").and_then(date_header),
    };
    let amz_date = amz_date.ok_or_else(no_date)?;
    let signature = signature.to_owned();
    if !amz_date.starts_with(&scope.date) {
        return Err(malformed("the credential's date is not that of x-amz-date"));
    }
    Ok(Claim { access_key, scope, signed_headers: parse_signed_headers(signed_headers), signature, amz_date })
}

/// Returns the time of a `Date` header in the format of signatures.
fn date_header(text: &str) -> Option<String> {
    if parse_amz_date(text).is_some() {
        return Some(text.to_owned());
    }
    let date = s3s::dto::Timestamp::parse(s3s::dto::TimestampFormat::HttpDate, text).ok()?;
    format_amz_date(date.into())
}

fn parse_presigned(query: &str) -> Result<(Claim, u64), Refusal> {
    let value = |name: &str| {
        query_value(query, name).ok_or_else(|| query_error(&format!("{name} is missing from the query")))
    };
    if value("X-Amz-Algorithm")? != ALGORITHM {
        return Err(query_error("X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256\""));
    }
    let (access_key, scope) = parse_credential(&value("X-Amz-Credential")?).map_err(query_error)?;
    let amz_date = value("X-Amz-Date")?;
    let expires: i64 =
        value("X-Amz-Expires")?.parse().map_err(|_| query_error("X-Amz-Expires should be a number"))?;
    let expires = u64::try_from(expires).map_err(|_| query_error("X-Amz-Expires must be non-negative"))?;
    if expires > MAX_EXPIRES_SECONDS {
        return Err(query_error("X-Amz-Expires must be less than a week (in seconds); that is 604800"));
    }
    if !amz_date.starts_with(&scope.date) {
        return Err(query_error("the credential's date is not that of X-Amz-Date"));
    }
    let signed_headers = parse_signed_headers(&value("X-Amz-SignedHeaders")?);
    let signature = value("X-Amz-Signature")?;
    Ok((Claim { access_key, scope, signed_headers, signature, amz_date }, expires))
}

/// Parses `KEY/YYYYMMDD/region/s3/aws4_request`
pub(super) fn parse_credential(text: &str) -> Result<(String, Scope), &'static str> {
    let fields: Vec<&str> = text.split('/').collect();
    let &[access_key, date, region, service, "aws4_request"] = fields.as_slice() else {
        return Err("the credential is not <access key>/<date>/<region>/s3/aws4_request");
    };
    if service != "s3" {
        return Err("the credential's service is not s3");
    }
    if date.len() != 8 || !date.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("the credential's date is not YYYYMMDD");
    }
    let scope = Scope { date: date.to_owned(), region: region.to_owned(), service: service.to_owned() };
    Ok((access_key.to_owned(), scope))
}

fn parse_signed_headers(text: &str) -> Vec<String> {
    let mut names: Vec<String> = text.split(';').map(str::to_ascii_lowercase).collect();
    names.sort_unstable();
    names
}

/// Returns whether a header changes what a request means, so that it must be signed.
pub(super) fn has_meaning(name: &str) -> bool {
    name.starts_with("x-amz-") || name.starts_with("x-striate-")
}

/// Checks that the host and every header that [`has_meaning`] are signed, so that an intermediary cannot add to the
/// request. A payload hash may be added to a presigned URL: it can only make the request stricter.
fn check_signed_headers(claim: &Claim, headers: &HeaderMap, presigned: bool) -> Result<(), Refusal> {
    let is_signed = |name: &str| claim.signed_headers.iter().any(|signed| signed == name);
    let must_be = |name: &str| has_meaning(name) && !(presigned && name == CONTENT_SHA256);
    let unsigned =
        headers.keys().map(http::HeaderName::as_str).find(|name| must_be(name) && !is_signed(name));
    match unsigned.or_else(|| (!is_signed("host")).then_some("host")) {
        None => Ok(()),
        Some(name) => Err(Refusal::denied(
            "AccessDenied",
            format!("There were headers present in the request which were not signed: {name}"),
        )),
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Returns the decoded value of a query parameter.
pub(super) fn query_value(query: &str, name: &str) -> Option<String> {
    let mut pairs = query.split('&').filter_map(|parameter| parameter.split_once('='));
    let (_, value) = pairs.find(|(found, _)| *found == name)?;
    crate::address::percent_decode(value)
}

fn malformed(reason: &str) -> Refusal {
    Refusal::bad("AuthorizationHeaderMalformed", format!("The authorization header is malformed: {reason}."))
}

fn query_error(reason: &str) -> Refusal {
    Refusal::bad("AuthorizationQueryParametersError", reason)
}

fn no_date() -> Refusal {
    Refusal::denied("AccessDenied", "AWS authentication requires a valid Date or x-amz-date header")
}

/// Returns the refusal of an Authorization header of another scheme. Version 2 has a code of its own.
fn not_version_4(authorization: &str) -> Refusal {
    const LONGEST_ECHO: usize = 128;
    let (scheme, fields) = authorization.trim().split_once(' ').unwrap_or((authorization, ""));
    if scheme == "AWS" {
        return Refusal::bad(
            "InvalidRequest",
            "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.",
        );
    }
    let message = match fields {
        "" => "Authorization header is invalid -- one and only one ' ' (space) required.",
        _ => "Unsupported Authorization Type",
    };
    let echo: String = scheme.chars().take(LONGEST_ECHO).collect();
    Refusal::bad("InvalidArgument", message).with("ArgumentName", "Authorization").with("ArgumentValue", echo)
}

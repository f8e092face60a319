//! The canonical request of AWS Signature Version 4, and what is computed from it.
//!
//! Follows “Signature Calculations for the Authorization Header” of the S3 API reference. S3 differs from other
//! services: paths are not normalised and are encoded once, so odd keys (`..`, `//`) are signed as they are.

use hmac::{Hmac, Mac};
use http::{HeaderMap, Method};
use sha2::{Digest, Sha256};

/// The payload hash of requests that do not sign their body.
pub(crate) const UNSIGNED_PAYLOAD: &str = "UNSIGNED-PAYLOAD";
pub(crate) const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// The scope of a signing key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    /// `YYYYMMDD`.
    pub date: String,
    pub region: String,
    pub service: String,
}

/// What is signed besides the date and the scope.
pub(crate) struct Signable<'a> {
    pub method: &'a Method,
    /// Path as received.
    pub path: &'a str,
    /// Query as received.
    pub query: &'a str,
    pub headers: &'a HeaderMap,
    /// Names of the signed headers, in lower case.
    pub signed_headers: &'a [String],
    pub payload_hash: &'a str,
}

pub(crate) fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(key).expect("any length is a key");
    mac.update(message);
    mac.finalize().into_bytes().into()
}

impl Scope {
    /// Returns the key that signs within this scope. Four short HMACs take about a microsecond, so nothing is cached.
    pub fn signing_key(&self, secret: &str) -> zeroize::Zeroizing<[u8; 32]> {
        let first = zeroize::Zeroizing::new(format!("AWS4{secret}"));
        let date = zeroize::Zeroizing::new(hmac(first.as_bytes(), self.date.as_bytes()));
        let region = zeroize::Zeroizing::new(hmac(&*date, self.region.as_bytes()));
        let service = zeroize::Zeroizing::new(hmac(&*region, self.service.as_bytes()));
        zeroize::Zeroizing::new(hmac(&*service, b"aws4_request"))
    }

    /// Returns `date/region/service/aws4_request`.
    pub fn text(&self) -> String {
        format!("{}/{}/{}/aws4_request", self.date, self.region, self.service)
    }
}

/// Returns the string to sign of a request. `amz_date` is `YYYYMMDDTHHMMSSZ`. With `raw_path` the path is used as
/// received, for clients that sign reserved characters without encoding them.
pub(crate) fn string_to_sign(
    signable: &Signable<'_>,
    amz_date: &str,
    scope: &Scope,
    raw_path: bool,
) -> String {
    let hash = Sha256::digest(canonical_request(signable, raw_path));
    format!("{ALGORITHM}\n{amz_date}\n{}\n{}", scope.text(), hex::encode(hash))
}

/// Returns the canonical request. `raw_path` is as for [`string_to_sign`].
pub(crate) fn canonical_request(signable: &Signable<'_>, raw_path: bool) -> Vec<u8> {
    let mut request = Vec::with_capacity(512);
    request.extend_from_slice(signable.method.as_str().as_bytes());
    request.push(b'\n');
    match raw_path {
        true => request.extend_from_slice(signable.path.as_bytes()),
        false => encode_again(&mut request, signable.path.as_bytes(), Part::Path),
    }
    request.push(b'\n');
    canonical_query(&mut request, signable.query);
    request.push(b'\n');
    for name in signable.signed_headers {
        request.extend_from_slice(name.as_bytes());
        request.push(b':');
        canonical_value(&mut request, signable.headers, name);
        request.push(b'\n');
    }
    request.push(b'\n');
    request.extend_from_slice(signable.signed_headers.join(";").as_bytes());
    request.push(b'\n');
    request.extend_from_slice(signable.payload_hash.as_bytes());
    request
}

/// Appends all values of a header, joined by commas, with runs of blanks reduced to one blank.
fn canonical_value(request: &mut Vec<u8>, headers: &HeaderMap, name: &str) {
    for (number, value) in headers.get_all(name).iter().enumerate() {
        if number > 0 {
            request.push(b',');
        }
        let start = request.len();
        for word in value.as_bytes().split(|byte| matches!(byte, b' ' | b'\t')).filter(|w| !w.is_empty()) {
            if request.len() > start {
                request.push(b' ');
            }
            request.extend_from_slice(word);
        }
    }
}

/// Appends the parameters of the query except the signature itself, re-encoded and sorted.
fn canonical_query(request: &mut Vec<u8>, query: &str) {
    let mut parameters: Vec<(Vec<u8>, Vec<u8>)> = query
        .split('&')
        .filter(|parameter| !parameter.is_empty())
        .map(|parameter| parameter.split_once('=').unwrap_or((parameter, "")))
        .filter(|(name, _)| *name != "X-Amz-Signature")
        .map(|(name, value)| {
            let (mut encoded_name, mut encoded_value) = (Vec::new(), Vec::new());
            encode_again(&mut encoded_name, name.as_bytes(), Part::Query);
            encode_again(&mut encoded_value, value.as_bytes(), Part::Query);
            (encoded_name, encoded_value)
        })
        .collect();
    parameters.sort_unstable();
    for (number, (name, value)) in parameters.iter().enumerate() {
        if number > 0 {
            request.push(b'&');
        }
        request.extend_from_slice(name);
        request.push(b'=');
        request.extend_from_slice(value);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Path,
    Query,
}

/// Percent-decodes `text` and encodes it as AWS does: everything but unreserved characters (and, in a path, the slash),
/// with upper-case digits.
fn encode_again(out: &mut Vec<u8>, text: &[u8], part: Part) {
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let (byte, next) = match (first, tail) {
            (b'%', [high, low, after @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                (hex_digit(*high) << 4 | hex_digit(*low), after)
            }
            (b'+', _) if part == Part::Query => (b' ', tail),
            _ => (*first, tail),
        };
        encode_byte(out, byte, part);
        rest = next;
    }
}

fn encode_byte(out: &mut Vec<u8>, byte: u8, part: Part) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte),
        b'/' if part == Part::Path => out.push(byte),
        _ => out.extend_from_slice(&[b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]),
    }
}

fn hex_digit(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|&(n, v)| (n.parse().unwrap(), HeaderValue::from_static(v))).collect()
    }

    fn signature(signable: &Signable<'_>) -> String {
        let scope = Scope { date: "20130524".into(), region: "us-east-1".into(), service: "s3".into() };
        let text = string_to_sign(signable, "20130524T000000Z", &scope, false);
        hex::encode(hmac(&*scope.signing_key(SECRET), text.as_bytes()))
    }

    /// The examples of “Authenticating Requests: Using the Authorization Header” of the S3 API reference.
    #[test]
    fn the_examples_of_the_api_reference_have_their_signatures() {
        let host = ("host", "examplebucket.s3.amazonaws.com");
        let date = ("x-amz-date", "20130524T000000Z");
        let empty = ("x-amz-content-sha256", EMPTY);
        let get = |path, query, headers: &HeaderMap, signed: &[&str]| {
            let signed: Vec<String> = signed.iter().map(|name| (*name).to_owned()).collect();
            let method = &Method::GET;
            signature(&Signable {
                method,
                path,
                query,
                headers,
                signed_headers: &signed,
                payload_hash: EMPTY,
            })
        };
        let ranged = headers(&[host, ("range", "bytes=0-9"), empty, date]);
        assert_eq!(
            get("/test.txt", "", &ranged, &["host", "range", "x-amz-content-sha256", "x-amz-date"]),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
        let plain = headers(&[host, empty, date]);
        let signed = ["host", "x-amz-content-sha256", "x-amz-date"];
        assert_eq!(
            get("/", "lifecycle", &plain, &signed),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
        );
        assert_eq!(
            get("/", "prefix=J&max-keys=2", &plain, &signed),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
        );
    }

    #[test]
    fn a_path_is_encoded_once_and_never_normalised() {
        let encoded = |text: &str, part| {
            let mut out = Vec::new();
            encode_again(&mut out, text.as_bytes(), part);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(encoded("/b/../a//b%2Fc/+ %20ü", Part::Path), "/b/../a//b/c/%2B%20%20%C3%BC");
        assert_eq!(encoded("a+b%2bc/%2e%2e", Part::Query), "a%20b%2Bc%2F..");
        assert_eq!(encoded("100%", Part::Query), "100%25");
    }

    #[test]
    fn blanks_in_header_values_collapse_and_repeated_headers_join() {
        let mut map = headers(&[("x-a", "  one   two ")]);
        map.append("x-a", HeaderValue::from_static("three"));
        let mut out = Vec::new();
        canonical_value(&mut out, &map, "x-a");
        assert_eq!(out, b"one two,three");
    }
}

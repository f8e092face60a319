//! AWS Signature Version 4 in the `Authorization` header, for our own S3 client.
//!
//! Source: “Authenticating Requests (AWS Signature Version 4)” of the S3 API reference. The payload's SHA-256 is signed
//! unless the caller leaves the payload out; what this does not do is sign in chunks or in the query.

use std::fmt::Write;
use std::time::Duration;

use hmac::{Hmac, Mac};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

/// Everything but the unreserved characters of RFC 3986.
const COMPONENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// As [`COMPONENT`], keeping the slashes of a path.
const PATH: &AsciiSet = &COMPONENT.remove(b'/');

/// Key, secret and region to sign with.
#[derive(Clone)]
pub struct Signer {
    /// The access key.
    pub access_key: String,
    /// The secret.
    pub secret: Zeroizing<String>,
    /// The region.
    pub region: String,
}

/// What is signed of a request.
#[derive(Debug)]
pub struct Unsigned<'a> {
    /// The method.
    pub method: &'a str,
    /// The `Host` header's value.
    pub host: &'a str,
    /// The path, encoded.
    pub path: &'a str,
    /// The query, encoded and sorted (see [`encode_query`]).
    pub query: &'a str,
    /// Further headers to sign, names in lower case.
    pub headers: &'a [(&'a str, String)],
    /// The payload.
    pub payload: Payload<'a>,
    /// Wall time since the Unix epoch.
    pub time: Duration,
}

/// What the signature covers of the payload.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// All of it.
    Signed(&'a [u8]),
    /// Nothing.
    Unsigned,
}

/// A path as it is sent and signed.
pub fn encode_path(path: &str) -> String {
    utf8_percent_encode(path, PATH).to_string()
}

/// A query as it is sent and signed: sorted by name.
pub fn encode_query(parameters: &[(&str, &str)]) -> String {
    let encode = |text| utf8_percent_encode(text, COMPONENT).to_string();
    let mut pairs: Vec<_> = parameters.iter().map(|&(name, value)| (encode(name), encode(value))).collect();
    pairs.sort();
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

impl Signer {
    /// The headers to add: `x-amz-date`, `x-amz-content-sha256` and `authorization`.
    pub fn sign(&self, request: &Unsigned<'_>) -> Vec<(&'static str, String)> {
        let stamp = timestamp(request.time);
        let payload_hash = match request.payload {
            Payload::Signed(payload) => hex::encode(Sha256::digest(payload)),
            Payload::Unsigned => "UNSIGNED-PAYLOAD".to_owned(),
        };
        let mut headers: Vec<(&str, &str)> =
            request.headers.iter().map(|(name, value)| (*name, value.trim())).collect();
        headers.extend([
            ("host", request.host),
            ("x-amz-content-sha256", &payload_hash),
            ("x-amz-date", &stamp),
        ]);
        headers.sort_unstable();
        let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
        let mut canonical = format!("{}\n{}\n{}\n", request.method, request.path, request.query);
        for (name, value) in &headers {
            writeln!(canonical, "{name}:{value}").expect("writing to a string does not fail");
        }
        write!(canonical, "\n{names}\n{payload_hash}").expect("writing to a string does not fail");
        let scope = format!("{}/{}/s3/aws4_request", &stamp[..8], self.region);
        let digest = hex::encode(Sha256::digest(canonical.as_bytes()));
        let signature = self.signature(&stamp, &format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"));
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
            self.access_key
        );
        vec![("x-amz-date", stamp), ("x-amz-content-sha256", payload_hash), ("authorization", authorization)]
    }

    fn signature(&self, stamp: &str, string_to_sign: &str) -> String {
        let secret = Zeroizing::new(format!("AWS4{}", *self.secret));
        let key = [&stamp[..8], &self.region, "s3", "aws4_request"]
            .iter()
            .fold(Zeroizing::new(secret.as_bytes().to_vec()), |key, part| Zeroizing::new(mac(&key, part)));
        hex::encode(mac(&key, string_to_sign))
    }
}

fn mac(key: &[u8], message: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(message.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// `YYYYMMDDTHHMMSSZ`.
fn timestamp(time: Duration) -> String {
    let (days, second) = (time.as_secs() / 86_400, time.as_secs() % 86_400);
    let (year, month, day) = civil_date(days);
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// Year, month and day of the Gregorian calendar, `days` after 1970-01-01.
///
/// Counts in years that begin in March, so that the leap day is the last (Hinnant, “chrono-compatible
/// low-level date algorithms”).
pub fn civil_date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The GET example of AWS's documentation (key `test.txt` of `examplebucket`, with a range).
    #[test]
    fn the_documented_example_gets_the_documented_signature() {
        let signer = Signer {
            access_key: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret: Zeroizing::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned()),
            region: "us-east-1".to_owned(),
        };
        let headers = signer.sign(&Unsigned {
            method: "GET",
            host: "examplebucket.s3.amazonaws.com",
            path: "/test.txt",
            query: "",
            headers: &[("range", "bytes=0-9".to_owned())],
            payload: Payload::Signed(b""),
            time: Duration::from_secs(1_369_353_600),
        });
        let authorization = &headers.iter().find(|(name, _)| *name == "authorization").unwrap().1;
        let expected = "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41";
        assert!(authorization.ends_with(expected), "{authorization}");
    }

    #[test]
    fn dates_follow_the_calendar_over_leap_years() {
        let cases = [
            (0, (1970, 1, 1)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (20_777, (2026, 11, 20)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ];
        for (days, date) in cases {
            assert_eq!(civil_date(days), date);
        }
    }

    #[test]
    fn queries_are_sorted_and_encoded() {
        let query = encode_query(&[("prefix", "a b/ü"), ("list-type", "2"), ("delimiter", "")]);
        assert_eq!(query, "delimiter=&list-type=2&prefix=a%20b%2F%C3%BC");
        assert_eq!(encode_path("/b/a b/~x+y"), "/b/a%20b/~x%2By");
    }
}

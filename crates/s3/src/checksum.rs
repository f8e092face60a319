//! Converts checksums between S3's headers and the client service's records.

use http::HeaderMap;
use s3s::dto::{ChecksumAlgorithm, ChecksumType};
use striate_meta::records::Checksum;
use striate_meta::records::checksum::Algorithm;

use crate::refusal::Refusal;

/// The algorithms, with S3 name, header and length in bytes.
const ALGORITHMS: [(Algorithm, &str, &str, usize); 5] = [
    (Algorithm::Crc32, ChecksumAlgorithm::CRC32, "x-amz-checksum-crc32", 4),
    (Algorithm::Crc32c, ChecksumAlgorithm::CRC32C, "x-amz-checksum-crc32c", 4),
    (Algorithm::Crc64nvme, ChecksumAlgorithm::CRC64NVME, "x-amz-checksum-crc64nvme", 8),
    (Algorithm::Sha1, ChecksumAlgorithm::SHA1, "x-amz-checksum-sha1", 20),
    (Algorithm::Sha256, ChecksumAlgorithm::SHA256, "x-amz-checksum-sha256", 32),
];

/// Headers that begin like those of checksums but are not.
const NOT_CHECKSUMS: [&str; 3] = ["x-amz-checksum-algorithm", "x-amz-checksum-type", "x-amz-checksum-mode"];

/// The five checksum fields that many of s3s's structures have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    pub crc32: Option<String>,
    pub crc32c: Option<String>,
    pub crc64nvme: Option<String>,
    pub sha1: Option<String>,
    pub sha256: Option<String>,
}

/// Takes the checksum fields out of one of s3s's structures.
macro_rules! checksum_fields {
    ($from:expr) => {
        $crate::checksum::Fields {
            crc32: $from.checksum_crc32.take(),
            crc32c: $from.checksum_crc32c.take(),
            crc64nvme: $from.checksum_crc64nvme.take(),
            sha1: $from.checksum_sha1.take(),
            sha256: $from.checksum_sha256.take(),
        }
    };
}

/// Sets the checksum fields of one of s3s's structures.
macro_rules! set_checksum_fields {
    ($into:expr, $fields:expr) => {{
        let fields: $crate::checksum::Fields = $fields;
        $into.checksum_crc32 = fields.crc32;
        $into.checksum_crc32c = fields.crc32c;
        $into.checksum_crc64nvme = fields.crc64nvme;
        $into.checksum_sha1 = fields.sha1;
        $into.checksum_sha256 = fields.sha256;
    }};
}

pub(crate) use {checksum_fields, set_checksum_fields};

impl Fields {
    /// Parses the checksums into records; composite ones (`…-3`) are marked.
    pub fn parse(self) -> Result<Vec<Checksum>, Refusal> {
        let texts = [self.crc32, self.crc32c, self.crc64nvme, self.sha1, self.sha256];
        let mut checksums = Vec::new();
        for ((algorithm, name, ..), text) in ALGORITHMS.into_iter().zip(texts) {
            if let Some(text) = text {
                checksums.push(parse(algorithm, name, &text)?);
            }
        }
        Ok(checksums)
    }

    /// Returns the fields for `checksums`; a composite one states the number of `parts`.
    pub fn of(checksums: &[Checksum], parts: usize) -> Self {
        let mut fields = Self::default();
        for checksum in checksums {
            let mut text = base64_simd::STANDARD.encode_to_string(&checksum.value);
            if checksum.composite {
                text.push_str(&format!("-{parts}"));
            }
            let field = match checksum.algorithm() {
                Algorithm::None => continue,
                Algorithm::Crc32 => &mut fields.crc32,
                Algorithm::Crc32c => &mut fields.crc32c,
                Algorithm::Crc64nvme => &mut fields.crc64nvme,
                Algorithm::Sha1 => &mut fields.sha1,
                Algorithm::Sha256 => &mut fields.sha256,
            };
            *field = Some(text);
        }
        fields
    }
}

/// Returns COMPOSITE or FULL_OBJECT; `None` without checksums.
pub(crate) fn type_of(checksums: &[Checksum]) -> Option<ChecksumType> {
    Some(type_named(!checksums.first()?.composite))
}

pub(crate) fn type_named(full_object: bool) -> ChecksumType {
    ChecksumType::from_static(match full_object {
        true => ChecksumType::FULL_OBJECT,
        false => ChecksumType::COMPOSITE,
    })
}

/// Returns S3's name of an algorithm.
pub(crate) fn name_of(algorithm: Algorithm) -> Option<ChecksumAlgorithm> {
    let (_, name, ..) = ALGORITHMS.into_iter().find(|(listed, ..)| *listed == algorithm)?;
    Some(ChecksumAlgorithm::from_static(name))
}

/// Returns the algorithm that a request names.
pub(crate) fn algorithm_named(name: &str) -> Result<Algorithm, Refusal> {
    let found = ALGORITHMS.into_iter().find(|(_, listed, ..)| listed.eq_ignore_ascii_case(name));
    found.map(|(algorithm, ..)| algorithm).ok_or_else(|| {
        Refusal::bad(
            "InvalidRequest",
            format!(
                "Checksum algorithm {name} is unsupported. Please try again with any of the valid types: \
                 [CRC32, CRC32C, CRC64NVME, SHA1, SHA256]"
            ),
        )
    })
}

/// Returns whether an upload's checksum covers the full object. If `wish` is `None`, S3's default applies.
pub(crate) fn is_full_object(algorithm: Algorithm, wish: Option<&ChecksumType>) -> Result<bool, Refusal> {
    let is_crc = matches!(algorithm, Algorithm::Crc32 | Algorithm::Crc32c | Algorithm::Crc64nvme);
    match wish.map(ChecksumType::as_str) {
        None => Ok(algorithm == Algorithm::Crc64nvme),
        Some(ChecksumType::FULL_OBJECT) if is_crc => Ok(true),
        Some(ChecksumType::COMPOSITE) if algorithm != Algorithm::Crc64nvme => Ok(false),
        Some(other) => {
            let name = name_of(algorithm).map(|name| name.as_str().to_owned()).unwrap_or_default();
            let message =
                format!("The {other} checksum type cannot be used with the {name} checksum algorithm.");
            Err(Refusal::bad("InvalidRequest", message))
        }
    }
}

/// Refuses checksum headers and trailers that the gateway cannot verify, so that it stores nothing that only seems
/// protected. Returns the algorithms announced as trailers.
pub(crate) fn check_headers(headers: &HeaderMap) -> Result<Vec<Algorithm>, Refusal> {
    for name in headers.keys().map(http::HeaderName::as_str) {
        let is_checksum = name.starts_with("x-amz-checksum-") && !NOT_CHECKSUMS.contains(&name);
        if is_checksum && !ALGORITHMS.iter().any(|(_, _, header, _)| *header == name) {
            let message = format!("The algorithm type you specified in {name} header is invalid.");
            return Err(Refusal::bad("InvalidRequest", message));
        }
        // s3s takes an empty header for none.
        if is_checksum && headers.get(name).is_some_and(|value| value.is_empty()) {
            return Err(invalid_value(name));
        }
    }
    let mut announced = Vec::new();
    for name in trailer_names(headers) {
        match ALGORITHMS.iter().find(|(_, _, header, _)| *header == name) {
            Some((algorithm, ..)) => announced.push(*algorithm),
            None => {
                let message =
                    format!("The value {name} specified in the x-amz-trailer header is not supported.");
                return Err(Refusal::bad("InvalidRequest", message));
            }
        }
    }
    Ok(announced)
}

/// Returns the names in `x-amz-trailer`, in lower case.
pub(crate) fn trailer_names(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all("x-amz-trailer").iter().filter_map(|value| value.to_str().ok());
    let names = values.flat_map(|value| value.split(',')).map(|name| name.trim().to_ascii_lowercase());
    names.filter(|name| !name.is_empty()).collect()
}

/// Parses the checksums in trailers.
pub(crate) fn parse_trailers(trailers: &HeaderMap) -> Result<Vec<Checksum>, Refusal> {
    let mut checksums = Vec::new();
    for (algorithm, name, header, _) in ALGORITHMS {
        if let Some(value) = trailers.get(header) {
            checksums.push(parse(algorithm, name, value.to_str().unwrap_or_default())?);
        }
    }
    Ok(checksums)
}

fn parse(algorithm: Algorithm, name: &str, text: &str) -> Result<Checksum, Refusal> {
    let (digits, composite) = match text.rsplit_once('-') {
        Some((digits, parts)) if parts.parse::<u32>().is_ok() => (digits, true),
        _ => (text, false),
    };
    let len = ALGORITHMS.iter().find(|(listed, ..)| *listed == algorithm).map_or(0, |entry| entry.3);
    let value = base64_simd::STANDARD.decode_to_vec(digits).ok().filter(|value| value.len() == len);
    let value =
        value.ok_or_else(|| invalid_value(&format!("x-amz-checksum-{}", name.to_ascii_lowercase())))?;
    Ok(Checksum { algorithm: algorithm.into(), value: value.into(), composite })
}

fn invalid_value(header: &str) -> Refusal {
    Refusal::bad("InvalidRequest", format!("Value for {header} header is invalid."))
}

/// Decodes the value of a Content-MD5 header.
pub(crate) fn parse_md5(text: &str) -> Result<[u8; 16], Refusal> {
    let bytes = base64_simd::STANDARD.decode_to_vec(text).ok().and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| Refusal::bad("InvalidDigest", "The Content-MD5 you specified is not valid."))
}

/// Returns `headers` without those that carry checksums.
pub(crate) fn without_checksums(headers: &HeaderMap) -> HeaderMap {
    let mut others = headers.clone();
    for (_, _, header, _) in ALGORITHMS {
        others.remove(header);
    }
    others
}

/// Verifies the digests of a body that is held in memory (an XML document).
pub(crate) fn verify_held(headers: &HeaderMap, trailers: &HeaderMap, body: &[u8]) -> Result<(), Refusal> {
    use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Md5, Sha1, Sha256};
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(md5) = text("content-md5")
        && parse_md5(md5)?[..] != Md5::checksum(body)[..]
    {
        let message = "The Content-MD5 you specified did not match what we received.";
        return Err(Refusal::bad("BadDigest", message));
    }
    let mut sent = parse_trailers(headers)?;
    sent.extend(parse_trailers(trailers)?);
    for checksum in sent {
        let computed = match checksum.algorithm() {
            Algorithm::None => continue,
            Algorithm::Crc32 => Crc32::checksum(body).to_vec(),
            Algorithm::Crc32c => Crc32c::checksum(body).to_vec(),
            Algorithm::Crc64nvme => Crc64Nvme::checksum(body).to_vec(),
            Algorithm::Sha1 => Sha1::checksum(body).to_vec(),
            Algorithm::Sha256 => Sha256::checksum(body).to_vec(),
        };
        if computed != checksum.value {
            let name = checksum.algorithm().as_str_name();
            let message = format!("The {name} you specified did not match the calculated checksum.");
            return Err(Refusal::bad("BadDigest", message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn checksums_survive_their_fields(seed in any::<[u8; 32]>(), composite: bool, parts in 1usize..10_000) {
            let checksums: Vec<Checksum> = ALGORITHMS
                .iter()
                .map(|(algorithm, _, _, len)| Checksum {
                    algorithm: (*algorithm).into(),
                    value: seed[..*len].to_vec().into(),
                    composite,
                })
                .collect();
            prop_assert_eq!(Fields::of(&checksums, parts).parse().unwrap(), checksums);
        }
    }

    fn header(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name.parse().unwrap(), HeaderValue::from_static(value))])
    }

    #[test]
    fn held_bodies_are_checked_against_what_was_sent() {
        // CRC32 and MD5 of "123456789", from the CRC catalogue and RFC 1321's tool.
        let none = HeaderMap::new();
        let good = header("x-amz-checksum-crc32", "y/Q5Jg==");
        assert_eq!(verify_held(&good, &none, b"123456789"), Ok(()));
        assert_eq!(verify_held(&none, &good, b"12345678").unwrap_err().code, "BadDigest");
        let md5 = header("content-md5", "JfnnlDI7RTiF9RgfG2JNCw==");
        assert_eq!(verify_held(&md5, &none, b"123456789"), Ok(()));
        assert_eq!(verify_held(&md5, &none, b"123456780").unwrap_err().code, "BadDigest");
        assert_eq!(verify_held(&header("content-md5", "!"), &none, b"").unwrap_err().code, "InvalidDigest");
    }

    #[test]
    fn unknown_algorithms_are_refused_wherever_they_are_named() {
        for headers in [
            header("x-amz-checksum-md4", "AAAA"),
            header("x-amz-trailer", "x-amz-checksum-sha512"),
            header("x-amz-trailer", "x-amz-meta-late"),
            header("x-amz-checksum-crc32", ""),
        ] {
            assert_eq!(check_headers(&headers).unwrap_err().code, "InvalidRequest");
        }
        assert_eq!(
            check_headers(&header("x-amz-trailer", "X-Amz-Checksum-CRC32")),
            Ok(vec![Algorithm::Crc32])
        );
        assert!(algorithm_named("SHA512").is_err() && algorithm_named("crc64nvme").is_ok());
    }

    #[test]
    fn checksum_types_follow_the_algorithm() {
        let full = ChecksumType::from_static(ChecksumType::FULL_OBJECT);
        let composite = ChecksumType::from_static(ChecksumType::COMPOSITE);
        assert_eq!(is_full_object(Algorithm::Crc64nvme, None), Ok(true));
        assert_eq!(is_full_object(Algorithm::Sha256, None), Ok(false));
        assert_eq!(is_full_object(Algorithm::Crc32, Some(&full)), Ok(true));
        assert!(is_full_object(Algorithm::Sha1, Some(&full)).is_err());
        assert!(is_full_object(Algorithm::Crc64nvme, Some(&composite)).is_err());
    }
}

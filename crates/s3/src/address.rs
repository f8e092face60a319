//! Bucket and key of a request, in path style or virtual-hosted style.

use std::borrow::Cow;

use s3s::S3Result;
use s3s::host::{S3Host, VirtualHost};

/// The decoded bucket and key of a request; empty if the request has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Address {
    pub bucket: String,
    pub key: String,
}

/// Domains below which the first label of a host name is a bucket.
#[derive(Clone, Debug, Default)]
pub(crate) struct Domains(Vec<String>);

impl Domains {
    /// Parses domain names. `Err` holds the text that is not one.
    pub fn new(domains: &[String]) -> Result<Self, String> {
        let is_label = |label: &str| {
            !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        match domains.iter().find(|domain| !domain.split('.').all(is_label)) {
            Some(wrong) => Err(wrong.clone()),
            None => Ok(Self(domains.iter().map(|domain| domain.to_ascii_lowercase()).collect())),
        }
    }

    /// Returns the bucket that a host names.
    pub fn bucket_of(&self, host: &str) -> Option<String> {
        let host = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        // A name that ends with a dot is the same name, written in full.
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let bucket = |domain: &String| host.strip_suffix(domain.as_str())?.strip_suffix('.');
        self.0.iter().find_map(bucket).filter(|bucket| !bucket.is_empty()).map(str::to_owned)
    }
}

/// For s3s. A host outside the domains is path style, so that a server can also be reached by its address.
impl S3Host for Domains {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        let virtual_host = VirtualHost::new(host);
        Ok(match self.bucket_of(host) {
            Some(bucket) => virtual_host.with_bucket(bucket),
            None => virtual_host,
        })
    }
}

impl Address {
    /// Returns the address of a request; `None` if the decoded path is not UTF-8.
    pub fn of(domains: &Domains, host: &str, path: &str) -> Option<Self> {
        let path = percent_decode(path)?;
        let path = path.strip_prefix('/').unwrap_or(&path);
        if let Some(bucket) = domains.bucket_of(host) {
            return Some(Self { bucket, key: path.to_owned() });
        }
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        Some(Self { bucket: bucket.to_owned(), key: key.to_owned() })
    }
}

/// Decodes `%xx`; `None` when the result is not UTF-8.
pub(crate) fn percent_decode(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digits = bytes.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        let value = digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let value = value.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        decoded.push(value.unwrap_or(bytes[at]));
        at += if value.is_some() { 3 } else { 1 };
    }
    String::from_utf8(decoded).ok()
}

/// Encodes as `encoding-type=url` does: everything but unreserved characters and slashes.
pub(crate) fn percent_encode(text: &str) -> Cow<'_, str> {
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'/' | b'*');
    if text.bytes().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut encoded = String::with_capacity(text.len() + 16);
    for byte in text.bytes() {
        match byte {
            byte if is_plain(byte) => encoded.push(char::from(byte)),
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    Cow::Owned(encoded)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_key_survives_encoding(key in any::<String>()) {
            let encoded = percent_encode(&key).into_owned();
            prop_assert!(encoded.is_ascii());
            prop_assert_eq!(percent_decode(&encoded), Some(key));
        }

        #[test]
        fn no_text_panics_when_decoded(text in "[%0-9a-fA-Fü]{0,12}") {
            let _ = percent_decode(&text);
        }
    }

    #[test]
    fn paths_and_hosts_name_buckets_and_odd_keys_stay_as_they_are() {
        let domains = Domains::new(&["s3.Example.com".to_owned()]).unwrap();
        let of = |host, path| {
            let address = Address::of(&domains, host, path).unwrap();
            (address.bucket, address.key)
        };
        let pair = |bucket: &str, key: &str| (bucket.to_owned(), key.to_owned());
        assert_eq!(of("localhost:9000", "/b/a//../c%2F%20+/"), pair("b", "a//../c/ +/"));
        assert_eq!(of("b.s3.example.com:9000", "//x"), pair("b", "/x"));
        assert_eq!(of("b.s3.example.com.:9000", "/x"), pair("b", "x"), "a name written in full");
        assert_eq!(of("s3.example.com", "/b"), pair("b", ""));
        assert_eq!(of("a.b.S3.EXAMPLE.com", "/"), pair("a.b", ""));
        assert!(Domains::new(&["not a domain".to_owned()]).is_err());
    }
}

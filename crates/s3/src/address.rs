//! Bucket and key of a request, in path style or virtual-hosted style, and the addresses that answers name.

use std::borrow::Cow;

use http::request::Parts;
use http::{HeaderMap, header};

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

/// Marks a request that arrived over TLS.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OverTls;

/// How a request addresses the gateway. Addresses in its answer begin in the same way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Endpoint {
    /// Scheme and host, as `https://s3.example.com`.
    url: String,
    /// Whether the host names the bucket.
    names_bucket: bool,
}

impl Endpoint {
    /// Returns how `parts` addresses the gateway. Behind a proxy that ends TLS, the proxy's `X-Forwarded-Proto` says
    /// that the client uses it.
    pub fn of(domains: &Domains, parts: &Parts) -> Self {
        let text = |name: &str| parts.headers.get(name)?.to_str().ok();
        let is_secure = parts.extensions.get::<OverTls>().is_some()
            || text("x-forwarded-proto").is_some_and(|scheme| scheme.eq_ignore_ascii_case("https"));
        let host = host_of(parts);
        let scheme = if is_secure { "https" } else { "http" };
        Self { url: format!("{scheme}://{host}"), names_bucket: domains.bucket_of(host).is_some() }
    }

    /// Returns the address of an object.
    pub fn location(&self, bucket: &str, key: &str) -> String {
        let (url, key) = (&self.url, percent_encode(key));
        match self.names_bucket {
            true => format!("{url}/{key}"),
            false => format!("{url}/{}/{key}", percent_encode(bucket)),
        }
    }
}

/// Returns the host that a request names.
pub(crate) fn host_of(parts: &Parts) -> &str {
    let authority = parts.uri.authority().map(http::uri::Authority::as_str);
    text(&parts.headers, header::HOST).or(authority).unwrap_or_default()
}

/// Returns a header's text; `None` if it is absent or not ASCII.
pub(crate) fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
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

    #[test]
    fn an_answer_names_an_object_as_the_request_named_it() {
        let domains = Domains::new(&["s3.example.com".to_owned()]).unwrap();
        let location = |host: &str, forwarded: Option<&str>, over_tls: bool| {
            let mut request = http::Request::builder().uri("/").header("host", host);
            if let Some(scheme) = forwarded {
                request = request.header("x-forwarded-proto", scheme);
            }
            let (mut parts, ()) = request.body(()).unwrap().into_parts();
            if over_tls {
                parts.extensions.insert(OverTls);
            }
            Endpoint::of(&domains, &parts).location("bkt", "v/mp u")
        };
        assert_eq!(location("h:9000", None, false), "http://h:9000/bkt/v/mp%20u");
        assert_eq!(location("bkt.s3.example.com", None, true), "https://bkt.s3.example.com/v/mp%20u");
        assert_eq!(location("s3.example.com", Some("https"), false), "https://s3.example.com/bkt/v/mp%20u");
        assert_eq!(location("h", Some("http"), false), "http://h/bkt/v/mp%20u");
    }
}

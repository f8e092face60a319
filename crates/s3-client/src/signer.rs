//! AWS Signature Version 4 in the `Authorization` header, by the signer of AWS's own SDK.

use std::str::Utf8Error;
use std::time::{Duration, UNIX_EPOCH};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings,
    UriPathNormalizationMode, sign,
};
use aws_sigv4::sign::v4;
use http::{HeaderValue, Request};

/// Signs requests with a key, for a region. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Signer {
    credentials: Credentials,
    region: String,
}

/// What the signature covers of the payload.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// These bytes, which are hashed.
    Bytes(&'a [u8]),
    /// A payload with this SHA-256, in lower-case hexadecimal digits.
    Sha256(&'a str),
    /// Nothing: the payload is unsigned.
    Unsigned,
}

/// Why a request cannot be signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The URI names no host.
    #[error("the URI {0} names no host")]
    NoHost(http::Uri),
    /// A header's value, the key or the region contains characters that a header cannot.
    #[error("the request cannot be signed: {0}")]
    Unsignable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Signer {
    /// Creates a signer with this access key and secret.
    pub fn new(access_key: String, secret: String, region: String) -> Self {
        Self { credentials: Credentials::new(access_key, secret, None, None, "striate"), region }
    }

    /// The region that requests are signed for.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// Sets `x-amz-date`, `x-amz-content-sha256` and `authorization` of a request, replacing any that it has. The
    /// request's URI must be absolute, and encoded as by [`crate::uri`]. Signs all headers except `user-agent`,
    /// `transfer-encoding` and `x-amzn-trace-id`. Ignores the body. `wall_time` counts from the Unix epoch.
    ///
    /// # Errors
    /// If the URI has no host, or a value is not text.
    pub fn sign<B>(
        &self,
        request: &mut Request<B>,
        payload: Payload<'_>,
        wall_time: Duration,
    ) -> Result<(), SignError> {
        if request.uri().authority().is_none() {
            return Err(SignError::NoHost(request.uri().clone()));
        }
        let identity = self.credentials.clone().into();
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name("s3")
            .time(UNIX_EPOCH + wall_time)
            .settings(settings());
        let params = params.build().map_err(unsignable)?.into();
        let body = match payload {
            Payload::Bytes(bytes) => SignableBody::Bytes(bytes),
            Payload::Sha256(digits) => SignableBody::Precomputed(digits.to_owned()),
            Payload::Unsigned => SignableBody::UnsignedPayload,
        };
        let headers = request.headers().iter();
        let headers = headers.map(|(name, value)| Ok((name.as_str(), str::from_utf8(value.as_bytes())?)));
        let headers: Vec<_> = headers.collect::<Result<_, Utf8Error>>().map_err(unsignable)?;
        let uri = request.uri().to_string();
        let signable = SignableRequest::new(request.method().as_str(), uri, headers.into_iter(), body);
        let (instructions, _) =
            sign(signable.map_err(unsignable)?, &params).map_err(unsignable)?.into_parts();
        for header in instructions.into_parts().0 {
            // The library's own method for adding these panics if the key does not fit into a header.
            let mut value = HeaderValue::from_str(header.value()).map_err(unsignable)?;
            value.set_sensitive(header.sensitive());
            request.headers_mut().insert(header.name(), value);
        }
        Ok(())
    }
}

/// Settings for S3, unlike AWS's other services: paths are signed as they are sent, and the payload's hash is a header.
fn settings() -> SigningSettings {
    let mut settings = SigningSettings::default();
    settings.percent_encoding_mode = PercentEncodingMode::Single;
    settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
    settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
    settings
}

fn unsignable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> SignError {
    SignError::Unsignable(error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn signer(access_key: &str) -> Signer {
        let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned();
        Signer::new(access_key.to_owned(), secret, "us-east-1".to_owned())
    }

    fn signed(
        access_key: &str,
        uri: &str,
        range: &[u8],
        payload: Payload<'_>,
    ) -> Result<Request<()>, SignError> {
        let range = HeaderValue::from_bytes(range).unwrap();
        let mut request = Request::get(uri).header("range", range).body(()).unwrap();
        let time = Duration::from_secs(1_369_353_600);
        signer(access_key).sign(&mut request, payload, time).map(|()| request)
    }

    fn header<'a>(request: &'a Request<()>, name: &str) -> &'a str {
        request.headers()[name].to_str().unwrap()
    }

    /// The GET example of AWS's documentation (key `test.txt` of `examplebucket`, with a range).
    #[test]
    fn the_documented_example_gets_the_documented_signature() {
        let uri = "https://examplebucket.s3.amazonaws.com/test.txt";
        for payload in [Payload::Bytes(b""), Payload::Sha256(EMPTY)] {
            let request = signed("AKIAIOSFODNN7EXAMPLE", uri, b"bytes=0-9", payload).unwrap();
            let expected = "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41";
            let authorization = header(&request, "authorization");
            assert!(authorization.ends_with(expected), "{authorization}");
            assert_eq!(header(&request, "x-amz-date"), "20130524T000000Z");
            assert_eq!(header(&request, "x-amz-content-sha256"), EMPTY);
        }
        let unsigned = signed("AKIAIOSFODNN7EXAMPLE", uri, b"bytes=0-9", Payload::Unsigned).unwrap();
        assert_eq!(header(&unsigned, "x-amz-content-sha256"), "UNSIGNED-PAYLOAD");
    }

    /// S3 takes such keys literally; a signer that resolves dots would sign another object.
    #[test]
    fn paths_are_signed_as_they_are_sent() {
        let signature = |key: &str| {
            let request =
                signed("k", &format!("http://h/b/{key}"), b"bytes=0-9", Payload::Bytes(b"")).unwrap();
            header(&request, "authorization").to_owned()
        };
        assert_ne!(signature("a/../c"), signature("c"));
        assert_ne!(signature("a//c"), signature("a/c"));
        assert_ne!(signature("a/"), signature("a"));
    }

    #[test]
    fn what_no_header_can_hold_is_an_error() {
        let payload = Payload::Bytes(b"");
        assert!(signed("k\n", "http://h/", b"x", payload).is_err());
        assert!(signed("k", "http://h/", b"\xff", payload).is_err());
        assert!(matches!(signed("k", "/b/k", b"x", payload), Err(SignError::NoHost(_))));
    }
}

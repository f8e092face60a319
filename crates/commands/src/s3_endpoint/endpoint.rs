//! An S3 endpoint with its access key, and single requests to it.

use bytes::Bytes;
use http::{HeaderName, Method, Request, Response, Uri};
use hyper::body::Incoming;
use striate_runtime::Runtime;
use striate_s3_client::{
    HttpClient, Payload, RequestBody, Signer, client_config, encode_path, encode_query, whole,
};

use crate::admin::find;
use crate::args::EndpointArgs;
use crate::failure::{Failure, Outcome};
use crate::usage::without_users;

/// An S3 store and the access key for it. Cheap to clone.
#[derive(Clone)]
pub struct S3Endpoint {
    runtime: Runtime,
    http: HttpClient,
    signer: Signer,
    /// Scheme, host and port, without a trailing slash.
    url: String,
}

/// The parameters of one request.
#[derive(Clone, Debug, Default)]
pub struct Call<'a> {
    /// HTTP method.
    pub method: Method,
    /// Bucket; empty for the service itself.
    pub bucket: &'a str,
    /// Key; empty for the bucket itself.
    pub key: &'a str,
    /// Query parameters.
    pub query: &'a [(&'a str, &'a str)],
    /// Headers besides those of every request; names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// Body, held in memory.
    pub body: Bytes,
    /// Whether to leave the body out of the signature, which saves hashing it.
    pub unsigned_body: bool,
}

/// Why a request got no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The request is invalid and cannot be sent.
    #[error("{0}")]
    Malformed(String),
    /// The endpoint cannot be reached, or the connection broke.
    #[error("cannot reach {url}: {cause}; is the server running there? --endpoint chooses another")]
    Unreachable {
        /// URL of the endpoint.
        url: String,
        /// Cause of the failure.
        cause: String,
    },
}

impl S3Endpoint {
    /// Connects to the store that the arguments and the environment name.
    ///
    /// # Errors
    /// If no endpoint, key or secret is known, or the endpoint is not a URL.
    pub fn connect(runtime: Runtime, args: &EndpointArgs) -> Outcome<Self> {
        let url = match args.endpoint.clone().or_else(|| environment("AWS_ENDPOINT_URL")) {
            Some(url) => url,
            None => find::local_endpoint()?,
        };
        let url = checked(&url)?;
        let signer = signer(args)?;
        let tls = client_config(args.ca_file.as_deref());
        let tls = tls.map_err(|error| Failure::refused(format!("--ca-file {error}")))?;
        Ok(Self { runtime, http: HttpClient::new(tls), signer, url })
    }

    /// Returns the runtime, for clock, randomness and tasks.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the region in signatures.
    pub fn region(&self) -> &str {
        self.signer.region()
    }

    /// Returns scheme, host and port.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sends a request once; returns as soon as the head of the answer has arrived.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn send(&self, call: &Call<'_>) -> Result<Response<Incoming>, SendError> {
        let request = self.request(call).map_err(|error| SendError::Malformed(error.to_string()))?;
        self.http.request(request).await.map_err(|error| self.unreachable(&error))
    }

    fn request(&self, call: &Call<'_>) -> Result<Request<RequestBody>, Box<dyn std::error::Error>> {
        let path = match (call.bucket, call.key) {
            ("", _) => "/".to_owned(),
            (bucket, "") => encode_path(&format!("/{bucket}")),
            (bucket, key) => encode_path(&format!("/{bucket}/{key}")),
        };
        let query = encode_query(call.query);
        let separator = if query.is_empty() { "" } else { "?" };
        let uri = format!("{}{path}{separator}{query}", self.url);
        let mut request = Request::builder().method(call.method.clone()).uri(uri);
        for (name, value) in &call.headers {
            request = request.header(HeaderName::from_static(name), value);
        }
        let mut request = request.body(whole(call.body.clone()))?;
        let payload = if call.unsigned_body { Payload::Unsigned } else { Payload::Bytes(&call.body) };
        self.signer.sign(&mut request, payload, self.runtime.wall_time())?;
        Ok(request)
    }

    fn unreachable(&self, error: &hyper_util::client::legacy::Error) -> SendError {
        let mut cause: &dyn std::error::Error = error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        SendError::Unreachable { url: self.url.clone(), cause: with_remedy(cause.to_string(), &self.url) }
    }
}

/// Returns the cause of a broken connection, with what to do about it where that is known.
fn with_remedy(cause: String, url: &str) -> String {
    if cause.contains("InvalidContentType") {
        return "no TLS is spoken there; write http://".to_owned();
    }
    if url.starts_with("http://") && cause.contains("invalid HTTP version") {
        return format!("{cause}: TLS may be spoken there; write https://");
    }
    if cause.contains("CaUsedAsEndEntity") {
        return "its certificate says that it is an authority's, which no server may use: make one with `openssl req -x509 \
                -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=DNS:NAME …`"
            .to_owned();
    }
    if cause.contains("UnknownIssuer") {
        return "the authority of its certificate is not trusted here; name its certificate by --ca-file or STRIATE_CA_FILE"
            .to_owned();
    }
    if cause.contains("NotValidForName") {
        return format!("{cause}; its certificate needs this host name or address as subjectAltName");
    }
    cause
}

/// Returns the URL of an endpoint without the slash at its end.
///
/// # Errors
/// If it is none. The message has no password.
fn checked(url: &str) -> Outcome<String> {
    let url = url.trim_end_matches('/');
    let refuse = |reason: &dyn std::fmt::Display| {
        let shown = without_users(url).unwrap_or_else(|| url.to_owned());
        Failure::refused(format!("the endpoint {shown:?} cannot be used: {reason}"))
    };
    let uri: Uri = url.parse().map_err(|error| refuse(&error))?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let Some(authority) = uri.authority().filter(|_| is_http && uri.path() == "/") else {
        return Err(refuse(&"write http://HOST:PORT or https://HOST:PORT, without a path"));
    };
    match authority.as_str().contains('@') {
        true => Err(refuse(&"give the key by STRIATE_ACCESS_KEY and STRIATE_SECRET_KEY, not in the URL")),
        false => Ok(url.to_owned()),
    }
}

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn signer(args: &EndpointArgs) -> Outcome<Signer> {
    let missing = |what: &str| {
        Failure::refused(format!(
            "no {what} is known; set STRIATE_ACCESS_KEY and STRIATE_SECRET_KEY as the server printed them at its \
             first start (`striate admin keys create` makes new ones)"
        ))
    };
    let striate_secret = environment("STRIATE_SECRET_KEY");
    let access_key = args.access_key.clone().or_else(|| environment("AWS_ACCESS_KEY_ID"));
    let access_key = access_key.ok_or_else(|| missing("access key"))?;
    let secret = striate_secret.or_else(|| environment("AWS_SECRET_ACCESS_KEY"));
    Ok(Signer::new(access_key, secret.ok_or_else(|| missing("secret"))?, args.region.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_host_and_its_errors_have_no_password() {
        assert_eq!(checked("https://store:9000/"), Ok("https://store:9000".to_owned()));
        for wrong in [
            "store:9000",
            "ftp://me:secret@store",
            "http://me:secret@store",
            "http://store/path",
            "http://a b",
        ] {
            let error = checked(wrong).unwrap_err().to_string();
            assert!(error.contains("endpoint") && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_certificate_comes_with_its_remedy() {
        let remedy = |cause: &str| with_remedy(cause.to_owned(), "https://store:9000");
        assert!(
            remedy("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))").contains("CA:FALSE")
        );
        assert!(remedy("invalid peer certificate: UnknownIssuer").contains("STRIATE_CA_FILE"));
        assert!(with_remedy("invalid HTTP version parsed".to_owned(), "http://s").contains("https://"));
        assert_eq!(remedy("connection refused"), "connection refused");
    }
}

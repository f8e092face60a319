//! An S3 endpoint with the key to use it with, and single requests to it.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use striate_runtime::Runtime;
use zeroize::Zeroizing;

use super::sign::{Payload, Signer, Unsigned, encode_path, encode_query};
use crate::admin::find;
use crate::args::EndpointArgs;
use crate::failure::{Failure, Outcome};

/// A connection that was not used for this long is not used again. Servers close idle connections after some 20 s and more,
/// and a request that crosses with the close would fail.
const IDLE_CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// An S3 store and the key to use it with. Cheap to clone.
#[derive(Clone)]
pub struct S3Endpoint {
    runtime: Runtime,
    http: HttpClient<HttpsConnector<HttpConnector>, Full<Bytes>>,
    signer: Signer,
    /// Scheme, host and port; no trailing slash.
    url: String,
    host: String,
}

/// What one request asks for.
#[derive(Clone, Debug, Default)]
pub struct Call<'a> {
    /// The method.
    pub method: Method,
    /// The bucket; empty for the service itself.
    pub bucket: &'a str,
    /// The key; empty for the bucket itself.
    pub key: &'a str,
    /// Parameters.
    pub query: &'a [(&'a str, &'a str)],
    /// Headers besides those that every request has; names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// What is sent; bodies are held in memory.
    pub body: Bytes,
    /// Leaves the body out of the signature, which saves hashing it.
    pub unsigned_body: bool,
}

/// Why a request got no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// It cannot be sent to anybody.
    #[error("{0}")]
    Malformed(String),
    /// The endpoint cannot be reached, or the connection broke.
    #[error("cannot reach {url}: {cause}; is the server running there? --endpoint chooses another")]
    Unreachable {
        /// The endpoint.
        url: String,
        /// What went wrong.
        cause: String,
    },
}

impl S3Endpoint {
    /// The store that the arguments and the environment name.
    ///
    /// # Errors
    /// When no endpoint, key or secret is known, and for an endpoint that is no URL.
    pub fn connect(runtime: Runtime, args: &EndpointArgs) -> Outcome<Self> {
        let url = match args.endpoint.clone().or_else(|| environment("AWS_ENDPOINT_URL")) {
            Some(url) => url,
            None => find::local_endpoint()?,
        };
        let url = url.trim_end_matches('/').to_owned();
        let uri: http::Uri = url.parse().map_err(|error| bad_endpoint(&url, &error))?;
        let host = uri.authority().map(|authority| authority.as_str().to_owned());
        let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
        let host = host.filter(|_| is_http && uri.path() == "/").ok_or_else(|| {
            bad_endpoint(&url, &"write http://HOST:PORT or https://HOST:PORT, without a path")
        })?;
        let signer = credentials(args)?;
        let http = HttpClient::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE_CONNECTION_TIMEOUT)
            .build(connector(args)?);
        Ok(Self { runtime, http, signer, url, host })
    }

    /// Clock, randomness and tasks.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The region that is signed for.
    pub fn region(&self) -> &str {
        &self.signer.region
    }

    /// Scheme, host and port.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sends a request, once; answers when the head of the answer is there.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn send(&self, call: &Call<'_>) -> Result<Response<Incoming>, SendError> {
        let request = self.request(call).map_err(|error| SendError::Malformed(error.to_string()))?;
        self.http.request(request).await.map_err(|error| self.unreachable(&error))
    }

    fn request(&self, call: &Call<'_>) -> Result<Request<Full<Bytes>>, http::Error> {
        let path = match (call.bucket, call.key) {
            ("", _) => "/".to_owned(),
            (bucket, "") => encode_path(&format!("/{bucket}")),
            (bucket, key) => encode_path(&format!("/{bucket}/{key}")),
        };
        let query = encode_query(call.query);
        let signed = self.signer.sign(&Unsigned {
            method: call.method.as_str(),
            host: &self.host,
            path: &path,
            query: &query,
            headers: &call.headers,
            payload: if call.unsigned_body { Payload::Unsigned } else { Payload::Signed(&call.body) },
            time: self.runtime.wall_time(),
        });
        let separator = if query.is_empty() { "" } else { "?" };
        let uri = format!("{}{path}{separator}{query}", self.url);
        let mut request = Request::builder().method(call.method.clone()).uri(uri).header("host", &self.host);
        for (name, value) in call.headers.iter().chain(&signed) {
            request = request.header(*name, value);
        }
        request.body(Full::new(call.body.clone()))
    }

    fn unreachable(&self, error: &hyper_util::client::legacy::Error) -> SendError {
        let mut cause: &dyn std::error::Error = error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        SendError::Unreachable { url: self.url.clone(), cause: cause.to_string() }
    }
}

fn bad_endpoint(url: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::refused(format!("the endpoint {url:?} is no URL: {error}"))
}

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn credentials(args: &EndpointArgs) -> Outcome<Signer> {
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
    let secret = Zeroizing::new(secret.ok_or_else(|| missing("secret"))?);
    Ok(Signer { access_key, secret, region: args.region.clone() })
}

fn connector(args: &EndpointArgs) -> Outcome<HttpsConnector<HttpConnector>> {
    let mut http = HttpConnector::new();
    http.set_nodelay(true);
    http.enforce_http(false);
    let tls = super::tls::client_config(args.ca_file.as_deref())?;
    Ok(HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(http))
}

//! A small S3 client over hyper: what `cp`, `ls`, `rm` and `cat` need, for any S3 store.
//!
//! Requests that a retry can repeat without harm are tried up to [`ATTEMPTS`] times when the connection breaks
//! or the store is busy. Bodies are held in memory, so they are parts of at most a few MiB.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use striate_runtime::Runtime;
use zeroize::Zeroizing;

use super::interruption::Interruption;
use super::location::ObjectLocation;
use super::sign::{Signer, Unsigned, encode_path, encode_query};
use super::xml::{Element, complete_upload};
use crate::admin::find;
use crate::args::EndpointArgs;
use crate::failure::{Failure, Outcome};

/// How often a request is tried.
const ATTEMPTS: u32 = 5;
/// The largest XML answer that is read.
const MAX_XML_BYTES: usize = 16 << 20;
/// A request that got no answer's head by then is tried again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// An S3 store and the key to use it with. Cheap to clone.
#[derive(Clone)]
pub struct ObjectStore {
    runtime: Runtime,
    http: HttpClient<HttpsConnector<HttpConnector>, Full<Bytes>>,
    signer: Signer,
    interruption: Interruption,
    /// Scheme, host and port; no trailing slash.
    endpoint: String,
    host: String,
}

/// What one request asks for.
#[derive(Debug, Default)]
struct Call<'a> {
    method: Method,
    bucket: &'a str,
    key: &'a str,
    query: &'a [(&'a str, &'a str)],
    headers: Vec<(&'static str, String)>,
    body: Bytes,
    /// It begins or ends something that would be left behind, so an interruption waits for it.
    outlasts_interruption: bool,
}

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The key.
    pub key: String,
    /// Bytes.
    pub size: u64,
    /// Time of its last modification, as the store writes it.
    pub modified: String,
}

/// One page of a listing.
#[derive(Clone, Debug, Default)]
pub struct ListedPage {
    /// The objects.
    pub objects: Vec<Listed>,
    /// The common prefixes.
    pub prefixes: Vec<String>,
    /// Where the next page starts.
    pub next: Option<String>,
}

/// An object's size and ETag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Bytes.
    pub size: u64,
    /// With its quotes.
    pub etag: String,
}

/// Why one attempt failed.
enum Attempt {
    Again(String),
    Final(Failure),
}

impl ObjectStore {
    /// The store that the arguments and the environment name.
    ///
    /// # Errors
    /// When no endpoint, key or secret is known, and for an endpoint that is no URL.
    pub fn connect(runtime: Runtime, args: &EndpointArgs) -> Outcome<Self> {
        let endpoint = match args.endpoint.clone().or_else(|| environment("AWS_ENDPOINT_URL")) {
            Some(endpoint) => endpoint,
            None => find::local_endpoint()?,
        };
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let uri: http::Uri = endpoint.parse().map_err(|error| bad_endpoint(&endpoint, &error))?;
        let host = uri.authority().map(|authority| authority.as_str().to_owned());
        let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
        let host = host.filter(|_| is_http && uri.path() == "/").ok_or_else(|| {
            bad_endpoint(&endpoint, &"write http://HOST:PORT or https://HOST:PORT, without a path")
        })?;
        let signer = credentials(args)?;
        let http = HttpClient::builder(TokioExecutor::new()).build(connector(args)?);
        let interruption = Interruption::listen(&runtime);
        Ok(Self { runtime, http, signer, interruption, endpoint, host })
    }

    /// Whether the user wants the command to end.
    pub fn interruption(&self) -> &Interruption {
        &self.interruption
    }

    /// Names of all buckets.
    ///
    /// # Errors
    /// When the store refuses or cannot be reached.
    pub async fn buckets(&self) -> Outcome<Vec<(String, String)>> {
        let answer = self.xml(Call::default()).await?;
        let buckets = answer.child("Buckets").into_iter().flat_map(|list| list.all("Bucket"));
        let pair = |bucket: &Element| (bucket.text_of("Name").into(), bucket.text_of("CreationDate").into());
        Ok(buckets.map(pair).collect())
    }

    /// One page of a listing below `prefix`; `next` is what the page before answered.
    ///
    /// # Errors
    /// When the store refuses or cannot be reached.
    pub async fn list(
        &self,
        at: &ObjectLocation,
        delimiter: &str,
        next: Option<&str>,
    ) -> Outcome<ListedPage> {
        let mut query = vec![("list-type", "2"), ("prefix", at.key.as_str())];
        query.extend((!delimiter.is_empty()).then_some(("delimiter", delimiter)));
        query.extend(next.map(|token| ("continuation-token", token)));
        let answer = self.xml(Call { bucket: &at.bucket, query: &query, ..Call::default() }).await?;
        let object = |element: &Element| {
            let size = element.text_of("Size").parse().unwrap_or(0);
            Listed {
                key: element.text_of("Key").into(),
                size,
                modified: element.text_of("LastModified").into(),
            }
        };
        let token = answer.text_of("NextContinuationToken");
        Ok(ListedPage {
            objects: answer.all("Contents").map(object).collect(),
            prefixes: answer.all("CommonPrefixes").map(|element| element.text_of("Prefix").into()).collect(),
            next: (answer.text_of("IsTruncated") == "true").then(|| token.to_owned()),
        })
    }

    /// An object's size and ETag.
    ///
    /// # Errors
    /// When there is none, or the store refuses or cannot be reached.
    pub async fn head(&self, at: &ObjectLocation) -> Outcome<Head> {
        let call = Call { method: Method::HEAD, ..Call::on(at) };
        let (head, _) = self.call(call).await?;
        let text = |name: &str| head.get(name).and_then(|value| value.to_str().ok()).unwrap_or("").to_owned();
        let size = text("content-length").parse().map_err(|_| {
            Failure::failed(format!("{}: the store did not say how large {at} is", self.endpoint))
        })?;
        Ok(Head { size, etag: text("etag") })
    }

    /// `len` bytes from `offset` of the version with this ETag.
    ///
    /// # Errors
    /// When the object changed meanwhile, or the store refuses or cannot be reached.
    pub async fn get_range(&self, at: &ObjectLocation, etag: &str, offset: u64, len: u64) -> Outcome<Bytes> {
        let range = ("range", format!("bytes={offset}-{}", offset + len - 1));
        let headers = vec![range, ("if-match", etag.to_owned())];
        let (_, body) = self.call(Call { headers, ..Call::on(at) }).await?;
        match body.len() as u64 == len {
            true => Ok(body),
            false => Err(Failure::failed(format!("{at}: {} bytes came, {len} were asked for", body.len()))),
        }
    }

    /// Stores an object in one request.
    ///
    /// # Errors
    /// When the store refuses or cannot be reached.
    pub async fn put(&self, at: &ObjectLocation, body: Bytes) -> Outcome {
        self.call(Call { method: Method::PUT, body, ..Call::on(at) }).await.map(drop)
    }

    /// Copies an object inside the store.
    ///
    /// # Errors
    /// When the store refuses or cannot be reached.
    pub async fn copy(&self, from: &ObjectLocation, to: &ObjectLocation) -> Outcome {
        let source = encode_path(&format!("/{}/{}", from.bucket, from.key));
        let headers = vec![("x-amz-copy-source", source)];
        self.xml(Call { method: Method::PUT, headers, ..Call::on(to) }).await.map(drop)
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// When the store refuses or cannot be reached.
    pub async fn delete(&self, at: &ObjectLocation) -> Outcome {
        self.call(Call { method: Method::DELETE, ..Call::on(at) }).await.map(drop)
    }

    /// Begins a multipart upload; answers its id.
    ///
    /// # Errors
    /// When the store refuses or cannot be reached.
    pub async fn create_upload(&self, at: &ObjectLocation) -> Outcome<String> {
        let query = &[("uploads", "")];
        let call = Call { method: Method::POST, query, outlasts_interruption: true, ..Call::on(at) };
        Ok(self.xml(call).await?.text_of("UploadId").to_owned())
    }

    /// Stores a part; answers its ETag.
    ///
    /// # Errors
    /// When the store refuses or cannot be reached.
    pub async fn put_part(
        &self,
        at: &ObjectLocation,
        upload: &str,
        number: u32,
        body: Bytes,
    ) -> Outcome<String> {
        let number = number.to_string();
        let query = [("partNumber", number.as_str()), ("uploadId", upload)];
        let (head, _) = self.call(Call { method: Method::PUT, query: &query, body, ..Call::on(at) }).await?;
        let etag = head.get("etag").and_then(|value| value.to_str().ok());
        etag.map(str::to_owned).ok_or_else(|| Failure::failed(format!("{at}: part {number} got no ETag")))
    }

    /// Makes the parts an object.
    ///
    /// # Errors
    /// When the store refuses or cannot be reached.
    pub async fn complete_upload(
        &self,
        at: &ObjectLocation,
        upload: &str,
        parts: &[(u32, String)],
    ) -> Outcome {
        let body = complete_upload(parts).into();
        let query = &[("uploadId", upload)];
        let call = Call { method: Method::POST, query, body, outlasts_interruption: true, ..Call::on(at) };
        self.xml(call).await.map(drop)
    }

    /// Gives up an upload.
    ///
    /// # Errors
    /// When the store refuses or cannot be reached.
    pub async fn abort_upload(&self, at: &ObjectLocation, upload: &str) -> Outcome {
        let query = &[("uploadId", upload)];
        let call = Call { method: Method::DELETE, query, outlasts_interruption: true, ..Call::on(at) };
        self.call(call).await.map(drop)
    }

    async fn xml(&self, call: Call<'_>) -> Outcome<Element> {
        let (_, body) = self.call(call).await?;
        let root = Element::parse(&String::from_utf8_lossy(&body)).map_err(Failure::failed)?;
        // Copies and completions may fail after the status was sent.
        match root.name.as_str() {
            "Error" => Err(Failure::failed(explain(root.text_of("Code"), root.text_of("Message")))),
            _ => Ok(root),
        }
    }

    /// Sends a request until it is answered, at most [`ATTEMPTS`] times, or the command is interrupted.
    async fn call(&self, call: Call<'_>) -> Outcome<(http::HeaderMap, Bytes)> {
        if call.outlasts_interruption {
            return self.call_to_the_end(call).await;
        }
        tokio::select! {
            biased;
            () = self.interruption.happens() => Err(Interruption::failure()),
            answer = self.call_to_the_end(call) => answer,
        }
    }

    async fn call_to_the_end(&self, call: Call<'_>) -> Outcome<(http::HeaderMap, Bytes)> {
        let mut wait = Duration::from_millis(100);
        for attempt in 1.. {
            match self.attempt(&call).await {
                Ok(answer) => return Ok(answer),
                Err(Attempt::Final(failure)) => return Err(failure),
                Err(Attempt::Again(reason)) if attempt == ATTEMPTS => return Err(Failure::failed(reason)),
                Err(Attempt::Again(_)) => self.runtime.sleep(wait).await,
            }
            wait *= 3;
        }
        unreachable!("the last attempt returns")
    }

    async fn attempt(&self, call: &Call<'_>) -> Result<(http::HeaderMap, Bytes), Attempt> {
        let request = self.request(call).map_err(|error| Attempt::Final(Failure::refused(error)))?;
        let answer = self.runtime.timeout(ANSWER_TIMEOUT, self.http.request(request)).await;
        let answer = answer
            .map_err(|_| Attempt::Again(format!("{} does not answer", self.endpoint)))?
            .map_err(|error| Attempt::Again(self.unreachable(&error)))?;
        let status = answer.status();
        let (head, body) = self.read(answer, call).await?;
        if status.is_success() {
            return Ok((head, body));
        }
        let reason = refusal(status, &body, call);
        let is_busy = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        Err(if is_busy { Attempt::Again(reason) } else { Attempt::Final(Failure::failed(reason)) })
    }

    async fn read(
        &self,
        answer: Response<Incoming>,
        call: &Call<'_>,
    ) -> Result<(http::HeaderMap, Bytes), Attempt> {
        let (head, body) = answer.into_parts();
        let limit = call.range_len().unwrap_or(MAX_XML_BYTES).max(MAX_XML_BYTES);
        let body = Limited::new(body, limit).collect().await;
        let body = body.map_err(|error| Attempt::Again(format!("{}: {error}", self.endpoint)))?;
        Ok((head.headers, body.to_bytes()))
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
            payload: &call.body,
            time: self.runtime.wall_time(),
        });
        let separator = if query.is_empty() { "" } else { "?" };
        let uri = format!("{}{path}{separator}{query}", self.endpoint);
        let mut request = Request::builder().method(call.method.clone()).uri(uri).header("host", &self.host);
        for (name, value) in call.headers.iter().chain(&signed) {
            request = request.header(*name, value);
        }
        request.body(Full::new(call.body.clone()))
    }

    fn unreachable(&self, error: &hyper_util::client::legacy::Error) -> String {
        let mut cause: &dyn std::error::Error = error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        format!(
            "cannot reach {}: {cause}; is the server running there? --endpoint chooses another",
            self.endpoint
        )
    }
}

impl<'a> Call<'a> {
    fn on(at: &'a ObjectLocation) -> Self {
        Self { bucket: &at.bucket, key: &at.key, ..Self::default() }
    }

    /// Bytes that a ranged request asks for.
    fn range_len(&self) -> Option<usize> {
        let (_, value) = self.headers.iter().find(|(name, _)| *name == "range")?;
        let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
        Some(last.parse::<usize>().ok()? - first.parse::<usize>().ok()? + 1)
    }
}

fn refusal(status: StatusCode, body: &[u8], call: &Call<'_>) -> String {
    let named = match call.key {
        "" => call.bucket.to_owned(),
        key => format!("s3://{}/{key}", call.bucket),
    };
    let parsed = Element::parse(&String::from_utf8_lossy(body)).ok();
    let reason = match parsed.filter(|root| !root.text_of("Code").is_empty()) {
        Some(root) => explain(root.text_of("Code"), root.text_of("Message")),
        None if status == StatusCode::NOT_FOUND => "there is no such object or bucket".to_owned(),
        None if status == StatusCode::PRECONDITION_FAILED => {
            "the object was changed while it was read; try again".to_owned()
        }
        None => format!("the store answers {status}"),
    };
    if named.is_empty() { reason } else { format!("{named}: {reason}") }
}

/// The store's error with a way out, where there is an obvious one.
fn explain(code: &str, message: &str) -> String {
    let way_out = match code {
        "InvalidAccessKeyId" => "; check STRIATE_ACCESS_KEY, or `striate admin keys list`",
        "SignatureDoesNotMatch" => "; check STRIATE_SECRET_KEY",
        "AccessDenied" => "; check STRIATE_ACCESS_KEY and STRIATE_SECRET_KEY",
        "NoSuchBucket" => "; `striate bucket create NAME` makes one",
        "RequestTimeTooSkewed" => "; set this machine's clock",
        _ => "",
    };
    format!("{code}: {message}{way_out}")
}

fn bad_endpoint(endpoint: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::refused(format!("the endpoint {endpoint:?} is no URL: {error}"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_the_object_the_cause_and_the_way_out() {
        let call = Call { bucket: "b", key: "k", ..Call::default() };
        let body = b"<Error><Code>NoSuchBucket</Code><Message>there is none</Message></Error>";
        let text = refusal(StatusCode::NOT_FOUND, body, &call);
        assert!(
            text.contains("s3://b/k") && text.contains("there is none") && text.contains("bucket create")
        );
        assert!(refusal(StatusCode::BAD_GATEWAY, b"<html>", &call).contains("502"));
    }
}

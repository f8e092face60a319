//! One keep-alive HTTP/1.1 connection that sends presigned requests.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use rusty_s3::actions::{GetObject, PutObject, S3Action};
use rusty_s3::{Bucket, Credentials, UrlStyle};
use tokio::net::TcpStream;

/// Validity of a presigned request, which is sent at once.
const PRESIGNED_FOR: Duration = Duration::from_secs(3600);

/// Where requests go and how they are signed.
#[derive(Clone)]
pub struct Endpoint {
    bucket: Bucket,
    credentials: Credentials,
    authority: String,
}

impl Endpoint {
    /// Creates an endpoint addressed in path style. Refuses anything but `http://HOST:PORT`.
    pub fn new(
        url: &str,
        region: &str,
        bucket: &str,
        access_key: &str,
        secret_key: &str,
    ) -> Result<Self, String> {
        let Some(authority) = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/')) else {
            return Err(format!("{url}: the endpoint must begin with http://"));
        };
        let base = url.parse().map_err(|e| format!("{url}: {e}"))?;
        let bucket = Bucket::new(base, UrlStyle::Path, bucket.to_owned(), region.to_owned())
            .map_err(|e| format!("{bucket}: {e}"))?;
        let authority =
            if authority.contains(':') { authority.to_owned() } else { format!("{authority}:80") };
        Ok(Self { bucket, credentials: Credentials::new(access_key, secret_key), authority })
    }

    fn put(&self, key: &str) -> String {
        path_and_query(&PutObject::new(&self.bucket, Some(&self.credentials), key))
    }

    fn get(&self, key: &str) -> String {
        path_and_query(&GetObject::new(&self.bucket, Some(&self.credentials), key))
    }
}

fn path_and_query<'a>(action: &impl S3Action<'a>) -> String {
    let url = action.sign(PRESIGNED_FOR);
    format!("{}?{}", url.path(), url.query().unwrap_or_default())
}

/// A connection. An error closes it, and the next request opens a new one.
pub struct Connection {
    endpoint: Endpoint,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Connection {
    /// Creates a connection that opens with its first request.
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, sender: None }
    }

    /// Closes the connection, so that a late response cannot be mistaken for the next one.
    pub fn reset(&mut self) {
        self.sender = None;
    }

    /// Stores `body` under `key`.
    pub async fn put(&mut self, key: &str, body: Bytes) -> Result<(), String> {
        let target = self.endpoint.put(key);
        self.send(Method::PUT, target, None, body, Bytes::new()).await
    }

    /// Reads `key`, or the bytes `range` of it, and compares them with the object `expected` as they arrive.
    pub async fn get(
        &mut self,
        key: &str,
        expected: Bytes,
        range: Option<Range<usize>>,
    ) -> Result<(), String> {
        let target = self.endpoint.get(key);
        let expected = range.clone().map_or(expected.clone(), |range| expected.slice(range));
        self.send(Method::GET, target, range, Bytes::new(), expected).await
    }

    async fn send(
        &mut self,
        method: Method,
        target: String,
        range: Option<Range<usize>>,
        body: Bytes,
        expected: Bytes,
    ) -> Result<(), String> {
        let mut request =
            Request::builder().method(method).uri(target).header("host", &self.endpoint.authority);
        if let Some(range) = range {
            request = request.header("range", format!("bytes={}-{}", range.start, range.end - 1));
        }
        let request = request.body(Full::new(body)).map_err(|e| e.to_string())?;
        let sender = self.open().await?;
        let mut response = sender.send_request(request).await.map_err(describe)?;
        if !response.status().is_success() {
            let status = response.status();
            let text = response.into_body().collect().await.map_err(describe)?.to_bytes();
            return Err(format!("{status}: {}", String::from_utf8_lossy(&text)));
        }
        let mut rest = expected;
        while let Some(frame) = response.body_mut().frame().await {
            let Ok(data) = frame.map_err(describe)?.into_data() else { continue };
            if data.len() > rest.len() || data != rest.split_to(data.len()) {
                return Err("WRONG BYTES: the answer differs from what was written".into());
            }
        }
        if rest.is_empty() {
            Ok(())
        } else {
            Err(format!("WRONG BYTES: {} are missing at the end", rest.len()))
        }
    }

    async fn open(&mut self) -> Result<&mut SendRequest<Full<Bytes>>, String> {
        let usable = match &mut self.sender {
            Some(sender) => sender.ready().await.is_ok(),
            None => false,
        };
        if !usable {
            let stream = TcpStream::connect(&self.endpoint.authority)
                .await
                .map_err(|e| format!("cannot connect to {}: {e}", self.endpoint.authority))?;
            stream.set_nodelay(true).map_err(|e| e.to_string())?;
            let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(describe)?;
            tokio::task::spawn_local(connection);
            self.sender = Some(sender);
        }
        self.sender.as_mut().ok_or_else(|| "no connection".to_owned())
    }
}

fn describe(error: hyper::Error) -> String {
    match std::error::Error::source(&error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

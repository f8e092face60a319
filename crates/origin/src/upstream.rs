//! Requests to origins.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use parking_lot::Mutex;
use striate_client::ClientError;
use striate_runtime::Runtime;
use striate_s3::RemoteBody;
use striate_s3_client::{HttpClient, Payload, RequestBody, client_config, encode_path, encode_query, whole};

use crate::counts::{OriginCounts, add};
use crate::origin_bucket::OriginBucket;

/// Timeout for the start of an origin's response to a read.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Attempts at a read before it fails.
const ATTEMPTS: u32 = 3;
/// Delay before the second attempt. Each delay is twice as long as the one before.
const PAUSE: Duration = Duration::from_millis(100);

/// Time after which an origin that sends nothing more of a response to a read counts as failed.
pub(crate) const SILENT_FOR: Duration = Duration::from_secs(30);
/// Maximum size in bytes of an error document that is read.
const LONGEST_EXPLANATION: usize = 64 << 10;

/// Why the sender's bytes broke off, if they did.
type BrokenBody = Arc<Mutex<Option<String>>>;

/// Sends requests to origins. Reuses connections.
pub(crate) struct Upstream {
    runtime: Runtime,
    client: HttpClient,
    pub(crate) counts: Arc<OriginCounts>,
}

/// A request to an origin, about an object or its bucket.
pub(crate) struct OriginRequest<'a> {
    pub(crate) method: Method,
    /// Empty for the bucket.
    pub(crate) key: &'a str,
    /// As received.
    pub(crate) query: &'a str,
    pub(crate) headers: HeaderMap,
}

/// Checks a PEM file of authorities that are to be trusted besides the system's.
///
/// # Errors
/// If it cannot be used.
pub fn check_authorities(ca_file: &std::path::Path) -> Result<(), String> {
    client_config(Some(ca_file)).map(drop).map_err(|error| error.to_string())
}

impl Upstream {
    /// Creates the client. `ca_file` is a PEM file of certificates that are trusted besides the system's.
    ///
    /// # Errors
    /// If the file cannot be used.
    pub(crate) fn new(runtime: Runtime, ca_file: Option<&std::path::Path>) -> Result<Self, String> {
        let client = HttpClient::new(client_config(ca_file).map_err(|error| error.to_string())?);
        Ok(Self { runtime, client, counts: Arc::default() })
    }

    /// Sends a request that changes nothing, with retries. Returns the origin's response, whatever its status, unless
    /// it says that the origin failed.
    ///
    /// # Errors
    /// [`ClientError::Origin`].
    pub(crate) async fn read(
        &self,
        origin: &OriginBucket,
        ask: OriginRequest<'_>,
    ) -> Result<Response<Incoming>, ClientError> {
        check_key(ask.key)?;
        let mut attempt = 0;
        loop {
            let again = OriginRequest {
                method: ask.method.clone(),
                key: ask.key,
                query: ask.query,
                headers: ask.headers.clone(),
            };
            let sending = self.send(origin, again, RemoteBody::Held(Bytes::new()));
            let answer = match self.runtime.timeout(ANSWER_WITHIN, sending).await {
                Ok(answer) => answer,
                Err(_) => {
                    let reason = format!("it has not answered within {} s", ANSWER_WITHIN.as_secs());
                    self.note_failure(origin, reason.clone());
                    Err(failed(origin, reason))
                }
            };
            let error = match answer {
                Ok(answer) if !is_failure(answer.status()) => return Ok(answer),
                Ok(answer) => failed(origin, refusal(answer.status())),
                Err(error) => error,
            };
            attempt += 1;
            if attempt == ATTEMPTS {
                return Err(error);
            }
            self.runtime.sleep(PAUSE * (1 << (attempt - 1))).await;
        }
    }

    /// The body of a response. It breaks off if the origin sends nothing for `silent_for`.
    pub(crate) fn sent(
        &self,
        origin: &Arc<OriginBucket>,
        body: Incoming,
        silent_for: Duration,
    ) -> impl Body<Data = Bytes, Error = ClientError> + Send + use<> {
        let (runtime, origin) = (self.runtime.clone(), origin.clone());
        StreamBody::new(stream::try_unfold(body, move |mut body| {
            let (runtime, origin) = (runtime.clone(), origin.clone());
            async move {
                let Ok(frame) = runtime.timeout(silent_for, body.frame()).await else {
                    let reason = format!("it has sent nothing for {} s", silent_for.as_secs());
                    return Err(failed(&origin, reason));
                };
                let broken = |error: hyper::Error| failed(&origin, format!("its answer broke off: {error}"));
                Ok(frame.transpose().map_err(broken)?.map(|frame| (frame, body)))
            }
        }))
    }

    /// As [`Upstream::sent`], for the bytes of an object that is read, which are counted.
    pub(crate) fn counted(
        &self,
        origin: &Arc<OriginBucket>,
        body: Incoming,
    ) -> impl Body<Data = Bytes, Error = ClientError> + Send + use<> {
        let counts = self.counts.clone();
        self.sent(origin, body, SILENT_FOR).inspect_frame(move |frame| {
            add(&counts.bytes, frame.data_ref().map_or(0, |bytes| bytes.len() as u64));
        })
    }

    /// Sends a request, without retries.
    ///
    /// # Errors
    /// [`ClientError::Origin`]; [`ClientError::Body`] if the body breaks off; [`ClientError::InvalidRequest`] if the
    /// request cannot be signed.
    pub(crate) async fn send(
        &self,
        origin: &OriginBucket,
        ask: OriginRequest<'_>,
        body: RemoteBody,
    ) -> Result<Response<Incoming>, ClientError> {
        check_key(ask.key)?;
        let request = self.signed(origin, ask, &body)?;
        add(&self.counts.requests, 1);
        let broken = BrokenBody::default();
        let answer = match self.client.request(request.map(|()| outgoing(body, broken.clone()))).await {
            Ok(answer) => answer,
            Err(error) => {
                // That the sender's bytes broke off is not the origin's failure.
                if let Some(reason) = broken.lock().take() {
                    return Err(ClientError::Body(reason));
                }
                let reason = chain(&error);
                self.note_failure(origin, reason.clone());
                return Err(failed(origin, reason));
            }
        };
        match is_failure(answer.status()) {
            true => self.note_failure(origin, refusal(answer.status())),
            false => origin.failures.end(),
        }
        Ok(answer)
    }

    fn note_failure(&self, origin: &OriginBucket, reason: String) {
        add(&self.counts.failures, 1);
        origin.failures.add(self.runtime.now(), reason);
    }

    /// The request, signed, without its body.
    fn signed(
        &self,
        origin: &OriginBucket,
        ask: OriginRequest<'_>,
        body: &RemoteBody,
    ) -> Result<Request<()>, ClientError> {
        let mut request = Request::new(());
        *request.method_mut() = ask.method;
        *request.uri_mut() = uri(origin, ask.key, ask.query)?;
        *request.headers_mut() = ask.headers;
        let host =
            request.uri().authority().map(|authority| authority.as_str().to_owned()).unwrap_or_default();
        let headers = request.headers_mut();
        headers.insert(header::HOST, HeaderValue::try_from(host).map_err(|error| unusable(origin, error))?);
        let len = match body {
            RemoteBody::Held(bytes) => bytes.len() as u64,
            RemoteBody::Streamed { len, .. } => *len,
        };
        let has_body = !matches!(*request.method(), Method::GET | Method::HEAD | Method::DELETE) || len > 0;
        if has_body {
            request.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(len));
        }
        if let Some(signer) = &origin.signer {
            let payload = match body {
                RemoteBody::Held(bytes) => Payload::Bytes(bytes),
                RemoteBody::Streamed { .. } => Payload::Unsigned,
            };
            let signed = signer.sign(&mut request, payload, self.runtime.wall_time());
            signed.map_err(|error| ClientError::InvalidRequest(error.to_string()))?;
        }
        Ok(request)
    }
}

fn outgoing(body: RemoteBody, broken: BrokenBody) -> RequestBody {
    match body {
        RemoteBody::Held(bytes) => whole(bytes),
        RemoteBody::Streamed { bytes, .. } => {
            let bytes = bytes.map(move |piece| {
                piece.map(Frame::data).inspect_err(|error| *broken.lock() = Some(error.to_string()))
            });
            StreamBody::new(bytes).boxed_unsync()
        }
    }
}

/// Checks that no proxy or server on the way can take a key for another one. Segments `.` and `..` are removed from a path
/// wherever it is normalised (RFC 3986 §5.2.4), which `%2E` does not prevent, so that `../other/key` would leave the
/// bucket.
///
/// # Errors
/// [`ClientError::NotForwarded`].
pub(crate) fn check_key(key: &str) -> Result<(), ClientError> {
    match key.split('/').any(|segment| matches!(segment, "." | "..")) {
        true => Err(ClientError::NotForwarded(
            "a key with the segment . or .. is not forwarded: what lies between here and the other store may remove such \
             segments, and so answer for another object"
                .to_owned(),
        )),
        false => Ok(()),
    }
}

fn uri(origin: &OriginBucket, key: &str, query: &str) -> Result<http::Uri, ClientError> {
    let mut text = format!("{}/{}", origin.endpoint, origin.bucket);
    if !key.is_empty() {
        text.push('/');
        text.push_str(&encode_path(key));
    }
    let parameters: Vec<(String, String)> = query
        .split('&')
        .filter(|parameter| !parameter.is_empty())
        .map(|parameter| {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            (decode(name), decode(value))
        })
        .collect();
    if !parameters.is_empty() {
        let parameters: Vec<(&str, &str)> =
            parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        text.push('?');
        text.push_str(&encode_query(&parameters));
    }
    text.parse().map_err(|error| unusable(origin, error))
}

/// Decodes a parameter; `+` stands for a blank.
pub(crate) fn decode(text: &str) -> String {
    percent_encoding::percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

fn unusable(origin: &OriginBucket, error: impl std::fmt::Display) -> ClientError {
    ClientError::Origin { endpoint: origin.endpoint.clone(), reason: format!("it cannot be asked: {error}") }
}

pub(crate) fn failed(origin: &OriginBucket, reason: String) -> ClientError {
    ClientError::Origin { endpoint: origin.endpoint.clone(), reason }
}

/// Says that an origin failed by its status.
fn refusal(status: StatusCode) -> String {
    format!("it answers {status}")
}

/// The text of an error and its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}

/// A short text of an origin's error response.
pub(crate) async fn explanation<B>(answer: Response<B>) -> String
where
    B: Body<Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
{
    let status = answer.status();
    let text = match Limited::new(answer.into_body(), LONGEST_EXPLANATION).collect().await {
        Ok(body) => String::from_utf8_lossy(&body.to_bytes()).into_owned(),
        Err(_) => String::new(),
    };
    let between = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        let escaped = rest.split_once("</")?.0;
        Some(quick_xml::escape::unescape(escaped).map_or_else(|_| escaped.to_owned(), Cow::into_owned))
    };
    match (between("Code"), between("Message")) {
        (Some(code), Some(message)) => format!("{status}, {code}: {}", message.trim_end_matches('.')),
        (Some(code), None) => format!("{status}, {code}"),
        _ => status.to_string(),
    }
}

/// Whether a response says that the origin failed. What an origin does not implement, it never will.
fn is_failure(status: StatusCode) -> bool {
    status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED
}

/// Whether a response says that the object was replaced or deleted.
pub(crate) fn has_changed(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::PRECONDITION_FAILED | StatusCode::NOT_FOUND | StatusCode::RANGE_NOT_SATISFIABLE
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_leaves_its_bucket_on_the_way() {
        for key in ["..", "../../admin", "a/../b", "a/./b", "a/.."] {
            assert!(matches!(check_key(key), Err(ClientError::NotForwarded(_))), "{key}");
        }
        for key in ["", "a//b", "...", "a/..b", ".hidden", "a/b."] {
            assert!(check_key(key).is_ok(), "{key}");
        }
    }

    #[test]
    fn what_an_origin_does_not_implement_is_its_answer() {
        assert!(is_failure(StatusCode::SERVICE_UNAVAILABLE) && is_failure(StatusCode::INTERNAL_SERVER_ERROR));
        assert!(!is_failure(StatusCode::NOT_IMPLEMENTED) && !is_failure(StatusCode::NOT_FOUND));
    }
}

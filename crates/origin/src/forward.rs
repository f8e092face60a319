//! Requests that are forwarded as they are: writes, listings, multipart uploads, copies, tags.
//!
//! A write of an object is fenced (see [`crate::fences`]) from before it is forwarded until its outcome is known, even
//! if its client disconnects.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use parking_lot::Mutex;
use quick_xml::events::Event;
use s3s::{Body, StdError};
use serde::Deserialize;
use striate_client::ClientError;
use striate_meta::MetaError;
use striate_s3::{NamedKeys, RemoteBody, RemoteRequest};
use striate_s3_client::encode_path;

use crate::counts::add;
use crate::known_objects::ObjectName;
use crate::origin_bucket::OriginBucket;
use crate::service::Shared;
use crate::upstream::{self, OriginRequest, decode, failed};

/// Maximum number of keys that one request deletes, as in S3.
const MOST_DELETED: usize = 1_000;
/// Time without progress after which an origin counts as not answering. Copies and uploads of many parts take minutes.
const SILENT_FOR: Duration = Duration::from_secs(15 * 60);
/// Maximum time that the answer to a write waits until its fence is gone. While it is there, reads bypass the cache.
const UNFENCED_WITHIN: Duration = Duration::from_secs(1);
/// Maximum size in bytes of a document that is read. Listings of 1,000 keys have some hundred KiB.
const LONGEST_DOCUMENT: usize = 16 << 20;

/// Excludes headers of one connection, and those that belong to the request's own signature. Nothing is requested
/// compressed: documents are changed on their way, and an object has one form, in memory or past it.
fn is_passed_on(name: &HeaderName) -> bool {
    const NOT: [&str; 19] = [
        "accept-encoding",
        "authorization",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-amz-content-sha256",
        "x-amz-date",
        "x-amz-decoded-content-length",
        "x-amz-security-token",
        "x-amzn-trace-id",
    ];
    !NOT.contains(&name.as_str()) && !name.as_str().starts_with("x-striate-")
}

/// The request to the origin, without its body.
pub(crate) fn ask(request: &RemoteRequest) -> OriginRequest<'_> {
    let headers = end_to_end(&request.headers, is_passed_on);
    OriginRequest { method: request.method.clone(), key: &request.key, query: &request.query, headers }
}

/// The origin's response, unchanged except for headers of its connection.
pub(crate) fn answer_of<B>(answer: Response<B>) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    StdError: From<B::Error>,
{
    let (mut parts, body) = answer.into_parts();
    parts.headers = end_to_end(&parts.headers, is_answered);
    Response::from_parts(parts, Body::http_body_unsync(body))
}

fn is_answered(name: &HeaderName) -> bool {
    const NOT: [&str; 9] = [
        "connection",
        "date",
        "keep-alive",
        "server",
        "transfer-encoding",
        "upgrade",
        "x-amz-request-id",
        "x-amz-id-2",
        "x-content-type-options",
    ];
    !NOT.contains(&name.as_str())
}

/// The headers that `is_passed` lets through, without those that `Connection` names: they apply to one connection (RFC
/// 9110 §7.6.1).
fn end_to_end(headers: &HeaderMap, is_passed: fn(&HeaderName) -> bool) -> HeaderMap {
    let named = headers.get_all(header::CONNECTION).into_iter().filter_map(|value| value.to_str().ok());
    let of_connection: BTreeSet<String> =
        named.flat_map(|names| names.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect();
    let is_kept = |name: &HeaderName| is_passed(name) && !of_connection.contains(name.as_str());
    let kept = headers.iter().filter(|(name, _)| is_kept(name));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The parts of a DeleteObjects document that matter here.
#[derive(Deserialize)]
struct Deletes {
    #[serde(rename = "Object", default)]
    objects: Vec<Deleted>,
}

#[derive(Deserialize)]
struct Deleted {
    #[serde(rename = "Key")]
    key: String,
}

/// The names of a query's parameters.
pub(crate) fn names(query: &str) -> impl Iterator<Item = String> {
    query.split('&').map(|parameter| decode(parameter.split('=').next().unwrap_or("")))
}

/// Returns the objects of which a request changes the bytes, or what GET reports of them.
///
/// # Errors
/// [`ClientError::MalformedDocument`] for a document that is malformed or deletes too many keys;
/// [`ClientError::NotForwarded`] if the document was not read, so that the objects to fence are unknown.
fn written(request: &RemoteRequest) -> Result<Vec<String>, ClientError> {
    let has = |parameter: &str| names(&request.query).any(|name| name == parameter);
    if request.key.is_empty() {
        if request.method != Method::POST || !has("delete") {
            return Ok(Vec::new());
        }
        let RemoteBody::Held(document) = &request.body else {
            let reason =
                "the body of a DeleteObjects request is streamed, so it is not known what it deletes";
            return Err(ClientError::NotForwarded(reason.to_owned()));
        };
        let text = std::str::from_utf8(document).unwrap_or_default();
        let deletes: Deletes = quick_xml::de::from_str(text)
            .map_err(|error| ClientError::MalformedDocument(format!("the document is no Delete: {error}")))?;
        if deletes.objects.len() > MOST_DELETED {
            let reason = format!("{} keys are deleted; at most {MOST_DELETED} may be", deletes.objects.len());
            return Err(ClientError::MalformedDocument(reason));
        }
        let keys: BTreeSet<String> = deletes.objects.into_iter().map(|deleted| deleted.key).collect();
        return Ok(keys.into_iter().collect());
    }
    let writes = match request.method {
        Method::PUT | Method::DELETE => !has("uploadId") && !has("acl"),
        Method::POST => has("uploadId") || has("restore"),
        _ => false,
    };
    Ok(writes.then(|| request.key.clone()).into_iter().collect())
}

impl Shared {
    /// Forwards a request: a read with retries, anything else once.
    ///
    /// # Errors
    /// [`ClientError::Origin`]; [`ClientError::NotForwarded`]; when a write cannot be fenced.
    pub(crate) async fn forward(
        self: &Arc<Self>,
        origin: Arc<OriginBucket>,
        mut request: RemoteRequest,
    ) -> Result<Response<Body>, ClientError> {
        self.name_source(&origin, &mut request.headers)?;
        let objects = written(&request)?;
        let (bucket, has_document) = (request.bucket.clone(), has_document(&request));
        if objects.is_empty() {
            let (answer, silent_for) = match request.method {
                Method::GET | Method::HEAD => {
                    (self.upstream.read(&origin, ask(&request)).await?, upstream::SILENT_FOR)
                }
                _ => (self.forward_once(&origin, request).await?, SILENT_FOR),
            };
            let answer = answer.map(|body| self.upstream.sent(&origin, body, silent_for));
            return match has_document {
                true => Ok(rename(&origin, &bucket, read_small(&origin, answer).await?)),
                false => Ok(answer_of(answer)),
            };
        }
        let named = request.key.is_empty().then(|| NamedKeys(objects.clone()));
        let mut answer = self.write_fenced(&origin, request, objects).await?;
        if let Some(named) = named {
            answer.extensions_mut().insert(named);
        }
        if has_document { Ok(rename(&origin, &bucket, answer)) } else { Ok(answer.map(Body::from)) }
    }

    /// Forwards a write of objects, which are fenced, in a task of its own.
    async fn write_fenced(
        self: &Arc<Self>,
        origin: &Arc<OriginBucket>,
        mut request: RemoteRequest,
        objects: Vec<String>,
    ) -> Result<Response<Bytes>, ClientError> {
        let (shared, task_origin, held) = (self.clone(), origin.clone(), self.hold(origin, &mut request));
        let writing = self.client.runtime().spawn(async move {
            let noted = shared.fences.note(&request.bucket, &objects, task_origin.ttl).await?;
            let read = tokio::select! {
                read = shared.write(&task_origin, request) => read,
                () = noted.keep() => {
                    let reason = "the fence of a write could not be renewed, so it was given up".to_owned();
                    Err(MetaError::Unavailable(reason).into())
                }
            };
            let was_known = |key: &&String| shared.known_objects.forget(&ObjectName::new(&task_origin, key));
            add(&shared.upstream.counts.fenced, objects.iter().filter(was_known).count() as u64);
            let runtime = shared.client.runtime();
            match is_settled(&read) {
                true => drop(runtime.timeout(UNFENCED_WITHIN, runtime.spawn(noted.end())).await),
                false => drop(runtime.spawn(noted.end_unsettled())),
            }
            if let (Some(write), Ok(answer)) = (held, &read) {
                shared.cache_written(write, answer);
            }
            read
        });
        writing.await.map_err(|_| ClientError::Busy)?
    }

    /// Forwards a write and reads its response.
    async fn write(
        &self,
        origin: &Arc<OriginBucket>,
        request: RemoteRequest,
    ) -> Result<Response<Bytes>, ClientError> {
        let answer = self.forward_once(origin, request).await?;
        read_small(origin, answer.map(|body| self.upstream.sent(origin, body, SILENT_FOR))).await
    }

    /// Forwards a request, without retries, and waits for its response as long as the origin takes something.
    async fn forward_once(
        &self,
        origin: &OriginBucket,
        mut request: RemoteRequest,
    ) -> Result<Response<Incoming>, ClientError> {
        let runtime = self.client.runtime();
        let last = Arc::new(Mutex::new(runtime.now()));
        let mut body = std::mem::replace(&mut request.body, RemoteBody::Held(Bytes::new()));
        if let RemoteBody::Streamed { bytes, .. } = &mut body {
            let (pieces, last, runtime) =
                (std::mem::replace(bytes, futures::stream::empty().boxed()), last.clone(), runtime.clone());
            *bytes = pieces.inspect(move |_| *last.lock() = runtime.now()).boxed();
        }
        let mut sending = pin!(self.upstream.send(origin, ask(&request), body));
        loop {
            let remaining = (*last.lock() + SILENT_FOR).saturating_duration_since(runtime.now());
            if remaining.is_zero() {
                let minutes = SILENT_FOR.as_secs() / 60;
                return Err(failed(
                    origin,
                    format!("it has neither taken nor sent anything for {minutes} minutes"),
                ));
            }
            if let Ok(answer) = runtime.timeout(remaining, sending.as_mut()).await {
                return answer;
            }
        }
    }

    /// Replaces the source of a copy by its name at the origin.
    fn name_source(&self, origin: &OriginBucket, headers: &mut HeaderMap) -> Result<(), ClientError> {
        let Some(source) = headers.get("x-amz-copy-source") else { return Ok(()) };
        let source = source.to_str().unwrap_or_default();
        let (path, version) = match source.split_once("?versionId=") {
            Some((path, version)) => (path, Some(version)),
            None => (source, None),
        };
        let path = decode(&path.replace('+', "%2B"));
        let (bucket, key) = path.trim_start_matches('/').split_once('/').unwrap_or((&path, ""));
        let from = self.buckets.get(bucket);
        let Some(from) =
            from.filter(|from| (&from.endpoint, &from.access_key) == (&origin.endpoint, &origin.access_key))
        else {
            return Err(ClientError::NotForwarded(format!(
                "a copy from {bucket:?} would leave its store: only copies inside one origin are forwarded; read the object and write it"
            )));
        };
        upstream::check_key(key)?;
        let version = version.map(|version| format!("?versionId={version}")).unwrap_or_default();
        let named = format!("{}/{}{version}", from.bucket, encode_path(key));
        let named = HeaderValue::try_from(named).map_err(|error| failed(origin, error.to_string()))?;
        headers.insert("x-amz-copy-source", named);
        Ok(())
    }
}

/// Whether the response settles the outcome of a write.
fn is_settled(answer: &Result<Response<Bytes>, ClientError>) -> bool {
    match answer {
        Ok(answer) if answer.status().is_success() => !is_error(answer.body()),
        Ok(answer) => !answer.status().is_server_error(),
        // The last bytes were withheld, and fewer than `Content-Length` says are no object.
        Err(ClientError::Body(_)) => true,
        Err(_) => false,
    }
}

/// Whether a document is an error. Copies and the completion of uploads take long, so S3 sends their status before they
/// have happened.
fn is_error(document: &[u8]) -> bool {
    let mut document = quick_xml::Reader::from_reader(document);
    loop {
        match document.read_event() {
            Ok(Event::Start(root) | Event::Empty(root)) => return root.local_name().as_ref() == b"Error",
            Ok(Event::Eof) | Err(_) => return false,
            Ok(_) => {}
        }
    }
}

/// Whether the response is a document that names the bucket.
fn has_document(request: &RemoteRequest) -> bool {
    let of_upload = names(&request.query).any(|name| name.starts_with("upload"));
    request.key.is_empty() && request.method == Method::GET || of_upload && request.method != Method::PUT
}

/// Reads the whole body of a response, which is a small document.
async fn read_small<B>(origin: &OriginBucket, answer: Response<B>) -> Result<Response<Bytes>, ClientError>
where
    B: http_body::Body<Data = Bytes, Error: Into<StdError>>,
{
    let (mut parts, body) = answer.into_parts();
    parts.headers = end_to_end(&parts.headers, is_answered);
    let body = Limited::new(body, LONGEST_DOCUMENT).collect().await;
    let body = body.map_err(|error| failed(origin, format!("its answer cannot be read: {error}")))?;
    Ok(Response::from_parts(parts, body.to_bytes()))
}

/// Replaces the origin's name of the bucket by its name here.
fn rename(origin: &OriginBucket, bucket: &str, answer: Response<Bytes>) -> Response<Body> {
    let (mut parts, body) = answer.into_parts();
    let mut text = String::from_utf8_lossy(&body).into_owned();
    for element in ["Name", "Bucket"] {
        let (theirs, ours) =
            (format!("<{element}>{}</{element}>", origin.bucket), format!("<{element}>{bucket}</{element}>"));
        text = text.replacen(&theirs, &ours, 1);
    }
    parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(text.len()));
    Response::from_parts(parts, Body::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: Method, key: &str, query: &str, body: &'static str) -> RemoteRequest {
        RemoteRequest {
            bucket: "b".to_owned(),
            key: key.to_owned(),
            method,
            query: query.to_owned(),
            headers: HeaderMap::new(),
            body: RemoteBody::Held(Bytes::from_static(body.as_bytes())),
        }
    }

    #[test]
    fn what_changes_an_objects_bytes_is_fenced() {
        let written = |method, key, query, body| written(&request(method, key, query, body)).unwrap();
        assert_eq!(written(Method::PUT, "k", "", ""), ["k"]);
        assert_eq!(written(Method::DELETE, "k", "", ""), ["k"]);
        assert_eq!(written(Method::PUT, "k", "tagging", ""), ["k"], "answers count the tags");
        for (method, query) in
            [(Method::PUT, "retention"), (Method::PUT, "legal-hold"), (Method::POST, "restore")]
        {
            assert_eq!(written(method, "k", query, ""), ["k"], "answers tell the state that {query} changes");
        }
        assert_eq!(written(Method::POST, "k", "uploadId=1", ""), ["k"]);
        assert_eq!(written(Method::POST, "k", "upload%49d=1", ""), ["k"], "the origin decodes names");
        let document = "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Object><Key>a</Key></Object>\
                        <Object><Key>b&amp;c</Key><VersionId>1</VersionId></Object><Quiet>true</Quiet></Delete>";
        assert_eq!(written(Method::POST, "", "delete", document), ["a", "b&c"]);
        for (method, key, query) in [
            (Method::PUT, "k", "partNumber=1&uploadId=1"),
            (Method::PUT, "k", "acl"),
            (Method::POST, "k", "uploads"),
            (Method::DELETE, "k", "uploadId=1"),
            (Method::GET, "", "list-type=2"),
        ] {
            assert!(written(method.clone(), key, query, "").is_empty(), "{method} {key}?{query}");
        }
        assert!(super::written(&request(Method::POST, "", "delete", "<Delete><Object>")).is_err());
        let many = format!("<Delete>{}</Delete>", "<Object><Key>k</Key></Object>".repeat(1_001));
        assert!(super::written(&request(Method::POST, "", "delete", many.leak())).is_err());
        let body = RemoteBody::Streamed { bytes: futures::stream::empty().boxed(), len: 1 };
        let streamed = RemoteRequest { body, ..request(Method::POST, "", "delete", "") };
        assert!(matches!(super::written(&streamed), Err(ClientError::NotForwarded(_))));
    }

    #[test]
    fn a_write_is_settled_unless_its_origin_failed_even_after_the_status_of_a_success() {
        let settled = |status: u16, document: &'static str| {
            let answer = Response::builder().status(status).body(Bytes::from_static(document.as_bytes()));
            is_settled(&Ok(answer.unwrap()))
        };
        let error =
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\n  <Error><Code>InternalError</Code></Error>";
        assert!(!settled(200, error) && !settled(200, "  <Error xmlns=\"x\"/>") && !settled(500, error));
        assert!(settled(404, error), "it says what has happened");
        let results = ["", "<CopyObjectResult/>", "<DeleteResult><Error><Key>k</Key></Error></DeleteResult>"];
        assert!(results.iter().all(|result| settled(200, result)));
        assert!(!is_settled(&Err(ClientError::Busy)));
        assert!(is_settled(&Err(ClientError::Body("its sender is gone".to_owned()))), "it never happens");
    }

    #[test]
    fn headers_that_connection_names_are_not_passed_on() {
        let mut request = request(Method::PUT, "k", "", "");
        for (name, value) in [
            ("connection", "close, X-Hop"),
            ("connection", "x-other-hop"),
            ("x-hop", "1"),
            ("x-other-hop", "1"),
            ("x-amz-meta-a", "b"),
        ] {
            request.headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let kept = HeaderMap::from_iter([("x-amz-meta-a".parse().unwrap(), "b".parse().unwrap())]);
        assert_eq!(ask(&request).headers, kept);
        assert_eq!(end_to_end(&request.headers, is_answered), kept);
    }

    #[test]
    fn nothing_is_requested_compressed() {
        let mut request = request(Method::GET, "", "list-type=2", "");
        request.headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip, deflate"));
        assert!(ask(&request).headers.is_empty(), "the bucket's name in the answer is replaced");
    }
}

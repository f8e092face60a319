//! The S3 operations of `cp`, `ls`, `rm` and `cat`.
//!
//! Idempotent requests are tried up to [`ATTEMPTS`] times if the connection breaks or the store is busy, and for
//! [`RESTART_TIME`] if the store has answered this command before: it may be restarting. Bodies are
//! held in memory, so they are parts of at most a few MiB.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use striate_runtime::Runtime;
use striate_s3_client::encode_path;
use striate_s3_client::xml::{self, Answer, Message, Part};

use super::location::ObjectLocation;
use crate::args::EndpointArgs;
use crate::failure::{Failure, Outcome};
use crate::interruption::Interruption;
use crate::s3_endpoint::{Call, Refusal, S3Endpoint, SendError, explain};

/// Maximum number of attempts of a request.
const ATTEMPTS: u32 = 5;
/// How long a store that has answered before may be away, before a command gives up.
const RESTART_TIME: Duration = Duration::from_secs(60);
/// Delay before the second attempt. Each delay is three times as long as the one before, up to the longest.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// Longest delay between two attempts.
const LONGEST_DELAY: Duration = Duration::from_secs(3);
/// Maximum size in bytes of an XML answer.
const MAX_XML_BYTES: usize = 16 << 20;
/// Timeout for the head of an answer, after which the request is retried.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// An S3 store, as the commands use it. Cheap to clone.
#[derive(Clone)]
pub struct ObjectStore {
    endpoint: S3Endpoint,
    interruption: Interruption,
    /// Whether the store has answered this command.
    has_answered: Arc<AtomicBool>,
}

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedObject {
    /// Key of the object.
    pub key: String,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last modification, as the store formats it.
    pub modified: String,
}

/// One page of a listing.
#[derive(Clone, Debug, Default)]
pub struct ListedPage {
    /// Objects of the page.
    pub objects: Vec<ListedObject>,
    /// Common prefixes of the page.
    pub prefixes: Vec<String>,
    /// Token with which the next page starts.
    pub next: Option<String>,
}

/// An object's size and ETag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Size in bytes.
    pub size: u64,
    /// ETag with its quotes.
    pub etag: String,
}

/// Why one attempt failed.
enum Attempt {
    /// The store refused the request now, and may take it soon.
    Again(String),
    /// The store cannot be reached, as while it restarts.
    Away(String),
    Final(Failure),
}

impl ObjectStore {
    /// Connects to the store that the arguments and the environment name.
    ///
    /// # Errors
    /// If no endpoint, key or secret is known, or the endpoint is not a URL.
    pub fn connect(runtime: Runtime, args: &EndpointArgs) -> Outcome<Self> {
        let interruption = Interruption::listen(&runtime);
        Ok(Self { endpoint: S3Endpoint::connect(runtime, args)?, interruption, has_answered: Arc::default() })
    }

    /// Returns the interruption of the command by the user.
    pub fn interruption(&self) -> &Interruption {
        &self.interruption
    }

    /// Returns the endpoint, for requests of other kinds.
    pub fn endpoint(&self) -> &S3Endpoint {
        &self.endpoint
    }

    /// Creates a bucket if it is missing; returns whether it was.
    ///
    /// # Errors
    /// If the store refuses or cannot be reached.
    pub async fn ensure_bucket(&self, bucket: &str) -> Outcome<bool> {
        let head = self.endpoint.send(&Call { method: Method::HEAD, bucket, ..Call::default() }).await;
        if head.map_err(Failure::failed)?.status() != StatusCode::NOT_FOUND {
            return Ok(false);
        }
        let body = match self.endpoint.region() {
            "us-east-1" => String::new(),
            region => xml::CreateBucketConfiguration { location_constraint: region }.write(),
        };
        let call = Call { method: Method::PUT, bucket, body: body.into(), ..Call::default() };
        self.call(call).await.map(|_| true)
    }

    /// Checks that a bucket exists.
    ///
    /// # Errors
    /// If it does not, or the store refuses or cannot be reached.
    pub async fn check_bucket(&self, bucket: &str) -> Outcome {
        let query = &[("list-type", "2"), ("max-keys", "0")];
        self.call(Call { bucket, query, ..Call::default() }).await.map(drop)
    }

    /// Returns all buckets, in the store's order.
    ///
    /// # Errors
    /// If the store refuses or cannot be reached.
    pub async fn buckets(&self) -> Outcome<Vec<xml::Bucket>> {
        let answer: xml::ListBucketsResult = document(&self.call(Call::default()).await?)?;
        Ok(answer.buckets.bucket)
    }

    /// Returns true if a bucket reports that its objects are in memory only. Other stores do not report this.
    pub async fn is_volatile(&self, bucket: &str) -> bool {
        let head = self.endpoint.send(&Call { method: Method::HEAD, bucket, ..Call::default() }).await;
        head.is_ok_and(|head| head.headers().contains_key("x-striate-volatile"))
    }

    /// Returns one page of a listing below `prefix`; `next` is the token of the previous page.
    ///
    /// # Errors
    /// If the store refuses or cannot be reached.
    pub async fn list(
        &self,
        at: &ObjectLocation,
        delimiter: &str,
        next: Option<&str>,
    ) -> Outcome<ListedPage> {
        let mut query = vec![("list-type", "2"), ("encoding-type", "url"), ("prefix", at.key.as_str())];
        query.extend((!delimiter.is_empty()).then_some(("delimiter", delimiter)));
        query.extend(next.map(|token| ("continuation-token", token)));
        let answer = self.call(Call { bucket: &at.bucket, query: &query, ..Call::default() }).await?;
        let page: xml::ListBucketResult = document(&answer)?;
        if page.is_truncated && page.next_continuation_token.is_empty() {
            return Err(Failure::failed(format!("{at}: the store does not say where the listing continues")));
        }
        let object = |object: &xml::Contents| ListedObject {
            key: page.decode(&object.key),
            size: object.size,
            modified: object.last_modified.clone(),
        };
        Ok(ListedPage {
            objects: page.contents.iter().map(object).collect(),
            prefixes: page.common_prefixes.iter().map(|common| page.decode(&common.prefix)).collect(),
            next: page.is_truncated.then_some(page.next_continuation_token),
        })
    }

    /// Returns an object's size and ETag.
    ///
    /// # Errors
    /// If the object does not exist, or the store refuses or cannot be reached.
    pub async fn head(&self, at: &ObjectLocation) -> Outcome<Head> {
        if at.key.is_empty() {
            return Err(Failure::refused(format!("{at} is a whole bucket; name an object: {at}KEY")));
        }
        let call = Call { method: Method::HEAD, ..on(at) };
        let (head, _) = self.call(call).await?;
        let text = |name: &str| head.get(name).and_then(|value| value.to_str().ok()).unwrap_or("").to_owned();
        let size = text("content-length").parse().map_err(|_| {
            Failure::failed(format!("{}: the store did not say how large {at} is", self.endpoint.url()))
        })?;
        Ok(Head { size, etag: text("etag") })
    }

    /// Reads `len` bytes from `offset` of the version with this ETag.
    ///
    /// # Errors
    /// If the object changed meanwhile, or the store refuses or cannot be reached.
    pub async fn get_range(&self, at: &ObjectLocation, etag: &str, offset: u64, len: u64) -> Outcome<Bytes> {
        let range = ("range", format!("bytes={offset}-{}", offset + len - 1));
        let headers = vec![range, ("if-match", etag.to_owned())];
        let (_, body) = self.call(Call { headers, ..on(at) }).await?;
        match body.len() as u64 == len {
            true => Ok(body),
            false => Err(Failure::failed(format!("{at}: {} bytes came, {len} were asked for", body.len()))),
        }
    }

    /// Stores an object in one request.
    ///
    /// # Errors
    /// If the store refuses or cannot be reached.
    pub async fn put(&self, at: &ObjectLocation, body: Bytes) -> Outcome {
        self.call(Call { method: Method::PUT, body, ..on(at) }).await.map(drop)
    }

    /// Copies an object inside the store.
    ///
    /// # Errors
    /// If the store refuses or cannot be reached.
    pub async fn copy(&self, from: &ObjectLocation, to: &ObjectLocation) -> Outcome {
        let source = encode_path(&format!("/{}/{}", from.bucket, from.key));
        let headers = vec![("x-amz-copy-source", source)];
        late(to, &self.call(Call { method: Method::PUT, headers, ..on(to) }).await?)
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// If the store refuses or cannot be reached.
    pub async fn delete(&self, at: &ObjectLocation) -> Outcome {
        self.call(Call { method: Method::DELETE, ..on(at) }).await.map(drop)
    }

    /// Starts a multipart upload; returns its id.
    ///
    /// # Errors
    /// If the store refuses or cannot be reached.
    pub async fn create_upload(&self, at: &ObjectLocation) -> Outcome<String> {
        let query = &[("uploads", "")];
        let call = Call { method: Method::POST, query, ..on(at) };
        let answer: xml::InitiateMultipartUploadResult = document(&self.call_to_the_end(call).await?)?;
        Ok(answer.upload_id)
    }

    /// Stores a part.
    ///
    /// # Errors
    /// If the store refuses or cannot be reached.
    pub async fn put_part(
        &self,
        at: &ObjectLocation,
        upload: &str,
        number: u32,
        body: Bytes,
    ) -> Outcome<Part> {
        let part_number = number.to_string();
        let query = [("partNumber", part_number.as_str()), ("uploadId", upload)];
        let (head, _) = self.call(Call { method: Method::PUT, query: &query, body, ..on(at) }).await?;
        let etag = head.get("etag").and_then(|value| value.to_str().ok());
        let etag = etag.ok_or_else(|| Failure::failed(format!("{at}: part {number} got no ETag")))?;
        Ok(Part { part_number: number, etag: etag.to_owned() })
    }

    /// Completes an upload, so that its parts become an object.
    ///
    /// # Errors
    /// If the store refuses or cannot be reached.
    pub async fn complete_upload(&self, at: &ObjectLocation, upload: &str, parts: Vec<Part>) -> Outcome {
        let body = xml::CompleteMultipartUpload { parts }.write().into();
        let query = &[("uploadId", upload)];
        let call = Call { method: Method::POST, query, body, ..on(at) };
        late(at, &self.call_to_the_end(call).await?)
    }

    /// Aborts an upload.
    ///
    /// # Errors
    /// If the store refuses or cannot be reached.
    pub async fn abort_upload(&self, at: &ObjectLocation, upload: &str) -> Outcome {
        let query = &[("uploadId", upload)];
        let call = Call { method: Method::DELETE, query, ..on(at) };
        self.call_to_the_end(call).await.map(drop)
    }

    /// Sends a request until it is answered, at most [`ATTEMPTS`] times or for [`RESTART_TIME`], or until the command is interrupted.
    async fn call(&self, call: Call<'_>) -> Outcome<(HeaderMap, Bytes)> {
        tokio::select! {
            biased;
            () = self.interruption.happens() => Err(Interruption::failure()),
            answer = self.call_to_the_end(call) => answer,
        }
    }

    /// Sends a request as [`ObjectStore::call`] does, but completes it despite an interruption, because it starts or
    /// ends something that would otherwise be left behind.
    async fn call_to_the_end(&self, call: Call<'_>) -> Outcome<(HeaderMap, Bytes)> {
        let mut wait = FIRST_DELAY;
        let runtime = self.endpoint.runtime();
        let started = runtime.now();
        for attempt in 1.. {
            match self.attempt(&call).await {
                Ok(answer) => return Ok(answer),
                Err(Attempt::Final(failure)) => return Err(failure),
                Err(Attempt::Away(_)) if self.may_return(runtime.now() - started) => {
                    runtime.sleep(wait).await
                }
                Err(Attempt::Again(reason) | Attempt::Away(reason)) if attempt >= ATTEMPTS => {
                    return Err(Failure::failed(self.explained(&call, reason).await));
                }
                Err(Attempt::Again(_) | Attempt::Away(_)) => runtime.sleep(wait).await,
            }
            wait = LONGEST_DELAY.min(wait * 3);
        }
        unreachable!("the last attempt returns")
    }

    /// Returns whether a store that has not served a request for this long is given more time.
    fn may_return(&self, away: Duration) -> bool {
        self.has_answered.load(Ordering::Relaxed) && away < RESTART_TIME
    }

    /// Returns why a request failed in the end. The answer to a HEAD has no body, so a GET asks for the reason.
    async fn explained(&self, call: &Call<'_>, reason: String) -> String {
        if call.method != Method::HEAD {
            return reason;
        }
        let headers = vec![("range", "bytes=0-0".to_owned())];
        match self.attempt(&Call { method: Method::GET, headers, ..call.clone() }).await {
            Err(Attempt::Again(explained)) => explained,
            Ok(_) | Err(Attempt::Away(_) | Attempt::Final(_)) => reason,
        }
    }

    async fn attempt(&self, call: &Call<'_>) -> Result<(HeaderMap, Bytes), Attempt> {
        let answer = self.endpoint.runtime().timeout(ANSWER_TIMEOUT, self.endpoint.send(call)).await;
        let answer = answer.map_err(|_| Attempt::Away(format!("{} does not answer", self.endpoint.url())))?;
        let answer = answer.map_err(|error| match error {
            SendError::Malformed(_) => Attempt::Final(Failure::refused(error)),
            SendError::Unreachable { .. } => Attempt::Away(error.to_string()),
        })?;
        let status = answer.status();
        let (head, body) = self.read(answer, call).await?;
        if status.is_success() {
            self.has_answered.store(true, Ordering::Relaxed);
        }
        if status.is_success() {
            return Ok((head, body));
        }
        let reason = Refusal::new(status, &body).describe(call);
        let is_busy = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        Err(match status {
            // So answers a proxy in front of a store that is away.
            StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => Attempt::Away(reason),
            _ if is_busy => Attempt::Again(reason),
            _ => Attempt::Final(Failure::failed(reason)),
        })
    }

    async fn read(&self, answer: Response<Incoming>, call: &Call<'_>) -> Result<(HeaderMap, Bytes), Attempt> {
        let (head, body) = answer.into_parts();
        let limit = range_len(call).unwrap_or(MAX_XML_BYTES).max(MAX_XML_BYTES);
        let body = Limited::new(body, limit).collect().await;
        let body = body.map_err(|error| Attempt::Away(format!("{}: {error}", self.endpoint.url())))?;
        Ok((head.headers, body.to_bytes()))
    }
}

fn on(at: &ObjectLocation) -> Call<'_> {
    Call { bucket: &at.bucket, key: &at.key, ..Call::default() }
}

/// Parses the document of an answer.
fn document<T: Answer>((_, body): &(HeaderMap, Bytes)) -> Outcome<T> {
    T::read(body).map_err(|error| Failure::failed(format!("{error}; is that an S3 endpoint?")))
}

/// Returns the outcome of a copy or completion, which may fail after the status was sent.
fn late(at: &ObjectLocation, answer: &(HeaderMap, Bytes)) -> Outcome {
    match document(answer)? {
        xml::LateResponse::Error(error) => {
            Err(Failure::failed(format!("{at}: {}", explain(&error.code, &error.message))))
        }
        xml::LateResponse::CopyObjectResult(_) | xml::LateResponse::CompleteMultipartUploadResult(_) => {
            Ok(())
        }
    }
}

/// Returns the number of bytes that a ranged request asks for.
fn range_len(call: &Call<'_>) -> Option<usize> {
    let (_, value) = call.headers.iter().find(|(name, _)| *name == "range")?;
    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    Some(last.parse::<usize>().ok()? - first.parse::<usize>().ok()? + 1)
}

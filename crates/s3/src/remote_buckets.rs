//! Buckets whose objects are in another S3 store: the interface that handles their requests.
//! Which requests these are is in the table of operations ([`crate::operations`]).
//!
//! The gateway verifies signatures, rights and bodies as for its own buckets, and hands over the rest of the request.
//! Requests for the bucket itself (its creation, tags, CORS rules) stay here.

use std::pin::Pin;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, Stream, StreamExt};
use http::request::Parts;
use http::{HeaderMap, Method, Response, header};
use s3s::{Body, StdError};
use striate_client::{
    ClientError, GetRequest, ObjectInfo, PartStream, PutRequest, ReadOrder, RunningChecksum,
};
use striate_meta::records::Checksum;
use striate_meta::records::checksum::Algorithm;

use crate::address::{Address, percent_decode};
use crate::authorize::{Identity, Resource, authorize};
use crate::body::Trailers;
use crate::checksum;
use crate::refusal::Refusal;
use crate::translate::RequestContext;

/// A verified and authorised request for a bucket elsewhere.
pub struct RemoteRequest {
    /// Name of the bucket.
    pub bucket: String,
    /// Object key; empty for a request about the bucket.
    pub key: String,
    /// HTTP method.
    pub method: Method,
    /// Query as received, without a signature.
    pub query: String,
    /// Headers as received, without a signature and without the framing of the body.
    pub headers: HeaderMap,
    /// The body.
    pub body: RemoteBody,
}

/// Keys of the objects that the document of a request names, for the audit log: an extension of the answer.
#[derive(Clone, Debug)]
pub struct NamedKeys(pub Vec<String>);

/// Body of an `RemoteRequest`.
pub enum RemoteBody {
    /// A verified document, or nothing.
    Held(Bytes),
    /// An object's bytes, which are verified when the stream has ended without an error.
    Streamed {
        /// Stream of the bytes.
        bytes: BoxStream<'static, Result<Bytes, StdError>>,
        /// Number of bytes.
        len: u64,
    },
}

/// Serves the buckets that are elsewhere.
#[async_trait]
pub trait RemoteBuckets: Send + Sync {
    /// Returns whether a bucket is elsewhere, as far as is known. Called for every request.
    fn has(&self, bucket: &str) -> bool;

    /// Handles a request.
    ///
    /// # Errors
    /// The errors of own buckets; [`ClientError::Origin`] and [`ClientError::NotForwarded`].
    async fn answer(&self, request: RemoteRequest) -> Result<Response<Body>, ClientError>;

    /// Reads many objects of a bucket, as [`striate_client::Client::read_many`] does.
    fn read_many(&self, bucket: &str, requests: Vec<GetRequest>, order: ReadOrder) -> PartStream;

    /// Returns the sizes of many objects of a bucket, as [`striate_client::Client::sizes_of`] does.
    ///
    /// # Errors
    /// [`ClientError::NoSuchBucket`]; [`ClientError::Origin`].
    async fn sizes_of(
        &self,
        bucket: &str,
        keys: Vec<String>,
        until_gap: bool,
    ) -> Result<Vec<Option<u64>>, ClientError>;

    /// Creates many objects of a bucket, as [`striate_client::Client::put_many`] does; existing objects stay as they
    /// are, whatever the requests' conditions.
    async fn create_many(
        &self,
        bucket: &str,
        requests: Vec<PutRequest>,
    ) -> Vec<Result<ObjectInfo, ClientError>>;
}

/// A request for a bucket elsewhere, as the front passes it on.
#[derive(Clone, Debug)]
pub(crate) struct ForwardedAddress {
    pub address: Address,
}

/// Decides whether a request may do `action`, and read its copy source.
pub(crate) fn allow(
    action: &'static str,
    parts: &Parts,
    address: &Address,
    identity: &Identity,
) -> Result<(), Refusal> {
    let resource = match address.key.as_str() {
        "" => Resource::Bucket(&address.bucket),
        key => Resource::Object(&address.bucket, key),
    };
    authorize(action, resource, Some(identity))?;
    let Some(source) = parts.headers.get("x-amz-copy-source") else { return Ok(()) };
    let source = source.to_str().ok().and_then(percent_decode).unwrap_or_default();
    let (bucket, key) = source.trim_start_matches('/').split_once('/').unwrap_or((&source, ""));
    authorize("s3:GetObject", Resource::Object(bucket, key), Some(identity))
}

/// Builds the request from what the front has prepared.
pub(crate) async fn request(
    outbound: ForwardedAddress,
    parts: Parts,
    carried: Option<RequestContext>,
    body: Body,
) -> Result<RemoteRequest, ClientError> {
    let Parts { method, uri, mut headers, .. } = parts;
    let trailers = carried.as_ref().and_then(|carried| carried.trailers.clone());
    headers.extend(carried.map(|carried| carried.headers).unwrap_or_default());
    // Checksums that come after the body are verified here.
    let announced = checksum::check_headers(&headers);
    let announced = announced.map_err(|refusal| ClientError::InvalidRequest(refusal.message))?;
    if headers.remove("x-amz-trailer").is_some() {
        headers.remove("x-amz-sdk-checksum-algorithm");
    }
    let len = headers.remove(header::CONTENT_LENGTH).and_then(|len| len.to_str().ok()?.parse().ok());
    let body = match body.bytes() {
        Some(bytes) => RemoteBody::Held(bytes),
        None => match len {
            None | Some(0) => RemoteBody::Held(ended(body).await?),
            Some(len) => {
                RemoteBody::Streamed { bytes: Box::pin(VerifiedBody::new(body, &announced, trailers)), len }
            }
        },
    };
    let Address { bucket, key } = outbound.address;
    Ok(RemoteRequest { bucket, key, method, query: uri.query().unwrap_or("").to_owned(), headers, body })
}

/// Reads a body that should be empty to its end.
async fn ended(body: Body) -> Result<Bytes, ClientError> {
    let mut body = body;
    match body.next().await {
        None => Ok(Bytes::new()),
        Some(Ok(bytes)) if bytes.is_empty() => Ok(bytes),
        Some(Ok(_)) => Err(ClientError::InvalidRequest(
            "the request has a body but does not declare its length".to_owned(),
        )),
        Some(Err(error)) => Err(ClientError::Body(error.to_string())),
    }
}

/// A body whose last bytes are returned only after all of it is verified, so that a forwarded body
/// is never complete and wrong.
struct VerifiedBody {
    body: Body,
    held: Option<Bytes>,
    has_ended: bool,
    /// Running checksums that trailers announce.
    checksums: Vec<RunningChecksum>,
    trailers: Option<Trailers>,
}

impl VerifiedBody {
    fn new(body: Body, announced: &[Algorithm], trailers: Option<Trailers>) -> Self {
        let checksums = announced.iter().filter_map(|algorithm| RunningChecksum::new(*algorithm)).collect();
        Self { body, held: None, has_ended: false, checksums, trailers }
    }

    /// Compares the computed checksums with those in the trailers.
    fn verify(&mut self) -> Result<(), StdError> {
        let computed: Vec<Checksum> = self.checksums.drain(..).map(RunningChecksum::finish).collect();
        if computed.is_empty() {
            return Ok(());
        }
        let trailers = self.trailers.as_ref().and_then(|trailers| trailers.lock().take());
        let sent = checksum::parse_trailers(&trailers.ok_or("the announced trailer is missing")?);
        let sent = sent.map_err(|refusal| refusal.message)?;
        match computed.iter().all(|computed| sent.contains(computed)) {
            true => Ok(()),
            false => Err("the body does not match the checksum in its trailer".into()),
        }
    }
}

impl Stream for VerifiedBody {
    type Item = Result<Bytes, StdError>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        use std::task::{Poll, ready};
        loop {
            if self.has_ended {
                return Poll::Ready(self.held.take().map(Ok));
            }
            match ready!(Pin::new(&mut self.body).poll_next(cx)) {
                Some(Ok(bytes)) if bytes.is_empty() => {}
                Some(Ok(bytes)) => {
                    self.checksums.iter_mut().for_each(|checksum| checksum.update(&bytes));
                    if let Some(held) = self.held.replace(bytes) {
                        return Poll::Ready(Some(Ok(held)));
                    }
                }
                Some(Err(error)) => {
                    (self.held, self.has_ended) = (None, true);
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    self.has_ended = true;
                    if let Err(error) = self.verify() {
                        self.held = None;
                        return Poll::Ready(Some(Err(error)));
                    }
                }
            }
        }
    }
}

/// A `RemoteBuckets` without any buckets.
pub(crate) struct NoRemoteBuckets;

#[async_trait]
impl RemoteBuckets for NoRemoteBuckets {
    fn has(&self, _: &str) -> bool {
        false
    }

    async fn answer(&self, request: RemoteRequest) -> Result<Response<Body>, ClientError> {
        Err(ClientError::NoSuchBucket(request.bucket))
    }

    fn read_many(&self, bucket: &str, requests: Vec<GetRequest>, _: ReadOrder) -> PartStream {
        let bucket = bucket.to_owned();
        let none = move |position| (position, Err(ClientError::NoSuchBucket(bucket.clone())));
        stream::iter((0..requests.len()).map(none)).boxed()
    }

    async fn sizes_of(&self, bucket: &str, _: Vec<String>, _: bool) -> Result<Vec<Option<u64>>, ClientError> {
        Err(ClientError::NoSuchBucket(bucket.to_owned()))
    }

    async fn create_many(
        &self,
        bucket: &str,
        requests: Vec<PutRequest>,
    ) -> Vec<Result<ObjectInfo, ClientError>> {
        requests.iter().map(|_| Err(ClientError::NoSuchBucket(bucket.to_owned()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(pieces: Vec<Result<&'static str, &'static str>>) -> VerifiedBody {
        let pieces = pieces.into_iter().map(|piece| {
            piece
                .map(|text| http_body::Frame::data(Bytes::from_static(text.as_bytes())))
                .map_err(StdError::from)
        });
        let stream = http_body_util::StreamBody::new(futures::stream::iter(pieces.collect::<Vec<_>>()));
        VerifiedBody::new(Body::http_body_unsync(stream), &[], None)
    }

    #[tokio::test]
    async fn the_last_bytes_wait_for_the_bodys_proof() {
        let good: Vec<_> = body(vec![Ok("a"), Ok(""), Ok("b")]).map(Result::unwrap).collect().await;
        assert_eq!(good, ["a", "b"]);
        let bad: Vec<_> = body(vec![Ok("a"), Ok("b"), Err("wrong hash")]).collect().await;
        assert_eq!(bad.len(), 2);
        assert_eq!(bad[0].as_ref().unwrap(), "a");
        assert!(bad[1].is_err(), "and never b");
    }

    #[tokio::test]
    async fn a_trailer_that_is_wrong_breaks_the_body_off() {
        for (sum, is_right) in [("y/Q5Jg==", true), ("AAAAAA==", false)] {
            let trailers = HeaderMap::from_iter([(
                http::HeaderName::from_static("x-amz-checksum-crc32"),
                http::HeaderValue::from_static(sum),
            )]);
            let VerifiedBody { body, .. } = body(vec![Ok("12345"), Ok("6789")]);
            let trailers = Trailers::new(parking_lot::Mutex::new(Some(trailers)));
            let all: Vec<_> = VerifiedBody::new(body, &[Algorithm::Crc32], Some(trailers)).collect().await;
            assert_eq!(all.len(), 2);
            assert_eq!(all[1].is_ok(), is_right);
        }
    }
}

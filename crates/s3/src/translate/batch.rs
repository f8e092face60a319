//! BatchRead: many objects of a bucket in one request, as a route beside S3's operations.

use futures::StreamExt;
use http::{Extensions, HeaderMap, HeaderValue, Method, Uri, header};
use http_body::Frame;
use http_body_util::StreamBody;
use s3s::route::S3Route;
use s3s::{Body, S3Request, S3Response, S3Result, StdError};
use striate_client::{ClientError, GetRequest, ObjectPart, PartStream, ReadOrder};

use super::{Entered, Translator};
use crate::authorize::{Resource, authorize};
use crate::batch::request::{Format, parse};
use crate::batch::{Item, archive, frames};
use crate::failure::code_of;
use crate::refusal::Refusal;

/// Marks a request as a batch read. Set by the front, which knows addresses of both styles.
#[derive(Clone, Debug)]
pub(crate) struct BatchOf {
    pub bucket: String,
}

/// What a request asks for, sorted.
struct Sorted {
    items: Vec<Item>,
    /// Positions of items that are refused before anything is read, ascending.
    refused: Vec<(usize, Refusal)>,
    /// The others, ascending.
    positions: Vec<usize>,
    requests: Vec<GetRequest>,
}

#[async_trait::async_trait]
impl S3Route for Translator {
    fn is_match(&self, _: &Method, _: &Uri, _: &HeaderMap, extensions: &mut Extensions) -> bool {
        extensions.get::<BatchOf>().is_some()
    }

    /// The front has verified the signature; each object is authorised below.
    async fn check_access(&self, _: &mut S3Request<Body>) -> S3Result<()> {
        Ok(())
    }

    async fn call(&self, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        self.batch(request).await
    }
}

impl Translator {
    async fn batch(&self, mut request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let bucket = request.extensions.get::<BatchOf>().map(|batch| batch.bucket.clone());
        let bucket = bucket.unwrap_or_default();
        let entered = self.enter(&request, "BatchRead", "s3:GetObject", Resource::Bucket(&bucket))?;
        let json = request.input.take_bytes().unwrap_or_default();
        let asked = parse(&json)?;
        let sorted = sort(asked.items.0.into_iter().map(|item| item.open(&bucket)), &bucket, &entered);
        self.client.bucket(&bucket).await.map_err(|error| entered.fail(error))?;
        let Sorted { items, refused, positions, requests } = sorted;
        let (content_type, body) = match asked.format {
            Format::Frames => {
                let parts = logged(self.client.read_many(requests, ReadOrder::Completion), &entered);
                let frames = frames::Frames::new(items, &refused, parts, positions);
                let frames = frames.map(|bytes| Ok::<_, StdError>(Frame::data(bytes)));
                (frames::CONTENT_TYPE, Body::http_body_unsync(StreamBody::new(frames)))
            }
            Format::Tar => {
                let parts = logged(self.client.read_many(requests, ReadOrder::Requests), &entered);
                let archive = archive::archive(items, refused, parts);
                let archive = archive.map(|bytes| bytes.map(Frame::data));
                (archive::CONTENT_TYPE, Body::http_body_unsync(StreamBody::new(archive)))
            }
        };
        let headers = [(header::CONTENT_TYPE, HeaderValue::from_static(content_type))];
        Ok(S3Response::with_headers(body, HeaderMap::from_iter(headers)))
    }
}

/// Tells the operator of items that the store fails to answer; the request itself succeeds.
fn logged(parts: PartStream, entered: &Entered) -> PartStream {
    let id = entered.trace.request_id();
    let log = move |(request, result): &(usize, Result<ObjectPart, ClientError>)| {
        if let Err(error) = result
            && code_of(error).0.is_server_error()
        {
            tracing::error!(%error, request = id, item = request, "an item of a batch read failed");
        }
    };
    parts.inspect(log).boxed()
}

/// Refuses items that cannot be read, or not by who asks.
fn sort(
    asked: impl Iterator<Item = (Item, Result<GetRequest, Refusal>)>,
    bucket: &str,
    entered: &Entered,
) -> Sorted {
    let mut sorted =
        Sorted { items: Vec::new(), refused: Vec::new(), positions: Vec::new(), requests: Vec::new() };
    for (position, (item, request)) in asked.enumerate() {
        let resource = Resource::Object(bucket, &item.key);
        let allowed = authorize("s3:GetObject", resource, Some(&entered.identity));
        match allowed.and(request) {
            Ok(request) => {
                sorted.positions.push(position);
                sorted.requests.push(request);
            }
            Err(refusal) => sorted.refused.push((position, refusal)),
        }
        sorted.items.push(item);
    }
    sorted
}

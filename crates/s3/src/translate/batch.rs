//! BatchRead, BatchPut and BatchExists: many objects of a bucket in one request, as a route beside S3's operations.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use http::{Extensions, HeaderMap, HeaderValue, Method, Uri, header};
use http_body::Frame;
use http_body_util::StreamBody;
use s3s::route::S3Route;
use s3s::{Body, S3Error, S3Request, S3Response, S3Result, StdError};
use striate_client::{
    ClientError, EtagSource, ExpectedDigests, GetRequest, ObjectAttributes, ObjectPart, PartStream, PutBody,
    PutRequest, ReadOrder, WriteCondition,
};
use striate_core::Profile;
use striate_meta::records::checksum::Algorithm;

use super::put::content_len;
use super::{AuthorisedRequest, Translator, profile_of};
use crate::authorize::{Resource, authorize};
use crate::batch::incoming::{BodyTurns, Reader, RequestFault};
use crate::batch::outcome::{ExistingKeys, Outcomes};
use crate::batch::request::{BatchExists, BatchPut, BatchRequest, Format, NewItem, parse};
use crate::batch::{Item, Kind, archive, frames};
use crate::documents::{PoolUser, batch_footprint};
use crate::failure::code_of;
use crate::refusal::Refusal;
use crate::trace::Trace;

/// Marks a request as a batch. Set by the front, which knows addresses of both styles.
#[derive(Clone)]
pub(crate) struct BatchMark {
    pub bucket: String,
    pub kind: Kind,
    /// Memory for documents that the front does not hold.
    pub documents: PoolUser,
}

/// The items of a request, sorted by whether they are refused.
struct SortedItems {
    items: Vec<Item>,
    /// Positions of items that are refused before anything is read, ascending.
    refused: Vec<(usize, Refusal)>,
    /// Positions of the other items, ascending.
    positions: Vec<usize>,
    requests: Vec<GetRequest>,
}

#[async_trait::async_trait]
impl S3Route for Translator {
    fn is_match(&self, _: &Method, _: &Uri, _: &HeaderMap, extensions: &mut Extensions) -> bool {
        extensions.get::<BatchMark>().is_some()
    }

    /// Allows the request: the front has verified the signature, and each object is authorised below.
    async fn check_access(&self, _: &mut S3Request<Body>) -> S3Result<()> {
        Ok(())
    }

    async fn call(&self, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let batch = request.extensions.get::<BatchMark>().cloned();
        let BatchMark { bucket, kind, documents } =
            batch.ok_or_else(|| S3Error::from(Refusal::anonymous()))?;
        match kind {
            Kind::Read => self.batch_read(request, bucket).await,
            Kind::Put => self.batch_put(request, bucket, documents).await,
            Kind::Exists => self.batch_exists(request, bucket).await,
        }
    }
}

impl Translator {
    async fn batch_read(&self, mut request: S3Request<Body>, bucket: String) -> S3Result<S3Response<Body>> {
        let entered = self.enter(&request, "BatchRead", Resource::Bucket(&bucket))?;
        let json = request.input.take_bytes().unwrap_or_default();
        let batch: BatchRequest = parse(&json)?;
        entered.trace.add_keys(batch.items.0.iter().map(|item| item.key.as_str()));
        let sorted = sort(batch.items.0.into_iter().map(|item| item.open(&bucket)), &bucket, &entered);
        self.client.bucket(&bucket).await.map_err(|error| entered.fail(error))?;
        let SortedItems { items, refused, positions, requests } = sorted;
        let (content_type, body) = match batch.format {
            Format::Frames => {
                let parts = self.read_many(&entered, &bucket, requests, ReadOrder::Completion);
                let parts = logged(parts, &entered);
                let frames = frames::Frames::new(items, &refused, parts, positions);
                let frames = frames.map(|bytes| Ok::<_, StdError>(Frame::data(bytes)));
                (frames::CONTENT_TYPE, Body::http_body_unsync(StreamBody::new(frames)))
            }
            Format::Tar => {
                let parts =
                    logged(self.read_many(&entered, &bucket, requests, ReadOrder::Requests), &entered);
                let archive = archive::archive(items, refused, parts);
                let archive = archive.map(|bytes| bytes.map(Frame::data));
                (archive::CONTENT_TYPE, Body::http_body_unsync(StreamBody::new(archive)))
            }
        };
        let headers = [(header::CONTENT_TYPE, HeaderValue::from_static(content_type))];
        Ok(S3Response::with_headers(body, HeaderMap::from_iter(headers)))
    }

    /// Creates objects whose bytes follow the document in the same body.
    async fn batch_put(
        &self,
        request: S3Request<Body>,
        bucket: String,
        documents: PoolUser,
    ) -> S3Result<S3Response<Body>> {
        let entered = self.enter(&request, "BatchPut", Resource::Bucket(&bucket))?;
        let profile = profile_of(&request.headers)?;
        let mut reader = Reader::new(request.input.boxed());
        let mut held = None;
        let opened = reader.open(|len| documents.reserve(&mut held, batch_footprint(len))).await;
        let (count, document) = opened.map_err(|broken| entered.fail_broken(broken))?;
        let items = parse::<BatchPut>(&document)?.items.0;
        entered.trace.add_keys(items.iter().map(|item| item.key.as_str()));
        if count != items.len() {
            let message = format!("The opening frame announces {count} items and names {}.", items.len());
            return Err(Refusal::bad("InvalidRequest", message).into());
        }
        self.client.bucket(&bucket).await.map_err(|error| entered.fail(error))?;
        let turns = BodyTurns::new(reader, count);
        let (mut refused, mut requests) = (VecDeque::new(), Vec::new());
        for (position, item) in items.into_iter().enumerate() {
            let body = turns.body(position);
            match entered.may_put(&bucket, &item) {
                Ok(()) => requests.push(creation(&bucket, item, profile, &entered, body)),
                Err(refusal) => refused.push_back((position, refusal)),
            }
        }
        let outcomes = match self.remote_buckets.has(&bucket) {
            true => self.remote_buckets.create_many(&bucket, requests).await,
            false => entered.client.put_many(requests).await,
        };
        turns.end().await.map_err(|broken| entered.fail_broken(broken))?;
        let mut answer = Outcomes::default();
        let mut outcomes = outcomes.into_iter();
        for position in 0..count {
            match refused.pop_front_if(|(refused_position, _)| *refused_position == position) {
                Some((_, refusal)) => answer.refuse(&refusal),
                None => outcomes.next().into_iter().for_each(|outcome| {
                    log_item(&entered.trace, position, outcome.as_ref().err());
                    answer.add(outcome);
                }),
            }
        }
        json_answer(&answer)
    }

    /// Returns which keys have objects.
    async fn batch_exists(&self, mut request: S3Request<Body>, bucket: String) -> S3Result<S3Response<Body>> {
        let entered = self.enter(&request, "BatchExists", Resource::Bucket(&bucket))?;
        let json = request.input.take_bytes().unwrap_or_default();
        let BatchExists { keys, until_gap } = parse(&json)?;
        entered.trace.add_keys(keys.0.iter().map(String::as_str));
        for key in &keys.0 {
            authorize("s3:GetObject", Resource::Object(&bucket, key), Some(&entered.identity))?;
        }
        let sizes = match self.remote_buckets.has(&bucket) {
            true => self.remote_buckets.sizes_of(&bucket, keys.0, until_gap).await,
            false => self.client.sizes_of(&bucket, &keys.0, until_gap).await,
        };
        json_answer(&ExistingKeys::from(sizes.map_err(|error| entered.fail(error))?))
    }

    fn read_many(
        &self,
        entered: &AuthorisedRequest,
        bucket: &str,
        requests: Vec<GetRequest>,
        order: ReadOrder,
    ) -> PartStream {
        match self.remote_buckets.has(bucket) {
            true => self.remote_buckets.read_many(bucket, requests, order),
            false => entered.client.read_many(requests, order),
        }
    }
}

impl AuthorisedRequest {
    /// Checks that the caller may create an item.
    fn may_put(&self, bucket: &str, item: &NewItem) -> Result<(), Refusal> {
        authorize("s3:PutObject", Resource::Object(bucket, &item.key), Some(&self.identity))?;
        content_len(i64::try_from(item.content_length).ok().or(Some(i64::MAX))).map(drop)
    }

    fn fail_broken(&self, broken: RequestFault) -> S3Error {
        match broken {
            RequestFault::Transport(message) => self.fail(ClientError::Body(message)),
            RequestFault::Refused(refusal) => refusal.into(),
        }
    }
}

/// Returns a put that only creates.
fn creation(
    bucket: &str,
    item: NewItem,
    profile: Option<Profile>,
    entered: &AuthorisedRequest,
    body: Box<dyn PutBody>,
) -> PutRequest {
    let NewItem { key, content_length, content_type } = item;
    let owner = entered.identity.access_key.clone();
    PutRequest {
        bucket: bucket.to_owned(),
        key,
        attributes: ObjectAttributes { content_type, owner, ..ObjectAttributes::default() },
        condition: WriteCondition { if_absent: true, ..WriteCondition::default() },
        profile,
        content_len: Some(content_length),
        // The frames' checksums were verified; this one is stored with the object.
        digests: ExpectedDigests {
            compute: vec![Algorithm::Crc64nvme],
            etag: EtagSource::Version,
            ..ExpectedDigests::default()
        },
        body,
    }
}

fn json_answer(answer: &impl serde::Serialize) -> S3Result<S3Response<Body>> {
    let json = serde_json::to_vec(answer).expect("structures of texts and numbers are JSON");
    let headers = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    Ok(S3Response::with_headers(Body::from(Bytes::from(json)), HeaderMap::from_iter(headers)))
}

/// Logs items that the store fails to return; the request itself succeeds.
fn logged(parts: PartStream, entered: &AuthorisedRequest) -> PartStream {
    let trace = Arc::clone(&entered.trace);
    let log = move |(item, result): &(usize, Result<ObjectPart, ClientError>)| {
        log_item(&trace, *item, result.as_ref().err());
    };
    parts.inspect(log).boxed()
}

/// Logs an item for which the store fails; the request itself succeeds.
fn log_item(trace: &Trace, item: usize, error: Option<&ClientError>) {
    if let Some(error) = error
        && code_of(error).0.is_server_error()
    {
        tracing::error!(%error, request = trace.request_id(), item, "an item of a batch failed");
    }
}

/// Separates the items that are malformed or that the caller may not read.
fn sort(
    items: impl Iterator<Item = (Item, Result<GetRequest, Refusal>)>,
    bucket: &str,
    entered: &AuthorisedRequest,
) -> SortedItems {
    let mut sorted =
        SortedItems { items: Vec::new(), refused: Vec::new(), positions: Vec::new(), requests: Vec::new() };
    for (position, (item, request)) in items.enumerate() {
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

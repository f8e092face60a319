//! Creation of many objects at an origin, each by a PUT of its own with `If-None-Match: *`, fenced as every write is.
//!
//! Objects that a GET would find are not sent. That saves their bytes, and not every store supports `If-None-Match`.
//! The bodies arrive one after the other on one connection. A small body is gathered before it is sent, so that it does
//! not delay the next one.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use s3s::StdError;
use striate_client::{ClientError, ObjectInfo, ObjectStream, PutBody, PutRequest};
use striate_s3::{RemoteBody, RemoteRequest};
use striate_stripe::Share;

use crate::batch::refused;
use crate::fences::FenceState;
use crate::finding::OriginObject;
use crate::head::Head;
use crate::service::Shared;

/// Number of objects that are created concurrently.
const CREATED_AT_ONCE: usize = 16;
/// Maximum size in bytes of a body that is gathered.
const GATHERED: u64 = 1 << 20;

impl Shared {
    /// Creates many objects of a bucket. See [`striate_client::Client::put_many`].
    pub(crate) async fn create_many(
        self: Arc<Self>,
        bucket: &str,
        requests: Vec<PutRequest>,
    ) -> Vec<Result<ObjectInfo, ClientError>> {
        let items = self.clone().look_up_items(bucket, requests, |request| &request.key);
        let created = items.map(move |item| {
            let shared = self.clone();
            async move {
                let (origin_object, fence_state) = item.lookup?;
                shared.clone().in_task(shared.create(origin_object, fence_state, item.input)).await?
            }
        });
        created.buffered(CREATED_AT_ONCE).collect().await
    }

    async fn create(
        self: Arc<Self>,
        origin_object: OriginObject,
        fence_state: FenceState,
        request: PutRequest,
    ) -> Result<ObjectInfo, ClientError> {
        let exists = ClientError::PreconditionFailed("If-None-Match");
        if self.size_of(&origin_object, fence_state).await?.is_some() {
            return Err(exists);
        }
        let PutRequest { key, attributes, content_len, body, .. } = request;
        let unknown = || ClientError::InvalidRequest("the length of a body must be said".to_owned());
        let len = content_len.ok_or_else(unknown)?;
        let mut headers = HeaderMap::new();
        headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("*"));
        if !attributes.content_type.is_empty() {
            let value = HeaderValue::try_from(&attributes.content_type);
            let value = value.map_err(|error| ClientError::InvalidArgument(error.to_string()))?;
            headers.insert(header::CONTENT_TYPE, value);
        }
        let (body, _share) = self.outgoing(body, len).await?;
        let (bucket, query) = (origin_object.bucket.to_string(), String::new());
        let outbound = RemoteRequest { bucket, key, method: Method::PUT, query, headers, body };
        let answer = self.forward(origin_object.origin.clone(), outbound).await?;
        match answer.status() {
            status if status.is_success() => {
                let etag = answer.headers().get(header::ETAG).and_then(|etag| etag.to_str().ok());
                let etag = etag.unwrap_or_default().to_owned();
                let (modified_unix_ms, is_of_part, headers) = (0, false, Bytes::new());
                let head = Head { etag, size: len, modified_unix_ms, is_of_part, headers };
                Ok(head.info(&origin_object.key))
            }
            StatusCode::PRECONDITION_FAILED => Err(exists),
            StatusCode::CONFLICT => Err(ClientError::Conflict),
            _ => Err(refused(&origin_object, answer).await),
        }
    }

    /// Prepares a body for sending. A gathered body comes with its share of the budget.
    async fn outgoing(
        &self,
        body: Box<dyn PutBody>,
        len: u64,
    ) -> Result<(RemoteBody, Option<Share>), ClientError> {
        let mut bytes = measured(body, len);
        if len > GATHERED {
            // Send only after the first bytes have arrived: then it is this body's turn, and no connection waits for
            // the bodies before it.
            let first = bytes.next().await;
            let bytes = stream::iter(first).chain(bytes).map_err(|error| StdError::from(error.to_string()));
            return Ok((RemoteBody::Streamed { bytes: bytes.boxed(), len }, None));
        }
        let first = bytes.try_next().await?.unwrap_or_default();
        let share = self.client.stripes().budget().acquire(len as usize).await?;
        let mut gathered = Vec::with_capacity(len as usize);
        gathered.extend_from_slice(&first);
        while let Some(piece) = bytes.try_next().await? {
            gathered.extend_from_slice(&piece);
        }
        Ok((RemoteBody::Held(gathered.into()), Some(share)))
    }
}

/// Returns the bytes of a body, the last piece only once the whole body is verified; an error unless there are
/// `expected` bytes.
fn measured(body: Box<dyn PutBody>, expected: u64) -> ObjectStream {
    struct State {
        body: Box<dyn PutBody>,
        got: u64,
        held: Option<Bytes>,
        has_ended: bool,
    }
    let state = State { body, got: 0, held: None, has_ended: false };
    let pieces = stream::try_unfold(state, move |mut state| async move {
        while !state.has_ended {
            let piece = state.body.next().await.transpose()?;
            state.got += piece.as_ref().map_or(0, |piece| piece.len() as u64);
            state.has_ended = piece.is_none();
            if state.got > expected || state.has_ended && state.got < expected {
                return Err(ClientError::IncompleteBody { expected, got: state.got });
            }
            if let Some(piece) = piece
                && let Some(held) = state.held.replace(piece)
            {
                return Ok(Some((held, state)));
            }
        }
        Ok(state.held.take().map(|last| (last, state)))
    });
    pieces.boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Pieces(Vec<Result<Bytes, ClientError>>);

    #[async_trait::async_trait]
    impl PutBody for Pieces {
        async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
            (!self.0.is_empty()).then(|| self.0.remove(0))
        }
    }

    async fn sent(pieces: Vec<Result<&'static str, ClientError>>, len: u64) -> (String, bool) {
        let pieces = pieces.into_iter().map(|piece| piece.map(|text| Bytes::from_static(text.as_bytes())));
        let mut bytes = measured(Box::new(Pieces(pieces.collect())), len);
        let mut all = String::new();
        while let Some(piece) = bytes.next().await {
            let Ok(piece) = piece else { return (all, false) };
            all.push_str(std::str::from_utf8(&piece).unwrap());
        }
        (all, true)
    }

    #[tokio::test]
    async fn the_last_bytes_of_a_body_go_out_when_it_is_verified_and_has_its_length() {
        assert_eq!(sent(vec![Ok("ab"), Ok("c")], 3).await, ("abc".to_owned(), true));
        assert_eq!(sent(vec![], 0).await, (String::new(), true));
        let broken = ClientError::Body("wrong checksum".to_owned());
        assert_eq!(sent(vec![Ok("ab"), Ok("c"), Err(broken)], 3).await, ("ab".to_owned(), false));
        assert_eq!(sent(vec![Ok("ab")], 3).await, (String::new(), false), "too short");
        assert_eq!(sent(vec![Ok("ab"), Ok("cd")], 3).await, (String::new(), false), "too long");
    }
}

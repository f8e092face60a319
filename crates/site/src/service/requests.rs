//! From a request to the site: authentication first, then limits, then the operation.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use striate_codec::crc32c;
use striate_core::GRANULE_LEN;
use striate_runtime::Runtime;
use tokio::sync::watch;
use tower_service::Service as _;

use super::control::Control;
use super::reads::Reads;
use super::replies::{ReplyBody, refuse};
use crate::api::{ReadRequest, Site, SiteError, WriteRequest};
use crate::local::LocalSite;
use crate::protocol::control::decode_combine;
use crate::protocol::control::messages::site_control_server::SiteControlServer;
use crate::protocol::frame::{ReadBody, WRITE_HEAD_LEN, WriteHead, decode_cancel, encode_frame};
use crate::protocol::limits::{MAX_REQUEST_LEN, ServiceLimits};
use crate::protocol::session::{ClusterSecret, HELLO_LEN, Hello, Refusal, Session, Signed, Welcome};
use crate::protocol::{AUTH_HEADER, CANCEL_PATH, CHUNK_PATH, COMBINE_PATH, HELLO_PATH, READ_PATH};

/// What all connections share.
pub(super) struct Service {
    runtime: Runtime,
    site: Arc<LocalSite>,
    secret: ClusterSecret,
    limits: ServiceLimits,
    receiving_bytes: AtomicU64,
    reads: Arc<Reads>,
    cut_off: watch::Sender<bool>,
}

/// Who is at the other end of one connection.
#[derive(Debug, Default)]
pub(super) struct Peer(OnceLock<Session>);

impl Peer {
    /// True after a hello.
    pub(super) fn is_known(&self) -> bool {
        self.0.get().is_some()
    }

    fn accept(&self, parts: &http::request::Parts, body_len: u64, head: &[u8]) -> Result<(), Refusal> {
        let session = self.0.get().ok_or(Refusal::NoSession)?;
        let auth = parts.headers.get(AUTH_HEADER).and_then(|value| value.to_str().ok());
        let request = Signed { method: parts.method.as_str(), path: parts.uri.path(), body_len, head };
        session.accept(auth.ok_or(Refusal::NoSession)?, request)
    }
}

impl Service {
    pub(super) fn new(
        runtime: Runtime,
        site: Arc<LocalSite>,
        secret: ClusterSecret,
        limits: ServiceLimits,
    ) -> Self {
        let (cut_off, _) = watch::channel(false);
        let (receiving_bytes, reads) = (AtomicU64::new(0), Arc::default());
        Self { runtime, site, secret, limits, receiving_bytes, reads, cut_off }
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(super) fn limits(&self) -> &ServiceLimits {
        &self.limits
    }

    /// Ends all connections now.
    pub(super) fn cut_off(&self) {
        self.cut_off.send_replace(true);
    }

    /// Completes when the connections are to end now.
    pub(super) async fn wait_cut_off(&self) {
        let _ = self.cut_off.subscribe().wait_for(|cut_off| *cut_off).await;
    }
}

/// Answers one request.
pub(super) async fn handle(
    service: Arc<Service>,
    peer: Arc<Peer>,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    let (parts, body) = request.into_parts();
    let answered = service.answer(&peer, &parts, Receiving::new(&service, body)).await;
    Ok(answered.unwrap_or_else(|refusal| refuse(&refusal)))
}

impl Service {
    async fn answer(
        &self,
        peer: &Peer,
        parts: &http::request::Parts,
        mut body: Receiving<'_>,
    ) -> Result<Response<ReplyBody>, Refusal> {
        if (&parts.method, parts.uri.path()) == (&Method::POST, HELLO_PATH) {
            return self.hello(peer, &body.whole(HELLO_LEN).await?);
        }
        if !peer.is_known() {
            return Err(Refusal::NoSession);
        }
        if (&parts.method, parts.uri.path()) == (&Method::PUT, CHUNK_PATH) {
            return self.write(peer, parts, body).await;
        }
        let bytes = body.whole(MAX_REQUEST_LEN).await?;
        peer.accept(parts, bytes.len() as u64, &bytes)?;
        match (&parts.method, parts.uri.path()) {
            (&Method::POST, READ_PATH) => self.read(&bytes),
            (&Method::POST, CANCEL_PATH) => self.cancel(&bytes),
            (&Method::POST, COMBINE_PATH) => self.combine(&bytes),
            (&Method::POST, path) if path.starts_with("/striate.site.v1.SiteControl/") => {
                Ok(self.control(parts, bytes).await)
            }
            (method, path) => Err(Refusal::Malformed(format!("there is no {method} {path}"))),
        }
    }

    fn hello(&self, peer: &Peer, bytes: &[u8]) -> Result<Response<ReplyBody>, Refusal> {
        let identity = self.site.identity().clone();
        let hello = Hello::accept(bytes, identity.cluster, &self.secret)?;
        let welcome = Welcome::new(&self.runtime, identity, self.site.report_load());
        let reply = welcome.encode(&hello, &self.secret);
        let again = |_| Refusal::Malformed("a connection begins with one hello".to_owned());
        peer.0.set(Session::new(&hello, &welcome, &self.secret)).map_err(again)?;
        Ok(Response::new(ReplyBody::whole(reply)))
    }

    fn read(&self, bytes: &[u8]) -> Result<Response<ReplyBody>, Refusal> {
        let body = ReadBody::decode(bytes).map_err(Refusal::Malformed)?;
        let ReadBody { id, ranges, priority, time_left } = body;
        let deadline = time_left.and_then(|left| self.runtime.now().checked_add(left));
        let replies = self.site.read(ReadRequest { ranges, priority, deadline });
        Ok(Response::new(ReplyBody::Ranges(self.reads.cancellable(id, replies), None)))
    }

    fn cancel(&self, bytes: &[u8]) -> Result<Response<ReplyBody>, Refusal> {
        let ids = decode_cancel(bytes).map_err(Refusal::Malformed)?;
        ids.into_iter().for_each(|id| self.reads.cancel(id));
        let frame = encode_frame(0, Ok(Bytes::new()), self.site.report_load());
        Ok(Response::new(ReplyBody::frame(frame)))
    }

    fn combine(&self, bytes: &[u8]) -> Result<Response<ReplyBody>, Refusal> {
        let request = decode_combine(bytes).map_err(Refusal::Malformed)?;
        let slices = self.site.combine(request);
        Ok(Response::new(ReplyBody::Slices(slices, Arc::clone(&self.site), 0, None)))
    }

    /// Reads the head, authenticates it, reserves the memory, and only then takes the chunk's bytes.
    async fn write(
        &self,
        peer: &Peer,
        parts: &http::request::Parts,
        mut body: Receiving<'_>,
    ) -> Result<Response<ReplyBody>, Refusal> {
        let body_len = body.len().ok_or_else(|| Refusal::Malformed("a write tells its length".to_owned()))?;
        let fixed = body.exactly(WRITE_HEAD_LEN).await?;
        let fixed: &[u8; WRITE_HEAD_LEN] = fixed[..].try_into().expect("the length is right");
        let head_len = WriteHead::full_len(fixed).map_err(Refusal::Malformed)?;
        let crcs = body.exactly(head_len - WRITE_HEAD_LEN).await?;
        let bytes = [&fixed[..], &crcs].concat();
        peer.accept(parts, body_len, &bytes)?;
        let head = WriteHead::decode(&bytes).map_err(Refusal::Malformed)?;
        if body_len != bytes.len() as u64 + u64::from(head.len) {
            return Err(Refusal::Malformed("the write's length is not that of its parts".to_owned()));
        }
        let result = match self.reserve(u64::from(head.len)) {
            Ok(_reserved) => {
                let payload = body.exactly(head.len as usize).await?;
                self.store(head, payload).await
            }
            Err(error) => Err(error),
        };
        let load = *result.as_ref().unwrap_or(&self.site.report_load());
        let frame = encode_frame(0, result.map(|_| Bytes::new()), load);
        Ok(Response::new(ReplyBody::frame(frame)))
    }

    async fn store(&self, head: WriteHead, payload: Bytes) -> Result<striate_core::LoadReport, SiteError> {
        let received = payload.chunks(GRANULE_LEN).map(crc32c);
        if let Some(granule) = received.zip(&head.granule_crcs).position(|(found, told)| found != *told) {
            let reason = format!("granule {granule} of chunk {} was damaged on its way", head.chunk);
            return Err(SiteError::BadRequest(reason));
        }
        let granule_crcs = Some(head.granule_crcs.into());
        let request = WriteRequest { chunk: head.chunk, payload, granule_crcs, priority: head.priority };
        self.site.write(request).await
    }

    /// Counts bytes that are about to be received, until the guard is dropped.
    fn reserve(&self, bytes: u64) -> Result<Reserved<'_>, SiteError> {
        let held = self.receiving_bytes.fetch_add(bytes, Ordering::Relaxed);
        let reserved = Reserved(&self.receiving_bytes, bytes);
        let fits = held == 0 || held + bytes <= self.limits.receiving_bytes;
        if fits { Ok(reserved) } else { Err(SiteError::Busy) }
    }

    async fn control(&self, parts: &http::request::Parts, bytes: Bytes) -> Response<ReplyBody> {
        let mut request = Request::new(Full::new(bytes));
        *request.method_mut() = parts.method.clone();
        *request.uri_mut() = parts.uri.clone();
        *request.version_mut() = parts.version;
        *request.headers_mut() = parts.headers.clone();
        let mut server = SiteControlServer::new(Control::new(Arc::clone(&self.site)));
        let Ok(response) = server.call(request).await;
        response.map(ReplyBody::Control)
    }
}

struct Reserved<'a>(&'a AtomicU64, u64);

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// A request's body, taken piece by piece within the time limits.
struct Receiving<'a> {
    service: &'a Service,
    body: Incoming,
    /// What was received and not yet taken.
    rest: Bytes,
}

impl<'a> Receiving<'a> {
    fn new(service: &'a Service, body: Incoming) -> Self {
        Self { service, body, rest: Bytes::new() }
    }

    /// Its length, if it was told.
    fn len(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    async fn more(&mut self) -> Result<bool, Refusal> {
        let Service { runtime, limits, .. } = self.service;
        let cut_off = |reason: &str| Refusal::Malformed(format!("the request's body {reason}"));
        while self.rest.is_empty() {
            let frame = runtime.timeout(limits.stall, self.body.frame()).await;
            match frame.map_err(|_| cut_off("did not come in time"))? {
                Some(frame) => {
                    let frame = frame.map_err(|error| cut_off(&format!("ended: {error}")))?;
                    self.rest = frame.into_data().unwrap_or_default();
                }
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// All of it, when it is at most `limit` bytes.
    async fn whole(&mut self, limit: usize) -> Result<Bytes, Refusal> {
        let too_large = || Refusal::TooLarge(format!("a request of more than {limit} bytes"));
        if self.len().is_some_and(|len| len > limit as u64) {
            return Err(too_large());
        }
        if !self.more().await? {
            return Ok(Bytes::new());
        }
        let first = std::mem::take(&mut self.rest);
        if self.body.is_end_stream() && first.len() <= limit {
            return Ok(first);
        }
        let mut all = BytesMut::from(first);
        while all.len() <= limit && self.more().await? {
            all.extend_from_slice(&std::mem::take(&mut self.rest));
        }
        if all.len() <= limit { Ok(all.freeze()) } else { Err(too_large()) }
    }

    /// The next `len` bytes, in one piece; without a copy when they came in one.
    async fn exactly(&mut self, len: usize) -> Result<Bytes, Refusal> {
        let ended = || Refusal::Malformed("the request's body is too short".to_owned());
        if len > 0 && !self.more().await? {
            return Err(ended());
        }
        if self.rest.len() >= len {
            return Ok(self.rest.split_to(len));
        }
        let mut all = BytesMut::with_capacity(len);
        while all.len() < len {
            if !self.more().await? {
                return Err(ended());
            }
            let taken = self.rest.len().min(len - all.len());
            all.extend_from_slice(&self.rest.split_to(taken));
        }
        Ok(all.freeze())
    }
}

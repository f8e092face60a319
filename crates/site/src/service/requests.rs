//! Handles requests: first the peer's rights, then limits, then the operation on the site.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use parking_lot::Mutex;
use striate_codec::crc32c;
use striate_core::GRANULE_LEN;
use striate_runtime::{Instant, Runtime};
use striate_trust::{PeerName, Role};
use tokio::sync::watch;
use tower_service::Service as _;

use super::control::Control;
use super::reads::Reads;
use super::replies::{ReplyBody, refuse};
use crate::api::{Priority, ReadRequest, Site, SiteError, WriteRequest};
use crate::granule;
use crate::local::LocalSite;
use crate::protocol::control::messages::site_control_server::SiteControlServer;
use crate::protocol::control::{AnnouncedAssemble, decode_combine};
use crate::protocol::frame::{ReadBody, WRITE_HEAD_LEN, WriteHead, decode_cancel, encode_frame};
use crate::protocol::hello::{HELLO_LEN, HelloReply, Refusal, accept_hello};
use crate::protocol::limits::{MAX_REQUEST_LEN, ServiceLimits};
use crate::protocol::{
    AMEND_PATH, ASSEMBLE_PATH, CANCEL_PATH, CHUNK_PATH, COMBINE_PATH, HELLO_PATH, READ_PATH,
};
use crate::store::HeldResources;

/// Minimum interval between two log lines about refused peers.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// State shared by all connections.
pub(super) struct Service {
    runtime: Runtime,
    site: Arc<LocalSite>,
    limits: ServiceLimits,
    receiving_bytes: Arc<AtomicU64>,
    reads: Arc<Reads>,
    stopping: watch::Receiver<bool>,
    cut_off: watch::Sender<bool>,
    strangers: Mutex<RefusedPeers>,
}

/// Refused peers: a flood of them must not flood the log.
#[derive(Default)]
struct RefusedPeers {
    /// Number of refusals since the last log line.
    unlogged: u64,
    logged_at: Option<Instant>,
}

/// The peer of one connection.
#[derive(Debug)]
pub(super) struct Peer {
    name: PeerName,
    greeted: AtomicBool,
}

impl Peer {
    pub(super) fn new(name: PeerName) -> Self {
        Self { name, greeted: AtomicBool::new(false) }
    }

    /// Returns whether the peer has said hello.
    pub(super) fn has_greeted(&self) -> bool {
        self.greeted.load(Ordering::Acquire)
    }

    /// Checks the rights of the peer's role. Another site only ever asks for its part of a combination.
    fn check_right(&self, path: &str) -> Result<(), Refusal> {
        if !self.has_greeted() {
            return Err(Refusal::NoHello);
        }
        match self.name.role {
            Role::Gateway | Role::Control => Ok(()),
            Role::Site if path == COMBINE_PATH => Ok(()),
            role => Err(Refusal::Forbidden { role, path: path.to_owned() }),
        }
    }
}

impl Service {
    pub(super) fn new(
        runtime: Runtime,
        site: Arc<LocalSite>,
        limits: ServiceLimits,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let (cut_off, _) = watch::channel(false);
        let (receiving_bytes, reads) = (Arc::default(), Arc::default());
        Self { runtime, site, limits, receiving_bytes, reads, stopping, cut_off, strangers: Mutex::default() }
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(super) fn limits(&self) -> &ServiceLimits {
        &self.limits
    }

    /// Logs that a peer was refused, at most once in [`SAY_EVERY`].
    pub(super) fn note_stranger(&self, error: &std::io::Error) {
        let now = self.runtime.now();
        let mut strangers = self.strangers.lock();
        strangers.unlogged += 1;
        if strangers.logged_at.is_none_or(|logged_at| now - logged_at >= SAY_EVERY) {
            tracing::warn!(%error, refused = strangers.unlogged, "a peer was not admitted");
            *strangers = RefusedPeers { unlogged: 0, logged_at: Some(now) };
        }
    }

    /// Ends all connections immediately.
    pub(super) fn cut_off(&self) {
        self.cut_off.send_replace(true);
    }

    /// Completes when connections must end immediately.
    pub(super) async fn wait_cut_off(&self) {
        let _ = self.cut_off.subscribe().wait_for(|cut_off| *cut_off).await;
    }
}

/// Handles one request.
pub(super) async fn handle(
    service: Arc<Service>,
    peer: Arc<Peer>,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    let (parts, body) = request.into_parts();
    let response = service.answer(&peer, &parts, IncomingBody::new(&service, body)).await;
    Ok(response.unwrap_or_else(|refusal| refuse(&refusal)))
}

impl Service {
    async fn answer(
        &self,
        peer: &Peer,
        parts: &http::request::Parts,
        mut body: IncomingBody<'_>,
    ) -> Result<Response<ReplyBody>, Refusal> {
        if (&parts.method, parts.uri.path()) == (&Method::POST, HELLO_PATH) {
            return self.hello(peer, &body.whole(HELLO_LEN).await?);
        }
        peer.check_right(parts.uri.path())?;
        if (&parts.method, parts.uri.path()) == (&Method::PUT, CHUNK_PATH) {
            return self.write(body).await;
        }
        if (&parts.method, parts.uri.path()) == (&Method::POST, AMEND_PATH) {
            return self.amend(body).await;
        }
        let bytes = body.whole(MAX_REQUEST_LEN).await?;
        match (&parts.method, parts.uri.path()) {
            (&Method::POST, READ_PATH) => self.read(&bytes),
            (&Method::POST, CANCEL_PATH) => self.cancel(&bytes),
            (&Method::POST, COMBINE_PATH) => self.combine(&bytes),
            (&Method::POST, ASSEMBLE_PATH) => self.assemble(&bytes).await,
            (&Method::POST, path) if path.starts_with("/striate.site.v1.SiteControl/") => {
                Ok(self.control(parts, bytes).await)
            }
            (method, path) => Err(Refusal::Malformed(format!("there is no {method} {path}"))),
        }
    }

    fn hello(&self, peer: &Peer, bytes: &[u8]) -> Result<Response<ReplyBody>, Refusal> {
        let identity = self.site.identity().clone();
        accept_hello(bytes, identity.cluster)?;
        peer.greeted.store(true, Ordering::Release);
        let welcome = HelloReply { identity, load: self.site.report_load() };
        Ok(Response::new(ReplyBody::whole(welcome.encode())))
    }

    fn read(&self, bytes: &[u8]) -> Result<Response<ReplyBody>, Refusal> {
        let body = ReadBody::decode(bytes).map_err(Refusal::Malformed)?;
        let ReadBody { id, ranges, priority, time_left } = body;
        let deadline = time_left.and_then(|remaining| self.runtime.now().checked_add(remaining));
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

    async fn assemble(&self, bytes: &[u8]) -> Result<Response<ReplyBody>, Refusal> {
        let announced = AnnouncedAssemble::decode(bytes).map_err(Refusal::Malformed)?;
        let (len, priority) = announced.chunk();
        let request = announced.with_payload(Bytes::new()).map_err(Refusal::Malformed)?;
        let result = match self.reserve_for(priority, len.into()) {
            Ok(reserved) => self.site.assemble_holding(request, HeldResources::default().and(reserved)).await,
            Err(error) => Err(error),
        };
        Ok(self.outcome(result))
    }

    /// Reads the head, reserves memory for the chunk and for the bytes that follow, and only then takes those bytes.
    async fn amend(&self, mut body: IncomingBody<'_>) -> Result<Response<ReplyBody>, Refusal> {
        let head = body.exactly(size_of::<u32>()).await?;
        let head_len = u32::from_le_bytes(head[..].try_into().expect("the length is right")) as usize;
        if head_len > MAX_REQUEST_LEN {
            return Err(Refusal::TooLarge(format!("a request of more than {MAX_REQUEST_LEN} bytes")));
        }
        let announced =
            AnnouncedAssemble::decode(&body.exactly(head_len).await?).map_err(Refusal::Malformed)?;
        let ((len, priority), payload_len) = (announced.chunk(), announced.payload_len());
        if payload_len > u64::from(len) {
            return Err(Refusal::Malformed("its windows have more bytes than the chunk".to_owned()));
        }
        let result = match self.reserve_for(priority, u64::from(len) + payload_len) {
            Ok(reserved) => {
                let payload = body.exactly(payload_len as usize).await?;
                let request = announced.with_payload(payload).map_err(Refusal::Malformed)?;
                self.site.assemble_holding(request, HeldResources::default().and(reserved)).await
            }
            Err(error) => Err(error),
        };
        Ok(self.outcome(result))
    }

    /// Returns the frame that reports the outcome of storing a chunk.
    fn outcome(&self, result: Result<striate_core::LoadReport, SiteError>) -> Response<ReplyBody> {
        let load = *result.as_ref().unwrap_or(&self.site.report_load());
        Response::new(ReplyBody::frame(encode_frame(0, result.map(|_| Bytes::new()), load)))
    }

    /// Reads the head, reserves the memory, and only then takes the chunk's bytes.
    async fn write(&self, mut body: IncomingBody<'_>) -> Result<Response<ReplyBody>, Refusal> {
        let body_len = body.len().ok_or_else(|| Refusal::Malformed("a write tells its length".to_owned()))?;
        let fixed = body.exactly(WRITE_HEAD_LEN).await?;
        let fixed: &[u8; WRITE_HEAD_LEN] = fixed[..].try_into().expect("the length is right");
        let head_len = WriteHead::full_len(fixed).map_err(Refusal::Malformed)?;
        let crcs = body.exactly(head_len - WRITE_HEAD_LEN).await?;
        let bytes = [&fixed[..], &crcs].concat();
        let head = WriteHead::decode(&bytes).map_err(Refusal::Malformed)?;
        if body_len != bytes.len() as u64 + u64::from(head.len) {
            return Err(Refusal::Malformed("the write's length is not that of its parts".to_owned()));
        }
        let result = match self.reserve(u64::from(head.len)) {
            Ok(reserved) => {
                let payload = body.exactly(head.len as usize).await?;
                self.store(head, payload, reserved).await
            }
            Err(error) => Err(error),
        };
        Ok(self.outcome(result))
    }

    async fn store(
        &self,
        head: WriteHead,
        payload: Bytes,
        reserved: ReservedBytes,
    ) -> Result<striate_core::LoadReport, SiteError> {
        let granule_len = granule::granule_len_of_count(head.granule_crcs.len(), head.len);
        let received = payload.chunks(granule_len.unwrap_or(GRANULE_LEN)).map(crc32c);
        if let Some(granule) = received.zip(&head.granule_crcs).position(|(computed, sent)| computed != *sent)
        {
            let reason = format!("granule {granule} of chunk {} was damaged on its way", head.chunk);
            return Err(SiteError::BadRequest(reason));
        }
        let granule_crcs = Some(head.granule_crcs.into());
        let request = WriteRequest { chunk: head.chunk, payload, granule_crcs, priority: head.priority };
        self.site.write_holding(request, HeldResources::default().and(reserved)).await
    }

    /// Reserves memory for bytes that are about to be received, until the guard is dropped.
    fn reserve(&self, bytes: u64) -> Result<ReservedBytes, SiteError> {
        self.reserve_for(Priority::Foreground, bytes)
    }

    /// As [`Service::reserve`], with a share by priority. A chunk that other sites send takes long to arrive, and must
    /// leave room for users' writes.
    fn reserve_for(&self, priority: Priority, bytes: u64) -> Result<ReservedBytes, SiteError> {
        let most = match priority {
            Priority::Foreground => self.limits.receiving_bytes,
            Priority::Repair => self.limits.receiving_bytes / 4 * 3,
            Priority::Background => self.limits.receiving_bytes / 2,
        };
        let receiving_bytes = self.receiving_bytes.fetch_add(bytes, Ordering::Relaxed);
        let reserved = ReservedBytes(Arc::clone(&self.receiving_bytes), bytes);
        let fits = receiving_bytes == 0 || receiving_bytes + bytes <= most;
        if fits { Ok(reserved) } else { Err(SiteError::Busy) }
    }

    async fn control(&self, parts: &http::request::Parts, bytes: Bytes) -> Response<ReplyBody> {
        let mut request = Request::new(Full::new(bytes));
        *request.method_mut() = parts.method.clone();
        *request.uri_mut() = parts.uri.clone();
        *request.version_mut() = parts.version;
        *request.headers_mut() = parts.headers.clone();
        let mut server = SiteControlServer::new(Control::new(Arc::clone(&self.site), self.stopping.clone()));
        let Ok(response) = server.call(request).await;
        response.map(ReplyBody::Control)
    }
}

/// Travels with the bytes to the store, and counts them until they are written.
struct ReservedBytes(Arc<AtomicU64>, u64);

impl Drop for ReservedBytes {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// A request's body, taken piece by piece within the timeouts.
struct IncomingBody<'a> {
    service: &'a Service,
    body: Incoming,
    /// Bytes received and not yet taken.
    buffered: Bytes,
}

impl<'a> IncomingBody<'a> {
    fn new(service: &'a Service, body: Incoming) -> Self {
        Self { service, body, buffered: Bytes::new() }
    }

    /// Returns the length of the body, if it was declared.
    fn len(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    async fn wait_for_bytes(&mut self) -> Result<bool, Refusal> {
        let Service { runtime, limits, .. } = self.service;
        let cut_off = |reason: &str| Refusal::Malformed(format!("the request's body {reason}"));
        while self.buffered.is_empty() {
            let frame = runtime.timeout(limits.stall, self.body.frame()).await;
            match frame.map_err(|_| cut_off("did not come in time"))? {
                Some(frame) => {
                    let frame = frame.map_err(|error| cut_off(&format!("ended: {error}")))?;
                    self.buffered = frame.into_data().unwrap_or_default();
                }
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Returns the whole body, if it is at most `limit` bytes long.
    async fn whole(&mut self, limit: usize) -> Result<Bytes, Refusal> {
        let too_large = || Refusal::TooLarge(format!("a request of more than {limit} bytes"));
        if self.len().is_some_and(|len| len > limit as u64) {
            return Err(too_large());
        }
        if !self.wait_for_bytes().await? {
            return Ok(Bytes::new());
        }
        let first = std::mem::take(&mut self.buffered);
        if self.body.is_end_stream() && first.len() <= limit {
            return Ok(first);
        }
        let mut all = BytesMut::from(first);
        while all.len() <= limit && self.wait_for_bytes().await? {
            all.extend_from_slice(&std::mem::take(&mut self.buffered));
        }
        if all.len() <= limit { Ok(all.freeze()) } else { Err(too_large()) }
    }

    /// Returns the next `len` bytes in one buffer, without a copy if they arrived in one.
    async fn exactly(&mut self, len: usize) -> Result<Bytes, Refusal> {
        let ended = || Refusal::Malformed("the request's body is too short".to_owned());
        if len > 0 && !self.wait_for_bytes().await? {
            return Err(ended());
        }
        if self.buffered.len() >= len {
            return Ok(self.buffered.split_to(len));
        }
        let mut all = BytesMut::with_capacity(len);
        while all.len() < len {
            if !self.wait_for_bytes().await? {
                return Err(ended());
            }
            let part_len = self.buffered.len().min(len - all.len());
            all.extend_from_slice(&self.buffered.split_to(part_len));
        }
        Ok(all.freeze())
    }
}

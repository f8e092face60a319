//! A remote site as its clients see it: the calling end of the [`protocol`](crate::protocol).
//!
//! Chunk bytes use a pool of HTTP/1.1 connections, control uses one HTTP/2 connection, and pushed load reports use
//! another. All are opened on demand, so a site may be down when its [`RemoteSite`] is made; every call then fails with
//! [`SiteError::Unavailable`] until the site is back.
//!
//! Nothing waits forever. Connecting, the wait for a reply and the pause between its parts have timeouts on the
//! runtime's clock, and the number of concurrent exchanges is bounded. A read begins when its stream is first polled;
//! dropping the stream before its end removes what is queued at the site.

mod cancel;
mod connection;
mod control;
mod read;
mod replies;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use http::Method;
use parking_lot::Mutex;
use striate_codec::MultipleChecksums;
use striate_core::{ChunkId, ClusterId, GRANULE_LEN, LoadReport, RackId, SiteId};
use striate_runtime::Runtime;

use crate::api::{
    AssembleRequest, ChunkPage, CombineRequest, DeleteRequest, LoadStream, ReadRequest, ReadStream, Site,
    SiteError, SiteStatus, SliceStream, Tend, Tended, WriteRequest, has_by_verifying, products_by_reading,
};
use crate::combine;
use crate::granule;
use crate::identity::SiteIdentity;
use crate::protocol::control::messages;
use crate::protocol::control::{self as convert};
use crate::protocol::frame::WriteHead;
use crate::protocol::hello::HelloReply;
use crate::protocol::limits::{
    MAX_ASKED_CHUNKS, MAX_CHUNK_LEN, MAX_DELETED_CHUNKS, MAX_TENDED_BLOCKS, REPLY_TIMEOUT,
};
use crate::protocol::{AMEND_PATH, ASSEMBLE_PATH, CHUNK_PATH, COMBINE_PATH};
use crate::store::ChunkInfo;
use crate::transport::Connector;
use cancel::Canceller;
use connection::{Call, Endpoint, Pool};
use control::{ControlChannel, error_of};
use read::RemoteRead;
use replies::Frames;

/// Minimum rate, in bytes per second, at which data reach each site of a combine tree. It bounds how
/// long the root may take to reply.
const SLOWEST_TREE: u64 = 4 << 20;

/// Timeouts and bounds of a client of one site.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// Timeout for connecting, for the handshake, and for the wait for a free exchange.
    pub connect_timeout: Duration,
    /// Timeout for the beginning of a reply and for each further part of it.
    pub reply_timeout: Duration,
    /// Idle time after which a connection is not reused; less than the site's own limit.
    pub idle_timeout: Duration,
    /// Maximum number of concurrent exchanges of chunk bytes.
    pub max_in_flight: usize,
    /// Maximum number of connections kept open for the next exchange.
    pub max_idle: usize,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            reply_timeout: REPLY_TIMEOUT,
            idle_timeout: Duration::from_secs(20),
            max_in_flight: 256,
            max_idle: 64,
        }
    }
}

/// A remote site. Cheap to clone.
#[derive(Clone)]
pub struct RemoteSite {
    inner: Arc<Inner>,
}

struct Inner {
    site: SiteId,
    rack: Mutex<RackId>,
    load: Mutex<LoadReport>,
    pool: Arc<Pool>,
    control: ControlChannel,
    canceller: Canceller,
}

/// Connects to `address`, learns which site is there, and returns a client of it.
///
/// # Errors
/// [`SiteError::Unavailable`] when there is no reply, or the peer is not a site of this cluster with this protocol
/// version; the error says which.
pub async fn connect(
    runtime: Runtime,
    connector: Arc<dyn Connector>,
    address: &str,
    cluster: ClusterId,
    options: RemoteOptions,
) -> Result<RemoteSite, SiteError> {
    let endpoint = Endpoint {
        runtime: runtime.clone(),
        connector: Arc::clone(&connector),
        address: address.to_owned(),
        cluster,
        expected: None,
        options: options.clone(),
    };
    let welcome = Pool::new(Arc::new(endpoint)).greet().await?;
    let site = RemoteSite::new(runtime, connector, address, welcome.identity.clone(), options);
    site.inner.welcomed(welcome);
    Ok(site)
}

impl RemoteSite {
    /// Creates a client of the site `identity` at `address` (`HOST:PORT`), which need not be up yet. Another site at
    /// that address is refused.
    pub fn new(
        runtime: Runtime,
        connector: Arc<dyn Connector>,
        address: &str,
        identity: SiteIdentity,
        options: RemoteOptions,
    ) -> Self {
        let SiteIdentity { cluster, site, rack } = identity;
        let address = address.to_owned();
        let endpoint =
            Arc::new(Endpoint { runtime, connector, address, cluster, expected: Some(site), options });
        let control = ControlChannel::new(Arc::clone(&endpoint));
        let pool = Arc::new(Pool::new(endpoint));
        let (rack, load) = (Mutex::new(rack), Mutex::default());
        let inner = Inner { site, rack, load, pool, control, canceller: Canceller::default() };
        Self { inner: Arc::new(inner) }
    }
}

impl Inner {
    fn endpoint(&self) -> &Endpoint {
        self.pool.endpoint()
    }

    /// Takes over rack and load from the welcome of a new connection: the site may have been restarted.
    fn welcomed(&self, welcome: HelloReply) {
        *self.rack.lock() = welcome.identity.rack;
        *self.load.lock() = welcome.load;
    }

    fn note_load(&self, load: LoadReport) -> LoadReport {
        let mut newest = self.load.lock();
        if load.sequence > newest.sequence {
            *newest = load;
        }
        load
    }

    async fn open(&self, call: &Call) -> Result<Frames, SiteError> {
        let (exchange, body) = self.pool.exchange(call, |welcome| self.welcomed(welcome)).await?;
        Ok(Frames::new(exchange, body))
    }

    async fn open_combine(&self, request: &CombineRequest) -> Result<Frames, SiteError> {
        let (method, head, payload) = (Method::POST, convert::encode_combine(request), Bytes::new());
        self.open(&Call { method, path: COMBINE_PATH, head, payload, is_read: true, work: Duration::ZERO })
            .await
    }

    /// Sends a call that is answered by one frame, such as a write or a cancellation.
    async fn answer(&self, call: &Call) -> Result<LoadReport, SiteError> {
        let mut frames = self.open(call).await?;
        let received = frames.next(self.endpoint(), |item| (item == 0).then_some(0)).await?;
        let received = received.ok_or_else(|| self.endpoint().unavailable("the reply ended early"))?;
        let load = self.note_load(received.header.load);
        frames.finish(self.endpoint()).await;
        received.result.map(|_| load)
    }

    /// Returns the load of a control reply, or its error.
    fn control_outcome(
        &self,
        load: Option<messages::Load>,
        error: Option<messages::Error>,
    ) -> Result<LoadReport, SiteError> {
        let load = load.map_or_else(|| *self.load.lock(), |load| self.note_load(convert::load_report(load)));
        error.map_or(Ok(load), |error| Err(convert::site_error(error)))
    }
}

/// A combination in progress.
struct RemoteCombine {
    site: Arc<Inner>,
    request: CombineRequest,
    frames: Option<Frames>,
    /// Number of the next slice.
    number: u32,
    slices: u32,
}

impl RemoteCombine {
    async fn next(&mut self) -> Result<Bytes, SiteError> {
        let site = Arc::clone(&self.site);
        let mut frames = match self.frames.take() {
            Some(frames) => frames,
            None => site.open_combine(&self.request).await?,
        };
        let (number, request) = (self.number, &self.request);
        let expected_len = |item: u32| {
            let start = item.checked_mul(request.slice_len)?;
            (item == number).then(|| request.slice_len.min(request.len - start))
        };
        let received = frames.next(site.endpoint(), expected_len).await?;
        let received = received.ok_or_else(|| site.endpoint().unavailable("the combination ended early"))?;
        site.note_load(received.header.load);
        self.number += 1;
        if self.number == self.slices || received.result.is_err() {
            frames.finish(site.endpoint()).await;
        } else {
            self.frames = Some(frames);
        }
        received.result
    }
}

#[async_trait]
impl Site for RemoteSite {
    fn id(&self) -> SiteId {
        self.inner.site
    }

    fn rack(&self) -> RackId {
        self.inner.rack.lock().clone()
    }

    fn last_load(&self) -> LoadReport {
        *self.inner.load.lock()
    }

    fn read(&self, request: ReadRequest) -> ReadStream {
        RemoteRead::new(Arc::clone(&self.inner), request).replies()
    }

    async fn write(&self, request: WriteRequest) -> Result<LoadReport, SiteError> {
        let WriteRequest { chunk, payload, granule_crcs, priority } = request;
        let len = u32::try_from(payload.len()).ok().filter(|len| (1..=MAX_CHUNK_LEN).contains(len));
        let len = len.ok_or_else(|| {
            let len = payload.len();
            SiteError::BadRequest(format!("chunk {chunk} has {len} bytes; allowed are 1 to {MAX_CHUNK_LEN}"))
        })?;
        let granule_crcs =
            granule_crcs.unwrap_or_else(|| granule::granule_crcs(&payload, GRANULE_LEN)).to_vec();
        let head = WriteHead { chunk, priority, len, granule_crcs }.encode();
        let call = Call {
            method: Method::PUT,
            path: CHUNK_PATH,
            head,
            payload,
            is_read: false,
            work: Duration::ZERO,
        };
        self.inner.answer(&call).await
    }

    async fn delete(&self, request: DeleteRequest) -> Result<LoadReport, SiteError> {
        let mut load = self.last_load();
        for chunks in request.chunks.chunks(MAX_DELETED_CHUNKS) {
            let chunks = chunks.iter().map(|chunk| convert::chunk_bytes(*chunk)).collect();
            let message = messages::DeleteRequest { chunks, epoch: request.epoch.0 };
            let reply = self.inner.control.client().delete(message).await;
            let reply = reply.map_err(|status| error_of(status, self.inner.endpoint()))?.into_inner();
            load = self.inner.control_outcome(reply.load, reply.error)?;
        }
        Ok(load)
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let message = messages::ListRequest { from: from.map(convert::chunk_bytes), limit };
        let reply = self.inner.control.client().list(message).await;
        let reply = reply.map_err(|status| error_of(status, self.inner.endpoint()))?.into_inner();
        self.inner.control_outcome(reply.load, reply.error)?;
        Ok(ChunkPage {
            chunks: reply.chunks.into_iter().map(convert::chunk_info).collect::<Result<_, _>>()?,
            next: reply.next.map(|chunk| convert::chunk_id(&chunk)).transpose()?,
        })
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        let message = messages::VerifyRequest { chunk: convert::chunk_bytes(chunk) };
        let reply = self.inner.control.client().verify(message).await;
        let reply = reply.map_err(|status| error_of(status, self.inner.endpoint()))?.into_inner();
        self.inner.control_outcome(reply.load, reply.error)?;
        let info = reply.chunk.ok_or_else(|| self.inner.endpoint().unavailable("an empty reply"))?;
        convert::chunk_info(info)
    }

    async fn has(&self, chunks: Vec<ChunkId>) -> Result<Vec<bool>, SiteError> {
        let mut all = Vec::with_capacity(chunks.len());
        for batch in chunks.chunks(MAX_ASKED_CHUNKS) {
            let message =
                messages::HasRequest { chunks: batch.iter().copied().map(convert::chunk_bytes).collect() };
            let reply = match self.inner.control.client().has(message).await {
                Ok(reply) => reply.into_inner(),
                Err(status) if status.code() == tonic::Code::Unimplemented => {
                    return has_by_verifying(self, &chunks).await;
                }
                Err(status) => return Err(error_of(status, self.inner.endpoint())),
            };
            self.inner.control_outcome(reply.load, reply.error)?;
            if reply.has.len() != batch.len() {
                return Err(self.inner.endpoint().unavailable("it answered for other chunks"));
            }
            all.extend(reply.has);
        }
        Ok(all)
    }

    async fn products(&self, chunk: ChunkId, len: u32) -> Result<MultipleChecksums, SiteError> {
        let message = messages::ProductsRequest { chunk: convert::chunk_bytes(chunk), len };
        let reply = match self.inner.control.client().products(message).await {
            Ok(reply) => reply.into_inner(),
            Err(status) if status.code() == tonic::Code::Unimplemented => {
                return products_by_reading(self, chunk, len).await;
            }
            Err(status) => return Err(error_of(status, self.inner.endpoint())),
        };
        self.inner.control_outcome(reply.load, reply.error)?;
        let parts = <[u32; 8]>::try_from(reply.crc32c);
        let wrong = |_| self.inner.endpoint().unavailable("not the checksums of eight products");
        Ok(MultipleChecksums(parts.map_err(wrong)?))
    }

    fn combine(&self, request: CombineRequest) -> SliceStream {
        if let Err(error) = combine::check(&request) {
            return Box::pin(stream::once(async move { Err(error) }));
        }
        let slices = request.len.div_ceil(request.slice_len);
        let site = Arc::clone(&self.inner);
        let combination = RemoteCombine { site, request, frames: None, number: 0, slices };
        let next = |combination: Option<RemoteCombine>| async move {
            let mut combination =
                combination.filter(|combination| combination.number < combination.slices)?;
            let slice = combination.next().await;
            let continuation = slice.is_ok().then_some(combination);
            Some((slice, continuation))
        };
        stream::unfold(Some(combination), next).boxed()
    }

    async fn assemble(&self, request: AssembleRequest) -> Result<LoadReport, SiteError> {
        combine::check_assembled(&request)?;
        let (message, payload) = convert::encode_assemble(&request);
        let (path, head) = match request.windows.is_empty() {
            true => (ASSEMBLE_PATH, message),
            false => {
                let len = (message.len() as u32).to_le_bytes();
                (AMEND_PATH, [&len[..], &message].concat().into())
            }
        };
        let work = Duration::from_secs(combine::most_bytes(&request) / SLOWEST_TREE);
        let call = Call { method: Method::POST, path, head, payload, is_read: false, work };
        self.inner.answer(&call).await
    }

    async fn tend(&self, blocks: Vec<Tend>) -> Result<Vec<Tended>, SiteError> {
        let mut tended = Vec::with_capacity(blocks.len());
        for blocks in blocks.chunks(MAX_TENDED_BLOCKS) {
            let reply = self.inner.control.client().tend(convert::tend_message(blocks)).await;
            let reply = reply.map_err(|status| error_of(status, self.inner.endpoint()))?.into_inner();
            self.inner.control_outcome(reply.load, reply.error)?;
            if reply.blocks.len() != blocks.len() {
                return Err(self.inner.endpoint().unavailable("it answered for other cached blocks"));
            }
            tended.extend(convert::tended_blocks(reply.blocks));
        }
        Ok(tended)
    }

    async fn status(&self) -> Result<SiteStatus, SiteError> {
        let reply = self.inner.control.client().status(messages::StatusRequest {}).await;
        let reply = reply.map_err(|status| error_of(status, self.inner.endpoint()))?.into_inner();
        self.inner.control_outcome(reply.load, reply.error.clone())?;
        let status = convert::site_status(reply)?;
        *self.inner.rack.lock() = status.rack.clone();
        Ok(status)
    }

    fn watch(&self) -> LoadStream {
        watch::watch(Arc::clone(&self.inner))
    }
}

impl fmt::Debug for RemoteSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = &self.inner.endpoint().address;
        f.debug_struct("RemoteSite").field("site", &self.inner.site).field("address", address).finish()
    }
}

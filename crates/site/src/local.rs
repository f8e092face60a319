//! The site in this process: a chunk store behind the queue.
//!
//! Reads take one of two paths. When the store can serve a read from memory or the page cache, the replies are made
//! inside [`Site::read`] itself: no task, no channel, one allocation. Everything else waits in the queue and is
//! read by workers, of which there are at most [`QueueLimits::workers`]. Foreground reads always try the short
//! path, because a read that does not touch the disk need not wait for those that do. Repair and background reads
//! try it only when nothing waits.
//!
//! Writes are admitted against the queue's bounds and all go to the store at once, so that its group
//! commit turns many of them into one fdatasync. A verification is admitted like a background read, by the
//! bytes it has in memory at a time.
//!
//! Deadlines apply to what waits; a worker finishes what it has begun. Operations without a deadline of their own
//! (deletes, lists, verifications, products) time out after [`REPLY_TIMEOUT`], as they do at a remote site: services
//! ask all sites and wait for the slowest, so a hung disk must not delay work that concerns the others.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::stream::{self, Stream, StreamExt};
use striate_codec::MultipleChecksums;
use striate_core::{ChunkId, ChunkRange, Formats, LoadReport, RackId, SiteId};
use striate_runtime::{Instant, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::api::{
    AssembleRequest, BlockKeeper, ChunkPage, CombineRequest, DeleteRequest, LoadStream, Priority, ReadReply,
    ReadRequest, ReadStream, Site, SiteDirectory, SiteError, SiteStatus, SliceStream, Tend, Tended,
    WriteRequest, has_by_verifying, products_by_reading,
};
use crate::combine;
use crate::identity::SiteIdentity;
use crate::load::LoadMeter;
use crate::protocol::limits::REPLY_TIMEOUT;
use crate::pushes::Pushes;
use crate::queue::{BufferedBytes, Queue, QueueLimits, Ticket, Worker};
use crate::store::{ChunkDraft, ChunkInfo, ChunkStore, HeldResources, VERIFY_BYTES};

/// Longest read in bytes that may be served inline. Longer ones go through the queue even when they need no disk, so
/// that they do not block the event loop.
pub(crate) const INLINE_READ_BYTES: u64 = 2 << 20;

/// A site in this process. Cheap to clone.
#[derive(Clone)]
pub struct LocalSite {
    inner: Arc<Inner>,
}

struct Inner {
    runtime: Runtime,
    identity: SiteIdentity,
    store: Arc<dyn ChunkStore>,
    queue: Arc<Queue<QueuedRange>>,
    load: Arc<LoadMeter>,
    pushes: Arc<Pushes>,
    /// Weak, because the directory usually holds this site too.
    directory: OnceLock<Weak<dyn SiteDirectory>>,
    /// Set if this is a memory site.
    keeper: OnceLock<Arc<dyn BlockKeeper>>,
}

impl LocalSite {
    /// Creates a site over `store`.
    pub fn new(
        runtime: Runtime,
        identity: SiteIdentity,
        store: Arc<dyn ChunkStore>,
        limits: QueueLimits,
    ) -> Self {
        let queue = Queue::new(limits);
        let load =
            LoadMeter::new(runtime.clone(), Arc::clone(queue.counts()), limits.workers, Arc::clone(&store));
        let load = Arc::new(load);
        let pushes = Pushes::new(runtime.clone(), Arc::clone(&load));
        let (directory, keeper) = (OnceLock::new(), OnceLock::new());
        let inner = Inner { runtime, identity, store, queue, load, pushes, directory, keeper };
        Self { inner: Arc::new(inner) }
    }

    /// Sets the directory of the other sites, for the upstream parts of combinations. Later calls change nothing.
    pub fn set_directory(&self, directory: Weak<dyn SiteDirectory>) {
        let _ = self.inner.directory.set(directory);
    }

    /// Makes this a memory site, whose store is a cache. Later calls change nothing.
    pub fn set_keeper(&self, keeper: Arc<dyn BlockKeeper>) {
        let _ = self.inner.keeper.set(keeper);
    }

    /// Returns the identity of the site.
    pub fn identity(&self) -> &SiteIdentity {
        &self.inner.identity
    }

    /// Returns the store of the site.
    pub fn store(&self) -> &Arc<dyn ChunkStore> {
        &self.inner.store
    }

    /// Returns a load report with the next sequence number, for a reply.
    pub fn report_load(&self) -> LoadReport {
        self.inner.load.report()
    }

    /// As [`Site::write`], and drops `held` when the store is done, whether or not a caller still waits.
    pub(crate) async fn write_holding(
        &self,
        request: WriteRequest,
        held: HeldResources,
    ) -> Result<LoadReport, SiteError> {
        let WriteRequest { chunk, payload, granule_crcs, priority } = request;
        if payload.is_empty() {
            return Err(SiteError::BadRequest(format!("chunk {chunk} has no bytes")));
        }
        let (inner, len) = (&self.inner, payload.len() as u64);
        let write = |held| inner.store.write_holding(chunk, payload, granule_crcs, held);
        inner.store_admitted(priority, len, held, write).await
    }

    /// As [`Site::assemble`], treating `held` as [`LocalSite::write_holding`] does.
    pub(crate) async fn assemble_holding(
        &self,
        request: AssembleRequest,
        held: HeldResources,
    ) -> Result<LoadReport, SiteError> {
        let directory = self.inner.directory.get().and_then(Weak::upgrade);
        combine::check_assembled(&request)?;
        let (chunk, &CombineRequest { len, priority, .. }) = (request.chunk, &request.combination);
        let draft = self.inner.store.draft(chunk, len);
        let draft = draft.unwrap_or_else(|| {
            let (store, payload) = (Arc::clone(&self.inner.store), BytesMut::with_capacity(len as usize));
            Box::new(BufferedChunk { store, chunk, payload })
        });
        let sink = AssembledDraft { site: self.clone(), draft, len, priority, held };
        combine::assemble_into(Arc::new(self.clone()), directory, request, Box::new(sink)).await
    }
}

impl Inner {
    /// Reads the leading ranges that need no disk.
    fn read_inline(&self, request: &ReadRequest) -> Vec<ReadReply> {
        let total: u64 = request.ranges.iter().map(|range| u64::from(range.len)).sum();
        let may_skip_queue = request.priority == Priority::Foreground || self.queue.nothing_waits();
        if !may_skip_queue || total > INLINE_READ_BYTES {
            return Vec::new();
        }
        let mut ready = Vec::new();
        for (item, range) in request.ranges.iter().enumerate() {
            let Some(result) = self.store.try_read(*range) else { break };
            if ready.is_empty() {
                ready.reserve_exact(request.ranges.len());
            }
            ready.push(ReadReply { item, result, load: self.load.report() });
        }
        ready
    }

    /// Runs a write of `len` bytes if the queue's bounds admit it. The bytes count until the store is done: when a disk
    /// hangs, callers give up but their bytes stay in memory.
    async fn store_admitted<F>(
        &self,
        priority: Priority,
        len: u64,
        held: HeldResources,
        write: impl FnOnce(HeldResources) -> F,
    ) -> Result<LoadReport, SiteError>
    where
        F: Future<Output = Result<(), SiteError>>,
    {
        let held = held.and(self.queue.admit(priority, len)?);
        let written = {
            let _operation = self.load.begin_store_operation();
            write(held).await
        };
        written.map(|()| self.load.report())
    }

    /// Waits for the disk no longer than for a remote site.
    async fn in_time<T>(
        &self,
        operation: impl Future<Output = Result<T, SiteError>>,
    ) -> Result<T, SiteError> {
        let outcome = self.runtime.timeout(REPLY_TIMEOUT, operation).await;
        outcome.unwrap_or(Err(SiteError::Deadline))
    }

    /// Queues the ranges from index `first` on.
    fn read_queued(self: &Arc<Self>, request: &ReadRequest, first: usize) -> Result<QueuedRead, SiteError> {
        let (sender, replies) = unbounded_channel();
        let items = request.ranges.iter().enumerate().skip(first);
        let items: VecDeque<_> = items
            .map(|(item, range)| {
                let reply_to = ReplyTo { item, sender: Some(sender.clone()) };
                (u64::from(range.len), QueuedRange { range: *range, reply_to })
            })
            .collect();
        let outstanding = items.len();
        let (ticket, workers) = self.queue.push(request.priority, request.deadline, items)?;
        for worker in workers {
            self.runtime.spawn(serve(Arc::clone(self), worker));
        }
        let expiry = request.deadline.map(|deadline| {
            let runtime = self.runtime.clone();
            Box::pin(async move { runtime.sleep_until(deadline).await }) as Expiry
        });
        Ok(QueuedRead { replies, ticket, outstanding, expiry })
    }
}

/// A worker: reads queued ranges until none waits.
async fn serve(site: Arc<Inner>, mut worker: Worker<QueuedRange>) {
    while let Some(item) = worker.next(site.runtime.now()) {
        let QueuedRange { range, reply_to } = item.work;
        if item.expired {
            drop(item.permit);
            reply_to.send(Err(SiteError::Deadline), None);
            continue;
        }
        let result = {
            let _operation = site.load.begin_store_operation();
            match item.is_first {
                true => site.store.read_first(range).await,
                false => site.store.read(range).await,
            }
        };
        let len = result.as_ref().map_or(0, |bytes| bytes.len() as u64);
        site.load.has_read(len);
        let buffered = item.permit.buffer(len);
        reply_to.send(result, Some(buffered));
    }
}

/// A range in the queue.
struct QueuedRange {
    range: ChunkRange,
    reply_to: ReplyTo,
}

/// Where the reply goes. If dropped without one, it sends an error, so that no requester waits forever
/// for a worker that has ended.
struct ReplyTo {
    item: usize,
    sender: Option<UnboundedSender<QueueReply>>,
}

struct QueueReply {
    item: usize,
    result: Result<Bytes, SiteError>,
    /// Keeps the bytes counted until they are fetched.
    buffered: Option<BufferedBytes>,
}

impl ReplyTo {
    fn send(mut self, result: Result<Bytes, SiteError>, buffered: Option<BufferedBytes>) {
        self.deliver(result, buffered);
    }

    fn deliver(&mut self, result: Result<Bytes, SiteError>, buffered: Option<BufferedBytes>) {
        if let Some(sender) = self.sender.take() {
            // The send fails if the requester is gone; then the reply is not needed.
            let _ = sender.send(QueueReply { item: self.item, result, buffered });
        }
    }
}

impl Drop for ReplyTo {
    fn drop(&mut self) {
        self.deliver(Err(SiteError::Unavailable("the site has stopped".to_owned())), None);
    }
}

type Expiry = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The part of a read that waits in the queue.
struct QueuedRead {
    replies: UnboundedReceiver<QueueReply>,
    /// Dropped with the stream, which removes the items that no worker has begun.
    ticket: Ticket<QueuedRange>,
    outstanding: usize,
    expiry: Option<Expiry>,
}

/// The replies of a read: first those that were ready, then those from the queue.
///
/// The bytes of the last reply stay counted until the next one is polled, which a
/// connection does once it has sent them.
struct LocalRead {
    ready: std::vec::IntoIter<ReadReply>,
    queued: Option<(Arc<Inner>, QueuedRead)>,
    /// The bytes of all ready replies, or of the last reply from the queue.
    buffered: Option<BufferedBytes>,
}

impl Stream for LocalRead {
    type Item = ReadReply;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ReadReply>> {
        let this = self.get_mut();
        if let Some(reply) = this.ready.next() {
            return Poll::Ready(Some(reply));
        }
        this.buffered = None;
        let Some((site, queued)) = &mut this.queued else { return Poll::Ready(None) };
        if queued.outstanding == 0 {
            this.queued = None;
            return Poll::Ready(None);
        }
        queued.poll_next(context).map(|reply| {
            queued.outstanding -= 1;
            this.buffered = reply.buffered;
            Some(ReadReply { item: reply.item, result: reply.result, load: site.load.report() })
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let remaining = self.ready.len() + self.queued.as_ref().map_or(0, |(_, queued)| queued.outstanding);
        (remaining, Some(remaining))
    }
}

impl QueuedRead {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<QueueReply> {
        loop {
            if let Poll::Ready(reply) = self.replies.poll_recv(context) {
                return Poll::Ready(reply.expect("every queued range is answered before its sender is gone"));
            }
            let Some(expiry) = &mut self.expiry else { return Poll::Pending };
            if expiry.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.expiry = None;
            for range in self.ticket.take_waiting() {
                range.reply_to.send(Err(SiteError::Deadline), None);
            }
        }
    }
}

/// Returns the ready replies, followed by `error` for each of the other ranges.
fn refuse(ready: Vec<ReadReply>, count: usize, error: SiteError, load: LoadReport) -> LocalRead {
    let first = ready.len();
    let mut replies = ready;
    replies.extend((first..count).map(|item| ReadReply { item, result: Err(error.clone()), load }));
    LocalRead { ready: replies.into_iter(), queued: None, buffered: None }
}

fn has_passed(deadline: Option<Instant>, runtime: &Runtime) -> bool {
    deadline.is_some_and(|deadline| deadline <= runtime.now())
}

/// An assembled chunk, which is prepared for the store as it arrives.
struct AssembledDraft {
    site: LocalSite,
    draft: Box<dyn ChunkDraft>,
    len: u32,
    priority: Priority,
    held: HeldResources,
}

/// A chunk for a store that can prepare nothing before all of it has arrived.
struct BufferedChunk {
    store: Arc<dyn ChunkStore>,
    chunk: ChunkId,
    payload: BytesMut,
}

#[async_trait]
impl ChunkDraft for BufferedChunk {
    fn append(&mut self, bytes: &[u8]) {
        self.payload.extend_from_slice(bytes);
    }

    async fn store(self: Box<Self>, held: HeldResources) -> Result<(), SiteError> {
        let Self { store, chunk, payload } = *self;
        store.write_holding(chunk, payload.freeze(), None, held).await
    }
}

#[async_trait]
impl combine::Sink for AssembledDraft {
    fn append(&mut self, slice: &[u8]) {
        self.draft.append(slice);
    }

    async fn store(self: Box<Self>) -> Result<LoadReport, SiteError> {
        let Self { site, draft, len, priority, held } = *self;
        site.inner.store_admitted(priority, len.into(), held, |held| draft.store(held)).await
    }
}

#[async_trait]
impl Site for LocalSite {
    fn id(&self) -> SiteId {
        self.inner.identity.site
    }

    fn rack(&self) -> RackId {
        self.inner.identity.rack.clone()
    }

    fn last_load(&self) -> LoadReport {
        self.inner.load.peek()
    }

    fn read(&self, request: ReadRequest) -> ReadStream {
        let (inner, count) = (&self.inner, request.ranges.len());
        if has_passed(request.deadline, &inner.runtime) {
            return Box::pin(refuse(Vec::new(), count, SiteError::Deadline, inner.load.report()));
        }
        let ready = inner.read_inline(&request);
        let len = |reply: &ReadReply| reply.result.as_ref().map_or(0, |bytes| bytes.len() as u64);
        let ready_bytes = ready.iter().map(len).sum();
        let buffer = || Some(inner.queue.counts().buffer(ready_bytes));
        if ready.len() == count {
            let buffered = buffer();
            return Box::pin(LocalRead { ready: ready.into_iter(), queued: None, buffered });
        }
        let read = match inner.read_queued(&request, ready.len()) {
            Ok(queued) => {
                let queued = Some((Arc::clone(inner), queued));
                LocalRead { ready: ready.into_iter(), queued, buffered: buffer() }
            }
            Err(error) => refuse(ready, count, error, inner.load.report()),
        };
        Box::pin(read)
    }

    async fn write(&self, request: WriteRequest) -> Result<LoadReport, SiteError> {
        self.write_holding(request, HeldResources::default()).await
    }

    async fn delete(&self, request: DeleteRequest) -> Result<LoadReport, SiteError> {
        let inner = &self.inner;
        let held = HeldResources::default().and(inner.queue.admit(Priority::Foreground, 0)?);
        inner.in_time(inner.store.delete_holding(&request.chunks, request.epoch, held)).await?;
        Ok(inner.load.report())
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        self.inner.in_time(self.inner.store.list(from, limit)).await
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        let inner = &self.inner;
        let held = HeldResources::default().and(inner.queue.admit_bytes(Priority::Background, VERIFY_BYTES)?);
        let _operation = inner.load.begin_store_operation();
        inner.in_time(inner.store.verify_holding(chunk, held)).await
    }

    async fn has(&self, chunks: Vec<ChunkId>) -> Result<Vec<bool>, SiteError> {
        match self.inner.keeper.get() {
            Some(keeper) => Ok(keeper.has(&chunks)),
            None => has_by_verifying(self, &chunks).await,
        }
    }

    async fn products(&self, chunk: ChunkId, len: u32) -> Result<MultipleChecksums, SiteError> {
        self.inner.in_time(products_by_reading(self, chunk, len)).await
    }

    fn combine(&self, request: CombineRequest) -> SliceStream {
        let directory = self.inner.directory.get().and_then(Weak::upgrade);
        combine::evaluate(Arc::new(self.clone()), directory, request)
    }

    async fn assemble(&self, request: AssembleRequest) -> Result<LoadReport, SiteError> {
        self.assemble_holding(request, HeldResources::default()).await
    }

    async fn tend(&self, blocks: Vec<Tend>) -> Result<Vec<Tended>, SiteError> {
        let inner = &self.inner;
        match inner.keeper.get() {
            Some(keeper) => Ok(keeper.tend(&blocks, inner.runtime.now())),
            None => Err(SiteError::BadRequest("it is not a memory site".to_owned())),
        }
    }

    async fn status(&self) -> Result<SiteStatus, SiteError> {
        let identity = &self.inner.identity;
        Ok(SiteStatus {
            site: identity.site,
            cluster: identity.cluster,
            rack: identity.rack.clone(),
            store: self.inner.store.status(),
            load: self.inner.load.report(),
            read_bytes_per_s: Some(self.inner.load.read_bytes_per_s()),
            reads: Formats::NEWEST,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            cache: self.inner.keeper.get().map(|keeper| keeper.view()),
        })
    }

    fn watch(&self) -> LoadStream {
        let refuse = |error| stream::once(async move { Err(error) }).boxed();
        self.inner.pushes.watch().unwrap_or_else(refuse)
    }

    fn knows_its_load(&self) -> bool {
        true
    }
}

impl fmt::Debug for LocalSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalSite").field("identity", &self.inner.identity).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "local_tests.rs"]
mod tests;

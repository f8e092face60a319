//! The transport from one machine to a site on another. Every request and reply travels. The cancellation of a dropped
//! read travels too, before it removes the queued work at the site.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, Stream, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use striate_codec::MultipleChecksums;
use striate_core::{ChunkId, LoadReport, RackId, SiteId};
use striate_runtime::{Instant, Timer};
use striate_site::{
    AssembleRequest, ChunkInfo, ChunkPage, CombineRequest, DeleteRequest, LoadStream, ReadReply, ReadRequest,
    ReadStream, Site, SiteError, SiteStatus, SliceStream, Tend, Tended, Window, WriteRequest,
};

use crate::network::{Machine, Network};
use crate::trace::Event;

/// Time after which a site drops the work of a client that it can no longer hear.
pub const SILENCE: Duration = Duration::from_secs(15);

/// A site as seen from a machine of the network.
#[derive(Debug)]
pub struct DistantSite {
    way: SitePath,
    last_load: Arc<Mutex<LoadReport>>,
}

/// The path to a site.
#[derive(Clone, Debug)]
struct SitePath {
    network: Network,
    here: Machine,
    there: Machine,
    site: Arc<dyn Site>,
}

impl SitePath {
    /// Sends a small message from one end to the other.
    async fn travel(&self, from: Machine, to: Machine) -> Result<(), SiteError> {
        let Some(arrives) = self.network.send(from, to, 0) else {
            self.network.wait_in_vain().await;
            return Err(SiteError::Unavailable("it did not answer in time".to_owned()));
        };
        self.network.wait_until(arrives).await;
        Ok(())
    }
}

impl DistantSite {
    /// The transport from `here` to `site`, which runs on the machine `there`.
    pub fn new(network: Network, here: Machine, there: Machine, site: Arc<dyn Site>) -> Self {
        let last_load = Arc::new(Mutex::new(site.last_load()));
        Self { way: SitePath { network, here, there, site }, last_load }
    }

    /// Makes a round trip around an operation. `bytes` are the sizes of the request and the reply.
    async fn call<T, F>(
        &self,
        bytes: (u64, u64),
        operation: impl FnOnce(Arc<dyn Site>) -> F,
    ) -> Result<T, SiteError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, SiteError>> + Send + 'static,
    {
        let SitePath { network, here, there, site } = &self.way;
        let answer = network.carry(*here, *there, bytes, operation(Arc::clone(site))).await;
        answer.unwrap_or_else(|| Err(SiteError::Unavailable("it did not answer in time".to_owned())))
    }

    fn note(&self, load: &Result<LoadReport, SiteError>) {
        if let Ok(load) = load {
            note_load(&self.last_load, *load);
        }
    }
}

/// Keeps the newest report.
fn note_load(last: &Mutex<LoadReport>, load: LoadReport) {
    let mut last = last.lock();
    if load.sequence >= last.sequence {
        *last = load;
    }
}

#[async_trait]
impl Site for DistantSite {
    fn id(&self) -> SiteId {
        self.way.site.id()
    }

    fn rack(&self) -> RackId {
        self.way.site.rack()
    }

    fn last_load(&self) -> LoadReport {
        *self.last_load.lock()
    }

    fn read(&self, request: ReadRequest) -> ReadStream {
        let SitePath { network, here, there, .. } = &self.way;
        let count = request.ranges.len();
        network.trace().record(Event::Sent, u64::from(self.id().0), count as u64);
        let arrives = network.send(*here, *there, 0);
        let runtime = network.runtime();
        let progress = match arrives {
            Some(at) => Progress::Travelling { arrives: at, timer: runtime.timer(at), request },
            None => Progress::Lost,
        };
        Box::pin(DistantRead {
            way: self.way.clone(),
            last_load: Arc::clone(&self.last_load),
            progress,
            arriving: VecDeque::new(),
            head: None,
            outstanding: count,
        })
    }

    async fn write(&self, request: WriteRequest) -> Result<LoadReport, SiteError> {
        let bytes = request.payload.len() as u64;
        let load = self.call((bytes, 0), |site| async move { site.write(request).await }).await;
        self.note(&load);
        load
    }

    async fn delete(&self, request: DeleteRequest) -> Result<LoadReport, SiteError> {
        let load = self.call((0, 0), |site| async move { site.delete(request).await }).await;
        self.note(&load);
        load
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        self.call((0, 0), move |site| async move { site.list(from, limit).await }).await
    }

    async fn products(&self, chunk: ChunkId, len: u32) -> Result<MultipleChecksums, SiteError> {
        self.call((0, 0), move |site| async move { site.products(chunk, len).await }).await
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        self.call((0, 0), move |site| async move { site.verify(chunk).await }).await
    }

    async fn has(&self, chunks: Vec<ChunkId>) -> Result<Vec<bool>, SiteError> {
        self.call((0, 0), move |site| async move { site.has(chunks).await }).await
    }

    /// The request's way takes no time of its own: the first slice's way back is long enough.
    fn combine(&self, request: CombineRequest) -> SliceStream {
        let way = self.way.clone();
        let slices = way.site.combine(request).map(move |slice| {
            let (network, there, here) = (way.network.clone(), way.there, way.here);
            let bytes = slice.as_ref().map_or(0, |bytes| bytes.len() as u64);
            async move {
                let Some(arrives) = network.send(there, here, bytes) else {
                    network.wait_in_vain().await;
                    return Err(SiteError::Unavailable("it did not answer in time".to_owned()));
                };
                network.count_summed(there, bytes);
                network.wait_until(arrives).await;
                slice
            }
        });
        Box::pin(slices.buffered(8))
    }

    async fn assemble(&self, request: AssembleRequest) -> Result<LoadReport, SiteError> {
        let sent = request.windows.iter().map(|window| match window {
            Window::Sum(_) => 0,
            Window::Bytes { bytes, .. } => bytes.len() as u64,
        });
        let load = self.call((sent.sum(), 0), |site| async move { site.assemble(request).await }).await;
        self.note(&load);
        load
    }

    async fn tend(&self, blocks: Vec<Tend>) -> Result<Vec<Tended>, SiteError> {
        self.call((0, 0), move |site| async move { site.tend(blocks).await }).await
    }

    async fn status(&self) -> Result<SiteStatus, SiteError> {
        let status = self.call((0, 0), |site| async move { site.status().await }).await?;
        note_load(&self.last_load, status.load);
        Ok(status)
    }

    /// One report is in flight at a time. The one after it is the newest at its arrival.
    fn watch(&self) -> LoadStream {
        let (way, last_load) = (self.way.clone(), Arc::clone(&self.last_load));
        let asking = async move {
            way.travel(way.here, way.there).await?;
            let reports = way.site.watch();
            Ok(reports.and_then(move |report| {
                let (way, last_load) = (way.clone(), Arc::clone(&last_load));
                async move {
                    way.travel(way.there, way.here).await?;
                    note_load(&last_load, report);
                    Ok(report)
                }
            }))
        };
        stream::once(asking).try_flatten().boxed()
    }
}

/// State of a read.
enum Progress {
    /// The request is on its way to the site.
    Travelling { arrives: Instant, timer: Timer, request: ReadRequest },
    /// The site is answering.
    Serving(ReadStream),
    /// The site has answered everything.
    Served,
    /// The request or an answer never arrives.
    Lost,
}

/// Answers of a distant site, in the order in which they were sent.
struct DistantRead {
    way: SitePath,
    last_load: Arc<Mutex<LoadReport>>,
    progress: Progress,
    /// Answers in flight.
    arriving: VecDeque<(Instant, ReadReply)>,
    /// Fires when the first of them arrives.
    head: Option<Timer>,
    outstanding: usize,
}

impl DistantRead {
    /// Lets the request arrive, and sends back what the site has answered.
    fn advance(&mut self, context: &mut Context<'_>) {
        if let Progress::Travelling { timer, .. } = &mut self.progress {
            if Pin::new(timer).poll(context).is_pending() {
                return;
            }
            let Progress::Travelling { request, .. } = std::mem::replace(&mut self.progress, Progress::Lost)
            else {
                unreachable!("it was travelling");
            };
            self.progress = Progress::Serving(self.way.site.read(request));
        }
        while let Progress::Serving(stream) = &mut self.progress {
            match stream.as_mut().poll_next(context) {
                Poll::Pending => return,
                Poll::Ready(None) => self.progress = Progress::Served,
                Poll::Ready(Some(reply)) => self.send_back(reply),
            }
        }
    }

    fn send_back(&mut self, reply: ReadReply) {
        let bytes = reply.result.as_ref().map_or(0, |bytes| bytes.len() as u64);
        let SitePath { network, here, there, .. } = &self.way;
        match network.send(*there, *here, bytes) {
            // Answers share a connection: a later one waits for one that is retransmitted.
            Some(at) => {
                let at = self.arriving.back().map_or(at, |(last, _)| at.max(*last));
                self.arriving.push_back((at, reply));
            }
            // Nothing sent after it arrives either.
            None => self.progress = Progress::Lost,
        }
    }
}

impl Stream for DistantRead {
    type Item = ReadReply;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ReadReply>> {
        let this = &mut *self;
        if this.outstanding == 0 {
            return Poll::Ready(None);
        }
        this.advance(context);
        let Some((at, _)) = this.arriving.front() else { return Poll::Pending };
        let network = &this.way.network;
        let head = this.head.get_or_insert_with(|| network.runtime().timer(*at));
        if Pin::new(head).poll(context).is_pending() {
            return Poll::Pending;
        }
        this.head = None;
        let (_, reply) = this.arriving.pop_front().expect("it was there above");
        this.outstanding -= 1;
        note_load(&this.last_load, reply.load);
        let bytes = reply.result.as_ref().map_or(0, |bytes| bytes.len() as u64);
        network.trace().record(Event::Delivered, u64::from(this.way.site.id().0), bytes);
        Poll::Ready(Some(reply))
    }
}

/// Cancels a dropped read at the site once the cancellation has arrived there.
impl Drop for DistantRead {
    fn drop(&mut self) {
        let progress = std::mem::replace(&mut self.progress, Progress::Lost);
        if matches!(progress, Progress::Served | Progress::Lost) {
            return;
        }
        let SitePath { network, here, there, site } = self.way.clone();
        let runtime = network.runtime();
        network.trace().record(Event::Cancelled, u64::from(site.id().0), self.outstanding as u64);
        let taken_back_at = network.send(here, there, 0).unwrap_or(runtime.now() + SILENCE);
        let task_runtime = runtime.clone();
        runtime.spawn(async move {
            let serving = match progress {
                Progress::Travelling { arrives, request, .. } => {
                    task_runtime.sleep_until(arrives).await;
                    site.read(request)
                }
                Progress::Serving(stream) => stream,
                Progress::Served | Progress::Lost => return,
            };
            task_runtime.sleep_until(taken_back_at).await;
            drop(serving);
        });
    }
}

#[cfg(test)]
mod tests {
    use striate_core::{ChunkRange, ClusterId};
    use striate_runtime::{Runtime, run_in_virtual_time};
    use striate_site::{LocalSite, Priority, QueueLimits, SiteIdentity, transport_conformance};

    use super::*;
    use crate::NetworkModel;
    use crate::network::tests::{MODEL, machine, network};

    fn distant(
        runtime: &Runtime,
        network: &Network,
        store: Arc<dyn striate_site::ChunkStore>,
        limits: QueueLimits,
    ) -> Arc<dyn Site> {
        let identity = SiteIdentity { cluster: ClusterId(1), site: SiteId(1), rack: RackId("r".into()) };
        let site = Arc::new(LocalSite::new(runtime.clone(), identity, store, limits));
        Arc::new(DistantSite::new(network.clone(), machine(0, 0), machine(1, 0), site))
    }

    #[test]
    fn a_distant_site_conforms() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let model = NetworkModel { card_bytes_per_s: Some(1e9), loss: 0.01, ..MODEL };
            let network = network(&runtime, model);
            let of_make = runtime.clone();
            transport_conformance::run(runtime, |store, limits| {
                let site = distant(&of_make, &network, store, limits);
                async move { site }
            })
            .await;
        });
    }

    /// The cancellation takes half a round trip; the site finishes what it has begun by then.
    #[test]
    fn a_dropped_read_takes_its_work_out_of_the_queue() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let network = network(&runtime, MODEL);
            let store = Arc::new(transport_conformance::GatedStore::default());
            let site =
                distant(&runtime, &network, store.clone(), QueueLimits { workers: 1, ..Default::default() });
            let (first, second) = (transport_conformance::chunk(1), transport_conformance::chunk(2));
            store.hold(first);
            let read = |chunk| {
                let ranges = vec![ChunkRange { chunk, offset: 0, len: 1 }];
                let request = ReadRequest { ranges, priority: Priority::Foreground, deadline: None };
                runtime.spawn(site.read(request).collect::<Vec<_>>())
            };
            let (held, dropped) = (read(first), read(second));
            runtime.sleep(Duration::from_millis(1)).await;
            dropped.abort();
            assert!(dropped.await.is_err());
            assert_eq!(network_queue(&site).await, 1, "only what was begun is left");
            store.release(first);
            assert_eq!(held.await.unwrap().len(), 1);
            assert_eq!(store.take_begun(), [first]);
        });
    }

    async fn network_queue(site: &Arc<dyn Site>) -> u32 {
        site.status().await.unwrap().load.queue_requests
    }
}

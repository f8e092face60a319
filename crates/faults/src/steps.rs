//! The steps of the services: their requests to sites and to the metadata, one after the other.
//!
//! Each step is counted in the coverage table under its service, and may be the last one: a trap kills the process
//! that takes it, before or after, or the site that is asked. So a move or a repair ends at every place where it can
//! end.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use striate_codec::MultipleChecksums;
use striate_core::{ChunkId, LoadReport, RackId, SiteId};
use striate_meta::records::site::State;
use striate_meta::{Commit, Lease, LeaseId, MetaError, MetaStore, Row, ScanRange, Transaction, Watch};
use striate_runtime::Process;
use striate_site::{
    AssembleRequest, ChunkInfo, ChunkPage, CombineRequest, DeleteRequest, LoadStream, ReadRequest,
    ReadStream, Site, SiteError, SiteStatus, SliceStream, WriteRequest,
};

use super::cluster::Cluster;
use super::operation::Kind;

/// One transaction in this many of packing and sealing is delayed, by at most `LATE_BY`.
const LATE_EVERY: u64 = 4;
const LATE_BY: Duration = Duration::from_millis(1_500);
/// Poll interval while it is undecided whether a site dies.
const DECIDED_EVERY: Duration = Duration::from_micros(500);

tokio::task_local! {
    /// The service whose code is running.
    static SERVICE: Kind;
}

/// Runs the work of a service: its steps are counted under `kind`.
pub async fn as_service<F: Future>(kind: Kind, work: F) -> F::Output {
    SERVICE.scope(kind, work).await
}

/// What dies when a trap springs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashTarget {
    /// The process dies.
    Process,
    /// The asked site may die: the step waits for the decision.
    Site,
}

/// An armed trap.
#[derive(Clone, Copy, Debug)]
struct ArmedTrap {
    trap: CrashTarget,
    /// Service whose steps spring the trap; `None`: any service.
    service: Option<Kind>,
    /// The trap springs at this step from now on, counted from 1.
    after: u64,
}

/// The steps that the services of one process take. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Steps {
    cluster: Weak<Cluster>,
    traps: Arc<CrashTrap>,
    process: Process,
}

/// The trap of a process, which outlives restarts.
#[derive(Debug, Default)]
pub struct CrashTrap {
    set: Mutex<Option<ArmedTrap>>,
    /// The site whose fate is being decided.
    waiting_site: Mutex<Option<SiteId>>,
}

impl CrashTrap {
    /// Sets a trap at the `after`-th step from now on, counting only steps of `service` if one is given.
    pub fn set(&self, trap: CrashTarget, service: Option<Kind>, after: u64) {
        *self.set.lock() = Some(ArmedTrap { trap, service, after });
        *self.waiting_site.lock() = None;
    }

    /// Removes the trap; a waiting step proceeds.
    pub fn remove(&self) {
        *self.set.lock() = None;
        *self.waiting_site.lock() = None;
    }

    /// Returns the site at which a step waits.
    pub fn waiting_site(&self) -> Option<SiteId> {
        *self.waiting_site.lock()
    }

    /// Returns true if the trap has sprung.
    pub fn has_sprung(&self) -> bool {
        self.set.lock().is_none()
    }

    /// Counts a step, at a site or elsewhere; returns the trap if it springs.
    fn step(&self, service: Kind, site: Option<SiteId>) -> Option<CrashTarget> {
        let mut set = self.set.lock();
        let at = set.as_mut()?;
        if at.service.is_some_and(|trapped| trapped != service)
            || (at.trap != CrashTarget::Process && site.is_none())
        {
            return None;
        }
        at.after -= 1;
        if at.after > 0 {
            return None;
        }
        set.take().map(|set| set.trap)
    }
}

/// A running step; ends on drop.
struct Step {
    cluster: Weak<Cluster>,
    kinds: Vec<Kind>,
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(cluster) = self.cluster.upgrade() {
            self.kinds.iter().for_each(|&kind| cluster.coverage.end(kind));
        }
    }
}

impl Steps {
    /// Creates the steps of a process.
    pub fn new(cluster: &Arc<Cluster>, traps: Arc<CrashTrap>, process: Process) -> Self {
        Self { cluster: Arc::downgrade(cluster), traps, process }
    }

    /// Begins a step, which may be the process's last.
    async fn begin(&self, kinds: Vec<Kind>, site: Option<SiteId>) -> Step {
        if let Some(cluster) = self.cluster.upgrade() {
            kinds.iter().for_each(|&kind| cluster.coverage.begin(kind));
        }
        let step = Step { cluster: self.cluster.clone(), kinds };
        self.may_die(step.kinds[0], site).await;
        step
    }

    async fn may_die(&self, service: Kind, site: Option<SiteId>) {
        match self.traps.step(service, site) {
            None => {}
            Some(CrashTarget::Process) => {
                self.process.kill();
                std::future::pending().await
            }
            Some(CrashTarget::Site) => {
                *self.traps.waiting_site.lock() = site;
                while let Some(cluster) =
                    self.cluster.upgrade().filter(|_| self.traps.waiting_site().is_some())
                {
                    cluster.runtime.sleep(DECIDED_EVERY).await;
                }
            }
        }
    }

    /// Takes one step.
    async fn take<T>(&self, kind: Option<Kind>, site: Option<SiteId>, step: impl Future<Output = T>) -> T {
        let Some(kind) = kind else { return step.await };
        let begun = self.begin(vec![kind], site).await;
        let output = step.await;
        self.may_die(begun.kinds[0], site).await;
        output
    }

    /// Delays some steps of packing and sealing, as a busy process would. Between their reads and their transaction,
    /// others then overwrite, delete, move and repair, which would hardly ever happen at the usual pace.
    async fn hesitate(&self, kind: Option<Kind>) {
        let is_late = matches!(kind, Some(Kind::Pack | Kind::Seal));
        let Some(cluster) = self.cluster.upgrade().filter(|_| is_late) else { return };
        if cluster.draw(LATE_EVERY) == 0 {
            cluster.runtime.sleep(cluster.draw_time(Duration::ZERO, LATE_BY)).await;
        }
    }

    /// Returns the rows of the table for a read that takes a chunk off a site.
    fn kinds_of_read(&self, kind: Kind, site: SiteId) -> Vec<Kind> {
        let is_drained = || {
            let cluster = self.cluster.upgrade()?;
            Some(cluster.member_state(site)? == State::Draining)
        };
        match kind {
            Kind::Rebalance if is_drained() == Some(true) => vec![Kind::Move, Kind::Drain],
            Kind::Rebalance | Kind::Optimise => vec![Kind::Move, kind],
            kind => vec![kind],
        }
    }
}

/// Returns the service that takes the step, as a row of the table. Any step of a mover except a read counts as a
/// move, whatever its purpose.
fn current() -> Option<Kind> {
    let kind = SERVICE.try_with(|kind| *kind).ok()?;
    Some(if matches!(kind, Kind::Rebalance | Kind::Optimise) { Kind::Move } else { kind })
}

/// A site whose steps are counted for a process.
#[derive(Debug)]
pub struct SteppedSite {
    site: Arc<dyn Site>,
    steps: Steps,
}

impl SteppedSite {
    /// Wraps a site as a process sees it.
    pub fn new(site: Arc<dyn Site>, steps: Steps) -> Self {
        Self { site, steps }
    }
}

#[async_trait]
impl Site for SteppedSite {
    fn id(&self) -> SiteId {
        self.site.id()
    }

    fn rack(&self) -> RackId {
        self.site.rack()
    }

    fn last_load(&self) -> LoadReport {
        self.site.last_load()
    }

    fn read(&self, request: ReadRequest) -> ReadStream {
        let Ok(kind) = SERVICE.try_with(|kind| *kind) else { return self.site.read(request) };
        let (site, steps) = (Arc::clone(&self.site), self.steps.clone());
        let kinds = steps.kinds_of_read(kind, site.id());
        let reading = async move {
            let step = steps.begin(kinds, Some(site.id())).await;
            site.read(request).map(move |reply| {
                let _under_way = &step;
                reply
            })
        };
        stream::once(reading).flatten().boxed()
    }

    async fn write(&self, request: WriteRequest) -> Result<LoadReport, SiteError> {
        self.steps.take(current(), Some(self.id()), self.site.write(request)).await
    }

    async fn delete(&self, request: DeleteRequest) -> Result<LoadReport, SiteError> {
        self.steps.take(current(), Some(self.id()), self.site.delete(request)).await
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        self.steps.take(current(), Some(self.id()), self.site.list(from, limit)).await
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        self.steps.take(current(), Some(self.id()), self.site.verify(chunk)).await
    }

    fn combine(&self, request: CombineRequest) -> SliceStream {
        self.site.combine(request)
    }

    /// Takes a step at the first source, which sends, and then one at the site itself.
    async fn assemble(&self, request: AssembleRequest) -> Result<LoadReport, SiteError> {
        let Ok(kind) = SERVICE.try_with(|kind| *kind) else { return self.site.assemble(request).await };
        let source = request.combination.upstream.first().map(|upstream| upstream.site);
        let kinds = source.map_or_else(|| vec![kind], |source| self.steps.kinds_of_read(kind, source));
        let begun = self.steps.begin(kinds, source).await;
        self.steps.take(Some(begun.kinds[0]), Some(self.id()), self.site.assemble(request)).await
    }

    async fn products(&self, chunk: ChunkId, len: u32) -> Result<MultipleChecksums, SiteError> {
        self.steps.take(current(), Some(self.id()), self.site.products(chunk, len)).await
    }

    async fn status(&self) -> Result<SiteStatus, SiteError> {
        self.site.status().await
    }

    fn watch(&self) -> LoadStream {
        self.site.watch()
    }

    fn knows_its_load(&self) -> bool {
        self.site.knows_its_load()
    }
}

/// The metadata, with the commits of a process as steps.
#[derive(Debug)]
pub struct SteppedMeta {
    store: Arc<dyn MetaStore>,
    steps: Steps,
}

impl SteppedMeta {
    /// As a process sees it.
    pub fn new(store: Arc<dyn MetaStore>, steps: Steps) -> Self {
        Self { store, steps }
    }
}

#[async_trait]
impl MetaStore for SteppedMeta {
    async fn get(&self, key: &[u8]) -> Result<Option<Row>, MetaError> {
        self.store.get(key).await
    }

    async fn get_many(&self, keys: &[Bytes]) -> Result<Vec<Option<Row>>, MetaError> {
        self.store.get_many(keys).await
    }

    async fn scan(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        self.store.scan(range, limit).await
    }

    async fn scan_back(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        self.store.scan_back(range, limit).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Commit, MetaError> {
        self.steps.hesitate(current()).await;
        self.steps.take(current(), None, self.store.commit(transaction)).await
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<Lease, MetaError> {
        self.store.grant_lease(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        self.store.keep_alive(lease).await
    }

    async fn is_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        self.store.is_alive(lease).await
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.store.revoke_lease(lease).await
    }

    async fn watch(&self, prefix: &[u8]) -> Result<Watch, MetaError> {
        self.store.watch(prefix).await
    }
}

//! The steps of the services: what they ask of sites and of the metadata, one after the other.
//!
//! Each step is counted in the table of what was tried, under the service that takes it, and may be the last one: a trap
//! kills the process that takes it, before or after, or the site that is asked. So a move or a repair ends at every place
//! where it can end.

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

/// One of so many transactions of packing and sealing comes late, by this time at most.
const LATE_EVERY: u64 = 4;
const LATE_BY: Duration = Duration::from_millis(1_500);
/// Pause between two looks whether it is decided if a site dies.
const DECIDED_EVERY: Duration = Duration::from_micros(500);

tokio::task_local! {
    /// Which service the code belongs to that is being run.
    static SERVICE: Kind;
}

/// Runs the work of a service: its steps are counted under `kind`.
pub async fn as_service<F: Future>(kind: Kind, work: F) -> F::Output {
    SERVICE.scope(kind, work).await
}

/// What happens at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// The process dies.
    Process,
    /// The site that is asked may die: the step waits until that is decided.
    Site,
}

/// A trap that is set.
#[derive(Clone, Copy, Debug)]
struct Set {
    trap: Trap,
    /// Only in steps of this service; `None`: of any.
    service: Option<Kind>,
    /// It springs at this step from now on, counted from 1.
    after: u64,
}

/// The steps that the services of one process take. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Steps {
    cluster: Weak<Cluster>,
    traps: Arc<Traps>,
    process: Process,
}

/// The trap of a process, over all its lives.
#[derive(Debug, Default)]
pub struct Traps {
    set: Mutex<Option<Set>>,
    /// Whether this site dies is being decided.
    asked: Mutex<Option<SiteId>>,
}

impl Traps {
    /// Sets a trap at the `after`-th step from now on, of `service` only if one is given.
    pub fn set(&self, trap: Trap, service: Option<Kind>, after: u64) {
        *self.set.lock() = Some(Set { trap, service, after });
        *self.asked.lock() = None;
    }

    /// Takes the trap away; a step that waits goes on.
    pub fn remove(&self) {
        *self.set.lock() = None;
        *self.asked.lock() = None;
    }

    /// The site at which a step waits.
    pub fn asked(&self) -> Option<SiteId> {
        *self.asked.lock()
    }

    /// Whether it has sprung.
    pub fn has_sprung(&self) -> bool {
        self.set.lock().is_none()
    }

    /// A step is taken, at a site or not: the trap, if it springs.
    fn step(&self, service: Kind, site: Option<SiteId>) -> Option<Trap> {
        let mut set = self.set.lock();
        let at = set.as_mut()?;
        if at.service.is_some_and(|wanted| wanted != service) || (at.trap != Trap::Process && site.is_none())
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

/// A step under way, until dropped.
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
    /// Of a process.
    pub fn new(cluster: &Arc<Cluster>, traps: Arc<Traps>, process: Process) -> Self {
        Self { cluster: Arc::downgrade(cluster), traps, process }
    }

    /// A step begins. It may be the process's last.
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
            Some(Trap::Process) => {
                self.process.kill();
                std::future::pending().await
            }
            Some(Trap::Site) => {
                *self.traps.asked.lock() = site;
                while let Some(cluster) = self.cluster.upgrade().filter(|_| self.traps.asked().is_some()) {
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

    /// A process that is busy: between what packing or sealing reads and its transaction others overwrite, delete, move
    /// and repair. At its usual pace they would hardly ever come between.
    async fn hesitate(&self, kind: Option<Kind>) {
        let is_late = matches!(kind, Some(Kind::Pack | Kind::Seal));
        let Some(cluster) = self.cluster.upgrade().filter(|_| is_late) else { return };
        if cluster.draw(LATE_EVERY) == 0 {
            cluster.runtime.sleep(cluster.draw_time(Duration::ZERO, LATE_BY)).await;
        }
    }

    /// Under which rows a read counts that takes a chunk off a site.
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

/// The service that takes the step, as a row of the table: what movers do beside reading is a move, whatever it is for.
fn current() -> Option<Kind> {
    let kind = SERVICE.try_with(|kind| *kind).ok()?;
    Some(if matches!(kind, Kind::Rebalance | Kind::Optimise) { Kind::Move } else { kind })
}

/// A site, with the steps that a process takes at it.
#[derive(Debug)]
pub struct SteppedSite {
    site: Arc<dyn Site>,
    steps: Steps,
}

impl SteppedSite {
    /// As a process sees it.
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

    /// A step at a source first, which sends, and then at the site itself.
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

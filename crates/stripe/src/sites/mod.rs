//! The known sites, and which of them answer.
//!
//! A site that fails an operation as a whole (unreachable, suspect disk, deadline) is left out of plans until a probe
//! succeeds. Probes run only while a site has failed.
//!
//! The queue ahead of a request at a site is known from its replies, and from the reports it pushes while this
//! process reads ([`watching`]).

mod load;
mod transfer;
mod watching;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use striate_core::{ChunkRange, LoadReport, RackId, SiteId, Tier};
use striate_plan::{Candidate, RackSizes, SiteCost};
use striate_runtime::{Instant, Processors, Runtime};
use striate_site::{Priority, Site, SiteError};

use self::load::{Queue, SiteLoad, TypicalQueue};
use self::transfer::{AskTime, SiteTransfer};
pub use self::watching::PushView;
use self::watching::{WatchActivity, WatchState};

const PROBE_INTERVAL: Duration = Duration::from_millis(500);

/// The sites as this process knows them.
pub(crate) struct Sites {
    runtime: Runtime,
    table: RwLock<Arc<BTreeMap<SiteId, Entry>>>,
    usual: Arc<SharedEstimates>,
}

/// State shared by all sites, and of the machine that asks them.
struct SharedEstimates {
    queue: TypicalQueue,
    asking: AskTime,
    processors: Processors,
    watching: WatchActivity,
}

#[derive(Clone)]
struct Entry {
    site: Arc<dyn Site>,
    tier: Tier,
    health: Arc<Health>,
}

#[derive(Default)]
struct Health {
    /// Takes no writes: the disk is suspect or the site does not answer.
    no_writes: AtomicBool,
    /// Does not answer reads.
    no_reads: AtomicBool,
    draining: AtomicBool,
    probing: AtomicBool,
    load: SiteLoad,
    watched: WatchState,
    transfer: SiteTransfer,
}

/// One addend of o_j.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostPart {
    /// Meaning of the addend.
    pub name: String,
    /// Value, where asking an idle site costs 1.
    pub value: f64,
}

/// Snapshot of the sites.
pub(crate) struct SitesSnapshot {
    at: Instant,
    table: Arc<BTreeMap<SiteId, Entry>>,
    usual: Arc<SharedEstimates>,
}

/// Snapshot of site costs.
#[derive(Debug)]
pub(crate) struct Costs(Vec<(SiteId, SiteCost)>);

impl Costs {
    /// Returns the cost of a site. `None` if it does not answer, or was not included.
    pub(crate) fn of(&self, site: SiteId) -> Option<SiteCost> {
        let place = self.0.binary_search_by_key(&site, |(site, _)| *site).ok()?;
        Some(self.0[place].1)
    }
}

/// A read in flight at a site, until dropped.
pub(crate) struct InFlight {
    entry: Entry,
    usual: Arc<SharedEstimates>,
    /// No request waited there when it began.
    is_alone: bool,
    /// Bytes not received yet.
    bytes: u64,
}

impl InFlight {
    /// Records a reply to a range of `len` bytes, and its load report.
    pub(crate) fn hear(&mut self, len: u64, report: &LoadReport, now: Instant) {
        let received = len.min(self.bytes);
        self.bytes -= received;
        self.entry.health.load.note_received(received);
        self.entry.health.load.hear(report, now, &self.usual.queue);
    }

    /// Records that the first chunk, of `len` bytes, arrived after `took`.
    pub(crate) fn note_first(&self, len: u64, took: Duration) {
        if self.is_alone {
            self.usual.asking.note_first(len, took, &self.entry.health.transfer);
        }
    }

    /// Records that a further chunk, of `len` bytes, arrived `after` the one before it.
    pub(crate) fn note_next(&self, len: u64, after: Duration) {
        self.entry.health.transfer.note_next(len, after);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.entry.health.load.note_received(self.bytes);
        self.entry.health.load.end();
    }
}

impl SitesSnapshot {
    fn readable(&self, site: SiteId) -> Option<&Entry> {
        self.table.get(&site).filter(|entry| entry.is_readable())
    }

    /// Whether a site is known and answers reads.
    pub(crate) fn is_readable(&self, site: SiteId) -> bool {
        self.readable(site).is_some()
    }

    /// Estimates the queue of a site. `None` if it does not answer.
    pub(crate) fn queue(&self, site: SiteId) -> Option<Queue> {
        let entry = self.readable(site)?;
        let load = &entry.health.load;
        // A pushed report is newer than that of the last reply, and the time of its arrival is known.
        if !load.is_pushed() {
            load.hear(&entry.site.last_load(), self.at, &self.usual.queue);
        }
        Some(load.queue(self.at, &self.usual.queue))
    }

    /// Returns the cost of a site: asking it costs 1 if it is idle, and 1 more for each request ahead of this one.
    /// `None` if it does not answer.
    pub(crate) fn cost(&self, site: SiteId) -> Option<SiteCost> {
        let asking = 1.0 + self.queue(site)?.requests();
        let per_byte = self.readable(site)?.health.transfer.per_byte(&self.usual.asking);
        let decode_per_byte = self.usual.asking.decode_per_byte(self.usual.processors.busy());
        Some(SiteCost { asking, per_byte, decode_per_byte })
    }

    /// Seconds that a cost of 1 stands for; `None` until enough reads were measured.
    pub(crate) fn unit_s(&self) -> Option<f64> {
        self.usual.asking.unit_s()
    }

    /// Returns the current costs of those of the sites that answer, in the order of sites.
    pub(crate) fn costs(&self, site_ids: impl Iterator<Item = SiteId>) -> Costs {
        let mut sites: Vec<SiteId> = site_ids.collect();
        sites.sort_unstable();
        sites.dedup();
        Costs(sites.into_iter().filter_map(|site| Some((site, self.cost(site)?))).collect())
    }

    /// Returns the addends of o_j.
    pub(crate) fn cost_parts(&self, site: SiteId) -> Vec<CostPart> {
        let Some(Queue { reported, usual, own, .. }) = self.queue(site) else { return Vec::new() };
        let parts = [("request", 1.0), ("reported", reported), ("usual", usual), ("own", own)];
        parts.map(|(name, value)| CostPart { name: name.to_owned(), value }).into()
    }

    /// Returns the failure domain of a site.
    pub(crate) fn rack(&self, site: SiteId) -> Option<RackId> {
        self.table.get(&site).map(|entry| entry.site.rack())
    }

    /// Begins one read of `bytes` at a site. Returns the site, the guard of the read, and the requests ahead of it by
    /// the last report; `None` if the site does not answer.
    pub(crate) fn ask(&self, site: SiteId, bytes: u64) -> Option<(&dyn Site, InFlight, f64)> {
        let entry = self.readable(site)?;
        let queue = entry.health.load.queue(self.at, &self.usual.queue);
        entry.health.load.begin(bytes);
        let is_alone = queue.waiting == 0.0;
        let in_flight = InFlight { entry: entry.clone(), usual: Arc::clone(&self.usual), is_alone, bytes };
        Some((entry.site.as_ref(), in_flight, queue.requests()))
    }
}

/// A site and its state, as this process sees it.
#[derive(Clone, Debug)]
pub struct SiteView {
    /// Handle of the site.
    pub site: Arc<dyn Site>,
    /// True if the site answers reads.
    pub readable: bool,
    /// True if the site takes new chunks.
    pub writable: bool,
    /// True if the site takes no chunks because it is being drained.
    pub draining: bool,
}

impl Sites {
    pub(crate) fn new(runtime: Runtime, sites: Vec<Arc<dyn Site>>) -> Self {
        let table = RwLock::new(Arc::default());
        let processors = Processors::new(runtime.clone());
        let watching = WatchActivity::new(runtime.now());
        let usual = SharedEstimates {
            queue: TypicalQueue::default(),
            asking: AskTime::default(),
            processors,
            watching,
        };
        let known_sites = Self { runtime, table, usual: Arc::new(usual) };
        known_sites.replace(Tier::Disk, sites);
        known_sites
    }

    /// Replaces the sites of a tier. Sites that stay keep their state.
    pub(crate) fn replace(&self, tier: Tier, sites: Vec<Arc<dyn Site>>) {
        let mut table = self.table.write();
        let entry = |site: Arc<dyn Site>| {
            let existing = table.get(&site.id()).filter(|entry| Arc::ptr_eq(&entry.site, &site));
            let health = existing.map_or_else(Arc::default, |entry| entry.health.clone());
            (site.id(), Entry { site, tier, health })
        };
        let others = table.iter().filter(|(_, entry)| entry.tier != tier);
        let others = others.map(|(id, entry)| (*id, entry.clone()));
        let new = sites.into_iter().map(entry).chain(others).collect();
        *table = Arc::new(new);
    }

    /// Returns the sites of the memory tier that answer, in the order of their numbers.
    pub(crate) fn memory_sites(&self) -> Vec<Arc<dyn Site>> {
        let table = self.table.read();
        let live = table.values().filter(|entry| entry.tier == Tier::Memory && entry.is_readable());
        live.map(|entry| entry.site.clone()).collect()
    }

    /// Returns a snapshot of the sites.
    pub(crate) fn snapshot(&self) -> SitesSnapshot {
        SitesSnapshot {
            at: self.runtime.now(),
            table: self.table.read().clone(),
            usual: Arc::clone(&self.usual),
        }
    }

    /// Announces a read that is about to be planned, so that the sites' queues are watched for a while.
    pub(crate) fn watch(&self) {
        let now = self.runtime.now();
        if self.usual.watching.is_due(now) {
            let table = self.table.read().clone();
            table.values().for_each(|entry| watching::begin(&self.runtime, entry, &self.usual, now));
        }
    }

    /// Load reports that sites push.
    pub(crate) fn pushes(&self) -> PushView {
        self.usual.watching.view()
    }

    /// Returns a site, if it is known.
    pub(crate) fn get(&self, site: SiteId) -> Option<Arc<dyn Site>> {
        self.table.read().get(&site).map(|entry| entry.site.clone())
    }

    /// Returns a site that the caller needs.
    ///
    /// # Errors
    /// [`SiteError::Unavailable`] if it is not known.
    pub(crate) fn required(&self, site: SiteId) -> Result<Arc<dyn Site>, SiteError> {
        self.get(site).ok_or_else(|| SiteError::Unavailable("it was removed".to_owned()))
    }

    /// Reads one range of a chunk from a site, within `deadline`.
    ///
    /// # Errors
    /// Errors of the site; [`SiteError::Unavailable`] if it is not known.
    pub(crate) async fn read_range(
        &self,
        site: SiteId,
        range: ChunkRange,
        priority: Priority,
        deadline: Duration,
    ) -> Result<Bytes, SiteError> {
        let site = self.required(site)?;
        let read = self.runtime.timeout(deadline, site.read_range(range, priority)).await;
        read.unwrap_or(Err(SiteError::Deadline))
    }

    /// Returns all sites that keep durable chunks.
    pub(crate) fn views(&self) -> Vec<SiteView> {
        let view = |entry: &Entry| SiteView {
            site: entry.site.clone(),
            readable: entry.is_readable(),
            writable: entry.is_writable(),
            draining: entry.health.draining.load(Ordering::Relaxed),
        };
        self.table.read().values().filter(|entry| entry.tier == Tier::Disk).map(view).collect()
    }

    /// Returns the sites that take new chunks.
    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        let candidate = |entry: &Entry| {
            let load = entry.site.last_load();
            Candidate {
                site: entry.site.id(),
                rack: entry.site.rack(),
                free_bytes: load.free_bytes,
                queue_requests: load.queue_requests,
            }
        };
        let table = self.table.read();
        table
            .values()
            .filter(|entry| entry.tier == Tier::Disk && entry.is_writable())
            .map(candidate)
            .collect()
    }

    /// Number of sites in each rack that has sites for durable chunks, whether they answer or not.
    pub(crate) fn rack_sizes(&self) -> RackSizes {
        let mut sizes: BTreeMap<RackId, usize> = BTreeMap::new();
        let table = self.table.read();
        let durable = table.values().filter(|entry| entry.tier == Tier::Disk);
        durable.for_each(|entry| *sizes.entry(entry.site.rack()).or_default() += 1);
        sizes.into_values().collect()
    }

    /// Keeps new chunks off a site, or admits them again.
    pub(crate) fn set_draining(&self, site: SiteId, draining: bool) {
        if let Some(entry) = self.table.read().get(&site) {
            entry.health.draining.store(draining, Ordering::Relaxed);
        }
    }

    /// Records a failed operation. Only failures of the site as a whole count.
    pub(crate) fn note_failure(&self, site: SiteId, error: &SiteError) {
        let Some(entry) = self.table.read().get(&site).cloned() else { return };
        match error {
            SiteError::Suspect(_) => entry.health.no_writes.store(true, Ordering::Relaxed),
            SiteError::Unavailable(_) | SiteError::Deadline => {
                entry.health.no_writes.store(true, Ordering::Relaxed);
                entry.health.no_reads.store(true, Ordering::Relaxed);
            }
            _ => return,
        }
        if !entry.health.probing.swap(true, Ordering::AcqRel) {
            tracing::warn!(site = %site, %error, "site failed; it is not used until a probe of it succeeds");
            let runtime = self.runtime.clone();
            self.runtime.spawn(async move { probe_until_well(runtime, entry).await });
        }
    }
}

impl Entry {
    fn is_readable(&self) -> bool {
        !self.health.no_reads.load(Ordering::Relaxed)
    }

    fn is_writable(&self) -> bool {
        let health = &self.health;
        !health.no_writes.load(Ordering::Relaxed) && !health.draining.load(Ordering::Relaxed)
    }
}

/// Polls a site's status until it answers and its store takes writes. Ends too when the site was replaced: then only
/// this task still holds its state.
async fn probe_until_well(runtime: Runtime, entry: Entry) {
    while Arc::strong_count(&entry.health) > 1 {
        runtime.sleep(PROBE_INTERVAL).await;
        let status = runtime.timeout(PROBE_INTERVAL * 4, entry.site.status()).await;
        let Ok(Ok(status)) = status else { continue };
        // A site may answer while its disk does not.
        if status.store.silent.is_some() || status.store.vanished.is_some() {
            continue;
        }
        entry.health.no_reads.store(false, Ordering::Relaxed);
        if status.store.suspect.is_none() {
            // Cleared before the other flags: a failure recorded after them must start a new probe, or the site would
            // stay left out.
            entry.health.probing.store(false, Ordering::Release);
            entry.health.no_reads.store(false, Ordering::Release);
            entry.health.no_writes.store(false, Ordering::Release);
            tracing::info!(site = %entry.site.id(), "site has recovered");
            return;
        }
    }
}

//! The gateway's side of the tier: its settings, its sites, and the entry points of the read engine.
//!
//! A block that this process knows to be cached is read from the tier without a request to its home ([`crate::reads`]).
//! The home of any other block is asked ([`crate::homes`]) and may have this process fill the tier with it
//! ([`crate::filling`]).
//!
//! Nothing here can fail a read.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use striate_core::SiteId;
use striate_meta::records::Block;
use striate_plan::MemorySite;
use striate_plan::cache::splits::SPLIT_BYTES;
use striate_runtime::Runtime;
use striate_site::Site;
use striate_stripe::{
    BlockCache, CachedExplanation, CachedForms, Invalidation, MemoryBlock, ServedFrom, Span, StripeError,
    Stripes, WeakStripes,
};
use tokio::sync::Semaphore;

use crate::filling::PendingFills;
use crate::known_blocks::{KnownBlocks, Sites};
use crate::miss_reasons::MissReasons;
use crate::refill::RefillRate;
use crate::view::CacheCounts;

/// Settings of a gateway's use of the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// Memory that fills may take together, in bytes: blocks as they were read, and their splits. Fills beyond it are
    /// given up.
    pub fill_bytes: usize,
    /// Split size in bytes. Longer blocks are cut into several splits.
    pub split_bytes: u64,
    /// Whether writes fill the cache as reads do.
    pub fills_writes: bool,
    /// Rate at which blocks that lost splits are refilled, in bytes per second; 0 disables refilling.
    pub refill_bytes_per_s: u64,
}

impl Default for CacheSettings {
    /// 16 MiB of fills at once, splits of 1 MiB, writes not cached, and 64 MiB refilled per second.
    fn default() -> Self {
        Self {
            fill_bytes: 16 << 20,
            split_bytes: SPLIT_BYTES,
            fills_writes: false,
            refill_bytes_per_s: 64 << 20,
        }
    }
}

/// The tier as one process sees it. Cheap to clone.
#[derive(Clone)]
pub struct Cache {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) runtime: Runtime,
    /// Weak, because the stripe service holds this cache.
    pub(crate) stripes: WeakStripes,
    sites: Mutex<Tier>,
    pub(crate) known_blocks: KnownBlocks,
    pub(crate) miss_reasons: MissReasons,
    pub(crate) filling: Mutex<PendingFills>,
    /// Memory that fills may take together, in KiB. The semaphore holds what is free of it.
    pub(crate) kib_on_the_way: u32,
    pub(crate) on_the_way: Semaphore,
    pub(crate) split_bytes: u64,
    pub(crate) fills_writes: bool,
    pub(crate) refill_pace: RefillRate,
    pub(crate) counts: CacheCounts,
}

/// The sites of the tier.
#[derive(Default)]
struct Tier {
    /// Capacity of each site in bytes.
    bytes: BTreeMap<SiteId, u64>,
    /// The sites as they were when last checked.
    last: Arc<Sites>,
}

impl Cache {
    /// Creates the cache of the reads of `stripes`. Reads use it once there are memory sites ([`Cache::set_sites`]).
    pub fn new(stripes: &Stripes, settings: CacheSettings) -> Self {
        let kib_on_the_way =
            (settings.fill_bytes >> 10).clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize)) as u32;
        let inner = Inner {
            runtime: stripes.runtime().clone(),
            stripes: stripes.downgrade(),
            sites: Mutex::default(),
            known_blocks: KnownBlocks::new(),
            miss_reasons: MissReasons::new(),
            filling: Mutex::default(),
            kib_on_the_way,
            on_the_way: Semaphore::new(kib_on_the_way as usize),
            split_bytes: settings.split_bytes,
            fills_writes: settings.fills_writes,
            refill_pace: RefillRate::new(settings.refill_bytes_per_s),
            counts: CacheCounts::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Sets the sites of the tier and the capacity of each in bytes.
    pub fn set_sites(&self, sites: Vec<(Arc<dyn Site>, u64)>) {
        let Some(stripes) = self.inner.stripes.upgrade() else { return };
        self.inner.sites.lock().bytes = sites.iter().map(|(site, bytes)| (site.id(), *bytes)).collect();
        if !sites.is_empty() {
            stripes.set_cache(Arc::new(self.clone()));
        }
        stripes.set_memory_sites(sites.into_iter().map(|(site, _)| site).collect());
    }

    /// Total capacity of the sites in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.inner.sites.lock().bytes.values().sum()
    }

    /// Counters of the tier's work for reads.
    pub fn counts(&self) -> &CacheCounts {
        &self.inner.counts
    }

    /// Number of blocks that this process is to fill or is filling.
    pub fn filling(&self) -> usize {
        self.inner.filling.lock().len()
    }
}

impl BlockCache for Cache {
    fn find<'a>(&'a self, spans: &'a [Span]) -> BoxFuture<'a, CachedForms> {
        self.inner.find(spans).boxed()
    }

    fn explain<'a>(&'a self, spans: &'a [Span]) -> BoxFuture<'a, Vec<CachedExplanation>> {
        self.inner.explain(spans).boxed()
    }

    fn written(&self, block: &Block, bytes: &Bytes) {
        self.inner.written(block, bytes);
    }

    fn keep(
        &self,
        bytes: Bytes,
        most_splits: usize,
        parities: usize,
    ) -> BoxFuture<'_, Result<MemoryBlock, StripeError>> {
        self.inner.keep(bytes, most_splits, parities).boxed()
    }

    fn forget(&self, block: MemoryBlock, cause: Invalidation) {
        self.inner.forget(block, cause);
    }

    fn served(&self, span: &Span, bytes: &[Bytes], from: ServedFrom) {
        self.inner.after_read(span, bytes, from);
    }

    fn failed(&self, span: &Span, error: &StripeError) {
        self.inner.after_failure(span, error);
    }
}

impl Inner {
    /// Returns the sites, and which of them answer now.
    pub(crate) fn live(&self, stripes: &Stripes) -> Arc<Sites> {
        let answering: Vec<SiteId> = stripes.memory_sites().iter().map(|site| site.id()).collect();
        let mut tier = self.sites.lock();
        let now = tier.bytes.iter().map(|(&site, &bytes)| {
            let is_live = answering.binary_search(&site).is_ok();
            MemorySite { site, bytes, is_live }
        });
        // A site that returns with another size becomes the home of other blocks.
        if !now.clone().eq(tier.last.sites.iter().copied()) {
            let (sites, version) = (now.collect(), tier.last.version + 1);
            tier.last = Arc::new(Sites { sites, version });
        }
        tier.last.clone()
    }

    pub(crate) fn site(&self, site: SiteId) -> Option<Arc<dyn Site>> {
        let stripes = self.stripes.upgrade()?;
        stripes.memory_sites().into_iter().find(|live| live.id() == site)
    }

    pub(crate) fn spawn<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(Arc<Self>) -> F,
    ) {
        self.runtime.spawn(work(self.clone()));
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("filling", &self.filling()).finish_non_exhaustive()
    }
}

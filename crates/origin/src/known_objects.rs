//! What this gateway knows of objects, and which requests are asking for what it does not know.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, Weighter};
use striate_runtime::Instant;
use tokio::sync::watch;

use crate::evicted::EvictedNames;
use crate::head::Head;
use crate::origin_bucket::OriginBucket;

/// Known objects may take this fraction (one over it) of the memory tier's capacity.
const TIER_PART: u64 = 64;
/// Bounds of the memory for known objects in bytes.
const BOUNDS: (u64, u64) = (16 << 20, 512 << 20);
/// Estimated memory of one known object in bytes, which sizes the table.
const USUAL_BYTES: u64 = 400;

/// Maximum number of objects that are known not to be cacheable.
const MOST_UNCACHEABLE: usize = 10_000;
/// Time for which that is remembered.
const UNCACHEABLE_FOR: Duration = Duration::from_secs(60);

/// Name of an object of an origin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ObjectName(Bytes);

impl ObjectName {
    pub(crate) fn new(origin: &OriginBucket, key: &str) -> Self {
        Self([&origin.id[..], key.as_bytes()].concat().into())
    }
}

/// Knowledge of an object.
#[derive(Clone, Debug)]
pub(crate) struct CachedHead {
    pub(crate) head: Arc<Head>,
    /// Epoch of the object's fence when the origin was asked.
    pub(crate) epoch: u64,
    /// Time just before the origin was asked.
    pub(crate) asked_at: Instant,
}

#[derive(Clone)]
struct HeadWeighter;

impl Weighter<ObjectName, CachedHead> for HeadWeighter {
    fn weight(&self, name: &ObjectName, cached_head: &CachedHead) -> u64 {
        name.0.len() as u64 + cached_head.head.footprint()
    }
}

/// Remembers the names of evicted objects.
#[derive(Clone)]
struct EvictionListener(Arc<EvictedNames>);

impl Lifecycle<ObjectName, CachedHead> for EvictionListener {
    type RequestState = ();

    fn on_evict(&self, (): &mut (), name: ObjectName, _: CachedHead) {
        self.0.add(&name);
    }
}

/// Objects that are known or being asked for.
pub(crate) struct KnownObjects {
    /// Current bound of the memory for known objects, in bytes.
    most_bytes: AtomicU64,
    table: Cache<ObjectName, CachedHead, HeadWeighter, DefaultHashBuilder, EvictionListener>,
    evicted: Arc<EvictedNames>,
    /// Objects that cannot be cached, each with the time at which the origin was asked.
    uncacheable: Cache<ObjectName, Instant>,
    asking: Arc<Mutex<PendingLookups>>,
}

type PendingLookups = HashMap<(ObjectName, u64), watch::Receiver<()>>;

/// The one request that asks for an object. Other requests wait until it is dropped.
pub(crate) struct LookupGuard {
    asking: Arc<Mutex<PendingLookups>>,
    lookup_key: (ObjectName, u64),
    _done: watch::Sender<()>,
}

impl Drop for LookupGuard {
    fn drop(&mut self) {
        self.asking.lock().remove(&self.lookup_key);
    }
}

/// Whether the caller is to ask, or to wait for another request that does.
pub(crate) enum LookupTurn {
    Ask(LookupGuard),
    Wait(watch::Receiver<()>),
}

impl KnownObjects {
    pub(crate) fn new() -> Self {
        let (least, evicted) = (BOUNDS.0, Arc::new(EvictedNames::new()));
        let (count, remembering) = ((least / USUAL_BYTES) as usize, EvictionListener(evicted.clone()));
        let table = Cache::with(count, least, HeadWeighter, DefaultHashBuilder::default(), remembering);
        let (most_bytes, uncacheable) = (AtomicU64::new(least), Cache::new(MOST_UNCACHEABLE));
        Self { most_bytes, table, evicted, uncacheable, asking: Arc::default() }
    }

    /// Adjusts the bound to the capacity of the memory tier in bytes.
    pub(crate) fn follow_tier(&self, tier_bytes: u64) {
        let most = (tier_bytes / TIER_PART).clamp(BOUNDS.0, BOUNDS.1);
        if self.most_bytes.swap(most, Ordering::Relaxed) != most {
            self.table.set_capacity(most);
        }
    }

    pub(crate) fn get(&self, name: &ObjectName) -> Option<CachedHead> {
        self.table.get(name)
    }

    pub(crate) fn insert(&self, name: ObjectName, cached_head: CachedHead) {
        self.table.insert(name, cached_head);
    }

    /// Whether an object was known and evicted, as far as that is remembered.
    pub(crate) fn was_evicted(&self, name: &ObjectName) -> bool {
        self.evicted.has(name)
    }

    /// Forgets an object. Returns whether it was known.
    pub(crate) fn forget(&self, name: &ObjectName) -> bool {
        self.uncacheable.remove(name);
        self.table.remove(name).is_some()
    }

    /// Records that an object cannot be cached: its origin, asked at `asked_at`, sent no strong ETag.
    pub(crate) fn note_uncacheable(&self, name: &ObjectName, asked_at: Instant) {
        self.uncacheable.insert(name.clone(), asked_at);
    }

    /// Whether an object cannot be cached, as far as that is remembered.
    pub(crate) fn is_uncacheable(&self, name: &ObjectName, now: Instant) -> bool {
        let asked_at = self.uncacheable.get(name);
        asked_at.is_some_and(|asked_at| now.saturating_duration_since(asked_at) < UNCACHEABLE_FOR)
    }

    /// Returns whether the caller asks or waits. Only requests that read the same epoch share a response: it was asked
    /// for after the last write.
    pub(crate) fn turn(&self, name: &ObjectName, epoch: u64) -> LookupTurn {
        let lookup_key = (name.clone(), epoch);
        let mut asking = self.asking.lock();
        if let Some(waiting) = asking.get(&lookup_key) {
            return LookupTurn::Wait(waiting.clone());
        }
        let (done, waiting) = watch::channel(());
        asking.insert(lookup_key.clone(), waiting);
        LookupTurn::Ask(LookupGuard { asking: self.asking.clone(), lookup_key, _done: done })
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};
    use striate_runtime::Runtime;

    use super::*;

    /// Learns `count` objects of at least one KiB each. Returns how many of them are still known, and how many count as
    /// evicted.
    fn known_of(count: u64, tier_bytes: u64) -> (usize, usize) {
        let (objects, runtime) = (KnownObjects::new(), Runtime::deterministic(1, Duration::ZERO));
        objects.follow_tier(tier_bytes);
        let value = "v".repeat(1_000).parse::<http::HeaderValue>().unwrap();
        let etag = http::HeaderValue::from_static("\"e\"");
        let length = http::HeaderValue::from_static("1");
        let headers = HeaderMap::from_iter([
            (http::header::ETAG, etag),
            (http::header::CONTENT_LENGTH, length),
            (http::HeaderName::from_static("x-amz-meta-a"), value),
        ]);
        let head = Arc::new(Head::of(StatusCode::OK, &headers).unwrap());
        let name = |number: u64| ObjectName(Bytes::copy_from_slice(&number.to_be_bytes()));
        for number in 0..count {
            let known = CachedHead { head: head.clone(), epoch: 0, asked_at: runtime.now() };
            objects.insert(name(number), known);
        }
        let (known, others): (Vec<_>, Vec<_>) =
            (0..count).map(name).partition(|name| objects.get(name).is_some());
        (known.len(), others.iter().filter(|name| objects.was_evicted(name)).count())
    }

    #[tokio::test(start_paused = true)]
    async fn beside_a_larger_tier_more_is_known_and_what_is_evicted_is_remembered() {
        let (known, evicted) = known_of(30_000, 0);
        assert!((8_000..14_000).contains(&known), "{known}");
        assert_eq!(evicted, 30_000 - known);
        assert_eq!(known_of(30_000, 8 << 30), (30_000, 0));
    }
}

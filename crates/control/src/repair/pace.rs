//! The pace of repair, and the choice of the sites that do the work.
//!
//! Every site gives repair a rate: bytes per second that it reads and sends, or receives and writes. While more
//! requests wait at a site than its workers can serve, users' requests among them, it gives only the floor, so that
//! repair makes progress however busy the store is (design.md §6). A repair reserves the time that its bytes take at
//! each of its sites and starts when all of them are free. Reservations make a site expensive, as its queue does:
//! plans go to the others, and the work spreads over all sources and targets.
//!
//! Among sites of equal cost, repairs take the least recently selected one, both as the *requestor* that makes a lost
//! chunk, and as the *repairer* that adds up what its rack has (ECWide §4.1, [`LeastRecentlySelected`]). Otherwise
//! repairs that start together, which see no queues yet, would all choose the same site of a rack. Requestors and
//! repairers have separate lists: each repair selects a repairer in every rack, and in one list a requestor's rack
//! would never change (docs/src/ecwide.md). Recording a choice is O(1); a choice compares the sites that may be
//! chosen.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use striate_core::SiteId;
use striate_plan::{Candidate, CombineTree, LeastRecentlySelected, draw_order};
use striate_runtime::Instant;
use striate_stripe::Stripes;

/// Rate limits of repair at each site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairLimits {
    /// Bytes per second while no requests wait there. Not 0.
    pub rate_bytes_per_s: u64,
    /// Bytes per second while requests wait there. Not 0.
    pub floor_bytes_per_s: u64,
}

impl Default for RepairLimits {
    fn default() -> Self {
        Self { rate_bytes_per_s: 64 << 20, floor_bytes_per_s: 4 << 20 }
    }
}

/// Weight of a target's backlog: each chunk for which its rate is spent counts as this many requests.
const TARGET_WEIGHT: f64 = 16.0;

/// Reservations at sites.
#[derive(Debug, Default)]
pub struct RepairPace {
    /// Rate limits; `None`: unlimited.
    limits: Option<RepairLimits>,
    slots: Mutex<BTreeMap<SiteId, Slot>>,
    choice: RepairChoice,
    requestors: Mutex<LeastRecentlySelected<SiteId>>,
    repairers: Mutex<LeastRecentlySelected<SiteId>>,
}

/// How repairs choose among sites of equal cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RepairChoice {
    /// The least recently selected site.
    #[default]
    LeastRecent,
    /// A random requestor, and the first repairer: for comparison.
    Any,
}

/// Reservations at one site.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Time until which the site's rate is spent.
    free_at: Instant,
    /// Requests of repairs in progress there.
    under_way: u32,
}

/// A repair in progress at some sites, until dropped.
pub(crate) struct RepairPermit<'a> {
    pace: &'a RepairPace,
    sites: Vec<SiteId>,
}

impl Drop for RepairPermit<'_> {
    fn drop(&mut self) {
        let mut slots = self.pace.slots.lock();
        for site in &self.sites {
            if let Some(slot) = slots.get_mut(site) {
                slot.under_way -= 1;
            }
        }
    }
}

impl RepairPace {
    /// Creates a pace without limits, for a heal on request.
    pub fn unlimited() -> Self {
        Self::default()
    }

    /// Creates a pace with limits.
    pub(crate) fn limited(limits: RepairLimits) -> Self {
        Self { limits: Some(limits), ..Self::default() }
    }

    /// Sets the choice among sites of equal cost.
    pub fn choosing(self, choice: RepairChoice) -> Self {
        Self { choice, ..self }
    }

    /// Orders the candidates by preference for making lost chunks. Sites with less than half the room of the roomiest
    /// one come last, so that disks fill evenly.
    pub(crate) fn order<'a>(&self, stripes: &Stripes, candidates: &'a [Candidate]) -> Vec<&'a Candidate> {
        let mut order = draw_order(&mut stripes.runtime().rng(), candidates);
        if self.choice == RepairChoice::LeastRecent {
            let most = candidates.iter().map(|candidate| candidate.free_bytes).max().unwrap_or(0);
            let selected = self.requestors.lock();
            order.sort_by_cached_key(|candidate| {
                let is_full = candidate.free_bytes < most / 2;
                (is_full, candidate.queue_requests, selected.last_selection(&candidate.site))
            });
        }
        order
    }

    /// Returns the cost of asking a site for its rack's sum. `cost` is the cost of reading from it.
    pub(crate) fn repairer_cost(&self, site: SiteId, cost: f64) -> f64 {
        match self.choice {
            RepairChoice::LeastRecent => cost.floor() + self.repairers.lock().recency(&site),
            RepairChoice::Any => cost,
        }
    }

    /// Records the sites that do the work of a repair: the root of its tree, and those that add up a rack's sum.
    pub(crate) fn note(&self, tree: &CombineTree) {
        fn note_repairers(selected: &mut LeastRecentlySelected<SiteId>, tree: &CombineTree) {
            for from in tree.upstream.iter().filter(|from| !from.upstream.is_empty()) {
                selected.note(from.site);
                note_repairers(selected, from);
            }
        }
        self.requestors.lock().note(tree.site);
        note_repairers(&mut self.repairers.lock(), tree);
    }

    /// Returns the cost of reading a chunk of `len` bytes from a site. An idle site costs 1; each queued request adds
    /// 1, and so does each chunk of that length for which the site's rate is spent.
    pub(crate) fn cost(&self, stripes: &Stripes, site: SiteId, len: u32) -> f64 {
        let Some(handle) = stripes.site(site) else { return f64::MAX };
        1.0 + f64::from(handle.last_load().queue_requests) + self.backlog(stripes, site, len)
    }

    /// Returns the sites that take chunks of `len` bytes, with reservations counted as part of their queues. These
    /// weigh heavily: sources are few, but almost every site can be the target that evens out the work.
    pub(crate) fn candidates(&self, stripes: &Stripes, len: u32) -> Vec<Candidate> {
        let mut candidates = stripes.candidates();
        for candidate in &mut candidates {
            let backlog = (TARGET_WEIGHT * self.backlog(stripes, candidate.site, len)).round() as u32;
            candidate.queue_requests = candidate.queue_requests.saturating_add(backlog);
        }
        candidates
    }

    /// Returns for how many chunks of that length a site's rate is spent.
    fn backlog(&self, stripes: &Stripes, site: SiteId, len: u32) -> f64 {
        let Some(limits) = self.limits else { return 0.0 };
        let slot = self.slots.lock().get(&site).copied();
        let spent = slot.map(|slot| slot.free_at.saturating_duration_since(stripes.runtime().now()));
        let chunk = u64::from(len.max(1)) as f64 / limits.rate_bytes_per_s.max(1) as f64;
        spent.unwrap_or_default().as_secs_f64() / chunk
    }

    /// Reserves the given number of chunks of `len` bytes at each of the sites and waits until they are free.
    pub(crate) async fn turn(
        &self,
        stripes: &Stripes,
        loads: Vec<(SiteId, u32)>,
        len: u32,
    ) -> RepairPermit<'_> {
        let Some(limits) = self.limits else { return RepairPermit { pace: self, sites: Vec::new() } };
        let begin = self.reserve(stripes, &loads, len, limits);
        stripes.runtime().sleep_until(begin).await;
        let sites: Vec<SiteId> = loads.into_iter().map(|(site, _)| site).collect();
        let mut slots = self.slots.lock();
        for site in &sites {
            if let Some(slot) = slots.get_mut(site) {
                slot.under_way += 1;
            }
        }
        drop(slots);
        RepairPermit { pace: self, sites }
    }

    /// Reserves the work, and returns when it may start.
    fn reserve(&self, stripes: &Stripes, loads: &[(SiteId, u32)], len: u32, limits: RepairLimits) -> Instant {
        let now = stripes.runtime().now();
        let mut slots = self.slots.lock();
        let mut begin = now;
        for &(site, chunks) in loads {
            let slot = slots.entry(site).or_insert(Slot { free_at: now, under_way: 0 });
            begin = begin.max(slot.free_at);
            let rate = match others_wait(stripes, site, slot.under_way) {
                true => limits.floor_bytes_per_s.min(limits.rate_bytes_per_s),
                false => limits.rate_bytes_per_s,
            };
            let takes = Duration::from_secs_f64(f64::from(chunks) * f64::from(len) / rate.max(1) as f64);
            slot.free_at = slot.free_at.max(now) + takes;
        }
        begin
    }
}

/// Returns whether more requests than the site serves at a time wait there, not counting `own` requests of repairs.
fn others_wait(stripes: &Stripes, site: SiteId, own: u32) -> bool {
    let load = stripes.site(site).map(|site| site.last_load()).unwrap_or_default();
    load.queue_requests.saturating_sub(own) > load.workers
}

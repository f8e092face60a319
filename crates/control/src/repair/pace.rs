//! How fast repair may be, and whom it asks.
//!
//! Every site gives repair a rate: so many bytes in a second that it reads and sends, or is sent and writes. While more requests wait at
//! a site than its workers can serve, users' requests among them, it gives the floor only, so that a repair goes on
//! however busy the store is (design.md §6). A repair reserves the time that its bytes take at each of its sites and begins
//! when all of them are free. What is reserved at a site already makes it dear, as its queue does: plans go to the others,
//! and the work spreads over all sources and targets.
//!
//! Of sites that cost as much, the one that repairs have chosen longest ago is chosen: as the *requestor* that makes a lost
//! chunk, and as the *repairer* that adds up what its rack has (ECWide §4.1, [`LeastRecentlySelected`]). Repairs that begin
//! together see no queues yet and would all choose the same site of a rack otherwise. Requestors and repairers are lists of their own:
//! each repair selects a repairer in every rack, and in one list a requestor's rack would stay the same for ever (docs/src/ecwide.md).
//! Taking note of a choice is O(1); a choice compares the sites that may be chosen.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use striate_core::SiteId;
use striate_plan::{Candidate, CombineTree, LeastRecentlySelected, draw_order};
use striate_runtime::Instant;
use striate_stripe::Stripes;

/// Bytes in a second at each site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairLimits {
    /// While nobody waits there. Not 0.
    pub rate_bytes_per_s: u64,
    /// While somebody does. Not 0.
    pub floor_bytes_per_s: u64,
}

impl Default for RepairLimits {
    fn default() -> Self {
        Self { rate_bytes_per_s: 64 << 20, floor_bytes_per_s: 4 << 20 }
    }
}

/// A chunk for which a target's rate is spent keeps as much away from it as so many requests.
const TARGET_WEIGHT: f64 = 16.0;

/// What is reserved at sites.
#[derive(Debug, Default)]
pub struct RepairPace {
    /// `None`: as fast as it goes.
    limits: Option<RepairLimits>,
    slots: Mutex<BTreeMap<SiteId, Slot>>,
    choice: RepairChoice,
    requestors: Mutex<LeastRecentlySelected<SiteId>>,
    repairers: Mutex<LeastRecentlySelected<SiteId>>,
}

/// Which of several sites that cost as much does the work of a repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RepairChoice {
    /// The one chosen longest ago.
    #[default]
    LeastRecent,
    /// Any requestor by chance, and the first repairer: for comparison.
    Any,
}

/// One site.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Until then its rate is spent.
    free_at: Instant,
    /// Requests of repairs that are under way there.
    under_way: u32,
}

/// A repair under way at some sites, until dropped.
pub(crate) struct Turn<'a> {
    pace: &'a RepairPace,
    sites: Vec<SiteId>,
}

impl Drop for Turn<'_> {
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
    /// As fast as it goes: for a heal that somebody waits for.
    pub fn unlimited() -> Self {
        Self::default()
    }

    /// Within limits.
    pub(crate) fn limited(limits: RepairLimits) -> Self {
        Self { limits: Some(limits), ..Self::default() }
    }

    /// The same with another choice among sites that cost as much.
    pub fn choosing(self, choice: RepairChoice) -> Self {
        Self { choice, ..self }
    }

    /// The candidates in the order in which they are to make lost chunks. Sites with less than half the room of the roomiest one
    /// come last, so that disks fill evenly.
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

    /// What asking a site for its rack's sum costs, where `cost` is what it costs in itself.
    pub(crate) fn repairer_cost(&self, site: SiteId, cost: f64) -> f64 {
        match self.choice {
            RepairChoice::LeastRecent => cost.floor() + self.repairers.lock().recency(&site),
            RepairChoice::Any => cost,
        }
    }

    /// Takes note of who does the work of a repair: the root of its tree, and who adds up a rack's sum.
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

    /// What reading a chunk of `len` bytes from a site costs, where 1 is a site with nothing to do: 1 more for each
    /// request before it, and for each chunk of that length for which its rate is spent.
    pub(crate) fn cost(&self, stripes: &Stripes, site: SiteId, len: u32) -> f64 {
        let Some(handle) = stripes.site(site) else { return f64::MAX };
        1.0 + f64::from(handle.last_load().queue_requests) + self.backlog(stripes, site, len)
    }

    /// Sites that take chunks of `len` bytes, with what is reserved there as a part of their queue. It counts much: sources
    /// are few, but almost every site can be the target that evens the work out.
    pub(crate) fn candidates(&self, stripes: &Stripes, len: u32) -> Vec<Candidate> {
        let mut candidates = stripes.candidates();
        for candidate in &mut candidates {
            let backlog = (TARGET_WEIGHT * self.backlog(stripes, candidate.site, len)).round() as u32;
            candidate.queue_requests = candidate.queue_requests.saturating_add(backlog);
        }
        candidates
    }

    /// For how many chunks of that length a site's rate is spent.
    fn backlog(&self, stripes: &Stripes, site: SiteId, len: u32) -> f64 {
        let Some(limits) = self.limits else { return 0.0 };
        let slot = self.slots.lock().get(&site).copied();
        let spent = slot.map(|slot| slot.free_at.saturating_duration_since(stripes.runtime().now()));
        let chunk = u64::from(len.max(1)) as f64 / limits.rate_bytes_per_s.max(1) as f64;
        spent.unwrap_or_default().as_secs_f64() / chunk
    }

    /// Reserves so many chunks of `len` bytes at each of the sites and waits until they are free.
    pub(crate) async fn turn(&self, stripes: &Stripes, loads: Vec<(SiteId, u32)>, len: u32) -> Turn<'_> {
        let Some(limits) = self.limits else { return Turn { pace: self, sites: Vec::new() } };
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
        Turn { pace: self, sites }
    }

    /// When a repair that reserves now may begin.
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

/// Whether more requests than the site serves at a time are there, besides those of repairs.
fn others_wait(stripes: &Stripes, site: SiteId, own: u32) -> bool {
    let load = stripes.site(site).map(|site| site.last_load()).unwrap_or_default();
    load.queue_requests.saturating_sub(own) > load.workers
}

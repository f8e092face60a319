//! The pool grouped by racks and sites: which rack holds which part of a wide stripe, and what it supplies for that
//! part.

use std::cmp::Reverse;
use std::collections::HashMap;

use striate_core::{RackId, SiteId, StripeId};

use super::{NotSealed, OpenPartition, RackLack};
use crate::placement::Candidate;
use crate::wide::geometry::{RackPart, WideGeometry};

/// Which racks are preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RackPreference {
    /// The racks with the most partitions.
    Fullest,
    /// The racks with overdue partitions, however many they have.
    Overdue,
}

/// The racks that have open partitions or sites for parities.
pub(super) struct Racks<'a> {
    pool: &'a [OpenPartition],
    racks: Vec<Rack<'a>>,
}

struct Rack<'a> {
    id: &'a RackId,
    sites: Vec<Site>,
    /// Number of open partitions.
    waiting: usize,
    /// Number of overdue open partitions.
    overdue: usize,
    /// Number of sites with open partitions that can take no parity; `members_and_takers` counts those that can.
    only_members: usize,
    members_and_takers: usize,
    /// Number of sites that can take a parity.
    takers: usize,
    /// Sum of the dead shares of its open partitions.
    dead: f64,
    /// Maximum number of wide stripes for which it has partitions.
    rounds: usize,
}

struct Site {
    id: SiteId,
    /// Open partitions, as indices into the pool.
    partitions: Vec<usize>,
    /// Free bytes, if the site can take a parity.
    takes: Option<u64>,
}

/// The rack of each part of the geometry, and what these racks lack.
pub(super) struct RackAssignment {
    pub(super) racks: Vec<usize>,
    pub(super) lacking: Vec<RackLack>,
}

impl<'a> Racks<'a> {
    pub(super) fn new(rack_limit: usize, pool: &'a [OpenPartition], candidates: &'a [Candidate]) -> Self {
        let mut sites: HashMap<SiteId, (&RackId, Site)> = HashMap::new();
        for (index, partition) in pool.iter().enumerate() {
            let new = || (&partition.rack, Site { id: partition.site, partitions: Vec::new(), takes: None });
            sites.entry(partition.site).or_insert_with(new).1.partitions.push(index);
        }
        for candidate in candidates {
            let new = || (&candidate.rack, Site { id: candidate.site, partitions: Vec::new(), takes: None });
            sites.entry(candidate.site).or_insert_with(new).1.takes = Some(candidate.free_bytes);
        }
        let mut by_rack: HashMap<&RackId, Vec<Site>> = HashMap::new();
        sites.into_values().for_each(|(rack, site)| by_rack.entry(rack).or_default().push(site));
        let of_rack = |(id, sites)| Rack::new(id, sites, pool, rack_limit);
        let mut racks: Vec<Rack<'a>> = by_rack.into_iter().map(of_rack).collect();
        racks.sort_by_key(|rack| rack.id);
        Self { pool, racks }
    }

    /// Returns the number of open partitions in a rack.
    pub(super) fn waiting(&self, rack: usize) -> usize {
        self.racks[rack].waiting
    }

    /// Chooses the rack of each part.
    pub(super) fn assign(
        &self,
        geometry: &WideGeometry,
        preference: RackPreference,
    ) -> Result<RackAssignment, NotSealed> {
        let parts = geometry.parts();
        if self.racks.len() < parts.len() {
            return Err(NotSealed::TooFewRacks { racks: self.racks.len(), needed: parts.len() });
        }
        let order = self.order(parts, preference);
        let (data, parities): (Vec<usize>, Vec<usize>) =
            (0..parts.len()).partition(|&part| parts[part].data > 0);
        let mut found = self.assign_in_order(geometry, &order, &data, &parities, &[]);
        if let Err(NotSealed::NoRoom { .. }) = found {
            // Members took the racks with room for the global parities. Reserve the least full of those.
            let mut by_waiting: Vec<usize> = order.clone();
            by_waiting.sort_by_key(|&rack| self.racks[rack].waiting);
            let mut reserved: Vec<usize> = Vec::new();
            for &part in &parities {
                let room =
                    |rack: &usize| !reserved.contains(rack) && self.racks[*rack].has_room(&parts[part]);
                reserved.extend(by_waiting.iter().copied().find(room));
            }
            found = self.assign_in_order(geometry, &order, &data, &parities, &reserved);
        }
        let mut racks = found?;
        self.put_dead_beside_local_parities(parts, &mut racks);
        self.put_local_parities_beside_dead(parts, &mut racks);
        let lack = |(part, &rack): (&RackPart, &usize)| {
            let (needed, available) = (part.data, self.racks[rack].available(part).min(part.data));
            (available < needed).then(|| RackLack { rack: self.racks[rack].id.clone(), needed, available })
        };
        let lacking = parts.iter().zip(&racks).filter_map(lack).collect();
        Ok(RackAssignment { racks, lacking })
    }

    /// Returns the racks in the order of use.
    fn order(&self, parts: &[RackPart], preference: RackPreference) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.racks.len()).collect();
        order.sort_by(|&a, &b| {
            let (a, b) = (&self.racks[a], &self.racks[b]);
            b.waiting.cmp(&a.waiting).then(a.dead.total_cmp(&b.dead)).then(a.id.cmp(b.id))
        });
        if preference == RackPreference::Overdue {
            order.sort_by_key(|&rack| Reverse(self.racks[rack].overdue > 0));
            let supplying = parts.iter().filter(|part| part.data > 0).count();
            order[..supplying].sort_by_key(|&rack| {
                Reverse(self.racks[rack].only_members + self.racks[rack].members_and_takers)
            });
        }
        order
    }

    /// Gives the largest parts to the first racks that can supply them, or otherwise to those that can supply the most
    /// of them.
    fn assign_in_order(
        &self,
        geometry: &WideGeometry,
        order: &[usize],
        data: &[usize],
        parities: &[usize],
        reserved: &[usize],
    ) -> Result<Vec<usize>, NotSealed> {
        let parts = geometry.parts();
        let mut is_used = vec![false; self.racks.len()];
        reserved.iter().for_each(|&rack| is_used[rack] = true);
        let mut racks = vec![0; parts.len()];
        let mut data = data.to_vec();
        data.sort_by_key(|&part| Reverse(parts[part].data));
        for part in data {
            let rack_part = &parts[part];
            let free = || {
                order.iter().copied().filter(|&rack| !is_used[rack] && self.racks[rack].has_room(rack_part))
            };
            let most = || free().rev().max_by_key(|&rack| self.racks[rack].available(rack_part));
            let rack =
                free().find(|&rack| self.racks[rack].available(rack_part) >= rack_part.data).or_else(most);
            let rack = rack.ok_or(NotSealed::NoRoom { parities: rack_part.parities() })?;
            (racks[part], is_used[rack]) = (rack, true);
        }
        for (index, &part) in parities.iter().enumerate() {
            let rack_part = &parts[part];
            let free =
                order.iter().copied().filter(|&rack| !is_used[rack] && self.racks[rack].has_room(rack_part));
            let roomiest = || {
                free.max_by_key(|&rack| (self.racks[rack].free_bytes(rack_part.parities()), Reverse(rack)))
            };
            let rack = reserved.get(index).copied().or_else(roomiest);
            let rack = rack.ok_or(NotSealed::NoRoom { parities: rack_part.parities() })?;
            (racks[part], is_used[rack]) = (rack, true);
        }
        Ok(racks)
    }

    /// Gives the racks with the most dead bytes to the groups whose local parity is with the global ones, because their
    /// changes are sent there anyway. Only parts of equal size swap racks.
    fn put_dead_beside_local_parities(&self, parts: &[RackPart], racks: &mut [usize]) {
        let is_with_globals = |group: Option<usize>| {
            parts.iter().any(|part| part.globals > 0 && part.group.is_some() && part.group == group)
        };
        let mut full: Vec<usize> =
            (0..parts.len()).filter(|&part| parts[part].data > 0 && parts[part].parities() == 0).collect();
        let mut supplying: Vec<usize> = full.iter().map(|&part| racks[part]).collect();
        full.sort_by_key(|&part| !is_with_globals(parts[part].group));
        supplying.sort_by(|&a, &b| self.racks[b].dead.total_cmp(&self.racks[a].dead));
        full.into_iter().zip(supplying).for_each(|(part, rack)| racks[part] = rack);
    }

    /// Within each group, gives the part with the local parity to the rack with the most dead bytes, if the rack that
    /// had it can supply the larger part instead, without losing a whole part of later wide stripes.
    fn put_local_parities_beside_dead(&self, parts: &[RackPart], racks: &mut [usize]) {
        let is_local = |part: &usize| parts[*part].has_local && parts[*part].data > 0;
        for local in (0..parts.len()).filter(is_local) {
            let is_full =
                |part: &usize| parts[*part].group == parts[local].group && parts[*part].parities() == 0;
            let may_change = |part: &usize| {
                let (hot, other) = (&self.racks[racks[*part]], &self.racks[racks[local]]);
                let (larger, smaller) = (&parts[*part], &parts[local]);
                let whole_left = |taken: usize| other.waiting.saturating_sub(taken) / larger.data;
                hot.has_room(smaller)
                    && hot.available(smaller) >= smaller.data
                    && other.available(larger) >= larger.data
                    && whole_left(larger.data) == whole_left(smaller.data)
            };
            let full = (0..parts.len()).filter(is_full).filter(may_change);
            let dead = |part: usize| self.racks[racks[part]].dead;
            let hottest = full.max_by(|&a, &b| dead(a).total_cmp(&dead(b)));
            if let Some(part) = hottest.filter(|&part| dead(part) > dead(local)) {
                racks.swap(part, local);
            }
        }
    }

    /// Returns what a rack supplies for its part: partitions on distinct sites, as indices into the pool, and the sites
    /// of parities. `open` counts the open partitions of each birth stripe.
    pub(super) fn supply(
        &self,
        rack: usize,
        data: usize,
        parities: usize,
        open: &HashMap<StripeId, usize>,
        overdue_first: bool,
    ) -> (Vec<usize>, Vec<SiteId>) {
        let rack = &self.racks[rack];
        let key = |index: usize| {
            let open_partition = &self.pool[index];
            (!open_partition.is_overdue, open[&open_partition.partition.0], open_partition.partition)
        };
        let mut offers: Vec<_> = rack
            .sites
            .iter()
            .filter_map(|site| {
                let best = site.partitions.iter().copied().min_by_key(|&index| key(index))?;
                let (is_patient, siblings, partition) = key(best);
                let would_be_left = site.partitions.len() >= rack.rounds;
                Some((
                    (overdue_first && is_patient, !would_be_left, is_patient, siblings, partition),
                    site,
                    best,
                ))
            })
            .collect();
        offers.sort_by_key(|offer| offer.0);
        let (mut takers, mut members, mut used) = (rack.takers, Vec::new(), Vec::new());
        for (_, site, best) in offers {
            if members.len() == data {
                break;
            }
            // Leave enough sites for the parities.
            if site.takes.is_some() && takers == parities {
                continue;
            }
            takers -= usize::from(site.takes.is_some());
            members.push(best);
            used.push(site.id);
        }
        (members, rack.emptiest_sites(parities, &used))
    }
}

impl<'a> Rack<'a> {
    fn new(id: &'a RackId, mut sites: Vec<Site>, pool: &[OpenPartition], rack_limit: usize) -> Self {
        sites.sort_by_key(|site| site.id);
        let partitions = || sites.iter().flat_map(|site| &site.partitions).map(|&index| &pool[index]);
        let waiting = partitions().count();
        let has = |site: &&Site| !site.partitions.is_empty();
        Self {
            id,
            waiting,
            overdue: partitions().filter(|partition| partition.is_overdue).count(),
            only_members: sites.iter().filter(has).filter(|site| site.takes.is_none()).count(),
            members_and_takers: sites.iter().filter(has).filter(|site| site.takes.is_some()).count(),
            takers: sites.iter().filter(|site| site.takes.is_some()).count(),
            dead: partitions().map(|partition| partition.dead_share).sum(),
            rounds: waiting.div_ceil(rack_limit).max(1),
            sites,
        }
    }

    /// Returns whether the rack's sites can take the parities of a part.
    fn has_room(&self, part: &RackPart) -> bool {
        self.takers >= part.parities()
    }

    /// Returns the number of members that the rack can supply beside the parities of a part.
    fn available(&self, part: &RackPart) -> usize {
        self.only_members + self.members_and_takers.min(self.takers - part.parities())
    }

    /// Returns the `count` emptiest sites that can take a parity and are not in `used`.
    fn emptiest_sites(&self, count: usize, used: &[SiteId]) -> Vec<SiteId> {
        let mut remaining: Vec<(u64, SiteId)> = self
            .sites
            .iter()
            .filter(|site| !used.contains(&site.id))
            .filter_map(|site| Some((site.takes?, site.id)))
            .collect();
        remaining.sort_by_key(|&(free_bytes, site)| (Reverse(free_bytes), site));
        remaining.into_iter().take(count).map(|(_, site)| site).collect()
    }

    /// Returns the free bytes of the `count` emptiest sites.
    fn free_bytes(&self, count: usize) -> u64 {
        let mut free: Vec<u64> = self.sites.iter().filter_map(|site| site.takes).collect();
        free.sort_unstable_by_key(|&bytes| Reverse(bytes));
        free.into_iter().take(count).fold(0, u64::saturating_add)
    }
}

//! Legal places for the chunks of a stripe that is being changed.

use striate_core::{RackId, SiteId};
use striate_meta::records::Stripe;
use striate_plan::{LeavingRacks, PlacementRule};

use super::StripeChange;
use super::swap::changed_since;
use crate::error::StripeError;
use crate::write::wide::KnownRacks;

impl StripeChange<'_> {
    /// Returns the rack of a site, if known.
    pub fn rack_of(&self, site: SiteId) -> Option<RackId> {
        let known_rack = self.writes.shared.sites.get(site).map(|site| site.rack());
        known_rack.or_else(|| self.unknown_site_racks.get(&site).cloned())
    }

    /// Whether the placement rule binds the stripe's chunks. A stripe without own parities, or a dead one, has no
    /// redundancy to protect, so the wide stripes of its chunks decide. Two of its chunks may then share a site when
    /// racks are small. It gets parities back only once its chunks satisfy the rule again.
    pub fn is_bound_by_rule(&self) -> bool {
        is_bound_by_rule(&self.record)
    }

    /// Lets chunks leave these racks: groups of chunks that are there may go to other racks.
    pub fn leave(&mut self, racks: &LeavingRacks) {
        self.leaving = racks.clone();
    }

    /// Returns the placement rule of the stripe's chunks.
    pub fn rule(&self) -> PlacementRule {
        let racks = self.writes.shared.sites.rack_sizes();
        PlacementRule::new(&self.profile, &self.code, racks).leaving(&self.leaving)
    }

    /// Returns the rack of each chunk whose site is known: where it is, or was before it was lost. Then follow the
    /// racks where other changes in progress put chunks, except those with an index in `own`.
    pub fn racks(&self, own: &[usize]) -> Vec<Option<RackId>> {
        self.racks_in(&self.record, &self.expected_sites(own))
    }

    fn racks_in(&self, record: &Stripe, expected: &[SiteId]) -> Vec<Option<RackId>> {
        let locations = record.locations.iter().map(|at| SiteId(at.site));
        locations.chain(expected.iter().copied()).map(|site| self.rack_of(site)).collect()
    }

    /// Returns the sites where other changes in progress put chunks, except those with an index in `own`.
    pub fn expected_sites(&self, own: &[usize]) -> Vec<SiteId> {
        let others = self.record.entries.iter().filter(|entry| Some(entry.generation) != self.entry);
        let places = others.flat_map(|entry| &entry.places);
        places
            .filter(|place| !own.contains(&(place.index as usize)))
            .map(|place| SiteId(place.site))
            .collect()
    }

    /// Returns the place of each chunk whose site is known, lost or not. Then follow the places of chunks that other
    /// changes in progress put somewhere.
    pub fn places(&self) -> Vec<Option<(SiteId, RackId)>> {
        let sites = self.record.locations.iter().map(|at| SiteId(at.site)).chain(self.expected_sites(&[]));
        sites.map(|site| Some((site, self.rack_of(site)?))).collect()
    }

    /// Whether the new places are legal by the stripe's own rule, even if that rule does not bind it, beside the
    /// other chunks and those that other changes put somewhere.
    pub(in crate::write) fn obeys_own_rule(&self) -> Result<bool, StripeError> {
        self.is_legal_by(&self.record, true)
    }

    /// Whether the places in a record are legal.
    pub(super) fn is_legal_by(&self, record: &Stripe, own_rule: bool) -> Result<bool, StripeError> {
        let before: Stripe = self.row.record()?;
        let changed = changed_since(&before, record);
        let (rule, expected) = (self.rule(), self.expected_sites(&changed));
        let racks = self.racks_in(record, &expected);
        let is_legal = |&index: &usize| {
            let site = record.locations[index].site;
            let mut locations = record.locations.iter().enumerate();
            let is_taken = locations.any(|(other, at)| other != index && at.site == site)
                || expected.contains(&SiteId(site));
            // Count the chunk in its old rack, so that the new place itself does not make the rack one of its
            // group's.
            let old_rack = self.rack_of(SiteId(before.locations[index].site));
            let with_old_rack = |(other, rack)| (other, if other == index { &old_rack } else { rack });
            let places = racks.iter().enumerate().map(with_old_rack);
            let places = places.filter_map(|(other, rack)| Some((other, rack.as_ref()?)));
            // A site that is no longer known is left to repair.
            let is_admitted = racks[index].as_ref().is_none_or(|rack| rule.admits(index, rack, places));
            (!is_taken && is_admitted || !own_rule) && self.wide_admits(index, SiteId(site))
        };
        Ok(changed.iter().filter(|&&index| record.locations[index].site != 0).all(is_legal))
    }

    /// Whether the wide stripe of a chunk, if it is a member of one, admits it at a site.
    pub fn wide_admits(&self, index: usize, site: SiteId) -> bool {
        let rack_of = |site: SiteId| self.rack_of(site);
        let sizes = self.writes.shared.sites.rack_sizes();
        let racks = KnownRacks { rack_of: &rack_of, sizes, leaving: &self.leaving };
        self.rack_of(site).is_none() || self.links.admit(index, site, &racks)
    }
}

/// See [`StripeChange::is_bound_by_rule`].
pub(super) fn is_bound_by_rule(record: &Stripe) -> bool {
    !record.dropped && !record.dead
}

//! Which places the chunks of a stripe that is being changed may have.

use striate_core::{RackId, SiteId};
use striate_meta::records::Stripe;
use striate_plan::PlacementRule;

use super::StripeChange;
use super::swap::changed_since;
use crate::error::StripeError;

impl StripeChange<'_> {
    /// The rack of a site, as far as that is known.
    pub fn rack_of(&self, site: SiteId) -> Option<RackId> {
        let known = self.writes.shared.sites.get(site).map(|site| site.rack());
        known.or_else(|| self.racks_elsewhere.get(&site).cloned())
    }

    /// Whether the rule for its chunks' places binds them. A stripe that has dropped its parities protects nothing, and no more does a dead
    /// one: where its chunks may be their wide stripes say. So two may come to one site, where each rack has few; parities come back only
    /// beside chunks that keep the rule.
    pub fn is_bound_by_rule(&self) -> bool {
        is_bound_by_rule(&self.record)
    }

    /// The rule for its chunks' places.
    pub fn rule(&self) -> PlacementRule {
        PlacementRule::new(&self.profile, &self.code, self.writes.shared.sites.rack_count())
    }

    /// The rack of each chunk, as far as its site is known: where it is, or was before it was lost. Behind these the racks
    /// where other changes that are under way put chunks, but for those with an index in `own`.
    pub fn racks(&self, own: &[usize]) -> Vec<Option<RackId>> {
        self.racks_in(&self.record, &self.expected_sites(own))
    }

    fn racks_in(&self, record: &Stripe, expected: &[SiteId]) -> Vec<Option<RackId>> {
        let locations = record.locations.iter().map(|at| SiteId(at.site));
        locations.chain(expected.iter().copied()).map(|site| self.rack_of(site)).collect()
    }

    /// Sites where other changes that are under way put chunks, but for those with an index in `own`.
    pub fn expected_sites(&self, own: &[usize]) -> Vec<SiteId> {
        let others = self.record.entries.iter().filter(|entry| Some(entry.generation) != self.entry);
        let places = others.flat_map(|entry| &entry.places);
        places
            .filter(|place| !own.contains(&(place.index as usize)))
            .map(|place| SiteId(place.site))
            .collect()
    }

    /// The place of each chunk, as far as its site is known, lost or not. Behind these those of chunks that other changes are putting
    /// somewhere.
    pub fn places(&self) -> Vec<Option<(SiteId, RackId)>> {
        let sites = self.record.locations.iter().map(|at| SiteId(at.site)).chain(self.expected_sites(&[]));
        sites.map(|site| Some((site, self.rack_of(site)?))).collect()
    }

    /// Whether the places that it gives to chunks are legal by the stripe's own rule, also where that does not bind them, beside the
    /// others' and those that other changes expect.
    pub(in crate::write) fn obeys_own_rule(&self) -> Result<bool, StripeError> {
        self.is_legal_by(&self.record, true)
    }

    /// Whether the places are legal that a record gives to chunks.
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
            // A chunk comes from where it was: that a group is in a rack already is not to be said of the new place itself.
            let from = self.rack_of(SiteId(before.locations[index].site));
            let beside = |(of, rack)| (of, if of == index { &from } else { rack });
            let places = racks.iter().enumerate().map(beside);
            let places = places.filter_map(|(of, rack)| Some((of, rack.as_ref()?)));
            // A site that is not known any more is repair's business.
            let is_admitted = racks[index].as_ref().is_none_or(|rack| rule.admits(index, rack, places));
            (!is_taken && is_admitted || !own_rule) && self.wide_admits(index, SiteId(site))
        };
        Ok(changed.iter().filter(|&&index| record.locations[index].site != 0).all(is_legal))
    }

    /// Whether the wide stripe of a chunk, if it is a member of one, lets it go to a site.
    pub fn wide_admits(&self, index: usize, site: SiteId) -> bool {
        let racks = self.writes.shared.sites.rack_count();
        let Some(rack) = self.rack_of(site) else { return true };
        self.links.admit(index, site, &rack, |site| self.rack_of(site), racks)
    }
}

/// See [`StripeChange::is_bound_by_rule`].
pub(super) fn is_bound_by_rule(record: &Stripe) -> bool {
    !record.dropped && !record.dead
}

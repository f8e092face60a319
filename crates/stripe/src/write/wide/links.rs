//! Keeps wide stripes in step with changes of their members' stripes.
//!
//! A wide stripe's record has a copy of each member's location, so that its trees and degraded reads need one row. A
//! change of a member's place writes both records in one transaction, and the new place obeys the rules of both.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use striate_core::{RackId, SiteId, StripeId};
use striate_meta::records::{Location, Stripe};
use striate_meta::{Transaction, keys};
use striate_plan::{LeavingRacks, PlacementRule, RackSizes};

use crate::error::StripeError;
use crate::table::{OpenedStripe, StripeTable, inconsistent, wide_of};
use crate::write::entry::put_record;

/// Wide stripes of some chunks of a stripe, as they were read.
#[derive(Default)]
pub(in crate::write) struct Links {
    by_wide_stripe: BTreeMap<StripeId, Link>,
    /// A chunk that claims to be a member of a missing wide stripe: one of the records was read before the other
    /// went.
    missing: Option<(usize, StripeId)>,
}

/// The racks as a process knows them.
pub(in crate::write) struct KnownRacks<'a> {
    pub(in crate::write) rack_of: &'a dyn Fn(SiteId) -> Option<RackId>,
    /// Number of sites in each rack.
    pub(in crate::write) sizes: RackSizes,
    /// Racks that chunks may leave.
    pub(in crate::write) leaving: &'a LeavingRacks,
}

struct Link {
    wide: OpenedStripe,
    /// Members as (chunk of the stripe, position in the wide one).
    members: Vec<(usize, usize)>,
}

impl Links {
    /// Looks up the wide stripes of these chunks of a stripe.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(in crate::write) async fn find(
        table: &StripeTable,
        stripe: &Stripe,
        chunks: &[usize],
    ) -> Result<Self, StripeError> {
        let mut found = Self::default();
        for &index in chunks {
            let Some((wide, position)) = wide_of(&stripe.locations[index]) else { continue };
            let link = match found.by_wide_stripe.entry(wide) {
                Entry::Occupied(occupied) => occupied.into_mut(),
                Entry::Vacant(vacant) => match table.find(wide).await? {
                    Some(wide) => vacant.insert(Link { wide, members: Vec::new() }),
                    None => {
                        found.missing = Some((index, wide));
                        continue;
                    }
                },
            };
            link.members.push((index, position));
        }
        Ok(found)
    }

    /// Whether every copy matches the stripe's own location. If not, one record is newer than the other, and both
    /// must be read again.
    pub(in crate::write) fn agree(&self, id: StripeId, stripe: &Stripe) -> bool {
        self.missing.is_none()
            && self.by_wide_stripe.values().all(|link| {
                link.members.iter().all(|&(index, position)| {
                    link.wide.record.has_member(position, id, index)
                        && is_same_file(&link.wide.record.locations[position], &stripe.locations[index])
                })
            })
    }

    /// Returns why the records still disagree after repeated reads.
    pub(in crate::write) fn disagreement(&self, id: StripeId) -> StripeError {
        match self.missing {
            Some((index, wide)) => {
                inconsistent(id, format!("chunk {index} is a member of {wide}, which is gone"))
            }
            None => StripeError::Busy,
        }
    }

    /// Adds the copies of the `moved` chunks to `tx`, and requires their wide stripes as they were read.
    pub(in crate::write) fn carry(&self, tx: &mut Transaction, stripe: &Stripe, moved: &[usize]) {
        for link in self.of_chunks(moved) {
            let (id, before) = (link.wide.id, &link.wide.record);
            let mut record = before.clone();
            for &(index, position) in link.members.iter().filter(|(index, _)| moved.contains(index)) {
                record.locations[position] = copy_of(&stripe.locations[index]);
            }
            tx.require_unchanged(keys::stripe(id), Some(&link.wide.row));
            put_record(tx, id, &record, before);
        }
    }

    fn of_chunks(&self, chunks: &[usize]) -> impl Iterator<Item = &Link> {
        let has_some = |link: &&Link| link.members.iter().any(|(index, _)| chunks.contains(index));
        self.by_wide_stripe.values().filter(has_some)
    }

    /// Returns the wide stripes of these chunks.
    pub(in crate::write) fn ids_of(&self, chunks: &[usize]) -> impl Iterator<Item = StripeId> {
        self.of_chunks(chunks).map(|link| link.wide.id)
    }

    /// Whether a member may go to a site, by the rules of its wide stripe: no other chunk is there or on its way
    /// there, its rack has room, and its group stays in its racks.
    pub(in crate::write) fn admit(&self, index: usize, site: SiteId, racks: &KnownRacks<'_>) -> bool {
        let of_chunk = |link: &&Link| link.members.iter().any(|&(member, _)| member == index);
        self.by_wide_stripe.values().filter(of_chunk).all(|link| {
            let position = link.members.iter().find(|&&(member, _)| member == index).map(|&(_, at)| at);
            position.is_some_and(|position| admits(&link.wide, position, site, racks))
        })
    }

    /// Sites in one of the wide stripes, whose racks must be known.
    pub(in crate::write) fn sites(&self) -> impl Iterator<Item = SiteId> {
        let records = self.by_wide_stripe.values().map(|link| &link.wide.record);
        records.flat_map(sites_of).map(SiteId)
    }
}

/// Returns the sites of a record: where chunks are, and where changes in progress put some.
pub(super) fn sites_of(record: &Stripe) -> impl Iterator<Item = u32> {
    let places = record.entries.iter().flat_map(|entry| &entry.places).map(|place| place.site);
    record.locations.iter().map(|at| at.site).chain(places).filter(|&site| site != 0)
}

/// Whether the chunk at `position` of a wide stripe may go to `site`. False if the site's rack is not known.
pub(super) fn admits(wide: &OpenedStripe, position: usize, site: SiteId, racks: &KnownRacks<'_>) -> bool {
    let Some(rack) = (racks.rack_of)(site) else { return false };
    let record = &wide.record;
    let others = record.locations.iter().enumerate().filter(|&(at, _)| at != position);
    let entries = record.entries.iter().flat_map(|entry| &entry.places);
    // Chunks on their way count as present, for their racks and for their groups; not so those that are rewritten in
    // place.
    let is_there =
        |&(at, site): &(usize, u32)| record.locations.get(at).is_some_and(|location| location.site == site);
    let expected = entries
        .map(|place| (place.index as usize, place.site))
        .filter(|place| place.0 != position && !is_there(place));
    if others
        .map(|(_, at)| at.site)
        .chain(expected.clone().map(|(_, site)| site))
        .any(|taken| taken == site.0)
    {
        return false;
    }
    let of_locations = record.locations.iter().enumerate().map(|(at, location)| (at, location.site));
    let places: Vec<(usize, RackId)> = of_locations
        .chain(expected)
        .filter(|&(_, site)| site != 0)
        .filter_map(|(at, site)| Some((at, (racks.rack_of)(SiteId(site))?)))
        .collect();
    let rule = PlacementRule::new(&wide.profile, &wide.code, racks.sizes.clone()).leaving(racks.leaving);
    rule.admits(position, &rack, places.iter().map(|(at, rack)| (*at, rack)))
}

/// Whether two locations are the same file with the same content.
pub(in crate::write) fn is_same_file(a: &Location, b: &Location) -> bool {
    (a.site, a.generation, a.crc32c, a.content_version) == (b.site, b.generation, b.crc32c, b.content_version)
}

/// Returns the copy of a member's location for the wide stripe's record.
pub(in crate::write) fn copy_of(location: &Location) -> Location {
    Location { wide: bytes::Bytes::new(), position: 0, ..location.clone() }
}

#[cfg(test)]
mod tests {
    use striate_core::Profile;
    use striate_meta::records::{Entry, Place};
    use striate_meta::{Revision, Row};

    use super::*;

    /// Assigns the sites to six racks in turn.
    fn rack_of(site: SiteId) -> Option<RackId> {
        Some(RackId(format!("rack {}", (site.0 - 1) % 6)))
    }

    fn wide(sites: [u32; 9], expected: &[(u32, u32)]) -> OpenedStripe {
        let profile: Profile = "wide(6,3,2)".parse().unwrap();
        let places = expected.iter().map(|&(index, site)| Place { index, site }).collect();
        let record = Stripe {
            locations: sites.map(|site| Location { site, ..Location::default() }).into(),
            entries: vec![Entry { generation: 1, places, ..Entry::default() }],
            ..Stripe::default()
        };
        let row = Row { key: bytes::Bytes::new(), value: bytes::Bytes::new(), version: Revision::default() };
        OpenedStripe {
            id: StripeId::from_bytes([1; 16]),
            row,
            record,
            profile,
            code: profile.code.build().unwrap(),
        }
    }

    /// Members 0 to 2 and the local parity at 6 may use two racks.
    #[test]
    fn a_parity_on_its_way_counts_for_its_group() {
        let sites = [21, 15, 6, 17, 23, 8, 0, 0, 0];
        let may_go = |wide: &OpenedStripe, site: u32| {
            let racks = KnownRacks { rack_of: &rack_of, sizes: 6.into(), leaving: &LeavingRacks::default() };
            admits(wide, 2, SiteId(site), &racks)
        };
        let no_parity_yet = wide(sites, &[]);
        assert!(may_go(&no_parity_yet, 22));
        let beside_its_parity = wide(sites, &[(6, 12), (7, 14), (8, 10)]);
        assert!(may_go(&beside_its_parity, 18), "the rack that its parity is to be in");
        assert!(!may_go(&beside_its_parity, 22), "a third rack");
        assert!(!may_go(&beside_its_parity, 12), "the parity's own site");
    }
}

//! Rules of wide stripes, checked at every commit of a record and at every survey.
//!
//! - **Members**: a chunk that claims to be a member of a wide stripe is one, and that stripe's copy of its location
//!   refers to the same file. A sealed wide stripe has no other members.
//! - **Protected**: all data chunks of a stripe without its parities are members of sealed wide stripes.
//!
//! While a wide stripe is being built or aborted, its copies of unclaimed members may be out of date.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use striate_core::StripeId;
use striate_meta::records::{Location, Stripe, WideState};
use striate_meta::{Transaction, Write, keys};
use striate_stripe::{has_place, wide_of};

use super::cluster::Cluster;
use super::invariants::{self, Invariant, Violations};

/// Counts of what happened to wide stripes, taken from commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealing {
    /// Wide stripes begun.
    pub begun: u64,
    /// Wide stripes sealed.
    pub sealed: u64,
    /// Wide stripes aborted.
    pub given_up: u64,
    /// Stripes that dropped their parities.
    pub dropped: u64,
    /// Members moved or repaired while their wide stripes were sealed.
    pub placed_anew: u64,
    /// Places in sealed wide stripes that dead members left.
    pub left: u64,
    /// Places in sealed wide stripes that new members took.
    pub taken: u64,
    /// Local parities that swapped places with a member.
    pub swapped: u64,
    /// Wide stripes emptied into others.
    pub emptied: u64,
    /// Members updated in place.
    pub updated: u64,
    /// Stripes that got their own parities back.
    pub narrow_again: u64,
}

impl Sealing {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.begun += other.begun;
        self.sealed += other.sealed;
        self.given_up += other.given_up;
        self.dropped += other.dropped;
        self.placed_anew += other.placed_anew;
        self.left += other.left;
        self.taken += other.taken;
        self.swapped += other.swapped;
        self.emptied += other.emptied;
        self.updated += other.updated;
        self.narrow_again += other.narrow_again;
    }

    /// Counts what a commit has changed in a stripe.
    pub fn count(&mut self, before: Option<&Stripe>, now: &Stripe) {
        let state_of = |record: &Stripe| (record.wide_state(), record.dropped);
        let (before_of, now_of) = (before.map(state_of).unwrap_or_default(), state_of(now));
        let comes_to = |state: WideState| u64::from(now_of.0 == state && before_of.0 != state);
        self.begun += comes_to(WideState::Building);
        // One that takes new members is sealed again when it was complete.
        self.sealed += u64::from((before_of.0, now_of.0) == (WideState::Building, WideState::Sealed));
        self.given_up += comes_to(WideState::Aborting);
        self.dropped += u64::from(now_of.1 && !before_of.1);
        self.narrow_again += u64::from(before_of.1 && !now_of.1);
        let Some(before) = before.filter(|before| before.is_sealed()) else { return };
        if swaps_local_parity(before, now) {
            self.swapped += 1;
            return;
        }
        if now.wide_state() == WideState::Aborting {
            self.emptied += u64::from(before.members != now.members);
            return;
        }
        let both = before.locations.iter().zip(&now.locations).zip(before.members.iter().zip(&now.members));
        for ((before, now), (left, came)) in both.filter(|((before, now), _)| file(before) != file(now)) {
            match (left == came, before.content_version == now.content_version) {
                (true, true) => self.placed_anew += 1,
                (true, false) => self.updated += 1,
                (false, _) if came.stripe.is_empty() => self.left += 1,
                (false, _) => self.taken += 1,
            }
        }
    }
}

/// Returns true if a wide stripe's local parity has swapped places with a member: no other change moves both a parity
/// and a member.
pub fn swaps_local_parity(before: &Stripe, now: &Stripe) -> bool {
    let k = now.members.len();
    let places = || before.locations.iter().zip(&now.locations).enumerate();
    let moves = |range: std::ops::Range<usize>| {
        places().any(|(at, (before, now))| range.contains(&at) && before.site != now.site)
    };
    before.members == now.members && moves(0..k) && moves(k..now.locations.len())
}

/// Checks the current records of the stripes that a transaction has written or removed.
pub fn check_commit(cluster: &Cluster, transaction: &Transaction) {
    if cluster.wide_profile().is_none() {
        return;
    }
    let mut is_removed = false;
    let mut written = Vec::new();
    for write in &transaction.writes {
        match write {
            Write::Put(key, _) if key.starts_with(keys::STRIPES) => written.extend(keys::stripe_of(key)),
            Write::Delete(key) => is_removed |= key.starts_with(keys::STRIPES),
            Write::Put(..) => {}
        }
    }
    if is_removed {
        let Some(all) = invariants::committed(cluster) else { return };
        return check_all(cluster, all.iter().map(|(id, record)| (*id, record)));
    }
    let find = |id| record_of(cluster, id);
    for id in written {
        if let Some(Some(record)) = find(id) {
            check(&cluster.broken, id, &record, k_of(cluster, &record), find);
        }
    }
}

/// Checks all stripes.
pub fn check_all<'a>(cluster: &Cluster, all: impl Iterator<Item = (StripeId, &'a Stripe)>) {
    if cluster.wide_profile().is_none() {
        return;
    }
    let all: BTreeMap<StripeId, &Stripe> = all.collect();
    let find = |id| Some(all.get(&id).map(|record| (*record).clone()));
    for (id, record) in &all {
        check(&cluster.broken, *id, record, k_of(cluster, record), find);
    }
}

/// Returns true for a wide stripe that has members.
pub fn has_members(record: &Stripe) -> bool {
    record.member_chunks().next().is_some()
}

/// Returns true if the stripe is dead: its chunks leave their wide stripes, or have left them.
pub fn is_dead(cluster: &Cluster, id: StripeId) -> bool {
    record_of(cluster, id).flatten().is_none_or(|record| record.dead)
}

/// Returns the current record of a stripe; the outer `None` means that the metadata cannot be read.
fn record_of(cluster: &Cluster, id: StripeId) -> Option<Option<Stripe>> {
    let row = cluster.engine.peek(&keys::stripe(id))?;
    row.map(|row| row.record().ok()).map_or(Some(None), |record| record.map(Some))
}

fn k_of(cluster: &Cluster, record: &Stripe) -> usize {
    cluster.profile_of(record).1.k()
}

/// Checks one stripe. `find` looks up other stripes; it returns `None` if they cannot be read now.
fn check(
    broken: &Violations,
    id: StripeId,
    record: &Stripe,
    k: usize,
    find: impl Fn(StripeId) -> Option<Option<Stripe>>,
) {
    let report = |invariant, what: String| broken.report(invariant, format!("{what} ({id})"));
    for (index, chunk) in record.locations.iter().enumerate() {
        let claim = wide_of(chunk);
        let Some(wide) = claim.map_or(Some(None), |(wide, _)| find(wide)) else { return };
        // A wide stripe without live members is dissolved, and nothing needs its members any more.
        let is_given_up = |wide: &Stripe| record.dead && wide.wide_state() == WideState::Aborting;
        let is_protected = wide.as_ref().is_some_and(|wide| wide.is_sealed() || is_given_up(wide));
        if record.dropped && index < k && !is_protected && has_place(record, k, index) {
            report(
                Invariant::Protected,
                format!("chunk {index} is in no sealed wide stripe, and its parities are gone"),
            );
        }
        let Some((wide_id, position)) = claim else { continue };
        match wide {
            None => {
                report(Invariant::Members, format!("chunk {index} is a member of {wide_id}, which is gone"))
            }
            Some(wide) if !wide.has_member(position, id, index) => {
                report(Invariant::Members, format!("chunk {index} is no member of {wide_id} at {position}"));
            }
            Some(wide) if file(&wide.locations[position]) != file(chunk) => {
                let copy = &wide.locations[position];
                report(Invariant::Members, format!("chunk {index} is {chunk:?}, and {wide_id} has {copy:?}"));
            }
            Some(_) => {}
        }
    }
    if record.is_sealed() {
        check_members(broken, id, record, find);
    }
}

/// Checks that each member of a sealed wide stripe says so itself. `find` looks up stripes, as for [`check`].
fn check_members(
    broken: &Violations,
    id: StripeId,
    record: &Stripe,
    find: impl Fn(StripeId) -> Option<Option<Stripe>>,
) {
    for (position, member, index) in record.member_chunks() {
        let Some(own) = find(member) else { return };
        let claim = own.as_ref().and_then(|own| wide_of(own.locations.get(index)?));
        if claim != Some((id, position)) {
            broken.report(
                Invariant::Members,
                format!("member {position}, chunk {index} of {member}, says that it is {claim:?} ({id})"),
            );
        }
    }
}

/// Identifies a file of a chunk and its content.
fn file(at: &Location) -> (u32, u32, u32, u32) {
    (at.site, at.generation, at.crc32c, at.content_version)
}

#[cfg(test)]
mod tests {
    use striate_meta::records::Member;

    use super::*;

    fn own() -> Stripe {
        let location = |site: u32, position: u32| Location {
            site,
            generation: 1,
            wide: StripeId::new(9, 9).to_bytes().to_vec().into(),
            position,
            ..Location::default()
        };
        let parity = Location { generation: 1, ..Location::default() };
        Stripe { locations: vec![location(1, 0), location(2, 1), parity], dropped: true, ..Stripe::default() }
    }

    fn wide() -> Stripe {
        let stripe = || StripeId::new(1, 1).to_bytes().to_vec().into();
        let member = |index| Member { stripe: stripe(), index, len: 0 };
        let location = |site| Location { site, generation: 1, ..Location::default() };
        let mut wide = Stripe {
            members: vec![member(0), member(1)],
            locations: [1, 2, 3].map(location).to_vec(),
            ..Stripe::default()
        };
        wide.set_wide_state(WideState::Sealed);
        wide
    }

    /// Returns the first violation in these two records.
    fn found(own: &Stripe, wide: Option<&Stripe>) -> Option<Invariant> {
        let broken = Violations::default();
        let find = |id| Some(if id == StripeId::new(9, 9) { wide.cloned() } else { Some(own.clone()) });
        check(&broken, StripeId::new(1, 1), own, 2, find);
        if let Some(wide) = wide {
            check(&broken, StripeId::new(9, 9), wide, 2, find);
        }
        broken.first().map(|(invariant, _)| invariant)
    }

    #[test]
    fn a_swap_is_what_moves_a_parity_and_a_member() {
        let (before, swaps) = (wide(), |now: &Stripe| swaps_local_parity(&wide(), now));
        let moved = |chunks: &[usize]| {
            let mut now = before.clone();
            chunks.iter().for_each(|&at| now.locations[at].site += 10);
            now
        };
        assert!(swaps(&moved(&[1, 2])) && !swaps(&moved(&[0, 1])) && !swaps(&moved(&[2])));
        assert!(!swaps(&Stripe { members: wide().members[..1].to_vec(), ..moved(&[1, 2]) }));
        let mut counts = Sealing::default();
        counts.count(Some(&before), &moved(&[1, 2]));
        counts.count(Some(&before), &moved(&[1]));
        assert_eq!((counts.swapped, counts.placed_anew), (1, 1));
    }

    #[test]
    fn a_place_that_a_member_leaves_is_told_from_one_that_is_taken() {
        let (full, mut with_hole) = (wide(), wide());
        (with_hole.members[0], with_hole.locations[0]) = (Member::default(), Location::default());
        let mut counts = Sealing::default();
        counts.count(Some(&full), &with_hole);
        assert_eq!((counts.left, counts.taken), (1, 0));
        counts.count(Some(&with_hole), &full);
        assert_eq!((counts.left, counts.taken), (1, 1));
        with_hole.set_wide_state(WideState::Aborting);
        counts.count(Some(&full), &with_hole);
        assert_eq!((counts.left, counts.emptied, counts.given_up), (1, 1, 1), "all leave for others at once");
    }

    #[test]
    fn a_wide_stripe_is_sealed_once_however_often_it_takes_members() {
        let in_state = |state: WideState| {
            let mut stripe = wide();
            stripe.set_wide_state(state);
            stripe
        };
        let mut counts = Sealing::default();
        counts.count(None, &in_state(WideState::Building));
        counts.count(Some(&in_state(WideState::Building)), &in_state(WideState::Sealed));
        counts.count(Some(&in_state(WideState::Sealed)), &in_state(WideState::Complete));
        counts.count(Some(&in_state(WideState::Complete)), &in_state(WideState::Sealed));
        assert_eq!((counts.begun, counts.sealed), (1, 1));
    }

    #[test]
    fn records_that_disagree_and_chunks_that_nothing_protects_are_found() {
        assert_eq!(found(&own(), Some(&wide())), None);
        assert_eq!(found(&Stripe { dropped: false, ..own() }, None), Some(Invariant::Members));
        assert_eq!(found(&own(), None), Some(Invariant::Protected));
        let mut moved = own();
        (moved.locations[1].site, moved.locations[1].generation) = (7, 2);
        assert_eq!(found(&moved, Some(&wide())), Some(Invariant::Members));
        let mut building = wide();
        building.set_wide_state(WideState::Building);
        assert_eq!(found(&own(), Some(&building)), Some(Invariant::Protected));
        assert_eq!(found(&Stripe { dropped: false, ..own() }, Some(&building)), None);
        let mut given_up = wide();
        given_up.set_wide_state(WideState::Aborting);
        given_up.locations[2].site = 0;
        let dead = Stripe { dead: true, ..own() };
        assert_eq!(found(&dead, Some(&given_up)), None, "nobody needs what is dead any more");
        let mut unclaimed = Stripe { dropped: false, ..own() };
        unclaimed.locations[0].wide = bytes::Bytes::new();
        assert_eq!(found(&unclaimed, Some(&wide())), Some(Invariant::Members));
        assert_eq!(found(&unclaimed, Some(&building)), None);
    }
}

//! Lost chunks of wide stripes are read and rebuilt, even if the rules leave them one place or none.

use std::collections::BTreeSet;

use bytes::Bytes;
use striate_control::repair::absence::AbsentSites;
use striate_control::repair::pace::RepairPace;
use striate_control::{MoveOutcome, Rebalancer, RepairOutcome, heal, move_chunk, repair_stripe, verify};
use striate_core::{SiteId, StripeId};
use striate_meta::records::Stripe;
use striate_meta::{Commit, keys};
use striate_plan::movement::ChunkMove;
use striate_site::Site;
use striate_stripe::{ExchangeOutcome, file_of, is_hole, release_stripe, wide_of};

use crate::cluster::go_on;
use crate::packing::name;
use crate::sealed::{OBJECTS, Sealing};

impl Sealing {
    /// Returns a stripe without parities, one of its data chunks, the chunk's site, and the site of another chunk in
    /// its rack where its wide stripe would admit it. The last set holds the other sites of the rack where it would
    /// be admitted. If there is a choice, three chunks of the other one's wide stripe are in the rack.
    async fn with_one_way_out(&self) -> (StripeId, usize, [SiteId; 2], BTreeSet<SiteId>) {
        let (racks, mut found) = (self.racks(), Vec::new());
        for (id, record) in self.cluster.stripes().await.into_iter().filter(|(_, of)| of.dropped) {
            for (index, other) in (0..4).flat_map(|index| (0..4).map(move |other| (index, other))) {
                let [site, to] = [index, other].map(|of| SiteId(record.locations[of].site));
                let of_wide = |wide: Stripe| -> BTreeSet<SiteId> {
                    let sites = wide.locations.iter().map(|at| SiteId(at.site));
                    sites.filter(|of| racks.get(of) == Some(&racks[&site])).collect()
                };
                let taken = of_wide(self.record(wide_of(&record.locations[index]).unwrap().0).await);
                let is_free = |of: &SiteId| racks[of] == racks[&site] && !taken.contains(of);
                if index != other && is_free(&to) {
                    let free = racks.keys().copied().filter(is_free).filter(|of| *of != to).collect();
                    let of_other = of_wide(self.record(wide_of(&record.locations[other]).unwrap().0).await);
                    found.push((of_other.len() == 3, (id, index, [site, to], free)));
                }
            }
        }
        found.into_iter().max_by_key(|(is_full, _)| *is_full).unwrap().1
    }

    /// Moves chunks of a wide stripe within a rack, so that each of these sites has one.
    async fn gather_at(&self, wide: StripeId, sites: &BTreeSet<SiteId>) {
        let (racks, stripes) = (self.racks(), self.cluster.client.stripes());
        let rack = sites.first().map(|site| &racks[site]);
        let record = self.record(wide).await;
        let holds = |site: &SiteId| record.locations.iter().any(|at| at.site == site.0);
        let mut others = (0..record.locations.len()).filter(|&at| {
            let site = SiteId(record.locations[at].site);
            racks.get(&site) == rack && !sites.contains(&site)
        });
        for &to in sites.iter().filter(|site| !holds(site)) {
            // One whose own stripe has another chunk there stays.
            loop {
                let at = others.next().expect("as many chunks are in the rack as there are sites");
                let (stripe, index) = match record.members.get(at) {
                    Some(_) => Self::member(&record, at),
                    None => (wide, at),
                };
                let wanted = ChunkMove { stripe, index, from: SiteId(record.locations[at].site), to };
                if matches!(move_chunk(stripes, &wanted).await.unwrap(), MoveOutcome::Moved { .. }) {
                    break;
                }
            }
        }
        self.collect().await;
    }

    /// Returns a stripe that has its own parities again, a member of it, and the member's site: no other site may
    /// take it, and the other chunk in its rack has no place but its own.
    async fn narrow_with_one_way_out(&mut self) -> (StripeId, usize, SiteId) {
        self.seal().await;
        self.collect().await;
        let (id, index, [site, to], free) = self.with_one_way_out().await;
        let (record, racks) = (self.record(id).await, self.racks());
        let other = record.locations.iter().find(|at| at.site == to.0).unwrap();
        let stay = |of: &SiteId| racks[of] == racks[&site] && *of != site && !free.contains(of);
        self.gather_at(wide_of(other).unwrap().0, &racks.keys().copied().filter(stay).collect()).await;
        self.lose_each(free).await;
        assert!(self.cluster.client.stripes().narrow_again(id).await.unwrap());
        self.heal().await;
        (id, index, site)
    }

    /// Puts a stripe in debt: any of its chunks may be damaged.
    pub async fn put_in_debt(&self, id: StripeId) {
        let stripes = self.cluster.client.stripes();
        let mut tx = stripes.transaction();
        tx.put(keys::debt(id), Bytes::new());
        assert!(matches!(stripes.meta().commit(tx).await.unwrap(), Commit::Done(_)));
    }

    /// Runs one repair of a stripe while these sites are gone.
    pub async fn repair(&self, id: StripeId, gone: BTreeSet<SiteId>) -> RepairOutcome {
        let absent = AbsentSites { gone, ..AbsentSites::default() };
        let stripes = self.cluster.client.stripes();
        repair_stripe(stripes, id, &absent, &RepairPace::unlimited(), false).await.unwrap()
    }

    /// Returns a stripe that has its own parities again, a member of it, the member's site, and the only other site
    /// where its wide stripe admits it: a parity of the stripe is there.
    async fn with_its_parity_in_the_way(&mut self) -> (StripeId, usize, SiteId, SiteId) {
        let (stripes, racks) = (self.cluster.client.stripes().clone(), self.racks());
        for (id, record) in self.cluster.stripes().await.into_iter().filter(|(_, of)| of.dropped) {
            assert!(stripes.narrow_again(id).await.unwrap());
            self.heal().await;
            for index in 0..4 {
                let site = SiteId(record.locations[index].site);
                let wide = self.record(wide_of(&record.locations[index]).unwrap().0).await;
                let is_free = |of: &SiteId| {
                    racks[of] == racks[&site] && wide.locations.iter().all(|at| at.site != of.0)
                };
                let free: Vec<SiteId> = racks.keys().copied().filter(is_free).collect();
                for &to in &free {
                    let from = SiteId(self.record(id).await.locations[5].site);
                    let wanted = ChunkMove { stripe: id, index: 5, from, to };
                    let moved = from == to
                        || matches!(move_chunk(&stripes, &wanted).await.unwrap(), MoveOutcome::Moved { .. });
                    if moved {
                        self.lose_each(free.into_iter().filter(|of| *of != to)).await;
                        return (id, index, site, to);
                    }
                }
            }
        }
        panic!("no parity can be in the way");
    }

    /// Returns sites to lose, so that both of these members of a stripe are lost and neither may go anywhere. No wide
    /// stripe of the stripe then lacks more than three chunks besides its own members, and one lacks three and such a
    /// member.
    async fn with_one_member_too_many(&self, record: &Stripe, lost: [usize; 2]) -> Option<BTreeSet<SiteId>> {
        let racks = self.racks();
        let mut wides = Vec::new();
        for index in 0..4 {
            wides.push(self.record(wide_of(&record.locations[index]).unwrap().0).await);
        }
        let holders: BTreeSet<SiteId> = record.locations.iter().map(|at| SiteId(at.site)).collect();
        let mut gone: BTreeSet<SiteId> = lost.iter().map(|&of| SiteId(record.locations[of].site)).collect();
        for &of in &lost {
            let rack = &racks[&SiteId(record.locations[of].site)];
            let is_free = |site: &&SiteId| {
                racks[*site] == *rack && wides[of].locations.iter().all(|at| at.site != site.0)
            };
            gone.extend(racks.keys().filter(is_free).filter(|site| !holders.contains(site)));
        }
        let all: Vec<SiteId> = racks.keys().copied().filter(|site| !holders.contains(site)).collect();
        let lacking = |of: usize, gone: &BTreeSet<SiteId>| {
            let own = SiteId(record.locations[of].site);
            wides[of]
                .locations
                .iter()
                .filter(|at| at.site != own.0 && gone.contains(&SiteId(at.site)))
                .count()
        };
        for (one, two) in all.iter().flat_map(|one| all.iter().map(move |two| (*one, *two))) {
            let gone: BTreeSet<SiteId> = gone.iter().copied().chain([one, two]).collect();
            let counts: Vec<usize> = (0..4).map(|of| lacking(of, &gone)).collect();
            if counts.iter().all(|&count| count <= 3) && lost.iter().any(|&of| counts[of] == 3) {
                return Some(gone);
            }
        }
        None
    }

    /// Loses sites for good, one after the other; rebuilds what each had before the next one goes.
    async fn lose_each(&mut self, sites: impl IntoIterator<Item = SiteId>) {
        for gone in sites {
            let at = self.cluster.sites.iter().position(|of| of.id() == gone).unwrap();
            self.cluster.retire(at).await;
            self.heal().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lost_members_are_read_and_rebuilt_from_their_wide_stripes() {
    let sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    // Lose as many chunks of each wide stripe as it may lose, members and parities.
    for (id, record) in sealing.wide_stripes().await {
        for position in [0, 7, 12] {
            let site = SiteId(record.locations[position].site);
            sealing.lose(file_of(id, &record, position), site);
        }
    }
    sealing.assert_reads().await;
    let verified = verify(sealing.cluster.client.stripes(), go_on).await.unwrap();
    assert!(verified.progress.damaged > 0 && verified.queued > 0, "{verified:?}");
    sealing.heal().await;
    let verified = verify(sealing.cluster.client.stripes(), go_on).await.unwrap();
    assert!(verified.is_clean(), "{verified:?}");
    sealing.assert_whole().await;
    sealing.assert_reads().await;
}

/// After the grace, another object's bytes may be where a read still looks for its own.
#[tokio::test(start_paused = true)]
async fn a_read_of_a_lost_member_gives_up_before_the_grace_ends() {
    let sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    for (id, record) in sealing.wide_stripes().await {
        sealing.lose(file_of(id, &record, 0), SiteId(record.locations[0].site));
    }
    sealing.cluster.sites.iter().for_each(|site| *site.hung.lock() = true);
    let (runtime, grace) =
        (sealing.cluster.runtime.clone(), sealing.cluster.client.stripes().options().garbage_grace);
    for key in 0..OBJECTS {
        let began = runtime.now();
        assert!(sealing.cluster.get(&name(key)).await.is_err(), "object {key}");
        let took = runtime.now().saturating_duration_since(began);
        assert!(took < grace * 3 / 4, "object {key}: {took:?}");
    }
}

/// One data chunk of a stripe that has dropped its parities cannot be computed now: too much of its wide stripe is
/// away. Another chunk can, from another wide stripe.
#[tokio::test(start_paused = true)]
async fn a_member_is_rebuilt_beside_one_that_cannot_be() {
    let sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    let stripes = sealing.cluster.stripes().await;
    let of_two = stripes.iter().filter(|(_, record)| record.dropped).find_map(|(id, record)| {
        let wides: Vec<_> = record.locations[..4].iter().map(|at| wide_of(at).unwrap().0).collect();
        let other = wides.iter().position(|wide| *wide != wides[0])?;
        Some((*id, record.clone(), wides[0], other))
    });
    let (id, record, wide, other) = of_two.expect("a stripe with members in two wide stripes");
    let wide_record = sealing.record(wide).await;
    for position in 0..wide_record.locations.len() {
        if !is_hole(&wide_record, position) {
            let file = file_of(wide, &wide_record, position);
            sealing.lose(file, SiteId(wide_record.locations[position].site));
        }
    }
    let lost = file_of(id, &record, other);
    sealing.lose(lost, SiteId(record.locations[other].site));
    verify(sealing.cluster.client.stripes(), go_on).await.unwrap();
    heal(sealing.cluster.client.stripes(), go_on).await.unwrap();
    let now = sealing.record(id).await;
    let made = file_of(id, &now, other);
    let has_it =
        |site: &std::sync::Arc<crate::cluster::BreakableSite>| site.chunks.lock().contains_key(&made);
    assert!(made != lost && sealing.cluster.sites.iter().any(has_it), "{now:?}");
}

/// One site of each of four racks.
#[tokio::test(start_paused = true)]
async fn what_sites_had_that_are_retired_one_after_the_other_is_rebuilt_where_locality_stays_exact() {
    let mut sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    for _ in 0..4 {
        sealing.cluster.retire(0).await;
        sealing.heal().await;
        sealing.assert_whole().await;
        sealing.assert_reads().await;
    }
}

/// With five sites in each rack a lost chunk's wide stripe mostly admits it on one of them, which may hold another
/// chunk of its own stripe. Without own parities that does not matter, until the stripe is to have parities again.
#[tokio::test(start_paused = true)]
async fn what_a_site_had_is_rebuilt_also_where_only_a_site_with_another_chunk_of_the_stripe_is_left() {
    let mut sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    let (id, index, [site, to], free) = sealing.with_one_way_out().await;
    sealing.lose_each(free.into_iter().chain([site])).await;
    let record = sealing.record(id).await;
    assert_eq!(record.locations[index].site, to.0);
    assert_eq!(record.locations.iter().filter(|at| at.site == to.0).count(), 2);
    let verified = verify(sealing.cluster.client.stripes(), go_on).await.unwrap();
    assert!(verified.is_clean(), "{verified:?}");
    sealing.assert_whole().await;
    sealing.assert_reads().await;
    assert!(!sealing.cluster.client.stripes().narrow_again(id).await.unwrap(), "two chunks on a site");
    assert_eq!(sealing.record(id).await, record);
}

/// The stripe has its own parities again: being allowed to have them must not reduce the losses that its wide stripe
/// may have.
#[tokio::test(start_paused = true)]
async fn what_is_narrow_again_is_rebuilt_where_its_wide_stripe_leaves_one_site() {
    for are_made in [false, true] {
        let mut sealing = Sealing::start().await;
        sealing.seal().await;
        sealing.collect().await;
        let (id, index, [site, to], free) = sealing.with_one_way_out().await;
        sealing.lose_each(free).await;
        assert!(sealing.cluster.client.stripes().narrow_again(id).await.unwrap());
        if are_made {
            sealing.heal().await;
        }
        sealing.lose_each([site]).await;
        let record = sealing.record(id).await;
        assert_eq!(record.locations[index].site, to.0);
        let verified = verify(sealing.cluster.client.stripes(), go_on).await.unwrap();
        assert!(verified.is_clean(), "{verified:?}");
        sealing.assert_whole().await;
        sealing.assert_reads().await;
    }
}

/// If another chunk of the stripe can go elsewhere, that one moves, and the stripe keeps its parities.
#[tokio::test(start_paused = true)]
async fn a_chunk_that_is_in_the_way_of_a_member_moves_first() {
    for drains in [false, true] {
        let mut sealing = Sealing::start().await;
        sealing.seal().await;
        sealing.collect().await;
        let (id, index, site, to) = sealing.with_its_parity_in_the_way().await;
        let stripes = sealing.cluster.client.stripes().clone();
        if drains {
            stripes.set_draining(site, true);
            let rebalancer = Rebalancer::default();
            while rebalancer.run_pass(&stripes).await.unwrap() > 0 {}
        } else {
            sealing.lose_each([site]).await;
        }
        let record = sealing.record(id).await;
        assert_eq!((record.locations[index].site, record.dropped), (to.0, false), "{record:?}");
        assert!(record.locations.iter().filter(|at| at.site == to.0).count() == 1, "{record:?}");
        sealing.assert_whole().await;
        sealing.assert_clean().await;
        sealing.assert_reads().await;
    }
}

/// If its wide stripes already lack too much, the stripe's own parities are what its chunks are rebuilt from: they
/// stay.
#[tokio::test(start_paused = true)]
async fn parities_stay_where_wide_stripes_lack_too_much_already() {
    let mut tried = 0;
    for ahead in 1..4 {
        let mut sealing = Sealing::start().await;
        let (id, index, site) = sealing.narrow_with_one_way_out().await;
        let record = sealing.record(id).await;
        // A member that stays lost this time would have to rely on its wide stripe alone.
        let lost = [index, (index + ahead) % 4];
        let Some(gone) = sealing.with_one_member_too_many(&record, lost).await else { continue };
        let outcome = sealing.repair(id, gone).await;
        assert!(outcome.still_lost > 0 && !sealing.record(id).await.dropped, "{outcome:?}");
        tried += 1;
        if outcome.chunks == 0 {
            assert_eq!(sealing.record(id).await, record);
            let outcome = sealing.repair(id, BTreeSet::from([site])).await;
            assert!(outcome.is_whole() && sealing.record(id).await.dropped, "{outcome:?}");
        }
    }
    assert!(tried > 0, "no sites are such that a wide stripe lacks three others");
}

/// Parities that must stay bar a member from its only place. Another chunk of its wide stripe goes there, and it gets
/// that one's place.
#[tokio::test(start_paused = true)]
async fn another_chunk_of_the_wide_stripe_makes_room_where_parities_must_stay() {
    for drains in [false, true] {
        let mut sealing = Sealing::start().await;
        let (id, index, site) = sealing.narrow_with_one_way_out().await;
        let stripes = sealing.cluster.client.stripes().clone();
        let before = sealing.record(id).await;
        if drains {
            stripes.set_draining(site, true);
            let rebalancer = Rebalancer::default();
            while rebalancer.run_pass(&stripes).await.unwrap() > 0 {}
        } else {
            // Chunks of another wide stripe that are known to be damaged count as lacking.
            let (wide, _) = wide_of(&before.locations[(index + 1) % 4]).unwrap();
            sealing.put_in_debt(wide).await;
            let outcome = sealing.repair(id, BTreeSet::from([site])).await;
            assert!(outcome.is_whole(), "{outcome:?}");
        }
        let record = sealing.record(id).await;
        let racks = sealing.racks();
        let now = SiteId(record.locations[index].site);
        assert!(now != site && racks[&now] == racks[&site] && !record.dropped, "{record:?}");
        assert!(before.locations.iter().all(|at| at.site != now.0), "{record:?}");
        sealing.assert_whole().await;
        sealing.assert_reads().await;
    }
}

/// A chunk of a dead stripe is rebuilt too: the stripe must be whole before it can leave.
#[tokio::test(start_paused = true)]
async fn what_is_dead_is_rebuilt_where_its_wide_stripe_leaves_one_site_and_leaves() {
    let mut sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    let (id, index, [site, to], free) = sealing.with_one_way_out().await;
    sealing.lose_each(free).await;
    let stripes = sealing.cluster.client.stripes().clone();
    assert!(stripes.narrow_again(id).await.unwrap());
    sealing.heal().await;
    let mut tx = stripes.transaction();
    let row = stripes.meta().get(&keys::stripe(id)).await.unwrap().unwrap();
    tx.require_unchanged(keys::stripe(id), Some(&row));
    release_stripe(&mut tx, id, &row.record().unwrap());
    assert!(matches!(stripes.meta().commit(tx).await.unwrap(), Commit::Done(_)));
    sealing.lose_each([site]).await;
    let record = sealing.record(id).await;
    assert!(record.dead && record.locations[index].site == to.0, "{record:?}");
    for (wide, _) in record.locations.iter().filter_map(wide_of) {
        assert_eq!(stripes.leave_wide(wide).await.unwrap(), ExchangeOutcome::Done);
    }
    assert!(stripes.release_dead(id).await.unwrap());
    sealing.assert_whole().await;
}

/// No site takes the parities that a stripe is to have again.
#[tokio::test(start_paused = true)]
async fn parities_that_were_never_made_are_dropped_when_the_stripe_has_cooled() {
    let sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    let stripes = sealing.cluster.client.stripes();
    let mut narrow = None;
    for (id, _) in sealing.cluster.stripes().await.into_iter().filter(|(_, of)| of.dropped) {
        if narrow.is_none() && stripes.narrow_again(id).await.unwrap() {
            narrow = Some(id);
        }
    }
    let id = narrow.unwrap();
    sealing.cluster.sites.iter().for_each(|site| *site.full.lock() = true);
    let report = heal(stripes, go_on).await.unwrap();
    assert!(!report.is_whole() && sealing.cluster.debts().await == 1, "{report:?}");
    sealing.seal().await;
    assert!(sealing.record(id).await.dropped);
    // Without them the stripe is whole.
    sealing.heal().await;
    sealing.assert_whole().await;
    sealing.assert_reads().await;
}

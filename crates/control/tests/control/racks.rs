//! Whole racks of wide stripes are lost or drained. With a spare rack their chunks find places where locality is exact.

use std::collections::BTreeSet;
use std::time::Duration;

use striate_control::repair::absence::AbsentSites;
use striate_control::repair::pace::RepairPace;
use striate_control::{
    Rebalancer, RepairOptions, RepairService, SealOptions, repair_stripe, seal_bucket, verify,
};
use striate_core::{RackId, SiteId, StripeId};
use striate_meta::keys;
use striate_meta::records::{GarbageChunk, Stripe};
use striate_plan::LeavingRacks;
use striate_site::{Priority, Site};
use striate_stripe::{DebtEffect, StripeChange, Stripes, is_hole};

use crate::cluster::{BUCKET, go_on};
use crate::sealed::{SHARING, Sealing, pack_options};

impl Sealing {
    /// Starts a cluster with sealed objects.
    async fn start_sealed() -> Self {
        Self::start_sealed_beside(0).await
    }

    /// Like `start_sealed`, with more objects: chunks are in other places.
    async fn start_sealed_beside(others: usize) -> Self {
        let sealing = Self::start_beside(others, "rs(4,2)", &pack_options()).await;
        assert!(sealing.seal().await.sealed > 2);
        sealing.collect().await;
        sealing
    }

    /// Gives stripes their own parities back, as far as their chunks' places allow. Returns them.
    async fn make_narrow_again(&self) -> Vec<StripeId> {
        let mut narrow = Vec::new();
        for (id, _) in self.cluster.stripes().await.into_iter().filter(|(_, of)| of.dropped) {
            if self.cluster.client.stripes().narrow_again(id).await.unwrap() {
                narrow.push(id);
            }
        }
        self.heal().await;
        narrow
    }

    /// Returns the places of a rack's sites in the list of sites.
    fn sites_in(&self, rack: &RackId) -> Vec<usize> {
        let sites = self.cluster.sites.iter().enumerate();
        sites.filter(|(_, site)| site.rack() == *rack).map(|(at, _)| at).collect()
    }

    /// Makes a rack's sites unreachable, or reachable again.
    fn set_down(&self, rack: &RackId, is_down: bool) {
        self.sites_in(rack).into_iter().for_each(|at| *self.cluster.sites[at].down.lock() = is_down);
    }

    /// Loses a rack for good, and lets the repair service rebuild what it had.
    async fn lose_rack(&self, rack: &RackId) {
        let repair = RepairService::new(RepairOptions::default());
        let task = self.cluster.runtime.spawn(repair.run(self.cluster.client.stripes().clone()));
        self.set_down(rack, true);
        self.cluster.runtime.sleep(RepairOptions::default().after + Duration::from_secs(600)).await;
        task.abort();
        assert_eq!(self.cluster.debts().await, 0);
        self.assert_left(rack).await;
    }

    /// Returns the rack of a chunk.
    async fn rack_of(&self, stripe: StripeId, chunk: usize) -> RackId {
        self.racks()[&SiteId(self.record(stripe).await.locations[chunk].site)].clone()
    }

    /// Returns what a service knows for which a rack is lost.
    fn without(&self, rack: &RackId) -> AbsentSites {
        let gone = self.sites_in(rack).into_iter().map(|at| self.cluster.sites[at].id()).collect();
        let leaving = LeavingRacks::of([(rack.clone(), true)]);
        AbsentSites { gone, leaving, ..AbsentSites::default() }
    }

    /// Asserts that no stripe has a chunk in a rack.
    async fn assert_left(&self, rack: &RackId) {
        let sites: Vec<SiteId> =
            self.sites_in(rack).into_iter().map(|at| self.cluster.sites[at].id()).collect();
        for (id, record) in self.cluster.stripes().await {
            let is_there = record.locations.iter().any(|at| sites.contains(&SiteId(at.site)));
            assert!(!is_there, "stripe {id}: {record:?}");
        }
    }
}

fn racks() -> impl Iterator<Item = RackId> {
    (0..6).map(|rack| RackId(format!("rack{rack}")))
}

#[tokio::test(start_paused = true)]
async fn what_a_rack_has_is_read_while_the_rack_is_away() {
    let sealing = Sealing::start_sealed().await;
    let rack = sealing.cluster.sites[0].rack();
    sealing.set_down(&rack, true);
    sealing.assert_reads().await;
    sealing.set_down(&rack, false);
    sealing.cluster.runtime.sleep(Duration::from_secs(60)).await;
    sealing.assert_reads().await;
}

/// Each rack has another part of most wide stripes: three chunks of a group, the global parities, or nothing.
#[tokio::test(start_paused = true)]
async fn what_a_lost_rack_had_is_rebuilt_elsewhere_and_locality_stays_exact() {
    for rack in racks() {
        let sealing = Sealing::start_sealed().await;
        let before = sealing.crossed().await;
        sealing.lose_rack(&rack).await;
        sealing.assert_whole().await;
        assert_eq!(sealing.crossed().await, before);
        sealing.assert_reads().await;
        let verified = verify(sealing.cluster.client.stripes(), go_on).await.unwrap();
        assert!(verified.is_clean(), "{verified:?}");
    }
}

/// No request of this process has failed before.
#[tokio::test(start_paused = true)]
async fn what_a_rack_had_that_died_unnoticed_is_healed_elsewhere_and_locality_stays_exact() {
    let sealing = Sealing::start_sealed().await;
    let before = sealing.crossed().await;
    let rack = sealing.cluster.sites[0].rack();
    sealing.set_down(&rack, true);
    sealing.heal().await;
    sealing.assert_left(&rack).await;
    sealing.assert_whole().await;
    assert_eq!(sealing.crossed().await, before);
    sealing.assert_reads().await;
}

/// Only their rows say in which rack retired sites were.
#[tokio::test(start_paused = true)]
async fn what_a_retired_rack_had_is_rebuilt_elsewhere_and_locality_stays_exact() {
    let mut sealing = Sealing::start_sealed().await;
    let before = sealing.crossed().await;
    let rack = sealing.cluster.sites[0].rack();
    while let Some(&at) = sealing.sites_in(&rack).first() {
        sealing.cluster.retire(at).await;
    }
    sealing.heal().await;
    sealing.assert_whole().await;
    assert_eq!(sealing.crossed().await, before);
    sealing.assert_reads().await;
}

#[tokio::test(start_paused = true)]
async fn a_rack_is_drained_and_locality_stays_exact() {
    for rack in racks() {
        let sealing = Sealing::start_sealed().await;
        let (before, stripes) = (sealing.crossed().await, sealing.cluster.client.stripes().clone());
        let sites: Vec<_> =
            sealing.sites_in(&rack).into_iter().map(|at| sealing.cluster.sites[at].clone()).collect();
        sites.iter().for_each(|site| stripes.set_draining(site.id(), true));
        let rebalancer = Rebalancer::default();
        while rebalancer.run_pass(&stripes).await.unwrap() > 0 {}
        sealing.collect().await;
        let left: Vec<usize> = sites.iter().map(|site| site.chunks.lock().len()).collect();
        assert_eq!(left, [0; 5], "{rack}: {:?}", rebalancer.progress());
        sealing.assert_whole().await;
        assert_eq!(sealing.crossed().await, before);
        sealing.assert_reads().await;
    }
}

/// Some stripes with parities of their own have two chunks in the rack that a lost member is to go to. One of them
/// makes room, or the stripe gives up its parities.
#[tokio::test(start_paused = true)]
async fn what_a_lost_rack_had_of_stripes_with_parities_is_rebuilt_too() {
    let (mut kept, mut given_up) = (0, 0);
    for rack in racks() {
        let sealing = Sealing::start_sealed().await;
        let narrow = sealing.make_narrow_again().await;
        sealing.lose_rack(&rack).await;
        for id in narrow {
            *if sealing.record(id).await.dropped { &mut given_up } else { &mut kept } += 1;
        }
        sealing.assert_whole().await;
        sealing.assert_reads().await;
    }
    assert!(given_up * 20 < kept, "{given_up} stripes gave up their parities, {kept} kept them");
}

/// Stripes may not give up their parities, because their wide stripes are in debt. Where one of them has as many chunks
/// as it may in all racks that a lost member may go to, another chunk of its wide stripe moves, and sometimes one of its
/// own first.
#[tokio::test(start_paused = true)]
async fn what_a_lost_rack_had_is_rebuilt_also_where_parities_must_stay() {
    for (rack, others) in racks().zip(4..) {
        let sealing = Sealing::start_sealed_beside(others).await;
        let narrow = sealing.make_narrow_again().await;
        for (wide, _) in sealing.wide_stripes().await {
            sealing.put_in_debt(wide).await;
        }
        sealing.set_down(&rack, true);
        let (stripes, absent) = (sealing.cluster.client.stripes(), sealing.without(&rack));
        for (id, _) in sealing.cluster.stripes().await {
            let outcome = repair_stripe(stripes, id, &absent, &RepairPace::unlimited(), false).await.unwrap();
            assert!(outcome.is_whole(), "stripe {id} without {rack}: {outcome:?}");
        }
        for id in narrow {
            assert!(!sealing.record(id).await.dropped, "stripe {id} without {rack}");
        }
        sealing.assert_left(&rack).await;
        sealing.assert_whole().await;
        sealing.assert_reads().await;
    }
}

/// Only the rack without chunks of a stripe has room for what another one had.
#[tokio::test(start_paused = true)]
async fn where_stripes_fill_their_racks_one_stays_free_and_any_other_may_be_lost() {
    let sealing = Sealing::start_filling_racks().await;
    let (before, wide) = (sealing.crossed().await, sealing.wide_stripes().await);
    // Their groups would let them go to the free rack.
    for (_, record) in &wide {
        sealing.drain(SiteId(record.locations[SHARING].site)).await;
    }
    sealing.assert_whole().await;
    for chunk in [SHARING, 0, 41] {
        let rack = sealing.rack_of(wide[0].0, chunk).await;
        sealing.lose_rack(&rack).await;
        sealing.assert_whole().await;
        sealing.set_down(&rack, false);
        sealing.cluster.runtime.sleep(Duration::from_secs(60)).await;
        sealing.collect().await;
    }
    assert_eq!(sealing.crossed().await, before);
    sealing.assert_large_reads().await;
}

/// Rebuilds elsewhere what every other stripe has in a rack, which then comes back. A group is in one rack more than it
/// needs until its stripe is verified and repaired. Returns how many chunks are repaired from more racks until then.
async fn come_back_halfway(sealing: &Sealing, rack: &RackId, have_parities: bool) -> usize {
    let (before, stripes) = (sealing.crossed().await, sealing.cluster.client.stripes().clone());
    let absent = sealing.without(rack);
    for (id, _) in sealing.cluster.stripes().await.into_iter().step_by(2) {
        let outcome = repair_stripe(&stripes, id, &absent, &RepairPace::unlimited(), false).await.unwrap();
        // Parities of members' own stripes are given up only once their wide stripes are whole.
        assert!(outcome.is_whole() || have_parities, "{outcome:?}");
    }
    let halfway = sealing.crossed().await;
    sealing.collect().await;
    sealing.assert_reads().await;
    let verified = verify(&stripes, go_on).await.unwrap();
    assert!(verified.is_clean(), "{verified:?}");
    sealing.heal().await;
    sealing.assert_whole().await;
    assert_eq!(sealing.crossed().await, before);
    sealing.collect().await;
    sealing.assert_reads().await;
    halfway.iter().filter(|(chunk, racks)| before[*chunk] < **racks).count()
}

/// Where the members' own stripes have parities, their rule may bar the rack that a member is to go to.
#[tokio::test(start_paused = true)]
async fn what_was_rebuilt_elsewhere_goes_home_when_the_rack_comes_back_halfway() {
    let mut spread = 0;
    let cases = racks().flat_map(|rack| [(rack.clone(), false, 0), (rack.clone(), true, 0), (rack, true, 4)]);
    for (rack, have_parities, others) in cases {
        let sealing = Sealing::start_sealed_beside(others).await;
        if have_parities {
            sealing.make_narrow_again().await;
        }
        spread += come_back_halfway(&sealing, &rack, have_parities).await;
    }
    assert!(spread > 0);
}

/// The last group's local parity may then leave the global ones, and must not: no rack would be free.
#[tokio::test(start_paused = true)]
async fn where_stripes_fill_their_racks_what_was_rebuilt_elsewhere_goes_home_too() {
    let sealing = Sealing::start_filling_racks().await;
    let wide = sealing.wide_stripes().await[0].0;
    let rack = sealing.rack_of(wide, 41).await;
    // Some stripes are sealed in part, and have parities.
    assert!(come_back_halfway(&sealing, &rack, true).await > 0);
    sealing.assert_large_reads().await;
}

/// Makes a chunk at a new site. Returns what names it there.
async fn make<'a>(
    stripes: &'a Stripes,
    (stripe, index): (StripeId, usize),
    to: SiteId,
    leaving: &LeavingRacks,
) -> (StripeChange<'a>, Vec<GarbageChunk>) {
    let mut change = stripes.change(stripe, Priority::Background).await.unwrap().unwrap();
    change.leave(leaving);
    let generation = change.open(&[(index, to)]).await.unwrap().unwrap();
    let payload = change.read_chunk(index).await.unwrap();
    change.write_chunk(index, to, generation, payload).await.unwrap();
    let replaced = change.replace(index, to, generation).into_iter().collect();
    (change, replaced)
}

/// Two members of a group leave a rack at the same time, for two racks that their wide stripe does not use. Some
/// services do not know that the rack is lost. The group still gets one rack in its place.
#[tokio::test(start_paused = true)]
async fn of_two_members_that_leave_a_rack_for_two_others_at_the_same_time_one_stays() {
    let sealing = Sealing::start().await;
    let options = SealOptions::new("wide(4,2,2)".parse().unwrap(), Duration::ZERO);
    let stripes = sealing.cluster.client.stripes();
    seal_bucket(stripes, &sealing.packer, BUCKET, &options, &mut go_on).await.unwrap();
    sealing.collect().await;
    let racks = sealing.racks();
    let mut tried = BTreeSet::new();
    for (turn, (_, wide)) in sealing.wide_stripes().await.into_iter().enumerate() {
        if (0..2).any(|position| is_hole(&wide, position)) {
            continue;
        }
        let [one, other] = [0, 1].map(|position| Sealing::member(&wide, position));
        let own = [sealing.record(one.0).await, sealing.record(other.0).await];
        let sites = |record: &Stripe| record.locations.iter().map(|at| SiteId(at.site)).collect::<Vec<_>>();
        let used: BTreeSet<&RackId> = sites(&wide).iter().map(|site| &racks[site]).collect();
        let mut free = self::racks().filter(|rack| !used.contains(rack)).map(|rack| {
            let sites_in = sealing.sites_in(&rack).into_iter().map(|at| sealing.cluster.sites[at].id());
            sites_in.filter(|site| !own.iter().any(|of| sites(of).contains(site))).collect::<Vec<_>>()
        });
        let (near, far) = (free.next().unwrap(), free.next().unwrap());
        if one.0 == other.0 || !own.iter().all(|of| of.dropped) || near.len() < 2 || far.is_empty() {
            continue;
        }
        let leaving = LeavingRacks::of([(racks[&sites(&wide)[0]].clone(), true)]);
        // Every other time the second service does not know it.
        let known = if turn % 2 == 0 { leaving.clone() } else { LeavingRacks::default() };
        let (mut change, replaced) = make(stripes, one, near[0], &leaving).await;
        let (mut far_change, far_replaced) = make(stripes, other, far[0], &known).await;
        assert!(change.swap(replaced, DebtEffect::AsItIs).await.unwrap());
        assert!(!far_change.swap(far_replaced, DebtEffect::AsItIs).await.unwrap());
        let (mut near_change, near_replaced) = make(stripes, other, near[1], &known).await;
        assert!(near_change.swap(near_replaced, DebtEffect::AsItIs).await.unwrap());
        tried.insert(turn % 2);
    }
    assert_eq!(tried.len(), 2);
    assert_eq!(sealing.rows(keys::CHANGES).await, 0);
    sealing.assert_whole().await;
    sealing.collect().await;
    sealing.assert_reads().await;
}

//! Sealing: partitions become members of wide stripes where they are; what is lost is read and rebuilt from these.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use bytes::Bytes;
use striate_control::absence::Absent;
use striate_control::repair_pace::RepairPace;
use striate_control::{
    MoveOutcome, PackOptions, Rebalancer, SealOptions, SealReport, collect_abandoned, heal, move_chunk,
    pack_bucket, repair_stripe, resume_wide, seal_bucket, verify,
};
use striate_core::{ChunkId, RackId, SiteId, StripeId};
use striate_meta::records::{Location, Stripe, WideState};
use striate_meta::{Commit, ScanRange, keys};
use striate_plan::movement::ChunkMove;
use striate_plan::{PlacementRule, check_placement, racks_crossed};
use striate_site::{Priority, Site};
use striate_stripe::{
    Debt, Exchange, Packer, WidePlan, WideStep, file_of, is_hole, release_stripe, stripe_id, wide_of,
};

use crate::cluster::{BUCKET, Cluster, content, go_on};
use crate::dying::{Death, DyingStore, dying_client};
use crate::interposed::{cancel_entries, move_first};

pub const OBJECTS: usize = 220;
/// Two groups of five data chunks with a local parity each in two racks of three, two global parities in a fifth rack.
pub const WIDE: &str = "wide(10,5,3)";

pub struct Sealing {
    pub cluster: Cluster,
    pub packer: Packer,
    /// Objects that were deleted, by number.
    pub deleted: BTreeSet<usize>,
}

impl Sealing {
    /// Packed objects on six racks of five sites.
    pub async fn start() -> Self {
        Self::start_packed_as("rs(4,2)").await
    }

    /// The same with another profile.
    pub async fn start_packed_as(profile: &str) -> Self {
        let cluster = Cluster::start(30, profile).await;
        cluster.spread_over_racks(6);
        for key in 0..OBJECTS {
            cluster.put(&name(key), &content(key, len(key))).await.unwrap();
        }
        let packer = cluster.client.stripes().packer();
        let default = profile.parse().unwrap();
        let packed =
            pack_bucket(cluster.client.stripes(), &packer, BUCKET, &default, &pack_options()).await.unwrap();
        assert!(packed.groups >= 5, "{packed:?}");
        let this = Self { cluster, packer, deleted: BTreeSet::new() };
        this.collect().await;
        this
    }

    pub async fn seal(&self) -> SealReport {
        let options = SealOptions::new(WIDE.parse().unwrap(), Duration::ZERO);
        let stripes = self.cluster.client.stripes();
        seal_bucket(stripes, &self.packer, BUCKET, &options, &mut go_on).await.unwrap()
    }

    pub async fn collect(&self) {
        for _ in 0..3 {
            self.cluster.collect().await;
        }
    }

    pub async fn assert_reads(&self) {
        for key in (0..OBJECTS).filter(|key| !self.deleted.contains(key)) {
            let read =
                self.cluster.get(&name(key)).await.unwrap_or_else(|error| panic!("object {key}: {error}"));
            assert_eq!(read, content(key, len(key)), "object {key}");
        }
    }

    pub async fn wide_stripes(&self) -> Vec<(StripeId, Stripe)> {
        let stripes = self.cluster.stripes().await;
        stripes.into_iter().filter(|(_, record)| !record.members.is_empty()).collect()
    }

    pub fn racks(&self) -> HashMap<SiteId, RackId> {
        self.cluster.sites.iter().map(|site| (site.id(), site.rack())).collect()
    }

    /// What the rows say of wide stripes and of their members agrees, the rule holds, and locality is exact. Answers how many members
    /// there are.
    pub async fn assert_whole(&self) -> usize {
        let (all, racks) = (self.cluster.stripes().await, self.racks());
        let by_id: BTreeMap<StripeId, &Stripe> = all.iter().map(|(id, record)| (*id, record)).collect();
        let mut members = 0;
        for (id, record) in all.iter().filter(|(_, record)| !record.members.is_empty()) {
            let profile: striate_core::Profile = record.profile.parse().unwrap();
            let code = profile.code.build().unwrap();
            let rule = PlacementRule::new(&profile, &code, 6);
            let sites: Vec<SiteId> = record.locations.iter().map(|at| SiteId(at.site)).collect();
            check_placement(&rule, &sites, |site| racks.get(&site)).unwrap();
            for chunk in 0..code.n() {
                if is_hole(record, chunk) {
                    continue;
                }
                let crossed = racks_crossed(&rule, &sites, chunk, |site| racks.get(&site));
                assert!(crossed <= 1, "chunk {chunk} of {id} is repaired from {crossed} racks");
            }
            for (position, member) in record.members.iter().enumerate() {
                if is_hole(record, position) {
                    assert_eq!(record.locations[position], Location::default());
                    continue;
                }
                let of = StripeId::from_bytes(member.stripe.as_ref().try_into().unwrap());
                let own = &by_id[&of].locations[member.index as usize];
                assert_eq!(wide_of(own), Some((*id, position)));
                let copy = &record.locations[position];
                assert_eq!((copy.site, copy.generation, copy.crc32c), (own.site, own.generation, own.crc32c));
                members += 1;
            }
        }
        for (id, record) in &all {
            for at in record.locations.iter().filter(|at| wide_of(at).is_some()) {
                assert!(by_id.contains_key(&wide_of(at).unwrap().0), "{id} is claimed by what is gone");
            }
        }
        members
    }

    pub async fn rows(&self, prefix: &[u8]) -> usize {
        self.cluster.meta.scan(ScanRange::prefix(prefix), 100_000).await.unwrap().len()
    }

    pub async fn record(&self, id: StripeId) -> Stripe {
        self.cluster.client.stripes().find(id).await.unwrap().unwrap().record
    }

    /// The stripe of a member, and its index there.
    pub fn member(record: &Stripe, position: usize) -> (StripeId, usize) {
        let member = &record.members[position];
        (stripe_id(&member.stripe).unwrap(), member.index as usize)
    }

    /// Moves of a member to the sites of its rack that have none of its stripes' chunks.
    pub async fn near_moves(&self, wide: &Stripe, position: usize) -> Vec<ChunkMove> {
        let (stripe, index) = Self::member(wide, position);
        let (from, own, racks) =
            (SiteId(wide.locations[position].site), self.record(stripe).await, self.racks());
        let is_free =
            |to: &SiteId| [&own, wide].iter().all(|of| of.locations.iter().all(|at| at.site != to.0));
        let near = self.cluster.sites.iter().map(|site| site.id()).filter(|to| racks[to] == racks[&from]);
        near.filter(is_free).map(|to| ChunkMove { stripe, index, from, to }).collect()
    }

    /// A chunk of a site is gone.
    pub fn lose(&self, chunk: ChunkId, site: SiteId) {
        let site = self.cluster.sites.iter().find(|of| of.id() == site).unwrap();
        assert!(site.chunks.lock().remove(&chunk).is_some(), "{chunk}");
    }

    /// Every object is read while two sites are away.
    pub async fn assert_bears_two_losses(&self, seed: usize) {
        let away = [seed * 7 % 30, (seed * 7 + 11) % 30];
        let set = |down: bool| away.iter().for_each(|&at| *self.cluster.sites[at].down.lock() = down);
        set(true);
        self.assert_reads().await;
        set(false);
        self.cluster.runtime.sleep(Duration::from_secs(60)).await;
        self.assert_reads().await;
    }

    /// A stripe without parities, one of its data chunks, where that is, and the site of another one in its rack, to which its wide stripe
    /// would let it go. Beside this it would let it go to the last ones of the rack.
    pub async fn with_one_way_out(&self) -> (StripeId, usize, [SiteId; 2], BTreeSet<SiteId>) {
        let (racks, mut found) = (self.racks(), None);
        for (id, record) in self.cluster.stripes().await.into_iter().filter(|(_, of)| of.dropped) {
            for (index, other) in (0..4).flat_map(|index| (0..4).map(move |other| (index, other))) {
                let [site, to] = [index, other].map(|of| SiteId(record.locations[of].site));
                let wide = self.record(wide_of(&record.locations[index]).unwrap().0).await;
                let is_free = |of: &SiteId| {
                    racks[of] == racks[&site] && wide.locations.iter().all(|at| at.site != of.0)
                };
                if index != other && is_free(&to) {
                    let free = racks.keys().copied().filter(is_free).filter(|of| *of != to).collect();
                    found = Some((id, index, [site, to], free));
                }
            }
        }
        found.unwrap()
    }

    /// A stripe that has parities of its own again, a member of it, its site, and the only other one to which its wide stripe lets it go: a
    /// parity of the stripe is there.
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

    /// Sites that are lost so that both of these members of a stripe are, neither may go anywhere, no wide stripe of the stripe lacks more
    /// than three chunks beside its own members, and one as many and such a member.
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

    /// Sites are lost for good, one after the other; what each had is rebuilt before the next one goes.
    async fn lose_each(&mut self, sites: impl IntoIterator<Item = SiteId>) {
        for gone in sites {
            let at = self.cluster.sites.iter().position(|of| of.id() == gone).unwrap();
            self.cluster.retire(at).await;
            self.heal().await;
        }
    }

    pub async fn heal(&self) {
        let report = heal(self.cluster.client.stripes(), go_on).await.unwrap();
        assert!(report.is_whole() && self.cluster.debts().await == 0, "{report:?}");
    }
}

/// Everything at once, into small partitions.
pub fn pack_options() -> PackOptions {
    PackOptions {
        settled_after: Duration::ZERO,
        patience: Duration::ZERO,
        partition_len: 64 << 10,
        pace: 1.0,
        ..PackOptions::default()
    }
}

pub fn name(key: usize) -> String {
    format!("folder/object{key:03}")
}

pub fn len(key: usize) -> usize {
    9_000 + 17 * key
}

#[tokio::test(start_paused = true)]
async fn sealing_writes_no_data_chunk_and_no_objects_row_and_parities_go() {
    let sealing = Sealing::start().await;
    let rows = |sealing: &Sealing| {
        let meta = sealing.cluster.meta.clone();
        async move { meta.scan(ScanRange::prefix(&keys::objects(BUCKET)), 10_000).await.unwrap() }
    };
    let before = rows(&sealing).await;
    let data = |sealing: &Sealing| -> BTreeMap<ChunkId, SiteId> {
        let of = |site: &std::sync::Arc<crate::cluster::BreakableSite>| {
            let chunks = site.chunks.lock();
            chunks.keys().map(|chunk| (*chunk, site.id())).collect::<Vec<_>>()
        };
        sealing.cluster.sites.iter().flat_map(of).collect()
    };
    let chunks = data(&sealing);
    let report = sealing.seal().await;
    assert!(report.sealed >= 2 && report.given_up == 0, "{report:?}");
    assert_eq!(report.members, report.sealed * 10);
    assert_eq!(rows(&sealing).await, before, "no object's row has changed");
    sealing.assert_reads().await;
    sealing.collect().await;
    sealing.assert_reads().await;
    assert_eq!(sealing.assert_whole().await as u64, report.members);

    let after = data(&sealing);
    let stripes = sealing.cluster.stripes().await;
    let mut dropped = 0;
    for (id, record) in stripes.iter().filter(|(_, record)| record.profile.starts_with("packed")) {
        for index in 0..record.locations.len() {
            let file = file_of(*id, record, index);
            match record.dropped && index >= 4 {
                false => assert_eq!(after.get(&file), chunks.get(&file), "chunk {index} of {id}"),
                true => assert!(!after.contains_key(&file), "parity {index} of {id}"),
            }
        }
        dropped += u64::from(record.dropped);
    }
    assert!(dropped >= 2, "{dropped} stripes have dropped their parities: {report:?}");
    let wide = sealing.wide_stripes().await;
    assert!(wide.iter().all(|(_, record)| record.wide_state() == WideState::Complete));
    assert_eq!(sealing.rows(keys::CHANGES).await, 0);
    let verified = verify(sealing.cluster.client.stripes(), go_on).await.unwrap();
    assert!(verified.is_clean() && (verified.orphans, verified.unexplained) == (0, 0), "{verified:?}");
    // Sealed again: nothing more is there to be sealed.
    assert_eq!(sealing.seal().await.sealed, 0);
}

#[tokio::test(start_paused = true)]
async fn partitions_on_a_site_that_does_not_answer_wait_and_others_are_sealed() {
    let sealing = Sealing::start().await;
    let partitions = |site: SiteId, stripes: &[(StripeId, Stripe)]| {
        stripes.iter().flat_map(|(_, record)| &record.locations[..4]).filter(|at| at.site == site.0).count()
    };
    let stripes = sealing.cluster.stripes().await;
    let away = sealing.cluster.sites.iter().max_by_key(|site| partitions(site.id(), &stripes)).unwrap();
    *away.down.lock() = true;
    // A read that it does not answer tells.
    sealing.assert_reads().await;
    let report = sealing.seal().await;
    assert!(report.sealed >= 1 && report.given_up == 0, "{report:?}");
    assert!(report.held_up.as_ref().is_some_and(|why| why.contains("do not answer")), "{report:?}");
    let holds = |record: &Stripe| record.locations.iter().any(|at| at.site == away.id().0);
    assert!(!sealing.wide_stripes().await.iter().any(|(_, record)| holds(record)));

    *away.down.lock() = false;
    sealing.cluster.client.stripes().runtime().sleep(Duration::from_secs(60)).await;
    let report = sealing.seal().await;
    assert!(!report.held_up.is_some_and(|why| why.contains("do not answer")));
    sealing.assert_reads().await;
    sealing.assert_whole().await;
}

#[tokio::test(start_paused = true)]
async fn lost_members_are_read_and_rebuilt_from_their_wide_stripes() {
    let sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    // Of each wide stripe as many chunks as it may lose, members and parities.
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

#[tokio::test(start_paused = true)]
async fn a_damaged_partition_waits_for_its_repair_and_holds_up_no_other() {
    let sealing = Sealing::start().await;
    let stripes = sealing.cluster.stripes().await;
    let of_group = |(_, record): &&(StripeId, Stripe)| record.profile.starts_with("packed");
    let (id, record) = stripes.iter().find(of_group).unwrap().clone();
    for index in 0..2 {
        let site = SiteId(record.locations[index].site);
        let damaged = sealing.cluster.sites.iter().find(|of| of.id() == site).unwrap();
        damaged.corrupt(file_of(id, &record, index));
    }
    let report = sealing.seal().await;
    assert!(report.sealed >= 1 && report.given_up >= 1, "{report:?}");
    assert_eq!(sealing.cluster.debts().await, 1, "who finds it says so");
    assert_eq!(sealing.seal().await.given_up, 0, "it waits");
    sealing.heal().await;
    assert_eq!(sealing.seal().await.given_up, 0);
    sealing.assert_whole().await;
    sealing.assert_reads().await;
}

/// One data chunk of a stripe that has dropped its parities cannot be computed now: too much of its wide stripe is away. Another can, by
/// another wide stripe.
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

#[tokio::test(start_paused = true)]
async fn a_rack_may_be_lost_and_its_chunks_go_where_locality_stays_exact() {
    let mut sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    let rack = sealing.cluster.sites[0].rack();
    let lost: Vec<usize> =
        (0..sealing.cluster.sites.len()).filter(|&at| sealing.cluster.sites[at].rack() == rack).collect();
    for &site in &lost {
        *sealing.cluster.sites[site].down.lock() = true;
    }
    sealing.assert_reads().await;
    for &site in &lost {
        *sealing.cluster.sites[site].down.lock() = false;
    }
    sealing.cluster.runtime.sleep(Duration::from_secs(60)).await;
    sealing.assert_reads().await;
    // One site after the other is given up and emptied by repair.
    for _ in 0..4 {
        sealing.cluster.retire(0).await;
        sealing.heal().await;
        sealing.assert_whole().await;
        sealing.assert_reads().await;
    }
}

/// With five sites in each rack a lost chunk's wide stripe mostly leaves one of them for it, which may have another chunk of its own
/// stripe. Without parities of its own that does not matter, until it is to have parities again.
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

/// The same of a stripe that has its own parities again: that it may have them must not cost its wide stripe what it may lose.
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

/// Where another chunk of the stripe can be elsewhere, that one moves, and the stripe keeps its parities.
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
            while rebalancer.look(&stripes).await.unwrap() > 0 {}
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

/// Where its wide stripes lack more already than they may, the stripe's own parities are what its chunks are rebuilt from: they stay.
#[tokio::test(start_paused = true)]
async fn parities_stay_where_wide_stripes_lack_too_much_already() {
    let mut sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    let (id, index, [site, _], free) = sealing.with_one_way_out().await;
    sealing.lose_each(free).await;
    let stripes = sealing.cluster.client.stripes().clone();
    assert!(stripes.narrow_again(id).await.unwrap());
    sealing.heal().await;
    let record = sealing.record(id).await;
    let (wide, _) = wide_of(&record.locations[(index + 1) % 4]).unwrap();
    let repair = async |gone: BTreeSet<SiteId>| {
        let absent = Absent { gone, awaited: BTreeSet::new() };
        repair_stripe(&stripes, id, &absent, &RepairPace::unlimited(), false).await.unwrap()
    };
    // What is known to be damaged there counts as well.
    let mut tx = stripes.transaction();
    tx.put(keys::debt(wide), Bytes::new());
    assert!(matches!(stripes.meta().commit(tx).await.unwrap(), Commit::Done(_)));
    let outcome = repair(BTreeSet::from([site])).await;
    assert_eq!((outcome.chunks, outcome.still_lost), (0, 1), "{outcome:?}");
    let mut tx = stripes.transaction();
    tx.delete(keys::debt(wide));
    assert!(matches!(stripes.meta().commit(tx).await.unwrap(), Commit::Done(_)));
    // A member that stays lost this time would have its wide stripe alone.
    let mut tried = 0;
    for other in (0..4).filter(|&other| other != index) {
        let Some(gone) = sealing.with_one_member_too_many(&record, [index, other]).await else { continue };
        let outcome = repair(gone).await;
        assert_eq!((outcome.chunks, outcome.still_lost), (0, 2), "{outcome:?}");
        assert_eq!(sealing.record(id).await, record);
        tried += 1;
    }
    assert!(tried > 0, "no sites are such that a wide stripe lacks three others");
    let outcome = repair(BTreeSet::from([site])).await;
    assert!(outcome.is_whole() && sealing.record(id).await.dropped, "{outcome:?}");
}

/// And of a dead one, which must be whole before it can leave.
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
        assert_eq!(stripes.leave_wide(wide).await.unwrap(), Exchange::Done);
    }
    assert!(stripes.release_dead(id).await.unwrap());
    sealing.assert_whole().await;
}

#[tokio::test(start_paused = true)]
async fn members_move_with_their_copies_and_only_where_the_wide_stripe_lets_them() {
    let sealing = Sealing::start().await;
    sealing.seal().await;
    let (stripes, racks) = (sealing.cluster.client.stripes(), sealing.racks());
    let (mut moved, mut refused) = (0, 0);
    for (wide, record) in sealing.wide_stripes().await {
        for (position, member) in record.members.iter().enumerate() {
            let stripe = StripeId::from_bytes(member.stripe.as_ref().try_into().unwrap());
            let from = SiteId(record.locations[position].site);
            // Under the wide stripe's name it is no file.
            for to in
                sealing.cluster.sites.iter().map(|site| site.id()).filter(|to| racks[to] == racks[&from])
            {
                let wanted = ChunkMove { stripe: wide, index: position, from, to };
                let outcome = move_chunk(stripes, &wanted).await.unwrap();
                assert!(matches!(outcome, MoveOutcome::Refused(_)), "{outcome:?}");
            }
            for to in sealing.cluster.sites.iter().map(|site| site.id()).filter(|to| *to != from) {
                let wanted = ChunkMove { stripe, index: member.index as usize, from, to };
                match move_chunk(stripes, &wanted).await.unwrap() {
                    MoveOutcome::Moved { .. } => {
                        moved += 1;
                        assert_eq!(sealing.assert_whole().await % 10, 0);
                        break;
                    }
                    _ => {
                        // What its wide stripe lets go is in its own rack mostly; other racks are full.
                        refused += u64::from(racks[&from] != racks[&to]);
                    }
                }
            }
        }
    }
    assert!(moved > 5 && refused > 5, "{moved} moved, {refused} refused");
    sealing.assert_reads().await;
    sealing.collect().await;
    sealing.assert_reads().await;
}

/// Two members that are on their way to one site: neither is told of in the wide stripe's record, and the second finds the first there.
#[tokio::test(start_paused = true)]
async fn of_two_members_that_move_to_one_site_at_the_same_time_one_stays() {
    let sealing = Sealing::start().await;
    sealing.seal().await;
    let (stripes, racks) = (sealing.cluster.client.stripes(), sealing.racks());
    let all: BTreeMap<StripeId, Stripe> = sealing.cluster.stripes().await.into_iter().collect();
    let mut tried = 0;
    for (_, wide) in sealing.wide_stripes().await {
        let of = |position: usize| {
            let member = &wide.members[position];
            let stripe = StripeId::from_bytes(member.stripe.as_ref().try_into().unwrap());
            (stripe, member.index as usize, SiteId(wide.locations[position].site))
        };
        // The first group's members in its first rack.
        let ((one, index, from), (other, other_index, other_from)) = (of(0), of(1));
        let is_free = |to: &SiteId| {
            let holds = |record: &Stripe| record.locations.iter().any(|at| at.site == to.0);
            racks[to] == racks[&from] && ![&wide, &all[&one], &all[&other]].into_iter().any(holds)
        };
        let to = sealing.cluster.sites.iter().map(|site| site.id()).find(is_free);
        let Some(to) = to.filter(|_| one != other && racks[&from] == racks[&other_from]) else { continue };
        let mut change = stripes.change(one, Priority::Background).await.unwrap().unwrap();
        let generation = change.open(&[(index, to)]).await.unwrap().unwrap();
        let payload = change.read_chunk(index).await.unwrap();
        change.write_chunk(index, to, generation, payload).await.unwrap();
        let wanted = ChunkMove { stripe: other, index: other_index, from: other_from, to };
        let outcome = move_chunk(stripes, &wanted).await.unwrap();
        assert!(matches!(outcome, MoveOutcome::Moved { .. }), "{outcome:?}");
        let replaced = change.replace(index, to, generation).into_iter().collect();
        assert!(!change.swap(replaced, Debt::AsItIs).await.unwrap());
        drop(change);
        sealing.assert_whole().await;
        tried += 1;
    }
    assert!(tried > 0);
    assert_eq!(sealing.rows(keys::CHANGES).await, 0, "the change that lost was cancelled");
    sealing.collect().await;
    sealing.assert_reads().await;
}

/// The record of a change's stripe is read again since another member of it has moved, and once more since a third one has, by the wide
/// stripe's record. Meanwhile its entry is cancelled, so that what it wrote is garbage.
#[tokio::test(start_paused = true)]
async fn a_change_whose_entry_goes_while_its_record_is_read_again_is_not_closed() {
    let sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    let others = sealing.cluster.client.stripes().clone();
    let meta = DyingStore::new(sealing.cluster.meta.clone());
    let client = dying_client(&sealing.cluster, &meta).await;
    let all = sealing.cluster.stripes().await;
    let (stripe, own) = all.iter().find(|(_, of)| of.dropped && of.members.is_empty()).unwrap();
    let mut moves = Vec::new();
    for at in &own.locations[..4] {
        let (wide, position) = wide_of(at).unwrap();
        moves.push(sealing.near_moves(&sealing.record(wide).await, position).await);
    }
    let [wanted, second, mut third, _] = moves.try_into().unwrap();
    let &ChunkMove { index, from, to, .. } = wanted.first().unwrap();
    third.retain(|of| of.to != to);

    let mut change = client.stripes().change(*stripe, Priority::Background).await.unwrap().unwrap();
    let generation = change.open(&[(index, to)]).await.unwrap().unwrap();
    let payload = change.read_chunk(index).await.unwrap();
    change.write_chunk(index, to, generation, payload).await.unwrap();
    assert!(move_first(&others, &second).await);
    let id = *stripe;
    let meanwhile = async move {
        cancel_entries(&others, id).await;
        assert!(move_first(&others, &third).await);
    };
    *meta.after_get.lock() = Some((keys::stripe(id), Box::pin(meanwhile)));
    let replaced = change.replace(index, to, generation).into_iter().collect();
    assert!(!change.swap(replaced, Debt::AsItIs).await.unwrap());
    assert!(meta.after_get.lock().is_none(), "it was read again");
    drop(change);
    assert_eq!(sealing.record(id).await.locations[index].site, from.0);
    assert_eq!(sealing.rows(keys::CHANGES).await, 0);
    sealing.collect().await;
    sealing.assert_whole().await;
    sealing.assert_reads().await;
}

/// Another change of the record comes first. The local parity may not go to a third rack then any more than at first.
#[tokio::test(start_paused = true)]
async fn a_parity_that_is_put_on_top_of_another_change_stays_in_its_groups_racks() {
    let sealing = Sealing::start().await;
    sealing.seal().await;
    let (stripes, racks) = (sealing.cluster.client.stripes(), sealing.racks());
    let (id, wide) = sealing.wide_stripes().await.remove(0);
    let is_used =
        |to: &SiteId| wide.locations.iter().any(|at| at.site != 0 && racks[&SiteId(at.site)] == racks[to]);
    let spare = sealing.cluster.sites.iter().map(|site| site.id()).find(|to| !is_used(to)).unwrap();
    let mut change = stripes.change(id, Priority::Background).await.unwrap().unwrap();
    let generation = change.open(&[(10, spare)]).await.unwrap().unwrap();
    let payload = change.read_chunk(10).await.unwrap();
    change.write_chunk(10, spare, generation, payload).await.unwrap();
    assert!(move_first(stripes, &sealing.near_moves(&wide, 5).await).await);
    let replaced = change.replace(10, spare, generation).into_iter().collect();
    assert!(!change.swap(replaced, Debt::AsItIs).await.unwrap());
    drop(change);
    sealing.assert_whole().await;
}

/// Its rack counts: another of its group could be put where it then finds no place.
#[tokio::test(start_paused = true)]
async fn nothing_takes_a_place_beside_a_chunk_on_a_site_that_has_left() {
    let mut sealing = Sealing::start().await;
    sealing.seal().await;
    let (id, record) = sealing.wide_stripes().await.remove(0);
    let away = SiteId(record.locations[1].site);
    let own = SiteId(record.locations[0].site);
    let wide = sealing.cluster.client.stripes().find(id).await.unwrap().unwrap();
    assert!(sealing.cluster.client.stripes().admits_in_wide(&wide, 0, own));
    let index = sealing.cluster.sites.iter().position(|site| site.id() == away).unwrap();
    sealing.cluster.retire(index).await;
    assert!(!sealing.cluster.client.stripes().admits_in_wide(&wide, 0, own));
}

#[tokio::test(start_paused = true)]
async fn a_wide_stripe_that_was_left_half_made_is_gone_on_with_or_given_up() {
    let sealing = Sealing::start().await;
    let stripes = sealing.cluster.client.stripes();
    let profile = WIDE.parse().unwrap();
    let packed = sealing.cluster.stripes().await;
    let packed: Vec<_> =
        packed.into_iter().filter(|(_, record)| record.profile.starts_with("packed")).collect();
    let all: Vec<_> = packed
        .iter()
        .flat_map(|(id, record)| (0..4).map(move |index| (*id, index, &record.locations[index])))
        .collect();
    let begin = async |members: Vec<_>| {
        let plan = WidePlan { profile, chunk_len: packed[0].1.chunk_len, members };
        sealing.packer.begin_wide(&plan).await.unwrap()
    };
    // Members wherever they are: the rule does not let them be.
    let anywhere = all.iter().map(|&(id, index, _)| Some((id, index))).take(10).collect();
    assert_eq!(begin(anywhere).await, None);
    // Two members of each group in one rack, the others are holes.
    let mut members = vec![None; 10];
    let racks = sealing.racks();
    let in_rack = |rack: &RackId| -> Vec<(StripeId, usize)> {
        let mut sites = BTreeSet::new();
        let here = all.iter().filter(|(_, _, at)| racks[&SiteId(at.site)] == *rack && sites.insert(at.site));
        here.map(|&(id, index, _)| (id, index)).take(2).collect()
    };
    for (group, site) in [0, 1].into_iter().enumerate() {
        let of = in_rack(&sealing.cluster.sites[site].rack());
        of.into_iter().enumerate().for_each(|(at, member)| members[5 * group + at] = Some(member));
    }
    let id = begin(members).await.unwrap();
    let verified = verify(stripes, go_on).await.unwrap();
    assert!(verified.is_clean(), "parities that are not there yet are not damaged: {verified:?}");
    assert!(stripes.abort_wide(id).await.unwrap());
    assert_eq!(resume_wide(stripes).await.unwrap(), [(id, WideStep::Aborted)]);
    assert_eq!((sealing.rows(keys::CHANGES).await, sealing.wide_stripes().await.len()), (0, 0));
    // Those of a real choice, from the first step on.
    let report = sealing.seal().await;
    assert!(report.sealed > 0);
    assert_eq!(sealing.assert_whole().await % 10, 0);
    sealing.assert_reads().await;
}

/// A process that dies before or after any commit while it seals. What is there then bears the loss of two sites; another process goes on,
/// and nothing is left over.
#[tokio::test(start_paused = true)]
async fn a_process_that_dies_at_any_commit_of_sealing_leaves_nothing_wrong() {
    let mut ended = false;
    for commits in 0.. {
        for is_made in [false, true] {
            let sealing = Sealing::start().await;
            let meta = DyingStore::new(sealing.cluster.meta.clone());
            let dying = dying_client(&sealing.cluster, &meta).await;
            *meta.death.lock() = Some(Death { commits, is_made });
            let packer = dying.stripes().packer();
            let wide = SealOptions::new(WIDE.parse().unwrap(), Duration::ZERO);
            let mut tell = go_on;
            let work = seal_bucket(dying.stripes(), &packer, BUCKET, &wide, &mut tell);
            let killed = sealing.cluster.runtime.timeout(Duration::from_secs(100), work).await;
            ended |= killed.map(|sealed| sealed.unwrap()).is_ok();
            drop((packer, dying));
            sealing.assert_bears_two_losses(commits).await;
            // Its leases end.
            sealing.cluster.runtime.sleep(Duration::from_secs(600)).await;
            collect_abandoned(sealing.cluster.client.stripes()).await.unwrap();
            for (id, step) in resume_wide(sealing.cluster.client.stripes()).await.unwrap() {
                assert_ne!(step, WideStep::Gone, "{id} after {commits}");
            }
            sealing.seal().await;
            assert_eq!(sealing.assert_whole().await % 10, 0);
            sealing.collect().await;
            sealing.assert_reads().await;
            assert_eq!(sealing.rows(keys::CHANGES).await, 0, "after {commits} commits");
            let verified = verify(sealing.cluster.client.stripes(), go_on).await.unwrap();
            assert!(verified.is_clean(), "after {commits} commits: {verified:?}");
            assert_eq!((verified.orphans, verified.unexplained), (0, 0), "after {commits} commits");
        }
        if ended {
            assert!(commits > 8, "sealing took only {commits} commits");
            return;
        }
    }
}

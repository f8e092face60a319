//! A cluster with packed objects on racks, ready to be sealed: the fixture of the tests of wide stripes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use striate_control::{PackOptions, Rebalancer, SealOptions, SealReport, heal, pack_bucket, seal_bucket};
use striate_core::{ChunkId, Profile, RackId, SiteId, StripeId};
use striate_meta::ScanRange;
use striate_meta::records::{Location, Stripe};
use striate_plan::movement::ChunkMove;
use striate_plan::{PlacementRule, WideGeometry, check_placement, racks_crossed};
use striate_site::Site;
use striate_stripe::{Packer, is_hole, stripe_id, wide_of};

use crate::cluster::{BUCKET, Cluster, content, go_on};

pub const OBJECTS: usize = 220;
/// Two groups of five data chunks with a local parity each in two racks of three, two global parities in a fifth rack.
pub const WIDE: &str = "wide(10,5,3)";
/// Its 48 chunks fill twelve racks of four. Two groups of fifteen data chunks are in four racks each, one of twelve in
/// three, and its local parity beside the three global ones.
pub const FILLING_RACKS: &str = "wide(42,15,4)";
/// The index of that local parity.
pub const SHARING: usize = 44;
/// Large objects sealed in stripes that fill racks.
const LARGE: usize = 80;

pub struct Sealing {
    pub cluster: Cluster,
    pub packer: Packer,
    /// Objects that were deleted, by number.
    pub deleted: BTreeSet<usize>,
}

impl Sealing {
    /// Starts a cluster with packed objects on six racks of five sites.
    pub async fn start() -> Self {
        Self::start_packed_as("rs(4,2)").await
    }

    /// Like `start`, with another profile.
    pub async fn start_packed_as(profile: &str) -> Self {
        Self::start_with(profile, &pack_options()).await
    }

    /// Like `start`, with another profile and other partitions.
    pub async fn start_with(profile: &str, options: &PackOptions) -> Self {
        Self::start_beside(0, profile, options).await
    }

    /// Like `start_with`, with more objects, which are not read back: chunks are in other places.
    pub async fn start_beside(others: usize, profile: &str, options: &PackOptions) -> Self {
        let cluster = Cluster::start(30, profile).await;
        cluster.spread_over_racks(6);
        for key in 0..OBJECTS + others {
            cluster.put(&name(key), &content(key, len(key))).await.unwrap();
        }
        let packer = cluster.client.stripes().packer();
        let default = profile.parse().unwrap();
        let packed = pack_bucket(cluster.client.stripes(), &packer, BUCKET, &default, options).await.unwrap();
        assert!(packed.groups >= 5, "{packed:?}");
        let this = Self { cluster, packer, deleted: BTreeSet::new() };
        this.collect().await;
        this
    }

    /// Starts a cluster on 13 racks of five sites, with large objects sealed in stripes that fill twelve of them.
    pub async fn start_filling_racks() -> Self {
        let cluster = Cluster::start(65, "rs(4,2)").await;
        cluster.spread_over_racks(13);
        for object in 0..LARGE {
            cluster.put(&large_name(object), &large(object)).await.unwrap();
        }
        let packer = cluster.client.stripes().packer();
        let this = Self { cluster, packer, deleted: (0..OBJECTS).collect() };
        assert!(this.seal_as(FILLING_RACKS).await.sealed > 1);
        this.collect().await;
        this
    }

    pub async fn seal(&self) -> SealReport {
        self.seal_as(WIDE).await
    }

    async fn seal_as(&self, profile: &str) -> SealReport {
        let options = SealOptions::new(profile.parse().unwrap(), Duration::ZERO);
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

    /// Asserts that the large objects read back.
    pub async fn assert_large_reads(&self) {
        for object in 0..LARGE {
            let read = self.cluster.get(&large_name(object)).await;
            assert!(read.unwrap_or_else(|error| panic!("{object}: {error}")) == large(object), "{object}");
        }
    }

    pub async fn wide_stripes(&self) -> Vec<(StripeId, Stripe)> {
        let stripes = self.cluster.stripes().await;
        stripes.into_iter().filter(|(_, record)| !record.members.is_empty()).collect()
    }

    pub fn racks(&self) -> HashMap<SiteId, RackId> {
        self.cluster.sites.iter().map(|site| (site.id(), site.rack())).collect()
    }

    /// Asserts that the rows of wide stripes and of their members agree, the rule holds, no more than z racks are used,
    /// and locality is exact. Returns the number of members.
    pub async fn assert_whole(&self) -> usize {
        let (all, racks) = (self.cluster.stripes().await, self.racks());
        let by_id: BTreeMap<StripeId, &Stripe> = all.iter().map(|(id, record)| (*id, record)).collect();
        let mut members = 0;
        for (id, record) in all.iter().filter(|(_, record)| !record.members.is_empty()) {
            let profile: Profile = record.profile.parse().unwrap();
            let code = profile.code.build().unwrap();
            let (rule, geometry) =
                (PlacementRule::new(&profile, &code, 6), WideGeometry::of_profile(&profile).unwrap());
            let sites: Vec<SiteId> = record.locations.iter().map(|at| SiteId(at.site)).collect();
            check_placement(&rule, &sites, |site| racks.get(&site)).unwrap();
            let used: BTreeSet<&RackId> = sites.iter().filter_map(|site| racks.get(site)).collect();
            assert!(used.len() <= geometry.z(), "{id} uses {used:?}");
            for chunk in 0..code.n() {
                if is_hole(record, chunk) {
                    continue;
                }
                let crossed = racks_crossed(&rule, &sites, chunk, |site| racks.get(&site));
                let most = geometry.repair_chunks();
                assert!(crossed <= most, "chunk {chunk} of {id} is repaired from {crossed} racks");
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

    /// Returns how many racks a repair of each chunk of a wide stripe reads from.
    pub async fn crossed(&self) -> BTreeMap<(StripeId, usize), usize> {
        let (mut all, racks) = (BTreeMap::new(), self.racks());
        for (id, record) in self.wide_stripes().await {
            let profile: Profile = record.profile.parse().unwrap();
            let code = profile.code.build().unwrap();
            let rule = PlacementRule::new(&profile, &code, 6);
            let sites: Vec<SiteId> = record.locations.iter().map(|at| SiteId(at.site)).collect();
            for chunk in (0..code.n()).filter(|&chunk| !is_hole(&record, chunk)) {
                all.insert((id, chunk), racks_crossed(&rule, &sites, chunk, |site| racks.get(&site)));
            }
        }
        all
    }

    pub async fn rows(&self, prefix: &[u8]) -> usize {
        self.cluster.meta.scan(ScanRange::prefix(prefix), 100_000).await.unwrap().len()
    }

    pub async fn record(&self, id: StripeId) -> Stripe {
        self.cluster.client.stripes().find(id).await.unwrap().unwrap().record
    }

    /// Returns the stripe of a member, and its index there.
    pub fn member(record: &Stripe, position: usize) -> (StripeId, usize) {
        let member = &record.members[position];
        (stripe_id(&member.stripe).unwrap(), member.index as usize)
    }

    /// Returns the moves of a member to the sites of its rack that have none of its stripes' chunks.
    pub async fn near_moves(&self, wide: &Stripe, position: usize) -> Vec<ChunkMove> {
        let (stripe, index) = Self::member(wide, position);
        let (from, own, racks) =
            (SiteId(wide.locations[position].site), self.record(stripe).await, self.racks());
        let is_free =
            |to: &SiteId| [&own, wide].iter().all(|of| of.locations.iter().all(|at| at.site != to.0));
        let near = self.cluster.sites.iter().map(|site| site.id()).filter(|to| racks[to] == racks[&from]);
        near.filter(is_free).map(|to| ChunkMove { stripe, index, from, to }).collect()
    }

    /// Drains a site, and lets it take chunks again. Returns how many chunks left.
    pub async fn drain(&self, site: SiteId) -> usize {
        let site = self.cluster.sites.iter().find(|of| of.id() == site).unwrap();
        let stripes = self.cluster.client.stripes();
        let had = site.chunks.lock().len();
        stripes.set_draining(site.id(), true);
        let rebalancer = Rebalancer::default();
        for _ in 0..4 {
            rebalancer.run_pass(stripes).await.unwrap();
            self.collect().await;
        }
        assert_eq!(site.chunks.lock().len(), 0, "{:?}", rebalancer.progress());
        stripes.set_draining(site.id(), false);
        had
    }

    /// Removes a chunk from a site.
    pub fn lose(&self, chunk: ChunkId, site: SiteId) {
        let site = self.cluster.sites.iter().find(|of| of.id() == site).unwrap();
        assert!(site.chunks.lock().remove(&chunk).is_some(), "{chunk}");
    }

    /// Asserts that every object can be read while two sites are down.
    pub async fn assert_bears_two_losses(&self, seed: usize) {
        let away = [seed * 7 % 30, (seed * 7 + 11) % 30];
        let set = |down: bool| away.iter().for_each(|&at| *self.cluster.sites[at].down.lock() = down);
        set(true);
        self.assert_reads().await;
        set(false);
        self.cluster.runtime.sleep(Duration::from_secs(60)).await;
        self.assert_reads().await;
    }

    pub async fn heal(&self) {
        let report = heal(self.cluster.client.stripes(), go_on).await.unwrap();
        assert!(report.is_whole() && self.cluster.debts().await == 0, "{report:?}");
    }
}

/// Packs everything at once, into small partitions.
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

fn large_name(object: usize) -> String {
    format!("large/{object:03}")
}

/// Returns the bytes of a large object: each of its chunks has more than 64 KiB.
fn large(object: usize) -> Vec<u8> {
    content(object, 997).repeat(281)
}

pub fn len(key: usize) -> usize {
    9_000 + 17 * key
}

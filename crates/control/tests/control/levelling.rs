//! Drain and rebalance: automatic, by capacity, within a budget, and stoppable.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::cluster::{Cluster, content, go_on};
use crate::sealed::Sealing;
use striate_control::movement::RebalanceOptions;
use striate_control::{GarbageCollector, MoveOutcome, Rebalancer, move_chunk, verify};
use striate_core::{SiteId, StripeId};
use striate_meta::keys;
use striate_meta::records::{self, Stripe};
use striate_plan::LeavingRacks;
use striate_plan::movement::ChunkMove;
use striate_site::Site;
use striate_stripe::wide_of;

const OBJECTS: usize = 60;
const LEN: usize = 40_000;
/// Bytes of each chunk.
const CHUNK: u64 = LEN as u64 / 4;

async fn filled(capacity_chunks: u64) -> Cluster {
    let cluster = Cluster::start(6, "rs(4,2)").await;
    for site in &cluster.sites {
        *site.capacity.lock() = capacity_chunks * CHUNK;
    }
    for key in 0..OBJECTS {
        cluster.put(&format!("object{key}"), &content(key, LEN)).await.unwrap();
    }
    cluster
}

async fn assert_well(cluster: &Cluster) {
    for key in 0..OBJECTS {
        assert_eq!(cluster.get(&format!("object{key}")).await.unwrap(), content(key, LEN), "object{key}");
    }
    let report = verify(cluster.client.stripes(), go_on).await.unwrap();
    assert!(report.is_clean() && report.orphans == 0, "{report:?}");
    assert_eq!(cluster.chunk_count(), 6 * OBJECTS);
}

fn chunks(cluster: &Cluster) -> Vec<usize> {
    cluster.sites.iter().map(|site| site.chunks.lock().len()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_drained_site_is_emptied_and_takes_nothing() {
    let mut cluster = filled(200).await;
    cluster.add(7).await;
    cluster.add(8).await;
    cluster.sites[6..].iter().for_each(|site| *site.capacity.lock() = 200 * CHUNK);
    cluster.client.stripes().set_draining(SiteId(1), true);
    let rebalancer = Rebalancer::default();
    assert!(rebalancer.run_pass(cluster.client.stripes()).await.unwrap() >= OBJECTS as u64);
    cluster.collect().await;
    assert_eq!(cluster.sites[0].chunks.lock().len(), 0);
    assert_well(&cluster).await;
    let progress = rebalancer.progress();
    assert_eq!((progress.refused, progress.left_to_repair), (0, 0), "{progress:?}");
    assert_eq!(progress.bytes, progress.chunks * CHUNK);
    assert_eq!(progress.givers[0], (SiteId(1), OBJECTS as u64 * CHUNK));
}

#[tokio::test(start_paused = true)]
async fn a_stripe_whose_record_is_wrong_stays_and_the_others_leave_a_drained_site() {
    let mut cluster = filled(200).await;
    cluster.add(7).await;
    *cluster.sites[6].capacity.lock() = 200 * CHUNK;
    let (id, record) = cluster.stripes().await.into_iter().nth(OBJECTS / 2).unwrap();
    let record = Stripe { profile: "rs(4".to_owned(), ..record };
    let mut tx = cluster.client.stripes().transaction();
    tx.put(keys::stripe(id), records::encode(&record));
    cluster.meta.commit(tx).await.unwrap();
    cluster.client.stripes().set_draining(SiteId(1), true);
    let rebalancer = Rebalancer::default();
    rebalancer.run_pass(cluster.client.stripes()).await.unwrap();
    cluster.collect().await;
    let progress = rebalancer.progress();
    assert_eq!(cluster.sites[0].chunks.lock().len(), 1, "{progress:?}");
    assert!(progress.refused > 0 && progress.last_refusal.is_some(), "{progress:?}");
}

#[tokio::test(start_paused = true)]
async fn a_drained_site_is_emptied_of_members_of_wide_stripes() {
    for site in [0, 7, 14, 21] {
        let sealing = Sealing::start().await;
        assert!(sealing.seal().await.sealed > 0);
        sealing.collect().await;
        let stripes = sealing.cluster.client.stripes();
        stripes.set_draining(sealing.cluster.sites[site].id(), true);
        let rebalancer = Rebalancer::default();
        for _ in 0..4 {
            rebalancer.run_pass(stripes).await.unwrap();
            sealing.collect().await;
        }
        assert_eq!(sealing.cluster.sites[site].chunks.lock().len(), 0, "{:?}", rebalancer.progress());
        sealing.assert_whole().await;
        sealing.assert_reads().await;
    }
}

impl Sealing {
    /// Returns the other sites where the wide stripe of a member admits it.
    async fn open_to(&self, (stripe, index): (StripeId, usize)) -> BTreeSet<SiteId> {
        let (stripes, record) = (self.cluster.client.stripes(), self.record(stripe).await);
        let at = &record.locations[index];
        let (wide, position) = wide_of(at).unwrap();
        let wide = stripes.find(wide).await.unwrap().unwrap();
        let admits = |site: &SiteId| stripes.admits_in_wide(&wide, position, *site, &LeavingRacks::default());
        let sites = self.cluster.sites.iter().map(|site| site.id());
        sites.filter(|site| site.0 != at.site && admits(site)).collect()
    }

    /// Moves a chunk of a stripe without parities to the site of another one, so that the second of the two may go where
    /// the first may not. Returns the stripe, both, their site, and where the first may go.
    async fn put_together(&self) -> (StripeId, [usize; 2], SiteId, BTreeSet<SiteId>) {
        let stripes = self.cluster.client.stripes();
        let pairs = (0..4).flat_map(|index| (0..4).map(move |other| (index, other)));
        for (id, _) in self.cluster.stripes().await.into_iter().filter(|(_, of)| of.dropped) {
            for (index, other) in pairs.clone().filter(|(index, other)| index != other) {
                let record = self.record(id).await;
                let [from, to] = [index, other].map(|of| SiteId(record.locations[of].site));
                let held = record.locations.iter().filter(|at| at.site == to.0).count();
                if held > 1 || !self.open_to((id, index)).await.contains(&to) {
                    continue;
                }
                let moved = move_chunk(stripes, &ChunkMove { stripe: id, index, from, to }).await.unwrap();
                assert!(matches!(moved, MoveOutcome::Moved { .. }), "{moved:?}");
                let (first, second) = (index.min(other), index.max(other));
                let open = self.open_to((id, first)).await;
                if !self.open_to((id, second)).await.is_subset(&open) {
                    return (id, [first, second], to, open);
                }
            }
        }
        panic!("wherever a first chunk may go the second may go too");
    }
}

/// The sites where the first of them might go are full.
#[tokio::test(start_paused = true)]
async fn of_two_chunks_of_a_stripe_on_a_drained_site_the_second_goes_where_the_first_has_no_place() {
    let sealing = Sealing::start().await;
    assert!(sealing.seal().await.sealed > 0);
    sealing.collect().await;
    let (id, [first, second], drained, full) = sealing.put_together().await;
    sealing.collect().await;
    for site in sealing.cluster.sites.iter().filter(|site| full.contains(&site.id())) {
        *site.capacity.lock() = site.used_bytes();
    }
    let stripes = sealing.cluster.client.stripes();
    stripes.set_draining(drained, true);
    let rebalancer = Rebalancer::default();
    rebalancer.run_pass(stripes).await.unwrap();
    let record = sealing.record(id).await;
    let stays = [first, second].map(|index| record.locations[index].site == drained.0);
    assert_eq!(stays, [true, false], "{:?}", rebalancer.progress());
    sealing.assert_whole().await;
    sealing.assert_reads().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_site_fills_up_by_its_capacity_in_an_idle_cluster() {
    let mut cluster = filled(120).await;
    cluster.add(7).await;
    *cluster.sites[6].capacity.lock() = 360 * CHUNK;
    let rebalancer = Rebalancer::default();
    cluster.runtime.spawn(rebalancer.clone().run(cluster.client.stripes().clone()));
    cluster.runtime.spawn(GarbageCollector::default().run(cluster.client.stripes().clone()));
    cluster.runtime.sleep(Duration::from_secs(1_200)).await;
    // 360 chunks on 1,080 places: a third of each. No stripe may have two chunks on the new site, so 60 is all it can
    // have.
    assert_eq!(chunks(&cluster)[6], OBJECTS, "{:?}", chunks(&cluster));
    assert!(chunks(&cluster)[..6].iter().all(|held| (45..=55).contains(held)), "{:?}", chunks(&cluster));
    assert_well(&cluster).await;
    let before = rebalancer.progress().chunks;
    cluster.runtime.sleep(Duration::from_secs(1_200)).await;
    assert_eq!(rebalancer.progress().chunks, before, "it comes to an end");
}

/// A moved chunk occupies its old site until it is deleted: meanwhile the site must not give another one.
#[tokio::test(start_paused = true)]
async fn sites_give_once_however_late_garbage_is_deleted() {
    let mut cluster = filled(200).await;
    for id in 7..=10 {
        cluster.add(id).await;
        *cluster.sites[id as usize - 1].capacity.lock() = 200 * CHUNK;
    }
    let rebalancer = Rebalancer::default();
    cluster.runtime.spawn(rebalancer.clone().run(cluster.client.stripes().clone()));
    for is_deleted in [false, true] {
        cluster.runtime.sleep(Duration::from_secs(1_200)).await;
        let mut named = [0; 10];
        for (_, stripe) in cluster.stripes().await {
            stripe.locations.iter().for_each(|at| named[at.site as usize - 1] += 1);
        }
        assert!(named.iter().all(|chunks| (30..=42).contains(chunks)), "{is_deleted}: {named:?}");
        cluster.collect().await;
    }
    assert_well(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn nearly_equal_sites_are_left_alone() {
    let mut cluster = filled(6_000).await;
    cluster.add(7).await;
    *cluster.sites[6].capacity.lock() = 6_000 * CHUNK;
    let rebalancer = Rebalancer::default();
    assert_eq!(
        rebalancer.run_pass(cluster.client.stripes()).await.unwrap(),
        0,
        "1% and nothing lie close enough"
    );
    assert!(rebalancer.progress().givers.is_empty());
}

#[tokio::test(start_paused = true)]
async fn moves_keep_to_their_budget_and_stop_when_told() {
    let mut cluster = filled(200).await;
    cluster.add(7).await;
    *cluster.sites[6].capacity.lock() = 200 * CHUNK;
    cluster.client.stripes().set_draining(SiteId(2), true);
    let options = RebalanceOptions { bytes_per_s: CHUNK, look_every: Duration::from_secs(1) };
    let rebalancer = Rebalancer::new(options);
    cluster.runtime.spawn(rebalancer.clone().run(cluster.client.stripes().clone()));
    cluster.runtime.sleep(Duration::from_secs(21)).await;
    let moved = rebalancer.progress().chunks;
    assert!((18..=21).contains(&moved), "{moved} chunks in 20 s at one each second");
    rebalancer.set_paused(true);
    cluster.runtime.sleep(Duration::from_secs(100)).await;
    assert!(rebalancer.progress().chunks <= moved + 1, "only what was under way");
    rebalancer.set_paused(false);
    cluster.runtime.sleep(Duration::from_secs(200)).await;
    cluster.collect().await;
    assert_eq!(cluster.sites[1].chunks.lock().len(), 0);
    assert_well(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn a_site_that_takes_nothing_does_not_stop_the_others() {
    let mut cluster = filled(200).await;
    cluster.add(7).await;
    cluster.add(8).await;
    cluster.sites[6..].iter().for_each(|site| *site.capacity.lock() = 200 * CHUNK);
    *cluster.sites[6].full.lock() = true;
    cluster.client.stripes().set_draining(SiteId(3), true);
    let rebalancer = Rebalancer::default();
    for _ in 0..20 {
        rebalancer.run_pass(cluster.client.stripes()).await.unwrap();
    }
    cluster.collect().await;
    assert_eq!(cluster.sites[2].chunks.lock().len(), 0);
    let progress = rebalancer.progress();
    assert!(progress.refused > 0 && progress.last_refusal.is_some_and(|reason| reason.contains("site 7")));
    assert_well(&cluster).await;
}

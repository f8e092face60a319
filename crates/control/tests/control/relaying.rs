//! Chunks that sites cannot make among themselves are added up by the repairing process, slice by slice. Many long
//! chunks never come together there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use striate_client::Client;
use striate_codec::crc32c;
use striate_control::{RepairOutcome, heal, verify};
use striate_core::{Formats, FormatsInForce, RackId, SiteId, StripeId};
use striate_meta::records::Stripe;
use striate_site::Site;
use striate_stripe::{file_of, is_hole, len_of};

use crate::cluster::{BreakableSite, Cluster, content, go_on, options};
use crate::sealed::Sealing;

const OBJECTS: usize = 20;
/// Position of the local parity of the first group, whose data chunks come first.
const LOCAL_PARITY: usize = 10;

impl Sealing {
    /// Seals everything. Returns a wide stripe whose first member only it can restore: the member's own stripe has no
    /// parities.
    async fn with_bare_member(&self) -> (StripeId, Stripe) {
        self.seal().await;
        self.collect().await;
        for (id, wide) in self.wide_stripes().await {
            if !is_hole(&wide, 0) && self.record(Self::member(&wide, 0).0).await.dropped {
                return (id, wide);
            }
        }
        panic!("every stripe has parities of its own");
    }

    /// Repairs the first member of a wide stripe while its site is gone.
    async fn repair_first(&self, wide: &Stripe) -> RepairOutcome {
        let (id, _) = Self::member(wide, 0);
        self.repair(id, BTreeSet::from([SiteId(wide.locations[0].site)])).await
    }

    fn holder(&self, wide: &Stripe, position: usize) -> Arc<BreakableSite> {
        let id = SiteId(wide.locations[position].site);
        self.cluster.sites.iter().find(|site| site.id() == id).unwrap().clone()
    }

    /// Gives a chunk other bytes, which its site takes for good.
    fn replace_bytes(&self, id: StripeId, wide: &Stripe, position: usize) {
        let holder = self.holder(wide, position);
        let mut chunks = holder.chunks.lock();
        let stored = chunks.get_mut(&file_of(id, wide, position)).unwrap();
        let mut bytes = stored.0.to_vec();
        bytes[0] ^= 1;
        *stored = (bytes.clone().into(), crc32c(&bytes));
    }
}

/// Opens another client of the cluster, with so much memory for bodies.
async fn client_with_memory(cluster: &Cluster, bytes: usize) -> Client {
    let sites = cluster.sites.iter().map(|site| site.clone() as Arc<dyn Site>).collect();
    let mut options = options("rs(4,2)");
    options.stripes.formats = FormatsInForce::new(Formats::NEWEST);
    options.stripes.in_flight_bytes = bytes;
    Client::open(cluster.runtime.clone(), cluster.meta.clone(), sites, options).await.unwrap()
}

/// Returns another member of the group of a wide stripe's first chunk, not longer than that.
fn other_of_group(wide: &Stripe) -> usize {
    (1..5).find(|&at| !is_hole(wide, at) && len_of(wide, at) <= len_of(wide, 0)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_member_whose_group_lies_in_racks_that_do_not_reach_each_other_is_added_up_here() {
    let sealing = Sealing::start().await;
    let (_, wide) = sealing.with_bare_member().await;
    let racks = sealing.racks();
    let sites = (0..5).chain([LOCAL_PARITY]).map(|at| SiteId(wide.locations[at].site));
    let of_group: BTreeSet<&RackId> = sites.filter_map(|site| racks.get(&site)).collect();
    let of_group: Vec<&RackId> = of_group.into_iter().collect();
    let [one, other] = of_group[..] else { panic!("a group in {of_group:?}") };
    sealing.cluster.separate([one, other]);
    let outcome = sealing.repair_first(&wide).await;
    assert!(outcome.is_whole() && outcome.chunks == 1, "{outcome:?}");
    sealing.assert_whole().await;
    sealing.assert_reads().await;
}

/// The site is known to be there, but a sum with its chunk never arrives.
#[tokio::test(start_paused = true)]
async fn a_member_is_made_without_the_chunk_of_a_site_that_answers_no_reads() {
    let sealing = Sealing::start().await;
    let (_, wide) = sealing.with_bare_member().await;
    let silent = sealing.holder(&wide, other_of_group(&wide));
    *silent.hung.lock() = true;
    let outcome = sealing.repair_first(&wide).await;
    assert!(outcome.is_whole() && outcome.chunks == 1, "{outcome:?}");
    *silent.hung.lock() = false;
    sealing.assert_whole().await;
    sealing.assert_reads().await;
}

/// A tree shows only that the sum is wrong. Added up here, each chunk answers for itself.
#[tokio::test(start_paused = true)]
async fn a_member_is_made_without_a_chunk_that_is_not_what_was_encoded() {
    let sealing = Sealing::start().await;
    let (id, wide) = sealing.with_bare_member().await;
    sealing.replace_bytes(id, &wide, other_of_group(&wide));
    let outcome = sealing.repair_first(&wide).await;
    assert!(outcome.is_whole() && outcome.chunks == 1, "{outcome:?}");
    let verified = verify(sealing.cluster.client.stripes(), go_on).await.unwrap();
    assert!(verified.progress.damaged > 0, "{verified:?}");
    sealing.heal().await;
    sealing.assert_whole().await;
    sealing.assert_reads().await;
}

#[tokio::test(start_paused = true)]
async fn a_parity_of_a_wide_stripe_is_added_up_here_without_the_chunk_of_a_site_that_answers_no_reads() {
    let sealing = Sealing::start().await;
    let (id, wide) = sealing.with_bare_member().await;
    sealing.cluster.sites.iter().for_each(|site| *site.alone.lock() = true);
    *sealing.holder(&wide, other_of_group(&wide)).hung.lock() = true;
    let gone = SiteId(wide.locations[LOCAL_PARITY].site);
    let outcome = sealing.repair(id, BTreeSet::from([gone])).await;
    assert_eq!((outcome.chunks, outcome.still_lost, outcome.unknown), (1, 0, 1), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn a_member_that_nothing_can_restore_now_is_named_with_what_failed() {
    let sealing = Sealing::start().await;
    let (_, wide) = sealing.with_bare_member().await;
    sealing.cluster.sites.iter().for_each(|site| *site.hung.lock() = true);
    let outcome = sealing.repair_first(&wide).await;
    let reason = outcome.unrepairable.unwrap();
    assert!(reason.contains("the deadline passed"), "{reason}");
}

/// Together with their sources two lost chunks are six, and the memory for bodies is eight. Others hold all of it while
/// sites make the chunks, or all but one chunk where sites do not reach each other.
#[tokio::test(start_paused = true)]
async fn lost_chunks_that_are_long_for_the_memory_are_made_one_at_a_time() {
    for is_made_here in [false, true] {
        let mut cluster = Cluster::start(6, "rs(4,2)").await;
        for key in 0..OBJECTS {
            cluster.put(&format!("object{key}"), &content(key, 6_000)).await.unwrap();
        }
        let chunk_len = cluster.stripes().await[0].1.chunk_len as usize;
        for id in [10, 11] {
            cluster.retire(0).await;
            cluster.add(id).await;
        }
        if is_made_here {
            cluster.sites.iter().for_each(|site| *site.neighbours.lock() = Arc::default());
        }
        let client = client_with_memory(&cluster, 8 * chunk_len).await;
        let held = 8 * chunk_len - usize::from(is_made_here) * chunk_len;
        let _others = client.stripes().budget().try_acquire(held).unwrap();
        let healing = heal(client.stripes(), go_on);
        let report = cluster.runtime.timeout(Duration::from_secs(600), healing).await.unwrap().unwrap();
        assert!(report.is_whole() && report.progress.chunks == 2 * OBJECTS as u64, "{report:?}");
        assert!(verify(client.stripes(), go_on).await.unwrap().is_clean());
    }
}

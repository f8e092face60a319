//! Local parities that change places with members: the bytes stay, and the rules hold, whatever dies or interferes.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join;
use striate_control::{SealOptions, collect_abandoned, repack_marked, resume_wide, seal_bucket};
use striate_core::{RackId, SiteId, StripeId};
use striate_meta::keys;
use striate_meta::records::{Object, Stripe, object::Body};
use striate_plan::{PlacementRule, check_placement};
use striate_stripe::{ExchangeOutcome, stripe_id};

use crate::cluster::{BUCKET, go_on};
use crate::dying::{Death, DyingStore, dying_client};
use crate::interposed::{cancel_entries, move_first};
use crate::sealed::{OBJECTS, Sealing, WIDE, name, pack_options};

/// Returns the local parity of a position's group.
fn parity_of(position: usize) -> usize {
    10 + position / 5
}

impl Sealing {
    fn rack_at(&self, record: &Stripe, chunk: usize) -> RackId {
        self.racks()[&SiteId(record.locations[chunk].site)].clone()
    }

    /// Returns whether the rules let a member and its group's local parity change places: they are in two racks, and
    /// the local parity's holds at most one other chunk of the member's own stripe.
    async fn may_swap(&self, id: StripeId, position: usize) -> bool {
        let wide = self.record(id).await;
        let (own, index) = Self::member(&wide, position);
        let own = self.record(own).await;
        let to = self.rack_at(&wide, parity_of(position));
        let others = own.locations.iter().enumerate().filter(|&(at, of)| at != index && of.site != 0);
        let beside = others.filter(|&(at, _)| self.rack_at(&own, at) == to).count();
        self.rack_at(&wide, position) != to && beside < 2
    }

    /// Returns a wide stripe and a position that may change places with the local parity.
    async fn swappable(&self) -> (StripeId, usize) {
        for (id, _) in self.wide_stripes().await {
            for position in 0..10 {
                if self.may_swap(id, position).await {
                    return (id, position);
                }
            }
        }
        panic!("no member may change places with a local parity");
    }

    /// Slows down the sites of a rack.
    fn slow_down(&self, rack: &RackId, lag: Duration) {
        let sites = self.cluster.sites.iter().filter(|site| *site.rack.lock() == *rack);
        sites.for_each(|site| *site.lag.lock() = lag);
    }

    async fn assert_nothing_left(&self) {
        self.cluster.runtime.sleep(Duration::from_secs(1)).await;
        assert_eq!(self.rows(keys::CHANGES).await, 0);
        self.collect().await;
        self.assert_whole().await;
        self.assert_reads().await;
        self.assert_clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_local_parity_changes_places_with_a_member_of_another_rack_where_the_rules_let_it() {
    let sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    let (stripes, chunks) = (sealing.cluster.client.stripes(), sealing.cluster.chunk_count());
    let (mut swapped, mut unfit) = (0, 0);
    for (id, _) in sealing.wide_stripes().await {
        for position in 0..10 {
            let (before, parity) = (sealing.record(id).await, parity_of(position));
            let may_swap = sealing.may_swap(id, position).await;
            let outcome = stripes.swap_local_parity(id, position).await.unwrap();
            let now = sealing.record(id).await;
            if !may_swap {
                assert_eq!(outcome, ExchangeOutcome::Unfit);
                assert_eq!(now.locations, before.locations);
                unfit += 1;
                continue;
            }
            assert_eq!(outcome, ExchangeOutcome::Done);
            let rack = |record: &Stripe, chunk| sealing.rack_at(record, chunk);
            assert_eq!(rack(&now, parity), rack(&before, position));
            assert_eq!(rack(&now, position), rack(&before, parity));
            for chunk in 0..before.locations.len() {
                let (was, is) = (&before.locations[chunk], &now.locations[chunk]);
                assert_eq!((was.crc32c, was.content_version), (is.crc32c, is.content_version));
                assert_eq!(was != is, [parity, position].contains(&chunk), "chunk {chunk}");
            }
            sealing.assert_whole().await;
            swapped += 1;
        }
    }
    assert!(swapped > 5 && unfit > 5, "{swapped} changed places, {unfit} did not");
    sealing.assert_nothing_left().await;
    assert_eq!(sealing.cluster.chunk_count(), chunks, "what was copied is gone where it was");
    for seed in 0..6 {
        sealing.assert_bears_two_losses(seed).await;
    }
    sealing.assert_parities().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_dies_at_any_commit_of_a_swap_leaves_nothing_wrong() {
    let mut ended = false;
    for commits in 0.. {
        for is_made in [false, true] {
            let sealing = Sealing::start().await;
            sealing.seal().await;
            sealing.collect().await;
            let chunks = sealing.cluster.chunk_count();
            let (id, position) = sealing.swappable().await;
            let meta = DyingStore::new(sealing.cluster.meta.clone());
            let dying = dying_client(&sealing.cluster, &meta).await;
            *meta.death.lock() = Some(Death { commits, is_made });
            let work = dying.stripes().swap_local_parity(id, position);
            let killed = sealing.cluster.runtime.timeout(Duration::from_secs(200), work).await;
            ended |= killed.is_ok();
            drop(dying);
            sealing.assert_whole().await;
            sealing.assert_bears_two_losses(commits).await;
            // Its leases expire.
            sealing.cluster.runtime.sleep(Duration::from_secs(600)).await;
            collect_abandoned(sealing.cluster.client.stripes()).await.unwrap();
            resume_wide(sealing.cluster.client.stripes()).await.unwrap();
            sealing.assert_nothing_left().await;
            assert_eq!(sealing.cluster.chunk_count(), chunks, "after {commits} commits");
            sealing.assert_parities().await;
        }
        if ended {
            assert!(commits > 2, "it took only {commits} commits");
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_swap_whose_entry_somebody_cancels_leaves_its_files_as_garbage() {
    for of_wide in [true, false] {
        let sealing = Sealing::start().await;
        sealing.seal().await;
        sealing.collect().await;
        let (chunks, stripes) = (sealing.cluster.chunk_count(), sealing.cluster.client.stripes());
        let (id, position) = sealing.swappable().await;
        let before = sealing.record(id).await;
        let cancelled = if of_wide { id } else { Sealing::member(&before, position).0 };
        // The member's copy is made last, in the local parity's rack.
        sealing.slow_down(&sealing.rack_at(&before, parity_of(position)), Duration::from_secs(2));
        let cancel = async {
            sealing.cluster.runtime.sleep(Duration::from_secs(1)).await;
            cancel_entries(stripes, cancelled).await;
        };
        let (outcome, ()) = join(stripes.swap_local_parity(id, position), cancel).await;
        assert_eq!(outcome.unwrap(), ExchangeOutcome::NotNow);
        assert_eq!(sealing.record(id).await.locations, before.locations);
        sealing.assert_nothing_left().await;
        assert_eq!(sealing.cluster.chunk_count(), chunks);
    }
}

/// A member moves between the checks of a swap and its first commit: the file to be copied no longer exists.
#[tokio::test(start_paused = true)]
async fn a_member_that_has_just_moved_does_not_change_places() {
    let sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    let (id, position) = sealing.swappable().await;
    let before = sealing.record(id).await;
    let meta = DyingStore::new(sealing.cluster.meta.clone());
    let client = dying_client(&sealing.cluster, &meta).await;
    let (stripe, moves) = (Sealing::member(&before, position).0, sealing.near_moves(&before, position).await);
    let stripes = sealing.cluster.client.stripes().clone();
    let moved = async move { assert!(move_first(&stripes, &moves).await) };
    *meta.after_get.lock() = Some((keys::stripe(stripe), Box::pin(moved)));
    assert_eq!(client.stripes().swap_local_parity(id, position).await.unwrap(), ExchangeOutcome::NotNow);
    assert!(meta.after_get.lock().is_none());
    let now = sealing.record(id).await;
    assert_eq!(now.locations[parity_of(position)], before.locations[parity_of(position)]);
    sealing.assert_nothing_left().await;
}

/// While two chunks change places, the rack that may end up with both takes no other chunk. Members of other groups
/// move as usual, and the swap continues on top of that.
#[tokio::test(start_paused = true)]
async fn what_moves_beside_a_swap_obeys_the_rule_and_does_not_stop_it() {
    let sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    let stripes = sealing.cluster.client.stripes();
    let (id, position) = sealing.swappable().await;
    let before = sealing.record(id).await;
    // The member's copy is made last, in the local parity's rack.
    sealing.slow_down(&sealing.rack_at(&before, parity_of(position)), Duration::from_secs(2));
    let other = (0..10).find(|&at| at / 5 != position / 5).unwrap();
    let (same, other) =
        (sealing.near_moves(&before, position).await, sealing.near_moves(&before, other).await);
    let mover = async {
        sealing.cluster.runtime.sleep(Duration::from_secs(1)).await;
        assert!(!move_first(stripes, &same).await, "its rack is to have the local parity");
        assert!(move_first(stripes, &other).await);
    };
    let (outcome, ()) = join(stripes.swap_local_parity(id, position), mover).await;
    assert_eq!(outcome.unwrap(), ExchangeOutcome::Done);
    let now = sealing.record(id).await;
    let has_moved = |at: usize| now.locations[at].site != before.locations[at].site;
    assert_eq!((0..10).filter(|&at| has_moved(at)).count(), 2);
    sealing.assert_nothing_left().await;
    sealing.assert_bears_two_losses(1).await;
}

/// The first of two transactions that would close a swap: the member is in the local parity's rack, and the local
/// parity is still there.
#[tokio::test(start_paused = true)]
async fn of_two_transactions_the_first_would_break_the_rule() {
    let sealing = Sealing::start().await;
    sealing.seal().await;
    let (id, position) = sealing.swappable().await;
    let before = sealing.record(id).await;
    let meta = DyingStore::new(sealing.cluster.meta.clone());
    let client = dying_client(&sealing.cluster, &meta).await;
    let (parity, was) = (parity_of(position), before.locations[parity_of(position)].clone());
    *meta.altered.lock() = Some(Box::new(move |tx| {
        for write in &mut tx.writes {
            if let striate_meta::Write::Put(key, value) = write
                && *key == keys::stripe(id)
            {
                let mut record: Stripe = striate_meta::records::decode(value).unwrap();
                record.locations[parity] = was.clone();
                *value = striate_meta::records::encode(&record);
            }
        }
    }));
    assert_eq!(client.stripes().swap_local_parity(id, position).await.unwrap(), ExchangeOutcome::Done);
    let (record, racks) = (sealing.record(id).await, sealing.racks());
    let profile: striate_core::Profile = WIDE.parse().unwrap();
    let rule = PlacementRule::new(&profile, &profile.code.build().unwrap(), 6);
    let sites: Vec<SiteId> = record.locations.iter().map(|at| SiteId(at.site)).collect();
    assert!(check_placement(&rule, &sites, |site| racks.get(&site)).is_err());
}

/// Groups of seven with a local parity in two racks of four, so that a swap may save more than it sends.
const FOUR_A_RACK: &str = "wide(14,7,4)";

#[tokio::test(start_paused = true)]
async fn local_parities_go_where_most_is_to_change_before_it_changes() {
    let mut sealing = Sealing::start_packed_as("rs(2,1)").await;
    let options = SealOptions::new(FOUR_A_RACK.parse().unwrap(), Duration::ZERO);
    let stripes = sealing.cluster.client.stripes().clone();
    let seal = async |sealing: &Sealing| {
        seal_bucket(&stripes, &sealing.packer, BUCKET, &options, &mut go_on).await.unwrap()
    };
    assert_eq!(seal(&sealing).await.swapped, 0, "nothing is dead");
    let (id, group, dying) = sealing.one_rack_of_a_group().await;
    let before = sealing.record(id).await;
    for key in sealing.objects_in(&dying).await {
        sealing.delete(std::iter::once(key)).await;
    }
    repack_marked(&stripes, &sealing.packer, &pack_options()).await.unwrap();
    let report = seal(&sealing).await;
    assert!(report.swapped > 0, "{report:?}");
    let now = sealing.record(id).await;
    let (full, parity) = (7 * group, 14 + group);
    assert_eq!(sealing.rack_at(&now, parity), sealing.rack_at(&before, full));
    assert_ne!(sealing.rack_at(&now, parity), sealing.rack_at(&before, parity));
    assert_eq!(seal(&sealing).await.swapped, 0, "it is where it should be");
    sealing.leave().await;
    sealing.collect().await;
    sealing.assert_reads().await;
    sealing.assert_clean().await;
}

impl Sealing {
    /// Returns a wide stripe, one of its groups, and the stripes of the four members in the group's full rack, none
    /// of which has a chunk in the local parity's rack.
    async fn one_rack_of_a_group(&self) -> (StripeId, usize, BTreeSet<StripeId>) {
        for (id, record) in self.wide_stripes().await {
            for group in 0..2 {
                let local = self.rack_at(&record, 14 + group);
                let (beside, full): (Vec<usize>, Vec<usize>) =
                    (7 * group..7 * group + 7).partition(|&at| self.rack_at(&record, at) == local);
                let of = |at: &usize| Self::member(&record, *at).0;
                let dying: BTreeSet<StripeId> = full.iter().map(of).collect();
                if full.len() == 4 && !beside.iter().any(|at| dying.contains(&of(at))) {
                    return (id, group, dying);
                }
            }
        }
        panic!("each stripe has members in both racks of a group");
    }

    /// Returns the numbers of the objects that live in these packed stripes.
    async fn objects_in(&self, stripes: &BTreeSet<StripeId>) -> Vec<usize> {
        let mut found = Vec::new();
        for key in 0..OBJECTS {
            let row = self.cluster.meta.get(&keys::object(BUCKET, &name(key))).await.unwrap().unwrap();
            let object: Object = row.record().unwrap();
            let Some(Body::Extent(extent)) = object.body else { continue };
            if stripes.contains(&stripe_id(&extent.stripe).unwrap()) {
                found.push(key);
            }
        }
        found
    }
}

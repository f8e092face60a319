//! Chunks of wide stripes move, and only where locality stays exact.

use std::collections::BTreeMap;

use striate_control::{MoveOutcome, move_chunk};
use striate_core::{SiteId, StripeId};
use striate_meta::keys;
use striate_meta::records::Stripe;
use striate_plan::LeavingRacks;
use striate_plan::movement::ChunkMove;
use striate_site::{Priority, Site};
use striate_stripe::{DebtEffect, wide_of};

use crate::dying::{DyingStore, dying_client};
use crate::interposed::{cancel_entries, move_first};
use crate::sealed::Sealing;

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
            // The wide stripe itself has no file of a member.
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
                        // Wide stripes mostly admit members in their own rack only; other racks are full.
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

/// Two members move to one site at the same time: the wide stripe's record names neither move, and the second finds
/// the first there.
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
        assert!(!change.swap(replaced, DebtEffect::AsItIs).await.unwrap());
        drop(change);
        sealing.assert_whole().await;
        tried += 1;
    }
    assert!(tried > 0);
    assert_eq!(sealing.rows(keys::CHANGES).await, 0, "the change that lost was cancelled");
    sealing.collect().await;
    sealing.assert_reads().await;
}

/// The record of a change's stripe is read again since another member of it has moved, and once more since a third
/// one has, by the wide stripe's record. Meanwhile its entry is cancelled, so that the chunk it wrote is garbage.
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
    assert!(!change.swap(replaced, DebtEffect::AsItIs).await.unwrap());
    assert!(meta.after_get.lock().is_none(), "it was read again");
    drop(change);
    assert_eq!(sealing.record(id).await.locations[index].site, from.0);
    assert_eq!(sealing.rows(keys::CHANGES).await, 0);
    sealing.collect().await;
    sealing.assert_whole().await;
    sealing.assert_reads().await;
}

/// Another change of the record comes first. Even then the local parity may not go to a third rack.
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
    assert!(!change.swap(replaced, DebtEffect::AsItIs).await.unwrap());
    drop(change);
    sealing.assert_whole().await;
}

/// The rack of the departed site still counts: otherwise another chunk of the group could be put where it then has no
/// place.
#[tokio::test(start_paused = true)]
async fn nothing_takes_a_place_beside_a_chunk_on_a_site_that_has_left() {
    let mut sealing = Sealing::start().await;
    sealing.seal().await;
    let (id, record) = sealing.wide_stripes().await.remove(0);
    let away = SiteId(record.locations[1].site);
    let own = SiteId(record.locations[0].site);
    let stripes = sealing.cluster.client.stripes().clone();
    let wide = stripes.find(id).await.unwrap().unwrap();
    let admits = || stripes.admits_in_wide(&wide, 0, own, &LeavingRacks::default());
    assert!(admits());
    let index = sealing.cluster.sites.iter().position(|site| site.id() == away).unwrap();
    sealing.cluster.retire(index).await;
    assert!(!admits());
}

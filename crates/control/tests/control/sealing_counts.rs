//! What a look at cold data counts as sealed, and what waits.

use bytes::Bytes;
use striate_control::resume_wide;
use striate_core::StripeId;
use striate_meta::records::{self, Stripe, WideState};
use striate_meta::{Commit, keys};
use striate_stripe::{WideStep, wide_of};

use crate::sealed::Sealing;

async fn commit(sealing: &Sealing, rows: Vec<(Bytes, Bytes)>) {
    let mut tx = sealing.cluster.client.stripes().transaction();
    for (key, value) in rows {
        tx.put(key, value);
    }
    assert!(matches!(sealing.cluster.meta.commit(tx).await.unwrap(), Commit::Done(_)));
}

async fn packed(sealing: &Sealing) -> Vec<(StripeId, Stripe)> {
    let stripes = sealing.cluster.stripes().await;
    stripes.into_iter().filter(|(_, record)| record.profile.starts_with("packed")).collect()
}

#[tokio::test(start_paused = true)]
async fn stripes_in_debt_wait_for_their_repair_and_are_counted() {
    let sealing = Sealing::start().await;
    let (owed, _) = packed(&sealing).await[0];
    commit(&sealing, vec![(keys::debt(owed), Bytes::new())]).await;
    let report = sealing.seal().await;
    let groups = packed(&sealing).await;
    let open = |(_, record): &(StripeId, Stripe)| {
        record.locations[..4].iter().filter(|at| wide_of(at).is_none()).count() as u64
    };
    assert!(report.sealed > 0 && open(&groups[0]) == 4, "{report:?}");
    assert_eq!(report.cold_stripes, groups.len() as u64);
    assert_eq!(report.waiting, groups.iter().map(open).sum::<u64>());
    let why = report.held_up.unwrap();
    assert!(why.ends_with("cold stripes that wait for repair: 1"), "{why}");
    sealing.heal().await;
    let why = sealing.seal().await.held_up.unwrap_or_default();
    assert!(!why.contains("repair"), "{why}");
}

/// Another process is making a wide stripe meanwhile.
#[tokio::test(start_paused = true)]
async fn a_stripe_counts_as_sealed_when_its_wide_stripes_are() {
    let sealing = Sealing::start().await;
    sealing.seal().await;
    let before = sealing.seal().await;
    let groups = packed(&sealing).await;
    let (_, all_sealed) = groups.iter().find(|(_, of)| of.dropped).unwrap();
    let (wide, _) = wide_of(&all_sealed.locations[0]).unwrap();
    let mut record = sealing.record(wide).await;
    record.set_wide_state(WideState::Building);
    let rows = vec![(keys::stripe(wide), records::encode(&record)), (keys::change(wide), Bytes::new())];
    commit(&sealing, rows).await;
    let report = sealing.seal().await;
    let in_sealed = |(_, record): &(StripeId, Stripe)| {
        let claims = record.locations[..4].iter().filter_map(wide_of);
        claims.filter(|(of, _)| *of != wide).count()
    };
    let in_sealed: Vec<usize> = packed(&sealing).await.iter().map(in_sealed).collect();
    let sealed = in_sealed.iter().filter(|count| **count == 4).count() as u64;
    let half_sealed = in_sealed.iter().filter(|count| (1..4).contains(*count)).count() as u64;
    assert_eq!((report.sealed_stripes, report.half_sealed), (sealed, half_sealed), "{report:?}");
    assert!(sealed < before.sealed_stripes, "{before:?}");
    assert_eq!((report.cold_stripes, report.waiting), (before.cold_stripes, before.waiting));
}

/// The record of a member's stripe is wrong, so that its parities cannot go.
#[tokio::test(start_paused = true)]
async fn a_sealed_wide_stripe_whose_members_keep_their_parities_is_not_given_up() {
    let sealing = Sealing::start().await;
    sealing.seal().await;
    let stripes = sealing.cluster.client.stripes();
    let (id, mut wide) = sealing.wide_stripes().await.swap_remove(0);
    wide.set_wide_state(WideState::Sealed);
    let (own, _) = Sealing::member(&wide, 0);
    let wrong = Stripe { profile: "code(4,2)".to_owned(), ..sealing.record(own).await };
    commit(
        &sealing,
        vec![
            (keys::stripe(id), records::encode(&wide)),
            (keys::change(id), Bytes::new()),
            (keys::stripe(own), records::encode(&wrong)),
        ],
    )
    .await;
    assert_eq!(resume_wide(stripes).await.unwrap(), [(id, WideStep::Sealed)]);
    assert!(sealing.record(id).await.is_sealed());
}

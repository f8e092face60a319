//! Combined locality stays exact, however often chunks of wide stripes are repaired and moved, and sites are drained.

use striate_control::{MoveOutcome, move_chunk, verify};
use striate_core::SiteId;
use striate_site::Site;
use striate_stripe::{file_of, is_hole};

use crate::cluster::go_on;
use crate::sealed::Sealing;

/// Total number of chunks repaired, moved and drained.
const EVENTS: usize = 1_000;

/// Loses a chunk of each wide stripe and rebuilds it. Returns how many.
async fn repair_some(sealing: &Sealing, turn: usize) -> usize {
    let mut lost = 0;
    for (id, record) in sealing.wide_stripes().await {
        let position = turn % record.locations.len();
        if is_hole(&record, position) {
            continue;
        }
        let (stripe, index) = match position < record.members.len() {
            true => Sealing::member(&record, position),
            false => (id, position),
        };
        let of = sealing.record(stripe).await;
        sealing.lose(file_of(stripe, &of, index), SiteId(of.locations[index].site));
        lost += 1;
    }
    assert!(verify(sealing.cluster.client.stripes(), go_on).await.unwrap().progress.damaged as usize >= lost);
    sealing.heal().await;
    lost
}

/// Moves members where their wide stripes admit them. Returns how many have moved.
async fn move_some(sealing: &Sealing, turn: usize) -> usize {
    let mut moved = 0;
    for (_, record) in sealing.wide_stripes().await {
        for position in (turn % 2..record.members.len()).step_by(2) {
            for wanted in sealing.near_moves(&record, position).await {
                let outcome = move_chunk(sealing.cluster.client.stripes(), &wanted).await.unwrap();
                if let MoveOutcome::Moved { .. } = outcome {
                    moved += 1;
                    break;
                }
            }
        }
    }
    moved
}

/// Repairs, moves and drains in turn until so many chunks have left their places. Returns how many by each.
async fn age(sealing: &Sealing, events: usize) -> [usize; 3] {
    let [mut repaired, mut moved, mut drained] = [0; 3];
    for turn in 0.. {
        repaired += repair_some(sealing, turn).await;
        moved += move_some(sealing, turn).await;
        let sites = &sealing.cluster.sites;
        drained += sealing.drain(sites[turn * 7 % sites.len()].id()).await;
        sealing.collect().await;
        if repaired + moved + drained >= events {
            break;
        }
    }
    [repaired, moved, drained]
}

#[tokio::test(start_paused = true)]
async fn locality_after_a_thousand_repairs_moves_and_drains_is_what_it_was() {
    let sealing = Sealing::start().await;
    assert!(sealing.seal().await.sealed > 2);
    sealing.collect().await;
    let before = sealing.crossed().await;
    assert!(before.values().any(|&racks| racks == 1) && before.values().all(|&racks| racks <= 1));
    let [repaired, moved, drained] = age(&sealing, EVENTS).await;
    assert!(
        repaired > 50 && moved > 100 && drained > 100,
        "{repaired} repaired, {moved} moved, {drained} drained"
    );
    assert_eq!(sealing.crossed().await, before);
    sealing.assert_whole().await;
    sealing.assert_reads().await;
}

/// A chunk then has one other site in its rack, and a rack in thirteen is free.
#[tokio::test(start_paused = true)]
async fn locality_and_the_free_rack_stay_where_stripes_fill_their_racks() {
    let sealing = Sealing::start_filling_racks().await;
    let before = sealing.crossed().await;
    assert_eq!(before.values().max(), Some(&3));
    let by_each = age(&sealing, EVENTS / 4).await;
    assert!(by_each.iter().all(|&chunks| chunks > 0), "{by_each:?} repaired, moved and drained");
    assert_eq!(sealing.crossed().await, before);
    sealing.assert_whole().await;
    sealing.assert_large_reads().await;
}

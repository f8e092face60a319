//! A process dies before or after any commit of what it does with one sealed stripe: it gives the stripe its own
//! parities again, repairs a member or moves one.

use std::time::Duration;

use striate_client::Client;
use striate_control::repair::absence::AbsentSites;
use striate_control::repair::pace::RepairPace;
use striate_control::{MoveOutcome, collect_abandoned, move_chunk, repair_stripe};
use striate_core::{SiteId, StripeId};
use striate_meta::keys;
use striate_meta::records::Stripe;
use striate_stripe::{file_of, wide_of};

use crate::dying::{Death, DyingStore, dying_client};
use crate::sealed::Sealing;

/// Kills a process at each commit of `work`. All objects can then be read without two sites, and when the process's
/// leases have expired, others make everything whole and nothing is left over.
async fn die_at_every_commit<W>(work: W)
where
    W: AsyncFn(&Sealing, &Client),
{
    let mut ended = false;
    for commits in 0.. {
        for is_made in [false, true] {
            let sealing = Sealing::start().await;
            sealing.seal().await;
            sealing.collect().await;
            let meta = DyingStore::new(sealing.cluster.meta.clone());
            let dying = dying_client(&sealing.cluster, &meta).await;
            *meta.death.lock() = Some(Death { commits, is_made });
            let working = work(&sealing, &dying);
            ended |= sealing.cluster.runtime.timeout(Duration::from_secs(200), working).await.is_ok();
            drop(dying);
            sealing.assert_bears_two_losses(commits).await;
            // Its leases expire.
            sealing.cluster.runtime.sleep(Duration::from_secs(600)).await;
            collect_abandoned(sealing.cluster.client.stripes()).await.unwrap();
            sealing.heal().await;
            sealing.assert_whole().await;
            sealing.collect().await;
            sealing.assert_reads().await;
            assert_eq!(sealing.rows(keys::CHANGES).await, 0, "after {commits} commits");
            sealing.assert_clean().await;
            sealing.assert_encoded().await;
        }
        if ended {
            assert!(commits > 1, "it took only {commits} commits");
            return;
        }
    }
}

/// Returns the stripes that have dropped their parities.
async fn dropped(sealing: &Sealing) -> Vec<(StripeId, Stripe)> {
    sealing.cluster.stripes().await.into_iter().filter(|(_, of)| of.dropped).collect()
}

/// Repairs a stripe, and asserts that so many chunks were made.
async fn repair(client: &Client, id: StripeId, chunks: u64) {
    let (absent, pace) = (AbsentSites::default(), RepairPace::unlimited());
    let outcome = repair_stripe(client.stripes(), id, &absent, &pace, true).await.unwrap();
    assert_eq!(outcome.chunks, chunks, "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_dies_at_any_commit_while_parities_come_back_leaves_nothing_wrong() {
    die_at_every_commit(async |sealing, dying| {
        for (id, _) in dropped(sealing).await {
            if dying.stripes().narrow_again(id).await.unwrap() {
                return repair(dying, id, 2).await;
            }
        }
        panic!("no stripe gets its parities again");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_dies_at_any_commit_of_a_members_repair_leaves_nothing_wrong() {
    die_at_every_commit(async |sealing, dying| {
        let (id, record) = dropped(sealing).await.remove(0);
        sealing.lose(file_of(id, &record, 0), SiteId(record.locations[0].site));
        sealing.put_in_debt(id).await;
        repair(dying, id, 1).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_dies_at_any_commit_of_a_members_move_leaves_nothing_wrong() {
    die_at_every_commit(async |sealing, dying| {
        for (_, record) in dropped(sealing).await {
            let (wide, position) = wide_of(&record.locations[0]).unwrap();
            let near = sealing.near_moves(&sealing.record(wide).await, position).await;
            let Some(wanted) = near.first() else { continue };
            let outcome = move_chunk(dying.stripes(), wanted).await.unwrap();
            assert!(matches!(outcome, MoveOutcome::Moved { .. }), "{outcome:?}");
            return;
        }
        panic!("no member can move in its rack");
    })
    .await;
}

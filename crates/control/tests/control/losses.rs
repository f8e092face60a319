//! Losing sites and chunks: acknowledged objects read back, heal makes them whole, and beyond the tolerance the error
//! is clear and nothing is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::Duration;

use crate::cluster::{Cluster, content, go_on};
use striate_client::ClientError;
use striate_control::{UnreadableObjects, heal, verify};
use striate_core::SiteId;
use striate_meta::records::Stripe;
use striate_meta::{ScanRange, keys};

const OBJECTS: usize = 40;

async fn fill(cluster: &Cluster) {
    for key in 0..OBJECTS {
        cluster.put(&format!("object{key}"), &content(key, 6_000 + key)).await.unwrap();
    }
}

async fn assert_all_read(cluster: &Cluster) {
    for key in 0..OBJECTS {
        let read = cluster.get(&format!("object{key}")).await.unwrap();
        assert_eq!(read, content(key, 6_000 + key), "object{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn i1_every_object_survives_the_loss_of_r_sites_and_after_heal_of_r_more() {
    let mut cluster = Cluster::start(6, "rs(4,2)").await;
    fill(&cluster).await;
    for round in 0..2 {
        cluster.retire(0).await;
        cluster.retire(0).await;
        assert_all_read(&cluster).await;
        cluster.add(10 + round * 2).await;
        cluster.add(11 + round * 2).await;
        let report = heal(cluster.client.stripes(), go_on).await.unwrap();
        assert!(report.is_whole(), "{report:?}");
        assert_eq!(report.progress.chunks, 2 * OBJECTS as u64);
        assert_all_read(&cluster).await;
        let verified = verify(cluster.client.stripes(), go_on).await.unwrap();
        assert!(verified.is_clean() && verified.orphans == 0, "{verified:?}");
        assert_eq!(verified.progress.chunks, 6 * OBJECTS as u64);
    }
}

#[tokio::test(start_paused = true)]
async fn i10_damaged_chunks_are_never_served_and_heal_restores_the_original_encoding() {
    let cluster = Cluster::start(6, "rs(4,2)").await;
    fill(&cluster).await;
    let before: Vec<_> = cluster.sites[..2].iter().map(|site| site.chunks.lock().clone()).collect();
    cluster.sites[..2].iter().for_each(|site| site.corrupt_all());
    assert_all_read(&cluster).await;
    let found = verify(cluster.client.stripes(), go_on).await.unwrap();
    assert_eq!(found.progress.damaged, 2 * OBJECTS as u64);
    let report = heal(cluster.client.stripes(), go_on).await.unwrap();
    assert!(report.is_whole(), "{report:?}");
    assert!(verify(cluster.client.stripes(), go_on).await.unwrap().is_clean());
    for (chunk, original) in before.iter().flatten() {
        let is_rebuilt = cluster.sites.iter().any(|site| {
            let chunks = site.chunks.lock();
            let mut same =
                chunks.iter().filter(|(id, _)| (id.stripe, id.index) == (chunk.stripe, chunk.index));
            same.any(|(id, stored)| id.generation > chunk.generation && stored == original)
        });
        assert!(is_rebuilt, "{chunk} was not rebuilt as it was");
    }
}

#[tokio::test(start_paused = true)]
async fn writes_go_on_in_debt_while_k_plus_one_sites_are_up_and_heal_pays_it() {
    let cluster = Cluster::start(6, "rs(4,2)").await;
    *cluster.sites[5].down.lock() = true;
    fill(&cluster).await;
    assert_all_read(&cluster).await;
    assert_eq!(cluster.chunk_count(), 5 * OBJECTS);
    *cluster.sites[5].down.lock() = false;
    cluster.runtime.sleep(std::time::Duration::from_secs(5)).await;
    let report = heal(cluster.client.stripes(), go_on).await.unwrap();
    assert!(report.is_whole(), "{report:?}");
    assert_eq!(cluster.chunk_count(), 6 * OBJECTS);
    let again = heal(cluster.client.stripes(), go_on).await.unwrap();
    assert_eq!(again.progress.stripes_total, 0);
}

#[tokio::test(start_paused = true)]
async fn i5_a_write_with_fewer_than_k_plus_one_sites_fails_and_leaves_nothing() {
    let cluster = Cluster::start(6, "rs(4,2)").await;
    cluster.sites[..2].iter().for_each(|site| *site.down.lock() = true);
    let error = cluster.put("new", &content(0, 6_000)).await.unwrap_err();
    assert!(matches!(error, ClientError::TooFewSites { needed: 5, .. }), "{error}");
    assert!(matches!(cluster.get("new").await, Err(ClientError::NoSuchKey(_))));
    assert_eq!(cluster.chunk_count(), 0);
}

/// An acknowledged write decodes after any one further loss, whatever chunks it has left out; if it would not, the
/// write is refused and leaves nothing. Having k + 1 chunks is not enough: `lrc(12,3,2)` without a whole group has as
/// many.
#[tokio::test(start_paused = true)]
async fn i1_a_write_is_acknowledged_only_when_it_bears_one_more_loss() {
    let cases: [(&str, &[u8], bool); 14] = [
        ("lrc(12,3,2)", &[0, 1, 2, 3], false),
        ("lrc(12,3,2)", &[0, 1, 2], false),
        ("lrc(12,3,2)", &[0, 1], true),
        ("lrc(12,3,2)", &[0, 4, 8], true),
        ("lrc(12,3,2)", &[12, 13, 14, 15], true),
        ("lrc(12,3,2)", &[14, 15, 16], false),
        ("rs(4,2)", &[0], true),
        ("rs(4,2)", &[0, 5], false),
        ("replica(3)", &[0], true),
        ("replica(3)", &[1, 2], false),
        ("replica(2)", &[1], false),
        ("rs(2,1)", &[2], false),
        ("none", &[], true),
        ("none", &[0], false),
    ];
    for (profile, refused, is_acknowledged) in cases {
        let n = profile.parse::<striate_core::Profile>().unwrap().code.chunk_count() as u32;
        let cluster = Cluster::start(n, profile).await;
        cluster.refuse(refused);
        match cluster.put("key", &content(1, 9_000)).await {
            Ok(()) => {
                assert!(is_acknowledged, "{profile} without {refused:?} was acknowledged");
                let all: Vec<_> = cluster.sites.iter().collect();
                for lost in all.iter().filter(|_| n > 1) {
                    *lost.down.lock() = true;
                    assert_eq!(
                        cluster.get("key").await.unwrap(),
                        content(1, 9_000),
                        "{profile}, {refused:?}"
                    );
                    *lost.down.lock() = false;
                    cluster.runtime.sleep(Duration::from_secs(5)).await;
                }
            }
            Err(error) => {
                assert!(!is_acknowledged, "{profile} without {refused:?}: {error}");
                assert!(matches!(error, ClientError::TooFewSites { .. }), "{error}");
                assert_eq!(cluster.chunk_count(), 0);
            }
        }
    }
}

/// No request of this process has failed before.
#[tokio::test(start_paused = true)]
async fn heal_rebuilds_what_a_site_had_that_died_unnoticed() {
    let cluster = Cluster::start(7, "rs(4,2)").await;
    fill(&cluster).await;
    let dead = &cluster.sites[0];
    let lost = dead.chunks.lock().len() as u64;
    *dead.down.lock() = true;
    let report = heal(cluster.client.stripes(), go_on).await.unwrap();
    assert!(report.is_whole() && lost > 0, "{report:?}");
    assert_eq!((report.progress.chunks, report.gone_sites), (lost, vec![1]));
    let stripes = cluster.stripes().await;
    assert!(stripes.iter().all(|(_, record)| record.locations.iter().all(|at| at.site > 1)));
    assert_all_read(&cluster).await;
}

/// With fewer sites than chunks an LRC leaves out the local parities first, so that it can write with as few sites as
/// an MDS code.
#[tokio::test(start_paused = true)]
async fn writes_of_an_lrc_go_on_with_k_plus_one_sites_by_the_parities_that_cover_most() {
    for (sites, goes_on) in [(13, true), (12, false)] {
        let cluster = Cluster::start(17, "lrc(12,3,2)").await;
        cluster.sites[sites..].iter().for_each(|site| *site.down.lock() = true);
        // A site that fails a write is not a candidate for the next.
        let mut last = Ok(());
        for round in 0..4 {
            last = cluster.put("key", &content(round, 9_000)).await;
        }
        assert_eq!(last.is_ok(), goes_on, "{sites} sites: {last:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn i2_beyond_the_tolerance_the_error_names_what_is_missing_and_everything_reads_when_it_returns() {
    let cluster = Cluster::start(6, "rs(4,2)").await;
    fill(&cluster).await;
    let before = cluster.chunk_count();
    cluster.sites[..3].iter().for_each(|site| *site.down.lock() = true);
    let error = cluster.get("object0").await.unwrap_err();
    assert!(matches!(error, ClientError::Unreadable { needed: 4, .. }), "{error}");
    assert!(["site 1", "site 2", "site 3"].iter().all(|site| error.to_string().contains(site)), "{error}");
    let report = heal(cluster.client.stripes(), go_on).await.unwrap();
    assert_eq!((report.unrepairable, report.progress.chunks), (OBJECTS as u64, 0));
    assert_eq!(cluster.chunk_count(), before, "nothing may be deleted");
    cluster.sites[..3].iter().for_each(|site| *site.down.lock() = false);
    cluster.runtime.sleep(std::time::Duration::from_secs(5)).await;
    assert_all_read(&cluster).await;
    assert!(verify(cluster.client.stripes(), go_on).await.unwrap().is_clean());
}

#[tokio::test(start_paused = true)]
async fn heal_goes_on_until_the_debt_that_was_made_meanwhile_is_paid_too() {
    let cluster = Cluster::start(6, "rs(4,2)").await;
    fill(&cluster).await;
    cluster.lose_a_chunk_each(0..10);
    let (mut rounds, late) = (Vec::new(), [10..30, 30..35]);
    let report = heal(cluster.client.stripes(), |progress| {
        if rounds.last() != Some(&progress.round) {
            rounds.push(progress.round);
            if let Some(range) = late.get(rounds.len() - 1) {
                cluster.lose_a_chunk_each(range.clone());
            }
        }
        ControlFlow::Continue(())
    });
    let report = report.await.unwrap();
    assert!(report.is_whole(), "{report:?}");
    assert_eq!(
        (rounds.as_slice(), report.progress.chunks, report.progress.stripes_total),
        (&[1, 2, 3][..], 35, 35)
    );
    assert!(verify(cluster.client.stripes(), go_on).await.unwrap().is_clean());
}

#[tokio::test(start_paused = true)]
async fn heal_without_progress_ends_and_names_what_is_left_and_waits_a_little_for_sites_that_return() {
    let cluster = Cluster::start(6, "rs(4,2)").await;
    fill(&cluster).await;
    cluster.lose_a_chunk_each(0..OBJECTS);
    cluster.sites[..3].iter().for_each(|site| *site.down.lock() = true);
    let report = heal(cluster.client.stripes(), go_on).await.unwrap();
    assert!(!report.is_whole());
    assert_eq!(
        (report.left, report.unrepairable, report.progress.round),
        (OBJECTS as u64, OBJECTS as u64, 3)
    );
    let names = |site: &&str| report.examples[0].contains(*site);
    assert!(report.examples.len() == 20 && ["site 1", "site 2", "site 3"].iter().all(names), "{report:?}");

    let healing = heal(cluster.client.stripes(), go_on);
    let returning = async {
        cluster.runtime.sleep(Duration::from_millis(500)).await;
        cluster.sites[..3].iter().for_each(|site| *site.down.lock() = false);
    };
    let (report, ()) = futures::future::join(healing, returning).await;
    let report = report.unwrap();
    assert!(report.is_whole() && report.progress.chunks == OBJECTS as u64, "{report:?}");
    assert!(verify(cluster.client.stripes(), go_on).await.unwrap().is_clean());
}

#[tokio::test(start_paused = true)]
async fn objects_with_too_many_chunks_on_silent_sites_are_listed() {
    let cluster = Cluster::start(8, "rs(4,2)").await;
    fill(&cluster).await;
    let stripes = cluster.client.stripes();
    let all: BTreeSet<SiteId> = stripes.sites().iter().map(|view| view.site.id()).collect();
    let mut holders = BTreeMap::new();
    for row in stripes.meta().scan(ScanRange::prefix(keys::STRIPES), 1_000).await.unwrap() {
        let stripe: Stripe = row.record().unwrap();
        let sites: BTreeSet<SiteId> = stripe.locations.iter().map(|at| SiteId(at.site)).collect();
        *holders.entry(sites).or_insert(0) += 1;
    }
    for silent in 0..=4 {
        let answering: BTreeSet<SiteId> = all.iter().copied().skip(silent).collect();
        let mut walk = UnreadableObjects::new(&answering);
        let mut listed = 0;
        while let Some(found) = walk.next(stripes).await.unwrap() {
            listed += found.len();
        }
        // Each object is one stripe.
        let lost = |sites: &&BTreeSet<SiteId>| sites.difference(&answering).count() > 2;
        let expected: usize = holders.keys().filter(lost).map(|sites| holders[sites]).sum();
        assert_eq!((listed, walk.report().objects), (expected, OBJECTS as u64), "{silent} sites are silent");
        assert!((expected > 0) == (silent > 2) && expected < OBJECTS || silent == 4, "{silent}: {expected}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stripe_that_only_wants_for_a_site_is_looked_at_once_and_again_when_there_is_one() {
    let mut cluster = Cluster::start(6, "rs(4,2)").await;
    fill(&cluster).await;
    cluster.retire(0).await;
    let report = heal(cluster.client.stripes(), go_on).await.unwrap();
    assert_eq!((report.left, report.still_lost), (OBJECTS as u64, OBJECTS as u64));
    assert_eq!(
        (report.progress.stripes_done, report.progress.round),
        (OBJECTS as u64, 1),
        "one look at each"
    );
    assert!(report.examples[0].contains("1 chunks without a site"), "{:?}", report.examples);
    cluster.add(10).await;
    assert!(heal(cluster.client.stripes(), go_on).await.unwrap().is_whole());
}

#[tokio::test(start_paused = true)]
async fn a_site_that_takes_no_chunk_is_not_asked_again_and_named_when_there_is_no_other() {
    let mut cluster = Cluster::start(6, "rs(4,2)").await;
    fill(&cluster).await;
    cluster.retire(0).await;
    cluster.add(10).await;
    *cluster.sites[5].full.lock() = true;
    let report = heal(cluster.client.stripes(), go_on).await.unwrap();
    assert_eq!((report.left, report.still_lost, report.unrepairable), (OBJECTS as u64, OBJECTS as u64, 0));
    assert!(report.examples[0].contains("site 10: the site's disk is full"), "{:?}", report.examples);
    cluster.add(11).await;
    assert!(
        heal(cluster.client.stripes(), go_on).await.unwrap().is_whole(),
        "the other site takes all of them"
    );
    assert_eq!(cluster.sites[6].chunks.lock().len(), OBJECTS);
}

#[tokio::test(start_paused = true)]
async fn a_chunk_that_more_sites_refuse_than_are_tried_is_named_with_the_last_refusal() {
    let mut cluster = Cluster::start(16, "rs(4,2)").await;
    fill(&cluster).await;
    let lost = cluster.retire(0).await.chunks.lock().len() as u64;
    cluster.sites.iter().for_each(|site| *site.full.lock() = true);
    let report = heal(cluster.client.stripes(), go_on).await.unwrap();
    assert_eq!((report.left, report.unrepairable), (lost, lost), "{report:?}");
    assert!(report.examples[0].contains("the site's disk is full"), "{:?}", report.examples);
}

#[tokio::test(start_paused = true)]
async fn a_heal_that_is_stopped_finishes_the_stripes_in_work_and_leaves_no_orphan() {
    let cluster = Cluster::start(6, "rs(4,2)").await;
    fill(&cluster).await;
    cluster.lose_a_chunk_each(0..OBJECTS);
    let stop_at_five = |progress: &striate_control::HealProgress| match progress.stripes_done < 5 {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(()),
    };
    let report = heal(cluster.client.stripes(), stop_at_five).await.unwrap();
    assert!(report.stopped && !report.is_whole());
    let done = report.progress.stripes_done;
    assert!((5..OBJECTS as u64).contains(&done) && report.progress.chunks == done, "{report:?}");
    assert_eq!(verify(cluster.client.stripes(), go_on).await.unwrap().orphans, 0);
    assert!(heal(cluster.client.stripes(), go_on).await.unwrap().is_whole());
    let verified = verify(cluster.client.stripes(), |progress| match progress.stripes < 5 {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(()),
    });
    let verified = verified.await.unwrap();
    assert!(verified.stopped && !verified.is_clean() && verified.progress.damaged == 0, "{verified:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hung_site_is_read_around() {
    let cluster = Cluster::start(6, "rs(4,2)").await;
    fill(&cluster).await;
    cluster.sites[..2].iter().for_each(|site| *site.hung.lock() = true);
    assert_all_read(&cluster).await;
}

/// The rebuilt chunk is where the lost one was, which could not be rebuilt elsewhere.
#[tokio::test(start_paused = true)]
async fn i6_a_repair_that_succeeds_in_part_names_no_site_twice() {
    let cluster = Cluster::start(6, "rs(4,2)").await;
    fill(&cluster).await;
    cluster.sites[..2].iter().for_each(|site| site.chunks.lock().clear());
    *cluster.sites[0].full.lock() = true;
    assert_eq!(verify(cluster.client.stripes(), go_on).await.unwrap().queued, OBJECTS as u64);
    let report = heal(cluster.client.stripes(), go_on).await.unwrap();
    assert_eq!((report.left, report.still_lost), (OBJECTS as u64, OBJECTS as u64), "{report:?}");
    let rows = cluster.meta.scan(ScanRange::prefix(keys::STRIPES), usize::MAX).await.unwrap();
    for row in rows {
        let stripe: Stripe = row.record().unwrap();
        let mut sites: Vec<u32> =
            stripe.locations.iter().map(|at| at.site).filter(|&site| site != 0).collect();
        let named = sites.len();
        sites.sort_unstable();
        sites.dedup();
        assert_eq!(sites.len(), named, "{stripe:?}");
    }
    *cluster.sites[0].full.lock() = false;
    assert!(heal(cluster.client.stripes(), go_on).await.unwrap().is_whole());
    assert!(verify(cluster.client.stripes(), go_on).await.unwrap().is_clean());
}

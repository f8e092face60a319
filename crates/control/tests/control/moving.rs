//! Moving one chunk: readers never notice, no data is lost, and wherever the move ends early nothing is wrong.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::{BreakableSite, Cluster, content, go_on, options};
use crate::dying::{Death, DyingStore};
use futures::future::join;
use striate_client::Client;
use striate_control::repair::absence::AbsentSites;
use striate_control::repair::pace::RepairPace;
use striate_control::{MoveOutcome, collect_orphans, heal, move_chunk, repair_stripe, verify};
use striate_core::{RackId, SiteId, StripeId};
use striate_meta::records::site::State;
use striate_meta::{ScanRange, keys, records};
use striate_plan::movement::ChunkMove;
use striate_site::{Priority, Site};

const OBJECTS: usize = 6;

/// Starts a cluster with objects of one stripe each on sites 1 to 6 of eight.
async fn filled() -> Cluster {
    let mut cluster = Cluster::start(6, "rs(4,2)").await;
    for key in 0..OBJECTS {
        cluster.put(&format!("object{key}"), &content(key, 6_000 + key)).await.unwrap();
    }
    cluster.add(7).await;
    cluster.add(8).await;
    cluster
}

/// Asserts that every object can be read, every chunk is good and where it is named, and no site holds two chunks of
/// a stripe.
async fn assert_well(cluster: &Cluster) {
    for key in 0..OBJECTS {
        let read = cluster.get(&format!("object{key}")).await.unwrap();
        assert_eq!(read, content(key, 6_000 + key), "object{key}");
    }
    for (stripe, record) in cluster.stripes().await {
        let sites: BTreeSet<u32> = record.locations.iter().map(|at| at.site).collect();
        assert_eq!(sites.len(), 6, "{stripe}: {record:?}");
        let placement = keys::placement_of(record.locations.iter().map(|at| SiteId(at.site)));
        let reverse = cluster.meta.get(&keys::reverse(placement, stripe)).await.unwrap();
        assert!(reverse.is_some(), "{stripe} is not found through its sites");
    }
    let rows = cluster.meta.scan(ScanRange::prefix(b"r/"), usize::MAX).await.unwrap();
    assert_eq!(rows.len(), OBJECTS, "one row of the reverse index for each stripe");
    let report = verify(cluster.client.stripes(), go_on).await.unwrap();
    assert_eq!((report.progress.damaged, report.queued), (0, 0), "{report:?}");
}

/// Returns a move of the first stripe's first chunk to `to`.
async fn first_move(cluster: &Cluster, to: u32) -> ChunkMove {
    let (stripe, record) = cluster.stripes().await.remove(0);
    ChunkMove { stripe, index: 0, from: SiteId(record.locations[0].site), to: SiteId(to) }
}

fn site(cluster: &Cluster, id: SiteId) -> &Arc<BreakableSite> {
    cluster.sites.iter().find(|site| site.id() == id).expect("a site of the cluster")
}

/// A gateway that knows a stripe's old place finds its chunk after it has moved and the old one is gone: a miss leads
/// to the record, and not to debt.
#[tokio::test(start_paused = true)]
async fn a_chunk_that_moved_is_found_by_who_knew_its_old_place() {
    let cluster = filled().await;
    let handles = || cluster.sites.iter().map(|site| site.clone() as Arc<dyn Site>).collect();
    let other = Client::open(cluster.runtime.clone(), cluster.meta.clone(), handles(), options("rs(4,2)"))
        .await
        .unwrap();
    let read = async |key: usize| {
        let blocks = other.blocks_of("bucket", &format!("object{key}")).await.unwrap();
        let read = other.read_blocks(&blocks).await.unwrap();
        (read.blocks.concat().concat(), read.stats)
    };
    for key in 0..OBJECTS {
        assert_eq!(read(key).await.0, content(key, 6_000 + key));
    }
    for (stripe, record) in cluster.stripes().await {
        let wanted = ChunkMove { stripe, index: 1, from: SiteId(record.locations[1].site), to: SiteId(8) };
        let moved = move_chunk(cluster.client.stripes(), &wanted).await.unwrap();
        assert!(matches!(moved, MoveOutcome::Moved { .. }), "{moved:?}");
    }
    cluster.collect().await;
    for key in 0..OBJECTS {
        let (bytes, stats) = read(key).await;
        assert_eq!(bytes, content(key, 6_000 + key), "object{key}");
        assert_eq!(stats.decoded_bytes, 0, "it is read from where it is now: {stats:?}");
    }
    cluster.runtime.sleep(Duration::from_secs(1)).await;
    assert_eq!(cluster.debts().await, 0, "a chunk that moved is not lost");
}

#[tokio::test(start_paused = true)]
async fn a_chunk_moves_and_the_old_one_stays_for_readers_until_the_grace_has_passed() {
    let cluster = filled().await;
    let wanted = first_move(&cluster, 7).await;
    let len = cluster.stripes().await[0].1.chunk_len;
    let outcome = move_chunk(cluster.client.stripes(), &wanted).await.unwrap();
    assert_eq!(outcome, MoveOutcome::Moved { bytes: u64::from(len) });
    assert_eq!(cluster.stripes().await[0].1.locations[0].site, 7);
    assert_eq!(cluster.chunk_count(), 6 * OBJECTS + 1);
    assert_well(&cluster).await;
    cluster.collect().await;
    assert_eq!(cluster.chunk_count(), 6 * OBJECTS);
    assert_well(&cluster).await;
    assert_eq!(move_chunk(cluster.client.stripes(), &wanted).await.unwrap(), MoveOutcome::Outdated);
    // And back: the chunk of a new generation is not mistaken for the old one.
    let back = ChunkMove { from: wanted.to, to: wanted.from, ..wanted };
    assert!(matches!(move_chunk(cluster.client.stripes(), &back).await.unwrap(), MoveOutcome::Moved { .. }));
    cluster.collect().await;
    assert_eq!(cluster.chunk_count(), 6 * OBJECTS);
    assert_well(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn moves_that_would_break_a_rule_are_refused() {
    let cluster = filled().await;
    let before = cluster.stripes().await;
    let wanted = first_move(&cluster, 7).await;
    let holder = SiteId(before[0].1.locations[1].site);
    let refused = |outcome: MoveOutcome| match outcome {
        MoveOutcome::Refused(reason) => reason,
        other => panic!("it was not refused: {other:?}"),
    };
    let to_holder = ChunkMove { to: holder, ..wanted };
    let reason = refused(move_chunk(cluster.client.stripes(), &to_holder).await.unwrap());
    assert!(reason.contains("holds a chunk"), "{reason}");
    cluster.client.stripes().set_draining(SiteId(7), true);
    let reason = refused(move_chunk(cluster.client.stripes(), &wanted).await.unwrap());
    assert!(reason.contains("takes no chunks"), "{reason}");
    cluster.client.stripes().set_draining(SiteId(7), false);
    let unknown = ChunkMove { to: SiteId(99), ..wanted };
    refused(move_chunk(cluster.client.stripes(), &unknown).await.unwrap());
    let of_nothing = ChunkMove { index: 17, ..wanted };
    assert_eq!(move_chunk(cluster.client.stripes(), &of_nothing).await.unwrap(), MoveOutcome::Outdated);
    assert_eq!(cluster.stripes().await, before, "not even a generation was taken");
}

/// Returns a stripe with a chunk on a site that this process does not know, and the rack that the site's row names.
/// The row has this state.
async fn with_a_site_unknown_here(cluster: &Cluster, state: State) -> (StripeId, RackId) {
    let (stripe, record) = cluster.stripes().await[0].clone();
    let unknown = SiteId(record.locations[0].site);
    let rack = RackId("shared".to_owned());
    cluster
        .write_site(records::Site {
            id: unknown.0,
            rack: rack.0.clone(),
            peer: "another process".to_owned(),
            state: state.into(),
            ..records::Site::default()
        })
        .await;
    let known = cluster.sites.iter().filter(|site| site.id() != unknown);
    cluster.client.stripes().set_sites(known.map(|site| site.clone() as Arc<dyn Site>).collect());
    (stripe, rack)
}

/// A process may learn later than others of a site that has joined, and that may already have chunks.
#[tokio::test(start_paused = true)]
async fn the_rack_of_a_site_that_is_not_known_here_yet_counts() {
    let cluster = filled().await;
    let (stripe, rack) = with_a_site_unknown_here(&cluster, State::Active).await;
    let stripes = cluster.client.stripes();
    let change = stripes.change(stripe, Priority::Background).await.unwrap().unwrap();
    assert_eq!(change.racks(&[])[0], Some(rack));
    drop(change);
    let report = heal(stripes, go_on).await.unwrap();
    assert_eq!((report.progress.chunks, report.gone_sites), (0, Vec::new()), "nothing of it is lost");
}

/// Otherwise the other chunks of its group could be put where it then has no place.
#[tokio::test(start_paused = true)]
async fn the_rack_of_a_retired_site_counts_until_its_chunk_has_another_place() {
    let cluster = filled().await;
    let (stripe, rack) = with_a_site_unknown_here(&cluster, State::Retired).await;
    let stripes = cluster.client.stripes();
    let change = stripes.change(stripe, Priority::Background).await.unwrap().unwrap();
    assert_eq!(change.racks(&[])[0], Some(rack.clone()));
    drop(change);
    heal(stripes, go_on).await.unwrap();
    let change = stripes.change(stripe, Priority::Background).await.unwrap().unwrap();
    assert!(change.racks(&[])[0].as_ref().is_some_and(|now| *now != rack));
}

#[tokio::test(start_paused = true)]
async fn a_bad_source_is_left_to_repair_and_nothing_bad_is_copied() {
    for is_missing in [false, true] {
        let cluster = filled().await;
        let wanted = first_move(&cluster, 7).await;
        let source = site(&cluster, wanted.from);
        match is_missing {
            true => source.chunks.lock().clear(),
            false => source.corrupt_all(),
        }
        assert_eq!(move_chunk(cluster.client.stripes(), &wanted).await.unwrap(), MoveOutcome::LeftToRepair);
        assert!(cluster.meta.get(&keys::debt(wanted.stripe)).await.unwrap().is_some());
        assert!(site(&cluster, SiteId(7)).chunks.lock().is_empty());
        verify(cluster.client.stripes(), go_on).await.unwrap();
        assert!(heal(cluster.client.stripes(), go_on).await.unwrap().is_whole());
        assert_well(&cluster).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_destination_that_fails_changes_nothing_and_keeps_nothing() {
    let cluster = filled().await;
    let wanted = first_move(&cluster, 7).await;
    let to = site(&cluster, SiteId(7));
    for fault in [&to.full, &to.down, &to.mute] {
        *fault.lock() = true;
        let outcome = move_chunk(cluster.client.stripes(), &wanted).await.unwrap();
        assert!(matches!(&outcome, MoveOutcome::Refused(reason) if reason.contains("site 7")), "{outcome:?}");
        *fault.lock() = false;
        cluster.collect().await;
        assert_eq!(cluster.chunk_count(), 6 * OBJECTS);
    }
    assert_well(&cluster).await;
    assert!(matches!(
        move_chunk(cluster.client.stripes(), &wanted).await.unwrap(),
        MoveOutcome::Moved { .. }
    ));
}

/// A mover dies before or after any commit, while it reads, or while it writes.
#[tokio::test(start_paused = true)]
async fn a_mover_killed_at_any_step_leaves_nothing_wrong() {
    let commits = (0..3).flat_map(|commits| [false, true].map(|is_made| Death { commits, is_made }));
    let deaths = commits.map(Some).chain([None, None]);
    for (case, death) in deaths.enumerate() {
        let cluster = filled().await;
        let wanted = first_move(&cluster, 7).await;
        let (from, to) = (site(&cluster, wanted.from), site(&cluster, wanted.to));
        (*from.hung.lock(), *to.mute.lock()) = (case == 6, case == 7);
        {
            let meta = DyingStore::new(cluster.meta.clone());
            let sites = cluster.sites.iter().map(|site| site.clone() as Arc<dyn Site>).collect();
            let dying = Client::open(cluster.runtime.clone(), meta.clone(), sites, options("rs(4,2)"));
            let dying = dying.await.unwrap();
            *meta.death.lock() = death;
            // Shorter than the time a site may take to answer: the process is killed while it waits.
            let killed =
                cluster.runtime.timeout(Duration::from_millis(10), move_chunk(dying.stripes(), &wanted));
            assert!(killed.await.is_err(), "case {case}: it should have died at {death:?}");
        }
        (*from.hung.lock(), *to.mute.lock()) = (false, false);
        assert_well(&cluster).await;
        let again = move_chunk(cluster.client.stripes(), &wanted).await.unwrap();
        match death {
            Some(Death { commits: 2, is_made: true }) => assert_eq!(again, MoveOutcome::Outdated),
            _ => assert!(matches!(again, MoveOutcome::Moved { .. }), "case {case}: {again:?}"),
        }
        for row in cluster.meta.scan(ScanRange::prefix(keys::INTENTS), 10).await.unwrap() {
            let mut tx = cluster.client.stripes().transaction();
            tx.delete(row.key);
            cluster.meta.commit(tx).await.unwrap();
        }
        let orphans = collect_orphans(cluster.client.stripes()).await.unwrap();
        assert!(orphans.orphans <= 1 && orphans.unexplained == 0, "case {case}: {orphans:?}");
        cluster.collect().await;
        assert_eq!(cluster.chunk_count(), 6 * OBJECTS, "case {case}");
        assert_well(&cluster).await;
    }
}

#[tokio::test(start_paused = true)]
async fn movers_and_a_repair_of_one_stripe_do_not_take_a_live_chunk_from_each_other() {
    let cluster = filled().await;
    let to_7 = first_move(&cluster, 7).await;
    let to_8 = ChunkMove { to: SiteId(8), ..to_7 };
    let other = ChunkMove { index: 1, from: SiteId(cluster.stripes().await[0].1.locations[1].site), ..to_8 };
    let lost = SiteId(cluster.stripes().await[0].1.locations[2].site);
    site(&cluster, lost).chunks.lock().retain(|chunk, _| chunk.stripe != to_7.stripe);
    let (absent, pace) = (AbsentSites::default(), RepairPace::unlimited());
    let movers =
        join(move_chunk(cluster.client.stripes(), &to_7), move_chunk(cluster.client.stripes(), &to_8));
    let others = join(
        move_chunk(cluster.client.stripes(), &other),
        repair_stripe(cluster.client.stripes(), to_7.stripe, &absent, &pace, true),
    );
    let ((one, two), (_, repaired)) = join(movers, others).await;
    repaired.unwrap();
    let moved = [one.unwrap(), two.unwrap()];
    let made = moved.iter().filter(|outcome| matches!(outcome, MoveOutcome::Moved { .. })).count();
    assert_eq!(made, 1, "{moved:?}");
    assert!(heal(cluster.client.stripes(), go_on).await.unwrap().is_whole());
    cluster.collect().await;
    assert_well(&cluster).await;
    assert_eq!(cluster.chunk_count(), 6 * OBJECTS);
}

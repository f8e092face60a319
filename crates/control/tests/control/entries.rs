//! Open entries: wherever a repair or a move ends, each of its files is named, in an entry or as garbage; two changes
//! of one stripe both succeed unless they touch the same chunk; and removing an entry fences its owner.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::{Cluster, content, go_on, options};
use crate::dying::{Death, DyingStore, Stall};
use futures::channel::oneshot;
use futures::future::join;
use striate_client::Client;
use striate_control::repair::absence::AbsentSites;
use striate_control::repair::pace::RepairPace;
use striate_control::{MoveOutcome, collect_abandoned, collect_orphans, move_chunk, repair_stripe, verify};
use striate_core::{Formats, FormatsInForce, SiteId, StripeId};
use striate_meta::{MetaStore, ScanRange, keys};
use striate_plan::movement::ChunkMove;
use striate_site::{Priority, Site};
use striate_stripe::DebtEffect;

const LEN: usize = 6_000;
/// Longer than a writer's lease lasts.
const LEASE: Duration = Duration::from_secs(40);

/// Starts a cluster with one stripe on sites 1 to 6 of eight, with entries in force.
async fn filled() -> (Cluster, StripeId) {
    let mut cluster = Cluster::start(6, "rs(4,2)").await;
    cluster.put("object", &content(1, LEN)).await.unwrap();
    cluster.add(7).await;
    cluster.add(8).await;
    let stripe = cluster.stripes().await[0].0;
    (cluster, stripe)
}

async fn wanted(cluster: &Cluster, index: usize, to: u32) -> ChunkMove {
    let (stripe, record) = cluster.stripes().await.remove(0);
    ChunkMove { stripe, index, from: SiteId(record.locations[index].site), to: SiteId(to) }
}

/// Opens a separate process over the same sites.
async fn process(cluster: &Cluster, meta: Arc<dyn MetaStore>) -> Client {
    let sites = cluster.sites.iter().map(|site| site.clone() as Arc<dyn Site>).collect();
    let mut options = options("rs(4,2)");
    options.stripes.formats = FormatsInForce::new(Formats::NEWEST);
    Client::open(cluster.runtime.clone(), meta, sites, options).await.unwrap()
}

async fn end_intents(cluster: &Cluster) {
    for row in cluster.meta.scan(ScanRange::prefix(keys::INTENTS), 10).await.unwrap() {
        let mut tx = cluster.client.stripes().transaction();
        tx.delete(row.key);
        cluster.meta.commit(tx).await.unwrap();
    }
}

async fn entries(cluster: &Cluster) -> (usize, usize) {
    let rows = cluster.meta.scan(ScanRange::prefix(keys::CHANGES), usize::MAX).await.unwrap();
    (cluster.stripes().await.iter().map(|(_, record)| record.entries.len()).sum(), rows.len())
}

/// Asserts that every chunk is good and named where it is, and that nothing else is left.
async fn assert_settled(cluster: &Cluster, case: &str) {
    assert_eq!(entries(cluster).await, (0, 0), "{case}");
    cluster.collect().await;
    assert_eq!(cluster.chunk_count(), 6, "{case}");
    let report = verify(cluster.client.stripes(), go_on).await.unwrap();
    assert!(report.is_clean() && report.orphans == 0 && report.unexplained == 0, "{case}: {report:?}");
    let record = &cluster.stripes().await[0].1;
    let sites: BTreeSet<u32> = record.locations.iter().map(|at| at.site).collect();
    assert_eq!(sites.len(), 6, "{case}: {record:?}");
    assert_eq!(cluster.get("object").await.unwrap(), content(1, LEN), "{case}");
}

/// Kills a process at each of its commits, before or after the commit is made, while it does `work`.
async fn die_at_every_commit<W>(work: W)
where
    W: AsyncFn(&Cluster, &Client),
{
    for (commits, is_made) in (0..3).flat_map(|commits| [(commits, false), (commits, true)]) {
        let case = format!("{commits} commits, the next one is made: {is_made}");
        let (cluster, _) = filled().await;
        {
            let meta = DyingStore::new(cluster.meta.clone());
            let dying = process(&cluster, meta.clone()).await;
            *meta.death.lock() = Some(Death { commits, is_made });
            let _ = cluster.runtime.timeout(Duration::from_millis(10), work(&cluster, &dying)).await;
        }
        // Its files are known although nothing names them yet: no collection mistakes them for orphans.
        end_intents(&cluster).await;
        let orphans = collect_orphans(cluster.client.stripes()).await.unwrap();
        assert_eq!((orphans.orphans, orphans.unexplained), (0, 0), "{case}");
        cluster.runtime.sleep(LEASE).await;
        let collected = collect_abandoned(cluster.client.stripes()).await.unwrap();
        assert_eq!(collected.chunks, 0, "{case}");
        let (absent, pace) = (AbsentSites::default(), RepairPace::unlimited());
        let stripe = cluster.stripes().await[0].0;
        let repaired = repair_stripe(cluster.client.stripes(), stripe, &absent, &pace, true).await.unwrap();
        assert!(repaired.is_whole(), "{case}: {repaired:?}");
        assert_settled(&cluster, &case).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_mover_that_dies_at_any_commit_leaves_an_entry_at_most_and_it_is_cancelled_with_its_lease() {
    die_at_every_commit(async |cluster, dying| {
        let wanted = wanted(cluster, 0, 7).await;
        move_chunk(dying.stripes(), &wanted).await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_repair_that_dies_at_any_commit_leaves_an_entry_at_most_and_it_is_cancelled_with_its_lease() {
    die_at_every_commit(async |cluster, dying| {
        let (stripe, record) = cluster.stripes().await.remove(0);
        for index in [1, 4] {
            let lost = SiteId(record.locations[index].site);
            let site = cluster.sites.iter().find(|site| site.id() == lost).unwrap();
            site.chunks.lock().clear();
        }
        let (absent, pace) = (AbsentSites::default(), RepairPace::unlimited());
        repair_stripe(dying.stripes(), stripe, &absent, &pace, true).await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn moves_of_different_chunks_of_a_stripe_both_succeed_at_once() {
    let (cluster, _) = filled().await;
    let (one, two) = (wanted(&cluster, 0, 7).await, wanted(&cluster, 1, 8).await);
    cluster.sites.iter().for_each(|site| *site.lag.lock() = Duration::from_millis(5));
    let other = process(&cluster, cluster.meta.clone()).await;
    let before = cluster.stripes().await[0].1.generation;
    let moved = join(move_chunk(cluster.client.stripes(), &one), move_chunk(other.stripes(), &two)).await;
    for outcome in [moved.0.unwrap(), moved.1.unwrap()] {
        assert!(matches!(outcome, MoveOutcome::Moved { .. }), "{outcome:?}");
    }
    let record = cluster.stripes().await.remove(0).1;
    assert_eq!((record.locations[0].site, record.locations[1].site), (7, 8));
    assert!(record.generation <= before + 3, "nobody began again after its chunk was sent: {record:?}");
    assert_settled(&cluster, "two moves").await;
}

#[tokio::test(start_paused = true)]
async fn of_two_that_move_one_chunk_the_first_wins_and_the_other_leaves_nothing() {
    let (cluster, _) = filled().await;
    let (one, two) = (wanted(&cluster, 0, 7).await, wanted(&cluster, 0, 8).await);
    cluster.sites.iter().for_each(|site| *site.lag.lock() = Duration::from_millis(5));
    let other = process(&cluster, cluster.meta.clone()).await;
    let moved = join(move_chunk(cluster.client.stripes(), &one), move_chunk(other.stripes(), &two)).await;
    let outcomes = [moved.0.unwrap(), moved.1.unwrap()];
    let made = outcomes.iter().filter(|outcome| matches!(outcome, MoveOutcome::Moved { .. })).count();
    assert_eq!(made, 1, "{outcomes:?}");
    assert_settled(&cluster, "one chunk, two moves").await;
}

#[tokio::test(start_paused = true)]
async fn whoever_removes_an_entry_fences_its_owner() {
    let (cluster, stripe) = filled().await;
    let meta = DyingStore::new(cluster.meta.clone());
    let slow = process(&cluster, meta.clone()).await;
    let mut change = slow.stripes().change(stripe, Priority::Repair).await.unwrap().unwrap();
    let generation = change.open(&[(0, SiteId(7))]).await.unwrap().unwrap();
    assert_eq!(entries(&cluster).await, (1, 1));
    let payload = change.read_chunk(0).await.unwrap();
    change.write_chunk(0, SiteId(7), generation, payload).await.unwrap();
    // It is alive, so no other process touches its entry; then it stalls for longer than its lease.
    assert_eq!(collect_abandoned(cluster.client.stripes()).await.unwrap().changes, 0);
    let lease = slow.stripes().writer_lease();
    cluster.meta.revoke_lease(lease).await.unwrap();
    assert_eq!(collect_abandoned(cluster.client.stripes()).await.unwrap().changes, 1);
    assert_eq!(entries(&cluster).await, (0, 0));

    let replaced = change.replace(0, SiteId(7), generation).into_iter().collect();
    assert!(!change.swap(replaced, DebtEffect::AsItIs).await.unwrap(), "its entry is gone");
    change.give_up(&[(0, SiteId(7))], generation).await;
    drop(change);
    assert_ne!(cluster.stripes().await[0].1.locations[0].site, 7);
    assert_settled(&cluster, "fenced").await;
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_dropped_cancels_its_entry() {
    let (cluster, stripe) = filled().await;
    let mut change = cluster.client.stripes().change(stripe, Priority::Repair).await.unwrap().unwrap();
    let generation = change.open(&[(0, SiteId(7))]).await.unwrap().unwrap();
    let payload = change.read_chunk(0).await.unwrap();
    change.write_chunk(0, SiteId(7), generation, payload).await.unwrap();
    drop(change);
    cluster.runtime.sleep(Duration::from_millis(1)).await;
    assert_settled(&cluster, "dropped").await;
}

/// So does the task of a process that no longer leads, most of all when the metadata are slow. The process stays alive, so
/// no other one cancels the entry.
#[tokio::test(start_paused = true)]
async fn a_change_that_is_dropped_while_it_gives_up_cancels_its_entry() {
    let (cluster, stripe) = filled().await;
    let meta = DyingStore::new(cluster.meta.clone());
    let owner = process(&cluster, meta.clone()).await;
    let mut change = owner.stripes().change(stripe, Priority::Repair).await.unwrap().unwrap();
    let generation = change.open(&[(0, SiteId(7))]).await.unwrap().unwrap();
    let payload = change.read_chunk(0).await.unwrap();
    change.write_chunk(0, SiteId(7), generation, payload).await.unwrap();
    let (_never_goes_on, until) = oneshot::channel();
    *meta.stall.lock() = Some(Stall { commits: 0, until });
    let written = [(0, SiteId(7))];
    let giving_up = change.give_up(&written, generation);
    assert!(cluster.runtime.timeout(Duration::from_millis(1), giving_up).await.is_err(), "it stands still");
    drop(change);
    cluster.runtime.sleep(Duration::from_millis(1)).await;
    assert_settled(&cluster, "dropped while it gave up").await;
}

/// The owner stays alive, so no other process cancels the entry: the owner must, however long the metadata fails.
#[tokio::test(start_paused = true)]
async fn an_entry_is_cancelled_when_the_metadata_answer_again() {
    for gives_up in [false, true] {
        let (cluster, stripe) = filled().await;
        let meta = DyingStore::new(cluster.meta.clone());
        let owner = process(&cluster, meta.clone()).await;
        let mut change = owner.stripes().change(stripe, Priority::Repair).await.unwrap().unwrap();
        let generation = change.open(&[(0, SiteId(7))]).await.unwrap().unwrap();
        let payload = change.read_chunk(0).await.unwrap();
        change.write_chunk(0, SiteId(7), generation, payload).await.unwrap();
        meta.refused.lock().insert(keys::stripe(stripe));
        if gives_up {
            change.give_up(&[(0, SiteId(7))], generation).await;
        }
        drop(change);
        cluster.runtime.sleep(Duration::from_secs(60)).await;
        assert_eq!(entries(&cluster).await, (1, 1), "given up: {gives_up}");
        meta.refused.lock().clear();
        cluster.runtime.sleep(Duration::from_secs(60)).await;
        assert_settled(&cluster, "cancelled late").await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_deleted_during_a_move_takes_the_moves_files_along() {
    let (cluster, stripe) = filled().await;
    let mut change = cluster.client.stripes().change(stripe, Priority::Repair).await.unwrap().unwrap();
    let generation = change.open(&[(0, SiteId(7))]).await.unwrap().unwrap();
    let payload = change.read_chunk(0).await.unwrap();
    change.write_chunk(0, SiteId(7), generation, payload).await.unwrap();
    cluster.put("object", b"small").await.unwrap();
    let replaced = change.replace(0, SiteId(7), generation).into_iter().collect();
    assert!(!change.swap(replaced, DebtEffect::AsItIs).await.unwrap());
    drop(change);
    cluster.collect().await;
    assert_eq!((cluster.chunk_count(), entries(&cluster).await), (0, (0, 0)));
}

/// A move may not take the place that another change has reserved for another chunk.
#[tokio::test(start_paused = true)]
async fn places_of_open_entries_count_as_taken() {
    let (cluster, stripe) = filled().await;
    let mut change = cluster.client.stripes().change(stripe, Priority::Repair).await.unwrap().unwrap();
    change.open(&[(0, SiteId(7))]).await.unwrap().unwrap();
    let outcome = move_chunk(cluster.client.stripes(), &wanted(&cluster, 1, 7).await).await.unwrap();
    assert!(matches!(&outcome, MoveOutcome::Refused(reason) if reason.contains("site 7")), "{outcome:?}");
    drop(change);
    cluster.runtime.sleep(Duration::from_millis(1)).await;
    let outcome = move_chunk(cluster.client.stripes(), &wanted(&cluster, 1, 7).await).await.unwrap();
    assert!(matches!(outcome, MoveOutcome::Moved { .. }), "{outcome:?}");
    assert_settled(&cluster, "after the other gave up").await;
}

#[tokio::test(start_paused = true)]
async fn until_the_format_is_in_force_nothing_new_is_written() {
    let mut cluster = Cluster::start_with(6, "rs(4,2)", Formats::OLDEST).await;
    cluster.put("object", &content(1, LEN)).await.unwrap();
    cluster.add(7).await;
    let stripe = cluster.stripes().await[0].0;
    let mut change = cluster.client.stripes().change(stripe, Priority::Repair).await.unwrap().unwrap();
    change.open(&[(0, SiteId(7))]).await.unwrap().unwrap();
    let row = cluster.meta.get(&keys::stripe(stripe)).await.unwrap().unwrap();
    assert_eq!((row.value[0], entries(&cluster).await), (1, (0, 0)));
}

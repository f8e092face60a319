//! Automatic repair: chunks lost for longer than the wait are rebuilt, debt is repaid, and users' requests come
//! first.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use striate_client::Client;
use striate_control::repair::absence::AbsentSites;
use striate_control::repair::pace::RepairPace;
use striate_control::{
    GarbageCollector, MoveOutcome, RepairLimits, RepairOptions, RepairService, heal, move_chunk,
    repair_stripe, verify,
};
use striate_core::SiteId;
use striate_meta::records::Stripe;
use striate_meta::{keys, records};
use striate_plan::movement::ChunkMove;
use striate_runtime::JoinHandle;
use striate_site::Site;

use crate::cluster::{BUCKET, Cluster, content, go_on, options};
use crate::dying::{DyingStore, dying_client};

const OBJECTS: usize = 40;
const WAIT: Duration = Duration::from_secs(900);
const SECOND: Duration = Duration::from_secs(1);

async fn filled(sites: u32, objects: usize) -> Cluster {
    let cluster = Cluster::start(sites, "rs(4,2)").await;
    for key in 0..objects {
        cluster.put(&format!("object{key}"), &content(key, 6_000)).await.unwrap();
    }
    cluster
}

async fn assert_all_read(cluster: &Cluster, objects: usize) {
    assert_all_read_of(cluster, objects, 6_000).await;
}

async fn assert_all_read_of(cluster: &Cluster, objects: usize, len: usize) {
    for key in 0..objects {
        assert_eq!(cluster.get(&format!("object{key}")).await.unwrap(), content(key, len), "object{key}");
    }
}

fn start(cluster: &Cluster, limits: RepairLimits) -> (RepairService, JoinHandle<()>) {
    let service = RepairService::new(RepairOptions { after: WAIT, limits: Some(limits) });
    let task = cluster.runtime.spawn(service.clone().run(cluster.client.stripes().clone()));
    (service, task)
}

fn chunks_on(stripes: &[(striate_core::StripeId, Stripe)], site: u32) -> usize {
    stripes.iter().flat_map(|(_, stripe)| &stripe.locations).filter(|at| at.site == site).count()
}

#[tokio::test(start_paused = true)]
async fn a_site_that_is_silent_for_longer_than_the_wait_is_rebuilt_and_its_old_chunks_are_garbage() {
    let cluster = filled(7, OBJECTS).await;
    let lost = chunks_on(&cluster.stripes().await, 1);
    let (service, _task) = start(&cluster, RepairLimits::default());
    cluster.runtime.sleep(10 * SECOND).await;
    *cluster.sites[0].down.lock() = true;
    cluster.runtime.sleep(WAIT - 10 * SECOND).await;
    assert_eq!(chunks_on(&cluster.stripes().await, 1), lost, "it may come back");
    let progress = service.progress();
    assert_eq!(progress.silent.iter().map(|silent| silent.site).collect::<Vec<_>>(), [1]);
    assert!((1..=30).contains(&progress.silent[0].rebuilt_after_s) && progress.left == 0, "{progress:?}");

    cluster.runtime.sleep(60 * SECOND).await;
    assert_eq!(chunks_on(&cluster.stripes().await, 1), 0);
    let progress = service.progress();
    assert_eq!((progress.chunks, progress.stripes, progress.left), (lost as u64, lost as u64, 0));
    let told = cluster.meta.get(&keys::repair_work()).await.unwrap().unwrap();
    assert_eq!(told.record::<records::RepairWork>().unwrap().chunks, lost as u64, "others can see it");

    *cluster.sites[0].down.lock() = false;
    cluster.runtime.sleep(60 * SECOND).await;
    let mut collector = GarbageCollector::default();
    collector.round(cluster.client.stripes()).await.unwrap();
    cluster.runtime.sleep(61 * SECOND).await;
    collector.round(cluster.client.stripes()).await.unwrap();
    assert!(cluster.sites[0].chunks.lock().is_empty(), "what it still had is named no more");
    assert!(verify(cluster.client.stripes(), go_on).await.unwrap().is_clean());
    assert_all_read(&cluster, OBJECTS).await;
}

#[tokio::test(start_paused = true)]
async fn a_site_that_returns_within_the_wait_costs_nothing() {
    let cluster = filled(7, OBJECTS).await;
    let before = cluster.stripes().await;
    let (service, _task) = start(&cluster, RepairLimits::default());
    for _ in 0..3 {
        *cluster.sites[0].down.lock() = true;
        cluster.runtime.sleep(WAIT - 10 * SECOND).await;
        *cluster.sites[0].down.lock() = false;
        cluster.runtime.sleep(10 * SECOND).await;
    }
    cluster.runtime.sleep(WAIT).await;
    assert_eq!(cluster.stripes().await, before);
    assert_eq!((service.progress().chunks, service.progress().silent.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn debt_of_writes_is_paid_as_soon_as_there_is_a_site() {
    let cluster = Cluster::start(6, "rs(4,2)").await;
    let (service, _task) = start(&cluster, RepairLimits::default());
    *cluster.sites[5].down.lock() = true;
    for key in 0..OBJECTS {
        cluster.put(&format!("object{key}"), &content(key, 6_000)).await.unwrap();
    }
    cluster.runtime.sleep(300 * SECOND).await;
    assert_eq!((cluster.debts().await, cluster.chunk_count()), (OBJECTS, 5 * OBJECTS));
    assert_eq!((service.progress().left, service.progress().waiting), (OBJECTS as u64, OBJECTS as u64));
    *cluster.sites[5].down.lock() = false;
    cluster.runtime.sleep(30 * SECOND).await;
    assert_eq!((cluster.debts().await, cluster.chunk_count()), (0, 6 * OBJECTS));
    assert_eq!(service.progress().left, 0);
    assert!(verify(cluster.client.stripes(), go_on).await.unwrap().is_clean());
}

#[tokio::test(start_paused = true)]
async fn a_site_that_was_given_up_is_rebuilt_at_once() {
    let mut cluster = filled(6, OBJECTS).await;
    let (_service, _task) = start(&cluster, RepairLimits::default());
    cluster.retire(0).await;
    cluster.runtime.sleep(60 * SECOND).await;
    assert_eq!(chunks_on(&cluster.stripes().await, 1), OBJECTS, "no other site takes a chunk");
    cluster.add(10).await;
    cluster.runtime.sleep(30 * SECOND).await;
    assert_eq!(cluster.sites[5].chunks.lock().len(), OBJECTS);
    assert!(verify(cluster.client.stripes(), go_on).await.unwrap().is_clean());
}

/// The count reads all stripes with chunks on the lost sites.
#[tokio::test(start_paused = true)]
async fn repair_does_not_wait_until_the_losses_of_wide_stripes_are_counted() {
    let mut cluster = filled(8, OBJECTS).await;
    let lost = [cluster.retire(0).await.id().0, cluster.retire(0).await.id().0];
    let on_lost = async || {
        let stripes = cluster.stripes().await;
        lost.iter().map(|&site| chunks_on(&stripes, site)).sum::<usize>()
    };
    assert!(on_lost().await > OBJECTS);
    let meta = DyingStore::new(cluster.meta.clone());
    let client = dying_client(&cluster, &meta).await;
    *meta.hangs_on_many.lock() = true;
    let service = RepairService::new(RepairOptions { after: WAIT, ..RepairOptions::default() });
    let _task = cluster.runtime.spawn(service.run(client.stripes().clone()));
    cluster.runtime.sleep(120 * SECOND).await;
    assert_eq!(on_lost().await, 0);
    assert!(verify(cluster.client.stripes(), go_on).await.unwrap().is_clean());
}

#[tokio::test(start_paused = true)]
async fn a_damaged_chunk_that_a_read_finds_is_repaired_alone() {
    let cluster = filled(6, OBJECTS).await;
    let before = cluster.stripes().await;
    // Damage data chunks, so that every read meets them.
    let (damaged, record) = before[7].clone();
    let missing = before[9].0;
    for (stripe, index) in [(damaged, 0), (missing, 1)] {
        let site = before.iter().find(|(id, _)| *id == stripe).unwrap().1.locations[index].site;
        let site = cluster.sites.iter().find(|known| known.id() == SiteId(site)).unwrap();
        let mut chunks = site.chunks.lock();
        let chunk = *chunks.keys().find(|chunk| chunk.stripe == stripe).unwrap();
        match stripe == damaged {
            true => chunks.get_mut(&chunk).unwrap().1 ^= 1,
            false => drop(chunks.remove(&chunk)),
        }
    }
    assert_all_read(&cluster, OBJECTS).await;
    cluster.runtime.sleep(SECOND).await;
    assert_eq!(cluster.debts().await, 2);
    let (_service, task) = start(&cluster, RepairLimits::default());
    cluster.runtime.sleep(30 * SECOND).await;
    assert_eq!(cluster.debts().await, 0);
    assert!(verify(cluster.client.stripes(), go_on).await.unwrap().is_clean());
    let after = cluster.stripes().await;
    let changed = before.iter().zip(&after).filter(|(before, after)| before != after);
    assert_eq!(changed.map(|(before, _)| before.0).collect::<Vec<_>>(), [damaged, missing]);
    let repaired = &after.iter().find(|(stripe, _)| *stripe == damaged).unwrap().1;
    assert_eq!(repaired.locations[1..], record.locations[1..], "the other chunks stay as they are");

    // A repaired stripe that is damaged again is reported again.
    task.abort();
    cluster.sites[0].corrupt_all();
    assert_all_read(&cluster, OBJECTS).await;
    cluster.runtime.sleep(SECOND).await;
    assert!(cluster.debts().await > 0);
}

/// Sites cannot reach each other, or are of a version that cannot make chunks: the bytes go through the repairing
/// process.
#[tokio::test(start_paused = true)]
async fn where_sites_do_not_reach_each_other_chunks_are_rebuilt_and_moved_all_the_same() {
    let mut cluster = filled(6, OBJECTS).await;
    let (service, _task) = start(&cluster, RepairLimits::default());
    cluster.retire(0).await;
    cluster.add(10).await;
    cluster.add(11).await;
    for site in &cluster.sites {
        *site.neighbours.lock() = std::sync::Arc::default();
    }
    cluster.runtime.sleep(60 * SECOND).await;
    assert_eq!((service.progress().chunks, service.progress().left), (OBJECTS as u64, 0));
    let (stripe, record) = cluster.stripes().await.remove(0);
    let taken: Vec<u32> = record.locations.iter().map(|at| at.site).collect();
    let to = SiteId(if taken.contains(&10) { 11 } else { 10 });
    let index = record.locations.iter().position(|at| at.site == 2).unwrap();
    let wanted = ChunkMove { stripe, index, from: SiteId(2), to };
    let moved = move_chunk(cluster.client.stripes(), &wanted).await.unwrap();
    assert!(matches!(moved, MoveOutcome::Moved { .. }), "{moved:?}");
    assert!(verify(cluster.client.stripes(), go_on).await.unwrap().is_clean());
    assert_all_read(&cluster, OBJECTS).await;
}

/// A read with chunks to spare succeeds without the damaged one, and still reports it.
#[tokio::test(start_paused = true)]
async fn damage_that_a_query_needs_not_mind_is_reported() {
    let cluster = filled(6, OBJECTS).await;
    let policy = striate_baselines::read_policy("late-binding(2,keep)").unwrap();
    let options = {
        let mut options = options("rs(4,2)");
        options.stripes.read_policy = policy;
        options
    };
    let handles = cluster.sites.iter().map(|site| site.clone() as std::sync::Arc<dyn Site>).collect();
    let client = Client::open(cluster.runtime.clone(), cluster.meta.clone(), handles, options).await.unwrap();
    cluster.sites[0].corrupt_all();
    for key in 0..OBJECTS {
        let blocks = client.blocks_of(BUCKET, &format!("object{key}")).await.unwrap();
        let read = client.read_blocks(&blocks).await.unwrap();
        assert_eq!(read.blocks.concat().concat(), content(key, 6_000));
        assert_eq!(read.stats.planned_again, 0);
    }
    cluster.runtime.sleep(SECOND).await;
    assert!(cluster.debts().await > 0);
}

/// 32 sites, one of them lost: repair uses at least 70% of its limits, and all other sites take part.
#[tokio::test(start_paused = true)]
async fn the_work_is_spread_and_uses_what_it_is_allowed() {
    let cluster = filled(32, 3_000).await;
    let lost = chunks_on(&cluster.stripes().await, 1) as u64;
    *cluster.sites[0].down.lock() = true;
    let count = |of: fn(&crate::cluster::BreakableSite) -> u64| -> Vec<f64> {
        cluster.sites[1..].iter().map(|site| of(site) as f64).collect()
    };
    let read = |site: &crate::cluster::BreakableSite| site.read_bytes.load(Ordering::Relaxed);
    let written = |site: &crate::cluster::BreakableSite| site.written_bytes.load(Ordering::Relaxed);
    let (read_before, written_before) = (count(read), count(written));
    let rate = 5_000;
    let limits = RepairLimits { rate_bytes_per_s: rate, floor_bytes_per_s: rate };
    let (service, _task) = start(&cluster, limits);
    let until = async |is_reached: &dyn Fn(&records::RepairWork) -> bool| {
        let began = cluster.runtime.now();
        while !is_reached(&service.progress()) {
            cluster.runtime.sleep(SECOND / 20).await;
            assert!(cluster.runtime.now() - began < WAIT * 2, "{:?}", service.progress());
        }
        cluster.runtime.now() - began
    };
    until(&|progress| progress.left > 0).await;
    let took = until(&|progress| progress.stripes == lost).await;
    let since = |now: Vec<f64>, before: Vec<f64>| -> Vec<f64> {
        now.into_iter().zip(before).map(|(now, before)| now - before).collect()
    };
    let (read, written) = (since(count(read), read_before), since(count(written), written_before));
    // Bytes that one site reads and sends, another receives.
    let moved = 2.0 * read.iter().sum::<f64>();
    let allowed = rate as f64 * 31.0 * took.as_secs_f64();
    let variation = |values: &[f64]| {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
        variance.sqrt() / mean
    };
    let told = format!(
        "{:.2} used, variation {:.2} of reads, {:.2} of writes, {took:?}",
        moved / allowed,
        variation(&read),
        variation(&written)
    );
    assert!(moved <= allowed * 1.1, "{told}");
    assert!(moved >= allowed * 0.7, "{told}");
    assert!(variation(&read) <= 0.3 && variation(&written) <= 0.3, "{told}");
}

#[tokio::test(start_paused = true)]
async fn while_requests_wait_only_the_floor_is_used() {
    let mut cluster = filled(6, OBJECTS).await;
    // The target receives four chunks for each chunk that it makes.
    let sent = 4 * u64::from(cluster.stripes().await[0].1.chunk_len);
    let limits = RepairLimits { rate_bytes_per_s: sent, floor_bytes_per_s: sent / 10 };
    cluster.retire(0).await;
    cluster.add(10).await;
    cluster.sites[5].queue(3);
    let (service, _task) = start(&cluster, limits);
    cluster.runtime.sleep(105 * SECOND).await;
    let slow = service.progress().chunks;
    assert!((8..=12).contains(&slow), "one chunk in ten seconds, {slow} were rebuilt in 100");
    cluster.sites[5].queue(0);
    cluster.runtime.sleep(300 * SECOND).await;
    assert_eq!((service.progress().chunks, service.progress().left), (OBJECTS as u64, 0));
}

#[tokio::test(start_paused = true)]
async fn while_it_is_held_it_rests() {
    let mut cluster = filled(6, OBJECTS).await;
    cluster.retire(0).await;
    cluster.add(10).await;
    let (service, _task) = start(&cluster, RepairLimits::default());
    let hold = service.hold();
    cluster.runtime.sleep(60 * SECOND).await;
    assert_eq!(service.progress().chunks, 0);
    drop(hold);
    cluster.runtime.sleep(30 * SECOND).await;
    assert_eq!(service.progress().chunks, OBJECTS as u64);
}

#[tokio::test(start_paused = true)]
async fn killed_at_any_step_it_goes_on_where_it_was() {
    let mut cluster = filled(6, OBJECTS).await;
    cluster.retire(0).await;
    cluster.add(10).await;
    for site in &cluster.sites {
        *site.lag.lock() = Duration::from_millis(10);
    }
    let mut kills = 0;
    // A repair takes 30 ms: read, store, reply. The first poll is immediate.
    while chunks_on(&cluster.stripes().await, 1) > 0 {
        let (_service, task) = start(&cluster, RepairLimits::default());
        cluster.runtime.sleep(Duration::from_millis(1 + kills * 7 % 60)).await;
        task.abort();
        let _ = task.await;
        kills += 1;
        assert!(kills < 200);
        assert_all_read(&cluster, OBJECTS).await;
    }
    assert!(kills > 5, "{kills} kills");
    let (_service, _task) = start(&cluster, RepairLimits::default());
    cluster.runtime.sleep(60 * SECOND).await;
    let verified = verify(cluster.client.stripes(), go_on).await.unwrap();
    assert!(verified.is_clean() && verified.progress.chunks == 6 * OBJECTS as u64, "{verified:?}");
}

#[tokio::test(start_paused = true)]
async fn switched_off_it_does_nothing() {
    let mut cluster = filled(6, OBJECTS).await;
    cluster.retire(0).await;
    cluster.add(10).await;
    let service = RepairService::new(RepairOptions { limits: None, ..RepairOptions::default() });
    let _task = cluster.runtime.spawn(service.clone().run(cluster.client.stripes().clone()));
    cluster.runtime.sleep(3 * WAIT).await;
    assert!(service.progress().off && cluster.sites[5].chunks.lock().is_empty());
}

/// A single loss in racks of four sites each: every rack but that of the new site sends one sum, in every repair.
#[tokio::test(start_paused = true)]
async fn a_rack_sends_one_partial_sum_and_the_bytes_are_right() {
    let mut cluster = Cluster::start(16, "rs(8,4)").await;
    cluster.spread_over_racks(4);
    for key in 0..OBJECTS {
        cluster.put(&format!("object{key}"), &content(key, 60_000)).await.unwrap();
    }
    let lost = cluster.retire(0).await.chunks.lock().len();
    cluster.neighbours.asked.lock().clear();
    let report = heal(cluster.client.stripes(), go_on).await.unwrap();
    assert!(report.is_whole() && report.progress.chunks == lost as u64, "{report:?}");

    let asked = std::mem::take(&mut *cluster.neighbours.asked.lock());
    let rack_of = |site: SiteId| site.0 % 4;
    let crossed = asked.iter().filter(|(to, from)| rack_of(*to) != rack_of(*from)).count();
    assert_eq!(asked.len(), 8 * lost, "every source is asked once");
    assert!(crossed <= 3 * lost, "{crossed} sums crossed racks in {lost} repairs");
    assert!(asked.iter().any(|(to, from)| to != from && rack_of(*to) == rack_of(*from)), "repairers add up");
    assert!(verify(cluster.client.stripes(), go_on).await.unwrap().is_clean());
    assert_all_read_of(&cluster, OBJECTS, 60_000).await;
}

/// Of the sites of a rack with a part of a sum, the least recently selected one adds it up.
#[tokio::test(start_paused = true)]
async fn every_site_of_a_rack_takes_its_turn_as_repairer() {
    let mut cluster = Cluster::start(16, "rs(8,4)").await;
    cluster.spread_over_racks(4);
    for key in 0..3 * OBJECTS {
        cluster.put(&format!("object{key}"), &content(key, 60_000)).await.unwrap();
    }
    cluster.retire(0).await;
    cluster.neighbours.asked.lock().clear();
    assert!(heal(cluster.client.stripes(), go_on).await.unwrap().is_whole());
    let asked = std::mem::take(&mut *cluster.neighbours.asked.lock());
    let mut sums: BTreeMap<SiteId, usize> = (2..=16).map(|site| (SiteId(site), 0)).collect();
    for (_, from) in asked.iter().filter(|(to, from)| to.0 % 4 != from.0 % 4) {
        *sums.entry(*from).or_default() += 1;
    }
    for rack in [0, 2, 3] {
        let of_rack = sums.iter().filter(|(site, _)| site.0 % 4 == rack).map(|(_, &count)| count);
        let (least, most) =
            of_rack.fold((usize::MAX, 0), |(least, most), count| (least.min(count), most.max(count)));
        assert!(least > 0 && most <= 2 * least, "{sums:?}");
    }
}

/// A damaged source is detected where it is added up, and reported to the repairing process.
#[tokio::test(start_paused = true)]
async fn damage_below_a_repairer_is_left_out_of_the_next_tree() {
    let mut cluster = Cluster::start(16, "rs(8,4)").await;
    cluster.spread_over_racks(4);
    for key in 0..OBJECTS {
        cluster.put(&format!("object{key}"), &content(key, 60_000)).await.unwrap();
    }
    let lost = cluster.retire(0).await;
    cluster.sites[4].corrupt_all();
    let (absent, pace) = (AbsentSites::default(), RepairPace::unlimited());
    let mut rebuilt = 0;
    let stripes: Vec<_> = lost.chunks.lock().keys().map(|chunk| chunk.stripe).collect();
    for stripe in stripes {
        let repaired = repair_stripe(cluster.client.stripes(), stripe, &absent, &pace, false).await.unwrap();
        assert!(repaired.is_whole(), "{repaired:?}");
        rebuilt += repaired.chunks;
    }
    let lost = lost.chunks.lock().len() as u64;
    assert!(rebuilt > lost, "{rebuilt} chunks were rebuilt, {lost} were lost with the site");
    verify(cluster.client.stripes(), go_on).await.unwrap();
    assert!(heal(cluster.client.stripes(), go_on).await.unwrap().is_whole());
    assert!(verify(cluster.client.stripes(), go_on).await.unwrap().is_clean());
    assert_all_read_of(&cluster, OBJECTS, 60_000).await;
}

/// A scrub that finds damage while the stripe is repaired puts it in debt. The repair does not know of that damage,
/// and must not clear the debt.
#[tokio::test(start_paused = true)]
async fn debt_that_comes_during_a_repair_outlasts_it() {
    for examine in [false, true] {
        let cluster = filled(8, 1).await;
        let (id, record) = cluster.stripes().await.remove(0);
        let lost = SiteId(record.locations[5].site);
        cluster.sites.iter().find(|site| site.id() == lost).unwrap().chunks.lock().clear();
        cluster
            .meta
            .commit(cluster.client.stripes().transaction().put(keys::debt(id), "").clone())
            .await
            .unwrap();
        let meta = DyingStore::new(cluster.meta.clone());
        let client = dying_client(&cluster, &meta).await;
        let (stripes, others) = (client.stripes(), cluster.client.stripes().clone());
        let reported = async move {
            others.meta().commit(others.transaction().put(keys::debt(id), "").clone()).await.unwrap();
        };
        *meta.after_get.lock() = Some((keys::stripe(id), Box::pin(reported)));
        let mut absent = AbsentSites::default();
        absent.gone.insert(lost);
        let pace = RepairPace::unlimited();
        let repaired = repair_stripe(stripes, id, &absent, &pace, examine).await.unwrap();
        assert_eq!((repaired.chunks, repaired.still_lost), (1, 0), "{repaired:?}");
        assert!(meta.after_get.lock().is_none(), "the damage was reported meanwhile");
        assert_eq!(cluster.debts().await, 1, "examine: {examine}");
        repair_stripe(stripes, id, &absent, &pace, false).await.unwrap();
        assert_eq!(cluster.debts().await, 1, "nobody has looked");
        repair_stripe(stripes, id, &absent, &pace, true).await.unwrap();
        assert_eq!(cluster.debts().await, 0);
    }
}

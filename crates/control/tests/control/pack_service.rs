//! The packing service, and manual packing: what they pack, what they leave, and what they report.

use std::ops::ControlFlow;
use std::time::Duration;

use striate_client::{CreateBucket, WriteCondition};
use striate_control::movement::AccessSource;
use striate_control::{
    PackDecision, PackOptions, PackRequest, PackRunReport, PackingOptions, PackingService, SkipReason,
    decide_packing, pack_now,
};
use striate_core::{Formats, Packing as Setting, Profile};
use striate_meta::records::{self, PackedBucket, PackingFigures, PackingWork};
use striate_meta::{Commit, keys};

use crate::cluster::{BUCKET, Cluster, content, go_on};
use crate::dying::{Death, DyingStore, dying_client};
use crate::packing::{OBJECTS, Packing, len, name, options};

const SMALL: Setting = Setting::Partitions(64 << 10);
const SETTLED_AFTER: Duration = Duration::from_secs(30);

impl Packing {
    /// Starts the service, after writing the store's profile into its row.
    async fn serve(&self, setting: Setting) -> PackingService {
        set_profile(&self.cluster, "rs(4,2)").await;
        let pack = PackOptions { settled_after: SETTLED_AFTER, ..options() };
        let service = PackingService::new(PackingOptions { setting, pack, ..PackingOptions::default() });
        let stripes = self.cluster.client.stripes();
        let source = AccessSource::Own(stripes.clone());
        self.cluster.runtime.spawn(service.clone().run(stripes.clone(), source));
        service
    }

    async fn work(&self) -> PackingWork {
        let row = self.cluster.meta.get(&keys::packing_work()).await.unwrap();
        row.map(|row| row.record().unwrap()).unwrap_or_default()
    }

    async fn of_bucket(&self, bucket: &str) -> Option<PackedBucket> {
        let row = self.cluster.meta.get(&keys::packed_bucket(bucket)).await.unwrap();
        row.map(|row| row.record().unwrap())
    }

    async fn figures(&self) -> PackingFigures {
        let work = self.work().await;
        let of_bucket = self.of_bucket(BUCKET).await.unwrap();
        assert_eq!(work.figures, of_bucket.figures, "there is one bucket");
        work.figures.unwrap()
    }

    async fn run(&self, wish: PackRequest) -> PackRunReport {
        pack_now(self.cluster.client.stripes(), &wish, go_on).await.unwrap()
    }
}

/// Writes the store's profile, as its first start does.
pub async fn set_profile(cluster: &Cluster, profile: &str) {
    let row = cluster.meta.get(&keys::cluster()).await.unwrap().unwrap();
    let record = records::Cluster { profile: profile.to_owned(), ..row.record().unwrap() };
    let mut tx = cluster.client.stripes().transaction();
    tx.put(row.key, records::encode(&record));
    assert!(matches!(cluster.meta.commit(tx).await, Ok(Commit::Done(_))));
}

fn total_bytes() -> u64 {
    (0..OBJECTS).map(|key| len(key) as u64).sum()
}

#[tokio::test(start_paused = true)]
async fn the_service_writes_down_what_waits_what_is_packed_and_what_is_dead() {
    let packing = Packing::start("rs(4,2)").await;
    let _service = packing.serve(SMALL).await;
    let runtime = &packing.cluster.runtime;
    runtime.sleep(Duration::from_secs(15)).await;
    let young = packing.figures().await;
    let expected = PackingFigures {
        waiting_objects: OBJECTS as u64,
        waiting_bytes: total_bytes(),
        ..PackingFigures::default()
    };
    assert_eq!(young, expected, "nothing has settled");

    runtime.sleep(Duration::from_secs(61)).await;
    let packed = packing.figures().await;
    let work = packing.work().await;
    assert!(packed.groups >= 1 && packed.live_objects > 30, "{packed:?}");
    assert_eq!(packed.live_objects + packed.waiting_objects, OBJECTS as u64);
    assert_eq!(packed.live_bytes + packed.waiting_bytes, total_bytes());
    assert_eq!((packed.settled_objects, packed.dead_objects), (packed.waiting_objects, 0));
    assert_eq!(packed.partition_bytes, packed.groups * 4 * (64 << 10));
    assert_eq!(
        (work.groups, work.objects, work.bytes),
        (packed.groups, packed.live_objects, packed.live_bytes)
    );

    // The next pass counts again and finds the same.
    runtime.sleep(Duration::from_secs(61)).await;
    assert_eq!(packing.figures().await, packed);

    // Another process that starts to lead knows the figures at once.
    let _other = packing.serve(SMALL).await;
    runtime.sleep(Duration::from_secs(1)).await;
    assert_eq!((packing.figures().await, packing.work().await.objects), (packed, 0));

    packing.cluster.put(&name(1), b"another").await.unwrap();
    packing.cluster.client.delete(BUCKET, &name(2), WriteCondition::default()).await.unwrap();
    runtime.sleep(Duration::from_secs(61)).await;
    let worn = packing.figures().await;
    assert_eq!((worn.dead_objects, worn.dead_bytes), (2, (len(1) + len(2)) as u64));
    assert_eq!(worn.live_objects, packed.live_objects - 2);
    assert_eq!((worn.groups, worn.partition_bytes), (packed.groups, packed.partition_bytes));

    for key in (0..OBJECTS).filter(|key| *key != 2) {
        packing.cluster.client.delete(BUCKET, &name(key), WriteCondition::default()).await.unwrap();
    }
    runtime.sleep(Duration::from_secs(61)).await;
    assert_eq!(packing.figures().await, PackingFigures::default());
    assert_eq!(packing.rows(keys::MARKS).await, 0, "the groups were released");
    packing.cluster.client.delete_bucket(BUCKET).await.unwrap();
    runtime.sleep(Duration::from_secs(61)).await;
    assert_eq!(packing.of_bucket(BUCKET).await, None, "what was counted of a bucket goes with it");
}

/// Rewriting does not count as a pass, after which the service pauses nine times as long.
#[tokio::test(start_paused = true)]
async fn what_settles_while_groups_are_rewritten_is_packed_soon() {
    let packing = Packing::start("rs(4,2)").await;
    let _service = packing.serve(SMALL).await;
    let runtime = &packing.cluster.runtime;
    runtime.sleep(Duration::from_secs(75)).await;
    for key in (0..OBJECTS).step_by(2) {
        packing.cluster.client.delete(BUCKET, &name(key), WriteCondition::default()).await.unwrap();
    }
    let set_lag = |lag| packing.cluster.sites.iter().for_each(|site| *site.lag.lock() = lag);
    set_lag(Duration::from_secs(1));
    runtime.sleep(Duration::from_secs(85)).await;
    set_lag(Duration::ZERO);
    let before = packing.work().await.objects;
    for key in 100..100 + OBJECTS {
        packing.cluster.put(&name(key), &content(key, len(key))).await.unwrap();
    }
    runtime.sleep(Duration::from_secs(150)).await;
    let packed = packing.work().await.objects - before;
    assert!(packed > 20, "{packed} objects were packed");
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_is_not_packed_is_counted_and_says_why() {
    let packing = Packing::start("rs(4,2)").await;
    let _service = packing.serve(Setting::Off).await;
    packing.cluster.runtime.sleep(Duration::from_secs(120)).await;
    let bucket = packing.of_bucket(BUCKET).await.unwrap();
    assert_eq!((bucket.partition_len, bucket.reason.contains("--pack is off")), (0, true), "{bucket:?}");
    assert_eq!(bucket.figures.unwrap().waiting_objects, OBJECTS as u64);
    assert_eq!(packing.work().await.setting, "off");
    // The bucket's own setting takes precedence over the store's.
    let longest = Setting::Partitions(64 << 20);
    packing.cluster.client.set_packing(BUCKET, Some(longest)).await.unwrap();
    packing.cluster.runtime.sleep(Duration::from_secs(61)).await;
    let bucket = packing.of_bucket(BUCKET).await.unwrap();
    assert_eq!((bucket.partition_len, bucket.reason.as_str()), (32 << 20, ""), "as memory allows");
    assert_eq!(bucket.group_bytes, 128 << 20);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_cannot_be_released_is_named_until_its_sites_are_back() {
    let packing = Packing::start("rs(4,2)").await;
    packing.pack().await;
    packing.collect().await;
    let stripe = packing.extent(0).await.unwrap().stripe;
    let id = striate_stripe::stripe_id(&stripe).unwrap();
    let row = packing.cluster.meta.get(&keys::stripe(id)).await.unwrap().unwrap();
    let record: records::Stripe = row.record().unwrap();
    packing.cluster.client.delete(BUCKET, &name(0), WriteCondition::default()).await.unwrap();
    let set_down = |is_down| {
        let lost: Vec<u32> = record.locations.iter().take(3).map(|location| location.site).collect();
        let sites = packing.cluster.sites.iter();
        sites.filter(|site| lost.contains(&striate_site::Site::id(site.as_ref()).0)).for_each(|site| {
            *site.down.lock() = is_down;
        });
    };
    let _service = packing.serve(SMALL).await;
    set_down(true);
    packing.cluster.runtime.sleep(Duration::from_secs(60)).await;
    let work = packing.work().await;
    assert_eq!((work.unreadable, work.unreadable_stripes), (1, vec![stripe]));
    set_down(false);
    packing.cluster.runtime.sleep(Duration::from_secs(120)).await;
    let work = packing.work().await;
    assert_eq!((work.unreadable, work.unreadable_stripes), (0, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn the_service_rests_while_somebody_packs_by_hand() {
    let packing = Packing::start("rs(4,2)").await;
    let service = packing.serve(SMALL).await;
    let hold = service.hold(packing.cluster.client.stripes(), "gateway1").await.unwrap().unwrap();
    packing.cluster.runtime.sleep(Duration::from_secs(300)).await;
    assert_eq!(packing.extent(0).await, None);
    drop(hold);
    packing.cluster.runtime.sleep(Duration::from_secs(90)).await;
    assert!(packing.extent(0).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn the_service_rests_while_another_process_packs_by_hand_and_one_does_so_at_a_time() {
    let packing = Packing::start("rs(4,2)").await;
    let service = packing.serve(SMALL).await;
    let stripes = packing.cluster.client.stripes();
    let meta = DyingStore::new(packing.cluster.meta.clone());
    let gateway = dying_client(&packing.cluster, &meta).await;
    let idle = PackingService::new(PackingOptions::default());
    let hold = idle.hold(gateway.stripes(), "gateway2").await.unwrap().unwrap();
    packing.cluster.runtime.sleep(Duration::from_secs(300)).await;
    assert_eq!(packing.extent(0).await, None);
    assert!(service.hold(stripes, "gateway1").await.unwrap().is_none(), "it is another process's turn");
    drop(hold);
    packing.cluster.runtime.sleep(Duration::from_secs(90)).await;
    assert!(packing.extent(0).await.is_some());

    // The turn of a dead process ends with its lease for others, and at once for its successor.
    let hold = idle.hold(gateway.stripes(), "gateway2").await.unwrap().unwrap();
    *meta.death.lock() = Some(Death { commits: 0, is_made: false });
    drop((hold, gateway));
    assert!(service.hold(stripes, "gateway1").await.unwrap().is_none());
    assert!(service.hold(stripes, "gateway2").await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn the_turn_of_a_process_that_died_is_free_when_its_lease_has_ended() {
    let packing = Packing::start("rs(4,2)").await;
    let meta = DyingStore::new(packing.cluster.meta.clone());
    let gateway = dying_client(&packing.cluster, &meta).await;
    let idle = PackingService::new(PackingOptions::default());
    let hold = idle.hold(gateway.stripes(), "gateway2").await.unwrap().unwrap();
    *meta.death.lock() = Some(Death { commits: 0, is_made: false });
    drop((hold, gateway));
    let stripes = packing.cluster.client.stripes();
    assert!(idle.hold(stripes, "gateway1").await.unwrap().is_none());
    packing.cluster.runtime.sleep(Duration::from_secs(60)).await;
    assert!(idle.hold(stripes, "gateway1").await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn packing_by_hand_takes_what_has_settled_and_with_now_all_that_fills_a_group() {
    // The objects fill one group of partitions of 1 MiB, and no second.
    let cluster = Cluster::start(10, "rs(4,2)").await;
    set_profile(&cluster, "rs(4,2)").await;
    let of = |key: usize| content(key, 100_000 + key);
    for key in 0..OBJECTS {
        cluster.put(&name(key), &of(key)).await.unwrap();
    }
    let stripes = cluster.client.stripes();
    let report = pack_now(stripes, &PackRequest::default(), go_on).await.unwrap();
    assert_eq!(report.progress.packed.objects, 0);
    let left = &report.waiting[0];
    assert_eq!((left.objects, left.settled_objects, left.group_bytes), (60, 0, 4 << 20));

    let wish = PackRequest { bucket: Some(BUCKET.to_owned()), now: true, cold: false };
    let mut told = Vec::new();
    let report = pack_now(stripes, &wish, |progress| {
        told.push(progress.packed.objects);
        ControlFlow::Continue(())
    });
    let report = report.await.unwrap();
    let packed = report.progress.packed;
    assert_eq!((packed.groups, report.stopped), (1, false), "{report:?}");
    assert!(packed.objects >= 35 && told.contains(&packed.objects), "{packed:?}, {told:?}");
    let left = &report.waiting[0];
    assert_eq!((left.objects, left.settled_objects), (60 - packed.objects, 60 - packed.objects));
    assert!(left.settled_bytes < left.group_bytes, "it fills no further group");
    for key in 0..OBJECTS {
        assert_eq!(cluster.get(&name(key)).await.unwrap(), of(key));
    }
    let row = cluster.meta.get(&keys::packing_work()).await.unwrap().unwrap();
    let figures = row.record::<PackingWork>().unwrap().figures.unwrap();
    assert_eq!((figures.groups, figures.live_objects), (1, packed.objects), "status shows it at once");
}

/// Starts a store with objects for three groups in a bucket to be packed.
async fn three_groups() -> Packing {
    let packing = Packing::start("rs(4,2)").await;
    set_profile(&packing.cluster, "rs(4,2)").await;
    let client = &packing.cluster.client;
    client.set_packing(BUCKET, Some(Setting::Partitions(1 << 20))).await.unwrap();
    for key in 0..3 * OBJECTS {
        packing.cluster.put(&name(key), &content(key, 100_000)).await.unwrap();
    }
    packing
}

#[tokio::test(start_paused = true)]
async fn packing_by_hand_ends_after_the_group_that_it_is_at() {
    let packing = three_groups().await;
    let client = &packing.cluster.client;
    let wish = PackRequest { bucket: None, now: true, cold: false };
    let report = pack_now(client.stripes(), &wish, |progress| match progress.packed.groups {
        0 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    });
    let report = report.await.unwrap();
    assert!(report.stopped);
    assert_eq!(report.progress.packed.groups, 1);
    assert_eq!(packing.rows(keys::MARKS).await, 0, "the group was settled");
    assert_eq!(packing.rows(keys::INTENTS).await, 1, "the range of the puts");
    let report = packing.run(wish).await;
    assert!(report.progress.packed.groups >= 2, "another run packs the rest: {report:?}");
    for key in 0..3 * OBJECTS {
        assert_eq!(packing.cluster.get(&name(key)).await.unwrap(), content(key, 100_000));
    }
}

#[tokio::test(start_paused = true)]
async fn packing_by_hand_leaves_buckets_alone_that_say_so_unless_they_are_named() {
    let packing = Packing::start("rs(4,2)").await;
    set_profile(&packing.cluster, "rs(4,2)").await;
    let client = &packing.cluster.client;
    client.set_packing(BUCKET, Some(Setting::Off)).await.unwrap();
    let copies = CreateBucket {
        name: "copies".to_owned(),
        profile: Some("replica(3)".parse().unwrap()),
        ..CreateBucket::default()
    };
    client.create_bucket(copies).await.unwrap();
    for key in 0..OBJECTS {
        packing.cluster.put(&name(key), &content(key, 100_000)).await.unwrap();
    }
    let report = packing.run(PackRequest { bucket: None, now: true, cold: false }).await;
    assert_eq!(report.progress.packed.objects, 0);
    let why: Vec<_> = report.skipped.iter().map(|(bucket, why)| (bucket.as_str(), why.as_str())).collect();
    assert_eq!(why.len(), 2);
    assert!(why[0] == (BUCKET, "its own setting is off") && why[1].1.contains("whole copies"), "{why:?}");

    let report = packing.run(PackRequest { bucket: Some(BUCKET.to_owned()), now: true, cold: false }).await;
    assert!(report.progress.packed.objects > 30, "{report:?}");
    for (bucket, reason) in [("copies", "whole copies"), ("absent", "no bucket")] {
        let wish = PackRequest { bucket: Some(bucket.to_owned()), now: true, cold: false };
        let refused = pack_now(client.stripes(), &wish, go_on).await.unwrap_err().to_string();
        assert!(refused.contains(reason), "{refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_buckets_own_word_goes_before_its_profile_and_the_profile_before_the_store() {
    let large = Cluster::start(6, "rs(4,2)").await;
    let small = Cluster::start(5, "rs(3,2)").await;
    let old = Cluster::start_with(6, "rs(4,2)", Formats { records: 2, chunks: 2 }).await;
    let decide = |cluster: &Cluster, own: &str, profile: &str, default: &str, store: Setting| {
        let bucket =
            records::Bucket { packing: own.to_owned(), profile: profile.to_owned(), ..Default::default() };
        let default: Profile = default.parse().unwrap();
        decide_packing(cluster.client.stripes(), &bucket, &default, store).unwrap()
    };
    let packs = |mib: u32| PackDecision::Packs(mib << 20);
    let stays = PackDecision::Stays;
    let (off, auto, eight) = (Setting::Off, Setting::Auto, Setting::Partitions(8 << 20));
    for (cluster, own, profile, default, store, expected) in [
        (&large, "", "", "rs(4,2)", auto, packs(32)),
        (&large, "", "", "rs(4,2)", eight, packs(8)),
        (&large, "", "", "rs(4,2)", off, stays(SkipReason::Store)),
        (&large, "16MiB", "", "rs(4,2)", off, packs(16)),
        (&large, "off", "packed rs(4,2)", "rs(4,2)", auto, stays(SkipReason::Bucket)),
        (&large, "", "packed rs(4,2)", "rs(4,2)", off, packs(32)),
        (&large, "", "packed lrc(3,1,1)", "none", off, packs(32)),
        (&large, "", "", "packed rs(4,2)", off, stays(SkipReason::Store)),
        (&large, "", "replica(3)", "rs(4,2)", auto, stays(SkipReason::Whole)),
        (&large, "auto", "", "none", eight, stays(SkipReason::Whole)),
        (&large, "", "cache rs(3,1)", "rs(4,2)", auto, stays(SkipReason::Volatile)),
        (&large, "", "rs(6,3)", "rs(4,2)", auto, stays(SkipReason::WideCode)),
        (&small, "", "", "rs(3,2)", auto, stays(SkipReason::FewSites)),
        (&small, "auto", "", "rs(3,2)", off, stays(SkipReason::FewSites)),
        (&small, "", "", "rs(3,2)", eight, packs(8)),
        (&small, "", "", "packed rs(3,2)", auto, packs(32)),
        (&old, "", "", "rs(4,2)", eight, stays(SkipReason::Formats)),
    ] {
        let decision = decide(cluster, own, profile, default, store);
        assert_eq!(decision, expected, "{own:?}, {profile:?}, {default:?}, {store}");
    }
}

/// Sites take a while for each chunk: the bucket's packing is turned off while its first group is being written.
#[tokio::test(start_paused = true)]
async fn a_bucket_that_is_switched_off_gets_no_further_group() {
    let packing = three_groups().await;
    let client = &packing.cluster.client;
    packing.cluster.sites.iter().for_each(|site| *site.lag.lock() = Duration::from_millis(50));
    let switch_off = async {
        packing.cluster.runtime.sleep(Duration::from_millis(120)).await;
        client.set_packing(BUCKET, Some(Setting::Off)).await.unwrap();
    };
    let wish = PackRequest { bucket: Some(BUCKET.to_owned()), now: false, cold: false };
    packing.cluster.runtime.sleep(Duration::from_secs(7_200)).await;
    let (report, ()) = tokio::join!(pack_now(client.stripes(), &wish, go_on), switch_off);
    let report = report.unwrap();
    assert_eq!((report.progress.packed.groups, report.stopped), (1, false), "{report:?}");
    assert_eq!(packing.rows(keys::MARKS).await, 0, "the one that was begun was ended");
}

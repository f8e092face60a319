//! Sealing by the packing service: what it leaves because it is read, and how it does not hold up other work.

use std::ops::ControlFlow;
use std::time::Duration;

use striate_client::{ColdSetting, WriteCondition};
use striate_control::movement::AccessSource;
use striate_control::{
    AccessReport, GatheredAccess, PackingOptions, PackingService, SealOptions, SealReport, seal_bucket,
};
use striate_core::StripeId;
use striate_meta::records::{self, Bucket, PackedBucket, SealedFigures, Stripe};
use striate_meta::{Commit, keys};
use striate_plan::statistics::heat::PartitionReads;
use striate_stripe::wide_of;

use crate::cluster::{BUCKET, Cluster, content};
use crate::pack_service::set_profile;
use crate::sealed::{Sealing, WIDE};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

/// Starts the service on a cluster whose bucket's data is cold after this time.
async fn serve(cluster: &Cluster, cold_after: Duration, reads: &GatheredAccess) {
    serve_with(PackingOptions::off(), cluster, cold_after, reads).await;
}

async fn serve_with(
    options: PackingOptions,
    cluster: &Cluster,
    cold_after: Duration,
    reads: &GatheredAccess,
) {
    set_profile(cluster, "rs(4,2)").await;
    let cold = ColdSetting { profile: WIDE.parse().unwrap(), after: cold_after, without_spare_rack: false };
    cluster.client.set_cold(BUCKET, Some(cold)).await.unwrap();
    let (stripes, source) = (cluster.client.stripes().clone(), AccessSource::Gathered(reads.clone()));
    cluster.runtime.spawn(PackingService::new(options).run(stripes, source));
}

/// Returns what the service has recorded of the bucket's sealed data.
async fn sealed(cluster: &Cluster) -> SealedFigures {
    let row = cluster.meta.get(&keys::packed_bucket(BUCKET)).await.unwrap().unwrap();
    row.record::<PackedBucket>().unwrap().sealed.unwrap()
}

fn tell(reads: &GatheredAccess, cluster: &Cluster, stripe: StripeId, count: u64) {
    let partitions = vec![PartitionReads { partition: (stripe, 1), count }];
    let report = AccessReport { partitions, ..AccessReport::default() };
    reads.report("gateway1", report, cluster.runtime.now()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sealed_before_it_is_known_what_is_read() {
    let sealing = Sealing::start().await;
    serve(&sealing.cluster, Duration::ZERO, &GatheredAccess::default()).await;
    sealing.cluster.runtime.sleep(Duration::from_secs(590)).await;
    assert!(sealing.wide_stripes().await.is_empty());
    sealing.cluster.runtime.sleep(Duration::from_secs(180)).await;
    assert!(!sealing.wide_stripes().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_was_read_lately_is_not_cold_by_its_age() {
    let sealing = Sealing::start().await;
    let stripes = sealing.cluster.stripes().await;
    let packed: Vec<StripeId> =
        stripes.iter().filter(|(_, of)| of.profile.starts_with("packed")).map(|(id, _)| *id).collect();
    let (cluster, reads, id) = (&sealing.cluster, GatheredAccess::default(), packed[0]);
    serve(cluster, 2 * HOUR, &reads).await;
    cluster.runtime.sleep(HOUR).await;
    tell(&reads, cluster, id, 1);
    cluster.runtime.sleep(HOUR / 2).await;
    tell(&reads, cluster, id, 2);
    // Everything is old now.
    cluster.runtime.sleep(HOUR + HOUR / 2).await;
    assert_eq!(sealed(cluster).await.cold_stripes, packed.len() as u64 - 1);
    assert!(!sealing.wide_stripes().await.is_empty());
    let record = sealing.record(id).await;
    assert!(record.locations.iter().all(|at| wide_of(at).is_none()));
    // The last read is long ago as well.
    cluster.runtime.sleep(3 * HOUR).await;
    assert_eq!(sealed(cluster).await.cold_stripes, packed.len() as u64);
}

/// Everything was read again and again before the statistics were lost, for all that is known.
#[tokio::test(start_paused = true)]
async fn after_statistics_are_lost_nothing_is_cold_by_its_age_for_hours() {
    let sealing = Sealing::start().await;
    sealing.cluster.runtime.sleep(72 * HOUR).await;
    serve(&sealing.cluster, 48 * HOUR, &GatheredAccess::default()).await;
    sealing.cluster.runtime.sleep(5 * HOUR).await;
    assert!(sealing.wide_stripes().await.is_empty());
    sealing.cluster.runtime.sleep(2 * HOUR).await;
    assert!(!sealing.wide_stripes().await.is_empty());
}

/// Starts a cluster with objects that need no packing.
async fn start_unpacked() -> Cluster {
    let cluster = Cluster::start(30, "rs(4,2)").await;
    cluster.spread_over_racks(6);
    for number in 0..24 {
        cluster.put(&number.to_string(), &content(number, 300_000)).await.unwrap();
    }
    cluster
}

#[tokio::test(start_paused = true)]
async fn nothing_waits_in_a_bucket_that_seals_no_more() {
    let cluster = start_unpacked().await;
    serve(&cluster, Duration::ZERO, &GatheredAccess::default()).await;
    cluster.runtime.sleep(15 * MINUTE).await;
    let before = sealed(&cluster).await;
    assert!(before.sealed_stripes > 0 && before.waiting > 0 && !before.held_up.is_empty(), "{before:?}");
    cluster.client.set_cold(BUCKET, None).await.unwrap();
    cluster.runtime.sleep(HOUR + MINUTE).await;
    let (sealed_stripes, half_sealed) = (before.sealed_stripes, before.half_sealed);
    let cold_stripes = sealed_stripes + half_sealed;
    let expected = SealedFigures { cold_stripes, sealed_stripes, half_sealed, ..SealedFigures::default() };
    assert_eq!(sealed(&cluster).await, expected);
}

/// Its record has a profile that no version of this program writes. It comes before the other bucket.
#[tokio::test(start_paused = true)]
async fn a_bucket_whose_record_is_wrong_does_not_hold_up_others_and_what_is_dead() {
    let cluster = start_unpacked().await;
    let key = keys::bucket("a-wrong-one");
    let wrong =
        Bucket { name: "a-wrong-one".to_owned(), profile: "code(4,2)".to_owned(), ..Bucket::default() };
    let mut tx = cluster.client.stripes().transaction();
    tx.put(key, records::encode(&wrong));
    assert!(matches!(cluster.meta.commit(tx).await.unwrap(), Commit::Done(_)));
    serve(&cluster, Duration::ZERO, &GatheredAccess::default()).await;
    cluster.runtime.sleep(15 * MINUTE).await;
    assert!(sealed(&cluster).await.sealed_stripes > 0);
    for number in 0..24 {
        let condition = WriteCondition::default();
        assert!(cluster.client.delete(BUCKET, &number.to_string(), condition).await.unwrap());
    }
    cluster.runtime.sleep(2 * MINUTE).await;
    let stripes = cluster.stripes().await;
    assert!(stripes.iter().all(|(_, record)| record.members.is_empty()), "what is dead leaves");
}

/// Each look has time for one wide stripe.
#[tokio::test(start_paused = true)]
async fn sealing_much_does_not_hold_up_other_work_and_goes_on_at_once() {
    let cluster = start_unpacked().await;
    let brief = PackingOptions { seal_time: Duration::ZERO, ..PackingOptions::off() };
    serve_with(brief, &cluster, Duration::ZERO, &GatheredAccess::default()).await;
    let wide = async || -> Vec<Stripe> {
        let stripes = cluster.stripes().await.into_iter().map(|(_, record)| record);
        stripes.filter(|record| !record.members.is_empty()).collect()
    };
    cluster.runtime.sleep(10 * MINUTE + MINUTE / 2).await;
    for made in 1..4 {
        assert_eq!(wide().await.len(), made);
        let of_bucket = sealed(&cluster).await;
        assert!(of_bucket.held_up.ends_with("the next one goes on"), "{of_bucket:?}");
        assert_eq!((of_bucket.cold_stripes, of_bucket.waiting), (24, 96 - 10 * made as u64));
        cluster.runtime.sleep(MINUTE).await;
    }
    for number in 0..24 {
        let condition = WriteCondition::default();
        assert!(cluster.client.delete(BUCKET, &number.to_string(), condition).await.unwrap());
    }
    cluster.runtime.sleep(2 * MINUTE).await;
    assert!(wide().await.is_empty(), "what is dead leaves");
}

/// Nothing is declared as cold when the service looks.
#[tokio::test(start_paused = true)]
async fn what_a_look_that_did_not_end_has_sealed_is_looked_after() {
    let sealing = Sealing::start().await;
    let (cluster, stripes) = (&sealing.cluster, sealing.cluster.client.stripes());
    let options = SealOptions::new(WIDE.parse().unwrap(), Duration::ZERO);
    let mut stop = |report: &SealReport| match report.sealed {
        0 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    };
    seal_bucket(stripes, &sealing.packer, BUCKET, &options, &mut stop).await.unwrap();
    assert_eq!(sealing.wide_stripes().await.len(), 1);
    set_profile(cluster, "rs(4,2)").await;
    let source = AccessSource::Gathered(GatheredAccess::default());
    cluster.runtime.spawn(PackingService::new(PackingOptions::off()).run(stripes.clone(), source));
    cluster.runtime.sleep(15 * MINUTE).await;
    let figures = sealed(cluster).await;
    assert!(figures.half_sealed + figures.sealed_stripes > 0, "{figures:?}");
}

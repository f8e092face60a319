//! Sealing by the packing service: what it leaves because it is read, and how it does not hold up other work.

use std::time::Duration;

use striate_client::ColdSetting;
use striate_control::movement::AccessSource;
use striate_control::{AccessReport, GatheredAccess, PackingOptions, PackingService};
use striate_core::StripeId;
use striate_meta::keys;
use striate_meta::records::{PackedBucket, SealedFigures};
use striate_plan::statistics::heat::PartitionReads;
use striate_stripe::wide_of;

use crate::cluster::{BUCKET, Cluster};
use crate::pack_service::set_profile;
use crate::sealed::{Sealing, WIDE};

const HOUR: Duration = Duration::from_secs(3_600);

/// Starts the service on a cluster whose bucket's data is cold after this time.
async fn serve(cluster: &Cluster, cold_after: Duration, reads: &GatheredAccess) {
    set_profile(cluster, "rs(4,2)").await;
    let cold = ColdSetting { profile: WIDE.parse().unwrap(), after: cold_after, without_spare_rack: false };
    cluster.client.set_cold(BUCKET, Some(cold)).await.unwrap();
    let (stripes, source) = (cluster.client.stripes().clone(), AccessSource::Gathered(reads.clone()));
    cluster.runtime.spawn(PackingService::new(PackingOptions::off()).run(stripes, source));
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

//! `pack run --cold`: what it seals, and how it stops.

use std::ops::ControlFlow;
use std::time::Duration;

use striate_client::{ColdSetting, CreateBucket, GetRequest, PutRequest};
use striate_control::{PackRequest, PackRunReport, SealOptions, pack_now, seal_bucket};
use striate_core::Packing;
use striate_meta::keys;
use striate_meta::records::PackedBucket;

use crate::cluster::{BUCKET, Cluster, content, go_on, one_shot, put_request};
use crate::pack_service::set_profile;
use crate::sealed::{OBJECTS, Sealing, WIDE};

const COPIES: &str = "copies";
const LARGE: usize = 40;

fn cold() -> ColdSetting {
    ColdSetting { profile: WIDE.parse().unwrap(), after: Duration::ZERO, without_spare_rack: false }
}

fn seal_all(bucket: Option<&str>) -> PackRequest {
    PackRequest { bucket: bucket.map(str::to_owned), now: false, cold: true }
}

fn stops(is_enough: bool) -> ControlFlow<()> {
    if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Starts a cluster with a bucket whose packing is off, and one that cannot be packed, with objects that need no
/// packing.
async fn not_packed() -> Cluster {
    let cluster = Cluster::start(30, "rs(4,2)").await;
    cluster.spread_over_racks(6);
    set_profile(&cluster, "rs(4,2)").await;
    cluster.client.set_packing(BUCKET, Some(Packing::Off)).await.unwrap();
    cluster.client.set_cold(BUCKET, Some(cold())).await.unwrap();
    let copies = CreateBucket {
        name: COPIES.to_owned(),
        profile: Some("replica(2)".parse().unwrap()),
        group_len: Some(1),
        cold: Some(cold()),
        ..CreateBucket::default()
    };
    cluster.client.create_bucket(copies).await.unwrap();
    for number in 0..LARGE {
        for bucket in [BUCKET, COPIES] {
            let request = put_request(&number.to_string(), one_shot(&content(number, 300_000)));
            cluster.client.put(PutRequest { bucket: bucket.to_owned(), ..request }).await.unwrap();
        }
    }
    cluster
}

async fn assert_reads(cluster: &Cluster) {
    for number in 0..LARGE {
        for bucket in [BUCKET, COPIES] {
            let (bucket, key) = (bucket.to_owned(), number.to_string());
            let request = GetRequest { bucket, key, ..GetRequest::default() };
            let body = cluster.client.get(request).await.unwrap().body;
            let pieces: Vec<_> = futures::TryStreamExt::try_collect(body).await.unwrap();
            assert!(pieces.concat() == content(number, 300_000), "{number}");
        }
    }
}

fn sealed_of(report: &PackRunReport) -> Vec<(&str, bool)> {
    report.sealed.iter().map(|(bucket, of)| (bucket.as_str(), of.sealed > 0)).collect()
}

#[tokio::test(start_paused = true)]
async fn buckets_that_are_not_packed_are_sealed_all_the_same() {
    let cluster = not_packed().await;
    let stripes = cluster.client.stripes();
    let report = pack_now(stripes, &seal_all(None), go_on).await.unwrap();
    assert_eq!(sealed_of(&report), [(BUCKET, true), (COPIES, true)], "{report:?}");
    let skipped: Vec<&str> = report.skipped.iter().map(|(bucket, _)| bucket.as_str()).collect();
    assert_eq!((skipped, report.progress.packed.groups), (vec![BUCKET, COPIES], 0));
    assert_eq!(report.progress.cold, 2 * LARGE as u64);
    assert_eq!(report.progress.sealed, report.sealed.iter().map(|(_, of)| of.sealed).sum::<u64>());
    // Its figures were counted.
    let row = cluster.meta.get(&keys::packed_bucket(BUCKET)).await.unwrap().unwrap();
    let told: PackedBucket = row.record().unwrap();
    assert!(told.counted_unix_ms > 0 && told.reason == "its own setting is off", "{told:?}");
    assert!(told.sealed.is_some());
    cluster.collect().await;
    assert_reads(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_cannot_be_packed_is_sealed_when_it_is_named() {
    let cluster = not_packed().await;
    let stripes = cluster.client.stripes();
    let packing_alone = PackRequest { cold: false, ..seal_all(Some(COPIES)) };
    let refused = pack_now(stripes, &packing_alone, go_on).await.unwrap_err().to_string();
    assert!(refused.contains("copies cannot be packed"), "{refused}");
    let report = pack_now(stripes, &seal_all(Some(COPIES)), go_on).await.unwrap();
    assert_eq!(sealed_of(&report), [(COPIES, true)], "{report:?}");
    assert!(report.skipped[0].1.contains("whole copies"), "{report:?}");
    // If nothing is to be sealed either, nothing is left to do.
    cluster.client.set_cold(COPIES, None).await.unwrap();
    let refused = pack_now(stripes, &seal_all(Some(COPIES)), go_on).await.unwrap_err().to_string();
    assert!(refused.contains("copies cannot be packed"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_look_at_what_is_cold_ends_before_anything_is_sealed() {
    let sealing = Sealing::start().await;
    let options = SealOptions::new(WIDE.parse().unwrap(), Duration::ZERO);
    let stripes = sealing.cluster.client.stripes();
    let mut stop = |_: &_| stops(true);
    let report = seal_bucket(stripes, &sealing.packer, BUCKET, &options, &mut stop).await.unwrap();
    assert_eq!((report.sealed, sealing.wide_stripes().await.len()), (0, 0), "{report:?}");
}

/// Dead members leave places that others may take.
#[tokio::test(start_paused = true)]
async fn changes_of_wide_stripes_end_after_the_one_that_is_under_way() {
    let mut sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.delete(0..OBJECTS / 2).await;
    sealing.repack().await;
    sealing.put_again().await;
    sealing.pack().await;
    let options = SealOptions::new(WIDE.parse().unwrap(), Duration::ZERO);
    let stripes = sealing.cluster.client.stripes();
    let mut stop = |report: &striate_control::SealReport| stops(report.replaced > 0);
    let report = seal_bucket(stripes, &sealing.packer, BUCKET, &options, &mut stop).await.unwrap();
    assert!(report.replaced > 0 && report.sealed == 0, "{report:?}");
    let rest = sealing.seal().await;
    assert!(rest.replaced > 0, "another run changes the others: {rest:?}");
    sealing.collect().await;
    sealing.assert_whole().await;
    sealing.assert_reads().await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_stopped_leaves_dead_members_where_they_are() {
    let mut sealing = Sealing::start().await;
    set_profile(&sealing.cluster, "rs(4,2)").await;
    sealing.cluster.client.set_cold(BUCKET, Some(cold())).await.unwrap();
    sealing.seal().await;
    sealing.delete(0..OBJECTS / 2).await;
    sealing.repack().await;
    let dead = sealing.dead().await;
    assert!(dead > 0);
    let stripes = sealing.cluster.client.stripes();
    let report = pack_now(stripes, &seal_all(None), |progress| stops(progress.cold > 0)).await.unwrap();
    assert!(report.stopped);
    assert_eq!(sealing.dead().await, dead);
    let report = pack_now(stripes, &seal_all(None), go_on).await.unwrap();
    assert!(!report.stopped && sealing.dead().await < dead, "{report:?}");
}

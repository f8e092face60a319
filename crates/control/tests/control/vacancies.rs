//! Vacant places in wide stripes: which partitions take them, and which wait for others.

use std::time::Duration;

use striate_client::WriteCondition;
use striate_control::{SealOptions, SealReport, seal_bucket};
use striate_core::StripeId;
use striate_meta::records::Stripe;
use striate_stripe::{Packer, is_hole, wide_of};

use crate::cluster::{BUCKET, Cluster, content, go_on, leave_all};
use crate::sealed::WIDE;

/// Objects of each length; under rs(4,2) each has four data chunks.
const COUNT: usize = 24;
/// Lengths of objects whose data chunks are of one class of lengths.
const SHORT: usize = 296_000;
const LONG: usize = 320_000;

async fn put(cluster: &Cluster, name: &str, len: usize) {
    for number in 0..COUNT {
        cluster.put(&format!("{name}{number:02}"), &content(number, len)).await.unwrap();
    }
}

async fn seal(cluster: &Cluster, packer: &Packer) -> SealReport {
    let options = SealOptions::new(WIDE.parse().unwrap(), Duration::ZERO);
    seal_bucket(cluster.client.stripes(), packer, BUCKET, &options, &mut go_on).await.unwrap()
}

/// Returns the wide stripes, and the number of data chunks that are in none.
async fn wide_and_open(cluster: &Cluster) -> (Vec<(StripeId, Stripe)>, u64) {
    let (wide, narrow): (Vec<_>, Vec<_>) =
        cluster.stripes().await.into_iter().partition(|(_, record)| !record.members.is_empty());
    let open = |(_, record): &(StripeId, Stripe)| {
        record.locations[..4].iter().filter(|at| wide_of(at).is_none()).count() as u64
    };
    (wide, narrow.iter().map(open).sum())
}

/// They do not fit, although their lengths differ by less than an eighth.
#[tokio::test(start_paused = true)]
async fn partitions_longer_than_the_members_take_no_place_and_are_sealed_together() {
    let cluster = Cluster::start(30, "rs(4,2)").await;
    cluster.spread_over_racks(6);
    let packer = cluster.client.stripes().packer();
    put(&cluster, "short", SHORT).await;
    assert!(seal(&cluster, &packer).await.sealed > 0);
    for number in (0..COUNT).step_by(2) {
        let key = format!("short{number:02}");
        assert!(cluster.client.delete(BUCKET, &key, WriteCondition::default()).await.unwrap());
    }
    leave_all(cluster.client.stripes()).await;
    let (wide, _) = wide_and_open(&cluster).await;
    assert!(wide.iter().any(|(_, record)| (0..10).any(|position| is_hole(record, position))));

    put(&cluster, "long", LONG).await;
    let report = seal(&cluster, &packer).await;
    let (wide, open) = wide_and_open(&cluster).await;
    assert!(report.sealed > 0 && wide.iter().any(|(_, of)| of.chunk_len as usize == LONG / 4), "{report:?}");
    assert_eq!(report.waiting, open, "all that wait are counted: {report:?}");
    for number in 0..COUNT {
        let read = cluster.get(&format!("long{number:02}")).await.unwrap();
        assert!(read == content(number, LONG), "{number}");
    }
    packer.close().await;
}

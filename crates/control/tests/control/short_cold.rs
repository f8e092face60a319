//! Cold objects whose own stripes are too short to be sealed are packed; the others are counted.

use std::time::Duration;

use striate_client::ColdSetting;
use striate_control::{PackOptions, PackReport, cold_of, pack_bucket, seal_bucket};
use striate_meta::records::{Object, object::Body};
use striate_meta::{ScanRange, keys};
use striate_stripe::Packer;

use crate::cluster::{BUCKET, Cluster, content, go_on};
use crate::sealed::WIDE;

const COUNT: usize = 40;
/// Larger than objects that are packed without being cold. Under rs(6,3) the chunks have 50,000 bytes.
const LEN: usize = 300_000;
const DAY: Duration = Duration::from_secs(86_400);

async fn pack(cluster: &Cluster, packer: &Packer) -> PackReport {
    let default = "rs(6,3)".parse().unwrap();
    let options = PackOptions {
        patience: Duration::ZERO,
        partition_len: 1 << 20,
        smallest_partition: 1 << 20,
        pace: 1.0,
        ..PackOptions::default()
    };
    pack_bucket(cluster.client.stripes(), packer, BUCKET, &default, &options).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn they_are_packed_when_they_are_cold_and_the_rest_is_counted() {
    let cluster = Cluster::start(30, "rs(6,3)").await;
    cluster.spread_over_racks(6);
    let packer = cluster.client.stripes().packer();
    for number in 0..COUNT {
        cluster.put(&number.to_string(), &content(number, LEN)).await.unwrap();
    }
    // Its chunks are long enough to be sealed.
    cluster.put("longer", &content(COUNT, 400_000)).await.unwrap();
    cluster.runtime.sleep(Duration::from_secs(7_200)).await;
    assert_eq!(pack(&cluster, &packer).await.objects, 0, "nothing is said of what is cold");
    let cold = ColdSetting { profile: WIDE.parse().unwrap(), after: DAY, without_spare_rack: true };
    cluster.client.set_cold(BUCKET, Some(cold)).await.unwrap();
    assert_eq!(pack(&cluster, &packer).await.objects, 0, "they are not cold yet");
    cluster.runtime.sleep(DAY).await;
    let mut packed = 0;
    // Objects that did not fit into a group go into the next one.
    for _ in 0..2 {
        packed += pack(&cluster, &packer).await.objects as usize;
    }
    assert!(packed > COUNT / 2, "{packed}");

    let rows = cluster.meta.scan(ScanRange::prefix(&keys::objects(BUCKET)), 1_000).await.unwrap();
    let objects = rows.iter().map(|row| row.record::<Object>().unwrap());
    let of_their_own: Vec<u64> =
        objects.filter(|of| !matches!(of.body, Some(Body::Extent(_)))).map(|of| of.size).collect();
    assert!(of_their_own.contains(&400_000) && of_their_own.len() == COUNT - packed + 1, "{of_their_own:?}");

    let bucket = cluster.client.bucket(BUCKET).await.unwrap();
    let options = cold_of(cluster.client.stripes(), &bucket).unwrap().unwrap();
    let report = seal_bucket(cluster.client.stripes(), &packer, BUCKET, &options, &mut go_on).await.unwrap();
    assert!(report.cold_stripes > 1, "{report:?}");
    let rest = (COUNT - packed) as u64;
    assert_eq!((report.not_packed, report.not_packed_bytes), (rest, rest * LEN as u64), "{report:?}");
    for number in 0..COUNT {
        assert!(cluster.get(&number.to_string()).await.unwrap() == content(number, LEN), "{number}");
    }
}

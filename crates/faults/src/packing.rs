//! The packing service of the leading process. It packs objects after one second into partitions of some kilobytes,
//! and follows marks until none is left. Sealed groups are refilled when nothing has died in them for a while. Now
//! and then some packed objects are split again. With wide stripes, packed data is soon sealed ([`super::sealing`]).

use std::ops::ControlFlow;
use std::time::Duration;

use striate_client::Client;
use striate_control::{PackOptions, Repacker, pack_bucket, split_packed};
use striate_core::Profile;
use striate_meta::keys;
use striate_meta::records::Bucket;
use striate_stripe::StripeError;

use super::cluster::Cluster;
use super::operation::BUCKET;
use super::sealing::{resume, seal};

/// Maximum pause between two rounds.
const PAUSE: Duration = Duration::from_secs(2);
/// One round in `SPLIT_IN` splits packed objects, at most `MOST_SPLIT` of them.
const SPLIT_IN: u64 = 5;
const MOST_SPLIT: u64 = 40;
/// As above, with wide stripes, whose partitions should stay packed for a while.
const SEALED_SPLIT_IN: u64 = 15;
const MOST_SEALED_SPLIT: u64 = 8;
/// What is packed, and the dead share from which space is reclaimed.
pub const OPTIONS: PackOptions = PackOptions {
    object_max: 256 << 10,
    cold_object_max: 0,
    settled_after: Duration::from_secs(1),
    patience: Duration::ZERO,
    partition_len: 32 << 10,
    smallest_partition: 1 << 10,
    dead_share: 0.25,
    pace: 1.0,
    yields: true,
};

/// Options with wide stripes: all partitions have the minimum length, so all members are of one pool.
const ONE_POOL: PackOptions =
    PackOptions { object_max: 40 << 10, partition_len: 64 << 10, smallest_partition: 64 << 10, ..OPTIONS };

/// Packs until the faults end, and reclaims dead space until the run ends.
pub async fn keep_packing(cluster: &Cluster, client: &Client) {
    let stripes = client.stripes();
    let profile = cluster.client_options().profile;
    let options = if cluster.wide_profile().is_some() { &ONE_POOL } else { &OPTIONS };
    let (mut packer, mut repacker) = (None, Repacker::default());
    loop {
        cluster.runtime.sleep(cluster.draw_time(Duration::from_millis(100), PAUSE)).await;
        let of_round = &*packer.get_or_insert_with(|| stripes.packer());
        let round = async {
            resume(cluster, stripes).await?;
            repacker.repack(stripes, of_round, options).await?;
            if cluster.moves_chunks() {
                pack_bucket(stripes, of_round, BUCKET, &profile, options).await?;
                split_some(cluster, client, &profile).await?;
                seal(cluster, stripes, of_round).await?;
            }
            Ok::<_, StripeError>(())
        };
        // The store fails as often as everything else. The service then restarts under another lease.
        if round.await.is_err()
            && let Some(packer) = packer.take()
        {
            packer.close().await;
        }
    }
}

/// Occasionally splits some packed objects.
async fn split_some(cluster: &Cluster, client: &Client, profile: &Profile) -> Result<(), StripeError> {
    let (split_in, most) = match cluster.wide_profile() {
        Some(_) => (SEALED_SPLIT_IN, MOST_SEALED_SPLIT),
        None => (SPLIT_IN, MOST_SPLIT),
    };
    if cluster.draw(split_in) != 0 {
        return Ok(());
    }
    let (stripes, most) = (client.stripes(), 1 + cluster.draw(most));
    let Some(row) = stripes.meta().get(&keys::bucket(BUCKET)).await? else { return Ok(()) };
    let bucket: Bucket = row.record()?;
    let until = &mut |progress: &striate_control::UnpackProgress| match progress.objects < most {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(()),
    };
    split_packed(stripes, &bucket, profile, 1, until).await.map(drop)
}

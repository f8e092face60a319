//! The packing service of the process that leads: whatever has stood for a second is packed into partitions of some kilobytes, and
//! marks are followed until nothing is marked any more.

use std::time::Duration;

use striate_client::Client;
use striate_control::{PackOptions, pack_bucket, repack_marked};
use striate_stripe::StripeError;

use super::cluster::Cluster;
use super::operation::BUCKET;

/// The longest pause between two rounds.
const PAUSE: Duration = Duration::from_secs(2);
/// What is packed, and when what is dead must go.
pub const OPTIONS: PackOptions = PackOptions {
    object_max: 256 << 10,
    settled_after: Duration::from_secs(1),
    patience: Duration::ZERO,
    partition_len: 32 << 10,
    smallest_partition: 1 << 10,
    dead_share: 0.25,
    pace: 1.0,
    yields: true,
};

/// Packs until the faults end, and gives the space of what is dead back until the run ends.
pub async fn keep_packing(cluster: &Cluster, client: &Client) {
    let stripes = client.stripes();
    let profile = cluster.client_options().profile;
    let mut packer = None;
    loop {
        cluster.runtime.sleep(cluster.draw_time(Duration::from_millis(100), PAUSE)).await;
        let of_round = &*packer.get_or_insert_with(|| stripes.packer());
        let round = async {
            repack_marked(stripes, of_round, &OPTIONS).await?;
            if cluster.moves_chunks() {
                pack_bucket(stripes, of_round, BUCKET, &profile, &OPTIONS).await?;
            }
            Ok::<_, StripeError>(())
        };
        // The store fails as often as everything else. The service then starts again under another lease.
        if round.await.is_err()
            && let Some(packer) = packer.take()
        {
            packer.close().await;
        }
    }
}

//! What is said of wide profiles that the racks do not suit.

use std::time::Duration;

use striate_client::ColdSetting;
use striate_control::cold_warnings;
use striate_core::RackId;

use crate::cluster::{BUCKET, Cluster};
use crate::sealed::WIDE;

/// Racks with so many sites each.
async fn racks_of(sizes: &[u32], profile: &str) -> Cluster {
    let cluster = Cluster::start(sizes.iter().sum(), profile).await;
    regroup(&cluster, sizes);
    cluster
}

/// Puts the sites into racks of other sizes.
fn regroup(cluster: &Cluster, sizes: &[u32]) {
    let racks = (1..).zip(sizes).flat_map(|(rack, &size)| std::iter::repeat_n(rack, size as usize));
    for (site, rack) in cluster.sites.iter().zip(racks) {
        *site.rack.lock() = RackId(format!("rack{rack}"));
    }
}

fn cold(profile: &str, without_spare_rack: bool) -> ColdSetting {
    ColdSetting { profile: profile.parse().unwrap(), after: Duration::ZERO, without_spare_rack }
}

/// Five racks have the sites that a wide stripe needs, and one has a single site.
#[tokio::test(start_paused = true)]
async fn a_rack_that_is_too_small_does_not_count() {
    let cluster = racks_of(&[4, 4, 4, 4, 4, 1], "rs(4,2)").await;
    let refused = cluster.client.set_cold(BUCKET, Some(cold(WIDE, false))).await.unwrap_err().to_string();
    for part in [
        "5 + 1 = 6 racks, there are 5 with 4 sites or more, and 1 with fewer",
        "What fits: wide(",
        "with --allow-no-spare-rack it takes all 5 racks",
    ] {
        assert!(refused.contains(part), "{part:?} of {refused}");
    }
    cluster.client.set_cold(BUCKET, Some(cold(WIDE, true))).await.unwrap();
    // Four racks are too few, also without a spare one.
    regroup(&cluster, &[4, 4, 4, 4, 3, 2]);
    let refused = cluster.client.set_cold(BUCKET, Some(cold(WIDE, true))).await.unwrap_err().to_string();
    assert!(refused.contains("there are 4 with") && !refused.contains("--allow-no-spare-rack"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_spare_rack_that_shrinks_is_warned_of() {
    let cluster = racks_of(&[4, 4, 4, 4, 4, 4], "rs(4,2)").await;
    cluster.client.set_cold(BUCKET, Some(cold(WIDE, false))).await.unwrap();
    let warnings = async || cold_warnings(cluster.client.stripes()).await.unwrap();
    assert!(warnings().await.is_empty());
    regroup(&cluster, &[5, 5, 5, 4, 4, 1]);
    let found = warnings().await;
    assert!(found[BUCKET][0].contains("uses all 5 racks that have 4 sites or more"), "{found:?}");
    regroup(&cluster, &[6, 5, 4, 4, 3, 2]);
    let found = warnings().await;
    assert!(found[BUCKET][0].contains("needs 6 racks with 4 sites or more, and there are 4"), "{found:?}");
}

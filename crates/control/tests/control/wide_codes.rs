//! Objects written directly under codes of wide stripes, as rivals of combined locality: topology locality and flat
//! LRCs.

use std::collections::BTreeMap;

use striate_control::{heal, verify};
use striate_core::{RackId, SiteId};
use striate_site::Site;

use crate::cluster::{Cluster, content, go_on};

const LEN: usize = 400_000;

/// Stores objects under a profile on 20 racks of two sites, reads them with as many chunks lost as the code
/// tolerates, and repairs them. Returns the largest number of chunks of one stripe in a rack.
async fn most_in_a_rack(profile: &str) -> usize {
    let cluster = Cluster::start(40, profile).await;
    cluster.spread_over_racks(20);
    let racks: BTreeMap<SiteId, RackId> = cluster.sites.iter().map(|site| (site.id(), site.rack())).collect();
    for key in 0..4 {
        cluster.put(&format!("object{key}"), &content(key, LEN)).await.unwrap();
    }
    let mut most = 0;
    for (_, record) in cluster.stripes().await {
        let mut in_rack: BTreeMap<&RackId, usize> = BTreeMap::new();
        record.locations.iter().for_each(|at| *in_rack.entry(&racks[&SiteId(at.site)]).or_default() += 1);
        most = most.max(in_rack.into_values().max().unwrap());
        for at in &record.locations[1..3] {
            cluster.sites[at.site as usize - 1].chunks.lock().clear();
        }
    }
    for key in 0..4 {
        assert_eq!(cluster.get(&format!("object{key}")).await.unwrap(), content(key, LEN), "{profile}");
    }
    let seen = verify(cluster.client.stripes(), go_on).await.unwrap();
    assert!(seen.progress.damaged > 0);
    assert!(heal(cluster.client.stripes(), go_on).await.unwrap().is_whole());
    assert!(verify(cluster.client.stripes(), go_on).await.unwrap().is_clean());
    most
}

#[tokio::test(start_paused = true)]
async fn topology_locality_and_flat_lrcs_are_profiles_of_the_same_store() {
    assert_eq!(most_in_a_rack("rs(16,8) spread racks(2)").await, 2, "TL");
    assert!(most_in_a_rack("lrc-r(16,5,7) spread flat").await <= 2, "racks have two sites each");
}

//! Makes and drops random copies of partitions on random sites until the faults end, like a hot-copy service whose
//! statistics are stale or wrong.

use std::time::Duration;

use striate_client::Client;
use striate_control::{drop_copies, make_copy};

use super::cluster::Cluster;
use super::invariants;

/// Maximum pause between two changes.
const LONGEST_PAUSE: Duration = Duration::from_millis(800);
/// One change in this many drops an existing copy.
const DROPPED: u64 = 4;
/// Pause factor with wide stripes, where as many copies are dropped as made: stripes with copies are not sealed.
const SELDOM: u32 = 6;
const SELDOM_DROPPED: u64 = 2;

/// Makes and drops copies until the faults end.
pub async fn keep_copying(cluster: &Cluster, client: &Client) {
    let stripes = client.stripes();
    let (pause, dropped) = match cluster.wide_profile() {
        Some(_) => (LONGEST_PAUSE * SELDOM, SELDOM_DROPPED),
        None => (LONGEST_PAUSE, DROPPED),
    };
    while cluster.moves_chunks() {
        cluster.runtime.sleep(cluster.draw_time(Duration::ZERO, pause)).await;
        let packed = invariants::committed(cluster).unwrap_or_default();
        let packed: Vec<_> = packed.into_iter().filter(|(_, record)| record.packed_objects > 0).collect();
        let Some((id, record)) = cluster.choose(&packed).filter(|_| cluster.moves_chunks()) else { continue };
        let copied = cluster.choose(&record.copies).filter(|_| cluster.draw(dropped) == 0);
        // It is often refused or out of date, and fails when the store does.
        if let Some(copy) = copied {
            let _ = drop_copies(stripes, id, copy.index as u8).await;
            continue;
        }
        let sites: Vec<_> = cluster.sites().iter().map(|site| site.id()).collect();
        if let Some(to) = cluster.choose(&sites) {
            let index = cluster.draw(cluster.code().k() as u64) as u8;
            let _ = make_copy(stripes, (id, index), to).await;
        }
    }
}

//! Rows of sets of sites are removed when no stripe is on these sites, and never while one is, or is about to be.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use striate_client::{ClientError, PutBody, WriteCondition};
use striate_control::{MoveOutcome, PlacementSweep, move_chunk};
use striate_core::SiteId;
use striate_meta::{ScanRange, keys};
use striate_plan::movement::ChunkMove;
use striate_runtime::Runtime;
use striate_stripe::holders;

use crate::cluster::{BUCKET, Cluster, content};

const HOUR: Duration = Duration::from_secs(3_600);

async fn rows(cluster: &Cluster) -> usize {
    cluster.meta.scan(ScanRange::prefix(b"p/"), usize::MAX).await.unwrap().len()
}

/// Asserts that every stripe is found from each of its sites. Returns how many rows that takes.
async fn assert_found(cluster: &Cluster) -> usize {
    let mut needed = BTreeSet::new();
    for (id, record) in cluster.stripes().await {
        let sites = holders(&record);
        let placement = keys::placement_of(sites.iter().copied());
        assert!(cluster.meta.get(&keys::reverse(placement, id)).await.unwrap().is_some(), "{id}");
        needed.insert(keys::set(placement));
        for site in sites {
            let key = keys::placement(site, placement);
            assert!(cluster.meta.get(&key).await.unwrap().is_some(), "{site} does not lead to {id}");
            needed.insert(key);
        }
    }
    needed.len()
}

#[tokio::test(start_paused = true)]
async fn rows_of_sets_without_stripes_go_when_nobody_has_written_them_for_long() {
    let cluster = Cluster::start(12, "rs(4,2)").await;
    for key in 0..120 {
        cluster.put(&format!("object{key}"), &content(key, 6_000)).await.unwrap();
    }
    // A move takes each stripe out of its set.
    for (stripe, record) in cluster.stripes().await {
        let to = (1..=12).find(|site| record.locations.iter().all(|at| at.site != *site)).unwrap();
        let wanted = ChunkMove { stripe, index: 0, from: SiteId(record.locations[0].site), to: SiteId(to) };
        let moved = move_chunk(cluster.client.stripes(), &wanted).await.unwrap();
        assert!(matches!(moved, MoveOutcome::Moved { .. }), "{moved:?}");
    }
    let needed = assert_found(&cluster).await;
    let before = rows(&cluster).await;
    assert!(before > needed + 60, "{before} rows, {needed} are needed");
    let (stripes, mut sweep) = (cluster.client.stripes(), PlacementSweep::default());
    for _ in 0..3 {
        assert_eq!(sweep.round(stripes).await.unwrap(), 0, "they are new");
        cluster.runtime.sleep(HOUR / 4).await;
    }
    cluster.runtime.sleep(HOUR).await;
    assert_eq!(sweep.round(stripes).await.unwrap() as usize, before - needed);
    assert_eq!(assert_found(&cluster).await, needed);
    assert_eq!(rows(&cluster).await, needed);
    // Sets whose rows were removed are used again.
    for key in 0..120 {
        assert!(
            cluster.client.delete(BUCKET, &format!("object{key}"), WriteCondition::default()).await.unwrap()
        );
        cluster.put(&format!("object{key}"), &content(key + 1, 6_000)).await.unwrap();
        assert_found(&cluster).await;
    }
}

/// A body that ends a day after its last piece.
struct Slow {
    runtime: Runtime,
    pieces: Vec<Bytes>,
}

#[async_trait]
impl PutBody for Slow {
    async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        let piece = self.pieces.pop();
        if piece.is_none() {
            self.runtime.sleep(24 * HOUR).await;
        }
        piece.map(Ok)
    }
}

#[tokio::test(start_paused = true)]
async fn a_put_that_takes_a_day_is_found_from_its_sites() {
    let cluster = Cluster::start(12, "rs(4,2)").await;
    let half = Bytes::from(content(1, 8 << 20));
    let body = Slow { runtime: cluster.runtime.clone(), pieces: vec![half.clone(), half] };
    let sweeps = async {
        let mut sweep = PlacementSweep::default();
        let mut removed = 0;
        for _ in 0..20 {
            cluster.runtime.sleep(HOUR).await;
            removed += sweep.round(cluster.client.stripes()).await.unwrap();
        }
        removed
    };
    let (put, removed) = futures::join!(cluster.put_body("slow", Box::new(body)), sweeps);
    put.unwrap();
    assert!(removed > 0, "rows of its first blocks went meanwhile");
    assert!(cluster.stripes().await.len() >= 2);
    assert_found(&cluster).await;
}

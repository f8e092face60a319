//! The journal records what is moved, how evenly sites are loaded and which blocks are hottest.

use std::time::Duration;

use crate::cluster::{Cluster, content};
use striate_control::movement::{AccessSource, MovementJournal, RebalanceOptions};
use striate_control::{Optimiser, Rebalancer, SiteStatistics};
use striate_core::SiteId;
use striate_meta::keys;
use striate_meta::records::MovementWork;

const LEN: usize = 40_000;
const CHUNK: u64 = LEN as u64 / 4;

async fn written(cluster: &Cluster) -> MovementWork {
    let row = cluster.meta.get(&keys::movement_work()).await.unwrap().expect("it was written down");
    row.record().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_drain_the_imbalance_and_the_hottest_blocks_are_written_down_and_go_on_after_a_restart() {
    let mut cluster = Cluster::start(6, "rs(4,2)").await;
    cluster.add(7).await;
    for (number, site) in cluster.sites.iter().enumerate() {
        *site.capacity.lock() = 200 * CHUNK;
        let busy = if number == 2 { 900 } else { 100 };
        site.tell(1, busy, busy, 60);
    }
    for key in 0..60 {
        cluster.put(&format!("object{key}"), &content(key, LEN)).await.unwrap();
    }
    for time in 0..400 {
        let key = if time % 4 == 0 { 8 } else { 7 };
        cluster.get(&format!("object{key}")).await.unwrap();
    }
    cluster.client.stripes().set_draining(SiteId(1), true);
    let statistics = SiteStatistics::default();
    statistics.round(cluster.client.stripes()).await;
    let look_every = Duration::from_secs(2);
    let rebalancer = Rebalancer::new(RebalanceOptions { bytes_per_s: 2 * CHUNK, look_every });
    cluster.runtime.spawn(rebalancer.clone().run(cluster.client.stripes().clone()));
    let journal = || {
        let source = AccessSource::Own(cluster.client.stripes().clone());
        let journal = MovementJournal::new(&rebalancer, &Optimiser::paused(), &statistics, source);
        cluster.runtime.spawn(journal.run(cluster.client.stripes().clone()))
    };
    let first = journal();
    cluster.runtime.sleep(Duration::from_secs(18)).await;
    let work = written(&cluster).await;
    let (levelling, optimising) = (work.levelling.unwrap(), work.optimising.unwrap());
    assert!(!levelling.off && levelling.chunks > 10 && optimising.off, "{work:?}");
    assert!((1_000..=4_000).contains(&levelling.rate_chunks_per_ks), "two in a second: {levelling:?}");
    assert_eq!(levelling.bytes, levelling.chunks * CHUNK);
    assert!(work.givers.iter().any(|giver| giver.site == 1 && giver.bytes > 0), "{:?}", work.givers);
    assert_eq!(work.imbalance.len(), 1);
    assert!(work.imbalance[0].permille > 1_000, "one of seven sites is nine times as busy");
    let names: Vec<&str> = work.hottest.iter().map(|block| block.object.as_str()).collect();
    assert_eq!(names, ["bucket/object7", "bucket/object8"]);
    assert!((600_000..900_000).contains(&work.hottest[0].popularity_ppm), "{:?}", work.hottest);

    first.abort();
    cluster.sites[2].tell(2, 100, 100, 60);
    statistics.round(cluster.client.stripes()).await;
    journal();
    cluster.runtime.sleep(Duration::from_secs(70)).await;
    let after = written(&cluster).await.imbalance;
    assert!(after.len() == 2 && after[0] == work.imbalance[0], "{after:?}");
    assert!(after[1].permille < after[0].permille);
}

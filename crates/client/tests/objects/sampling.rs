//! Requests that the co-access statistics see.

use std::sync::Arc;
use std::time::Duration;

use striate_client::{ReadOrder, ReadRange};
use striate_core::StripeId;
use striate_meta::ScanRange;
use striate_meta::records::Block;
use striate_stripe::CoAccessTotals;

use crate::cluster::{BUCKET, Cluster, get, in_virtual_time, noise, options};

async fn store(runtime: striate_runtime::Runtime, sampling: f64) -> Cluster {
    let meta = Arc::new(striate_meta::MemoryStore::new(runtime.clone()));
    let mut options = options();
    (options.stripes.sampling, options.stripes.in_flight_bytes) = (sampling, 1 << 20);
    let cluster = Cluster::open_with(runtime, meta, options).await;
    cluster.put("one", &noise(20_500, 1)).await.unwrap();
    cluster.put("two", &noise(9_000, 2)).await.unwrap();
    cluster
}

async fn stripes(cluster: &Cluster, key: &str) -> Vec<StripeId> {
    let blocks = cluster.client.blocks_of(BUCKET, key).await.unwrap();
    blocks.iter().map(|stored| stored.stripe().unwrap()).collect()
}

fn requests_and_accesses(cluster: &Cluster) -> (usize, usize) {
    let CoAccessTotals { requests, accesses, .. } = cluster.client.stripes().sampler().totals();
    (requests, accesses)
}

#[test]
fn the_blocks_of_a_get_a_query_and_a_read_of_many_are_one_request_each() {
    in_virtual_time(21, async |runtime| {
        let cluster = store(runtime.clone(), 1.0).await;
        let (one, two) = (stripes(&cluster, "one").await, stripes(&cluster, "two").await);
        assert_eq!((one.len(), two.len()), (21, 9));
        assert_eq!(requests_and_accesses(&cluster), (0, 0), "writes and looks are no reads");

        cluster.read("one").await.unwrap();
        cluster.read("two").await.unwrap();
        assert_eq!(requests_and_accesses(&cluster), (2, 30));
        let client = &cluster.client;
        client.stripes().sampler().with_co_access(|statistics| {
            assert_eq!(statistics.likelihood(one[0], one[20]), 1.0);
            assert_eq!(statistics.likelihood(one[0], two[0]), 0.0, "single gets are not merged");
        });

        // Two objects read together, and a range that is read alone and repeats five blocks.
        let range = ReadRange::Bytes { first: 0, last: Some(4_999) };
        let mut gets = ["one", "two", "one"].map(|key| get(BUCKET, key));
        gets[2].range = range;
        for (order, expected) in [(ReadOrder::Completion, (3, 60)), (ReadOrder::Requests, (4, 90))] {
            let reads = cluster.read_many(gets.to_vec(), order).await;
            reads.into_iter().for_each(|read| drop(read.unwrap()));
            // The last task ends after its last part was taken.
            runtime.sleep(Duration::from_millis(1)).await;
            assert_eq!(requests_and_accesses(&cluster), expected, "{order:?}");
        }
        client
            .stripes()
            .sampler()
            .with_co_access(|statistics| assert_eq!(statistics.likelihood(one[0], two[8]), 2.0 / 3.0));
        cluster.read_many(vec![gets[2].clone()], ReadOrder::Completion).await.remove(0).unwrap();
        runtime.sleep(Duration::from_millis(1)).await;
        assert_eq!(requests_and_accesses(&cluster), (5, 95), "a range's blocks, and no others");

        let rows = cluster.meta.scan(ScanRange::prefix(b"k/"), 100).await.unwrap();
        let blocks: Vec<Block> = rows.iter().map(|row| row.record().unwrap()).collect();
        client.read_blocks(&blocks[..5]).await.unwrap();
        assert_eq!(requests_and_accesses(&cluster), (6, 100));
    });
}

#[test]
fn a_get_that_is_given_up_counts_what_it_asked_for() {
    in_virtual_time(22, async |runtime| {
        let cluster = store(runtime, 1.0).await;
        drop(cluster.client.get(get(BUCKET, "one")).await.unwrap());
        let (requests, accesses) = requests_and_accesses(&cluster);
        assert_eq!(requests, 1);
        assert_eq!(accesses, 21, "so small a body is asked for at once");
    });
}

/// I14: sampling draws nothing from the runtime.
#[test]
fn sampling_changes_no_draw_of_the_runtime() {
    let draw = |sampling| {
        in_virtual_time(23, async |runtime| {
            let cluster = store(runtime.clone(), sampling).await;
            cluster.read("one").await.unwrap();
            (runtime.random_u64(), cluster.client.stripes().sampler().totals().requests)
        })
    };
    let ((without, none), (with, sampled)) = (draw(0.0), draw(1.0));
    assert_eq!((without, none, sampled), (with, 0, 1));
}

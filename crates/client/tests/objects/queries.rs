//! Reads of many blocks at once: every policy delivers the right bytes, or the reason why not.

use striate_client::{BlocksRead, ClientError, ClientOptions};
use striate_meta::ScanRange;
use striate_meta::records::Block;

use crate::cluster::{Cluster, in_virtual_time, noise, options};

const POLICIES: [&str; 5] = ["normal", "random", "least-loaded", "late-binding(1)", "late-binding(2,keep)"];
const LEN: usize = 20_500;

/// A store of which each read is by `policy`, with one object of 21 blocks, the last one short.
async fn store(runtime: striate_runtime::Runtime, policy: &str) -> (Cluster, Vec<Block>) {
    let options = ClientOptions { read_policy: policy.parse().unwrap(), ..options() };
    let meta = std::sync::Arc::new(striate_meta::MemoryStore::new(runtime.clone()));
    let cluster = Cluster::open_with(runtime, meta, options).await;
    cluster.put("object", &noise(LEN, 7)).await.unwrap();
    let rows = cluster.meta.scan(ScanRange::prefix(b"k/"), 100).await.unwrap();
    let blocks: Vec<Block> = rows.iter().map(|row| row.record().unwrap()).collect();
    assert_eq!(blocks.len(), 21);
    (cluster, blocks)
}

fn bytes_of(read: &BlocksRead) -> Vec<u8> {
    read.blocks.iter().flatten().flat_map(|piece| piece.to_vec()).collect()
}

#[test]
fn every_policy_reads_the_right_bytes_with_one_request_for_each_site() {
    for (seed, policy) in (0..).zip(POLICIES) {
        in_virtual_time(seed, async |runtime| {
            let (cluster, blocks) = store(runtime, policy).await;
            for _ in 0..20 {
                let read = cluster.client.read_blocks(&blocks).await.unwrap();
                assert_eq!(bytes_of(&read), noise(LEN, 7), "{policy}");
                assert!(read.stats.sites <= 6 && read.stats.read_alone == 0, "{policy}: {:?}", read.stats);
                let extra: usize = match policy {
                    "late-binding(1)" => 1,
                    "late-binding(2,keep)" => 2,
                    _ => 0,
                };
                assert_eq!(read.stats.chunks, blocks.len() * (4 + extra), "{policy}");
            }
        });
    }
}

#[test]
fn lost_chunks_are_read_around_and_too_many_are_an_error() {
    for (seed, policy) in (0..).zip(POLICIES) {
        in_virtual_time(seed, async |runtime| {
            let (cluster, blocks) = store(runtime, policy).await;
            cluster.stores[0].wipe();
            cluster.stores[1].wipe();
            let read = cluster.client.read_blocks(&blocks).await.unwrap();
            assert_eq!(bytes_of(&read), noise(LEN, 7), "{policy}");
            // With both extra chunks asked for, two losses cost nothing.
            assert_eq!(
                read.stats.read_alone == 0,
                policy == "late-binding(2,keep)",
                "{policy}: {:?}",
                read.stats
            );
            cluster.stores[2].wipe();
            let error = cluster.client.read_blocks(&blocks).await.unwrap_err();
            assert!(matches!(error, ClientError::Unreadable { needed: 4, .. }), "{error}");
        });
    }
}

/// Any copy is the block; none of them is computed from another.
#[test]
fn replicas_are_read_without_decoding() {
    in_virtual_time(9, async |runtime| {
        let meta = std::sync::Arc::new(striate_meta::MemoryStore::new(runtime.clone()));
        let profile = "replica(3)".parse().unwrap();
        let options = ClientOptions { profile, read_policy: "random".parse().unwrap(), ..options() };
        let cluster = Cluster::open_with(runtime, meta, options).await;
        cluster.put("object", &noise(LEN, 7)).await.unwrap();
        let rows = cluster.meta.scan(ScanRange::prefix(b"k/"), 100).await.unwrap();
        let blocks: Vec<Block> = rows.iter().map(|row| row.record().unwrap()).collect();
        for _ in 0..20 {
            let read = cluster.client.read_blocks(&blocks).await.unwrap();
            assert_eq!(bytes_of(&read), noise(LEN, 7));
            assert_eq!((read.stats.decoded_bytes, read.stats.chunks), (0, blocks.len()));
        }
    });
}

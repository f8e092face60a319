//! Reads of many blocks at once: every policy returns the right bytes, or the reason for the failure.

use std::time::Duration;

use futures::StreamExt;
use striate_client::{ClientError, ClientOptions, ReadRange};
use striate_meta::ScanRange;
use striate_meta::records::Block;
use striate_stripe::BlocksRead;

use crate::cluster::{BUCKET, Cluster, get, in_virtual_time, noise, with_policy};

const POLICIES: [&str; 9] = [
    "normal",
    "random",
    "least-loaded",
    "late-binding(1)",
    "late-binding(2,keep)",
    "cost-model",
    "cost-model(1)",
    "published",
    "adaptive",
];
const LEN: usize = 20_500;

/// Opens a store with this read policy and one object of 21 blocks, of which the last is short.
async fn store(runtime: striate_runtime::Runtime, policy: &str) -> (Cluster, Vec<Block>) {
    let options = with_policy(policy);
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
                assert!(read.stats.sites <= 6 && read.stats.planned_again == 0, "{policy}: {:?}", read.stats);
                let extra: usize = match policy {
                    "late-binding(1)" | "cost-model(1)" | "adaptive" => 1,
                    "late-binding(2,keep)" => 2,
                    _ => 0,
                };
                assert_eq!(read.stats.chunks, blocks.len() * (4 + extra), "{policy}");
            }
        });
    }
}

/// A query may name a block twice. The published policy keeps its plan and later reads the block by it. No chunk may
/// then count twice.
#[test]
fn a_block_that_is_asked_for_twice_is_right_each_time() {
    for (seed, policy) in (0..).zip(POLICIES) {
        in_virtual_time(seed, async |runtime| {
            let (cluster, blocks) = store(runtime.clone(), policy).await;
            let twice = [blocks[0].clone(), blocks[1].clone(), blocks[0].clone()];
            let right = noise(LEN, 7);
            let (first, both) = (&right[..1_000], &right[..2_000]);
            for _ in 0..5 {
                let read = cluster.client.read_blocks(&twice).await.unwrap();
                assert_eq!(bytes_of(&read), [both, first].concat(), "{policy}");
                assert_eq!(read.stats.planned_again, 0, "{policy}");
                runtime.sleep(Duration::from_secs(1)).await;
                let read = cluster.client.read_blocks(&blocks[..1]).await.unwrap();
                assert_eq!(bytes_of(&read), first, "{policy}");
                assert!(
                    read.stats.chunks <= 6 && read.stats.planned_again == 0,
                    "{policy}: {:?}",
                    read.stats
                );
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
            // With both extra chunks requested, two losses cost nothing. Nor do they when neither site is asked, as
            // the cost model may choose.
            let is_cheap = read.stats.planned_again == 0;
            let may_be = ["cost-model", "cost-model(1)", "published", "adaptive"].contains(&policy)
                || policy == "late-binding(2,keep)";
            assert!(!is_cheap || may_be, "{policy}: {:?}", read.stats);
            assert!(is_cheap || policy != "late-binding(2,keep)", "{policy}: {:?}", read.stats);
            // The result counts against the budget, which the next read needs.
            drop(read);
            cluster.stores[2].wipe();
            let error = cluster.client.read_blocks(&blocks).await.unwrap_err();
            assert!(matches!(error, ClientError::Unreadable { needed: 4, .. }), "{error}");
        });
    }
}

/// Any copy is the block; no copy is computed from another.
#[test]
fn replicas_are_read_without_decoding() {
    in_virtual_time(9, async |runtime| {
        let meta = std::sync::Arc::new(striate_meta::MemoryStore::new(runtime.clone()));
        let profile = "replica(3)".parse().unwrap();
        let options = ClientOptions { profile, ..with_policy("random") };
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

/// I12: a result counts against the budget of 16 blocks until it is dropped. Other requests wait for memory, until
/// they are refused.
#[test]
fn blocks_in_memory_count_against_the_byte_budget() {
    in_virtual_time(11, async |runtime| {
        let (cluster, blocks) = store(runtime.clone(), "normal").await;
        let client = &cluster.client;
        let (first, second) =
            (client.read_blocks(&blocks[..8]).await, client.read_blocks(&blocks[..8]).await);
        let refused = client.read_blocks(&blocks[..1]).await;
        assert!(
            matches!(refused, Err(ClientError::Overloaded)),
            "16 blocks are held, and still more are read"
        );
        let put = cluster.put("other", &noise(LEN, 8)).await;
        assert!(
            matches!(put, Err(ClientError::Overloaded)),
            "16 blocks are held, and still a put takes memory"
        );
        drop(first);
        assert_eq!(bytes_of(&client.read_blocks(&blocks[..8]).await.unwrap()), noise(LEN, 7)[..8_000]);
        // A query larger than the budget takes all of it.
        let all = client.read_blocks(&blocks).await;
        assert!(all.is_err(), "8 blocks are held, and still all of the budget is taken");
        drop(second);
        assert_eq!(bytes_of(&client.read_blocks(&blocks).await.unwrap()), noise(LEN, 7));
    });
}

/// Extra chunks of a policy are in memory too.
#[test]
fn extra_chunks_count_against_the_byte_budget() {
    in_virtual_time(12, async |runtime| {
        let (cluster, blocks) = store(runtime.clone(), "late-binding(2,keep)").await;
        // 11 blocks of 6 chunks of 250 bytes are more than 16 blocks.
        let held = cluster.client.read_blocks(&blocks[..10]).await.unwrap();
        let more = cluster.client.read_blocks(&blocks[..1]).await;
        assert!(more.is_err(), "60 chunks are held, and still 6 more are read");
        drop(held);
        cluster.client.read_blocks(&blocks[..1]).await.unwrap();
    });
}

/// A large object is read as queries of several blocks. Whatever the policy, the receiver gets the right bytes, or
/// those before the first unreadable block and then an error.
#[test]
fn a_get_of_many_blocks_is_a_few_queries() {
    for (seed, policy) in (0..).zip(POLICIES) {
        in_virtual_time(seed, async |runtime| {
            let (cluster, _) = store(runtime.clone(), policy).await;
            for range in [(0, LEN), (1_000, 4_000), (1_500, 18_200), (20_000, LEN), (999, 1_001)] {
                let wanted = ReadRange::Bytes { first: range.0 as u64, last: Some(range.1 as u64 - 1) };
                let read = cluster.read_range(BUCKET, "object", wanted).await.unwrap();
                assert_eq!(read, noise(LEN, 7)[range.0..range.1], "{policy}");
            }
            cluster.stores[0].wipe();
            assert_eq!(cluster.read("object").await.unwrap(), noise(LEN, 7), "{policy}: around a loss");

            let object = cluster.client.get(get(BUCKET, "object")).await.unwrap();
            cluster.stores[1].wipe();
            cluster.stores[2].wipe();
            let (mut body, mut got) = (object.body, Vec::new());
            let error = loop {
                match body.next().await {
                    Some(Ok(piece)) => got.extend_from_slice(&piece),
                    Some(Err(error)) => break error,
                    None => panic!("{policy}: a body without three of six sites is whole"),
                }
            };
            assert!(matches!(error, ClientError::Unreadable { needed: 4, .. }), "{policy}: {error}");
            assert!(got.len() >= 1_000 && noise(LEN, 7).starts_with(&got), "{policy}: never other bytes");
        });
    }
}

/// Durations of reads are measured by phase, along with the effects of hedging and planning.
#[test]
fn reads_are_measured_by_phase() {
    use std::sync::atomic::Ordering::Relaxed;
    use striate_stripe::Phase;

    in_virtual_time(13, async |runtime| {
        let (cluster, blocks) = store(runtime, "cost-model(1)").await;
        let measures = cluster.client.stripes().read_measures();
        let counted = |phase| measures.phase(phase).view().counts.iter().sum::<u64>();
        let all = || Phase::ALL.map(counted);
        assert_eq!(all(), [0; 5]);
        cluster.client.read_blocks(&blocks).await.unwrap();
        let after_query = all();
        assert_eq!(after_query[..4], [0, 1, 1, 1], "one look-up, one plan, one retrieval");
        let (costs, gaps) = (measures.plan_costs.view(), measures.plan_gaps.view());
        assert_eq!((costs.counts.iter().sum::<u64>(), gaps.counts.iter().sum::<u64>()), (1, 1));
        // Five of six idle sites, and 21 blocks of five chunks.
        cluster.client.explain(&[(BUCKET.to_owned(), "object".to_owned())], None).await.unwrap();
        assert_eq!(all(), after_query, "an explanation is no read");
        assert_eq!(measures.plan_costs.view(), costs);
        let transfer = 105.0 * 250.0 * striate_plan::USUAL_PER_BYTE;
        assert!((costs.sum - (5.0 + transfer)).abs() < 0.05, "{costs:?}");

        // A fifth of the budget of 16 blocks is read at once: three blocks, then two when one is left, and so on.
        cluster.read("object").await.unwrap();
        let after_get = all();
        assert_eq!(after_get[..4], [1, 1 + 10, 1 + 10, 1 + 10], "one object in ten queries");

        let range = ReadRange::Bytes { first: 1_100, last: Some(1_199) };
        assert_eq!(cluster.read_range(BUCKET, "object", range).await.unwrap(), noise(LEN, 7)[1_100..1_200]);
        assert_eq!(all(), [2, 12, 12, 12, after_get[4]], "a part of a block is planned, and not decoded");

        // Without the first site, blocks are decoded.
        cluster.stores[0].wipe();
        cluster.read("object").await.unwrap();
        assert!(counted(Phase::Decode) > after_get[4]);
        assert_eq!(measures.extra_chunks.load(Relaxed), 3 * 21);
        assert_eq!(measures.hedged_chunks.load(Relaxed), 0, "a missing chunk is not a late one");
    });
}

/// The published policy draws at random while it has no plan, and reads by the plan that it then finds.
#[test]
fn chunks_are_explained_by_what_chose_them() {
    use striate_stripe::ChunkChoice::{self, Drawn, LeastCost, SharedSite};

    in_virtual_time(14, async |runtime| {
        let (cluster, _) = store(runtime.clone(), "published").await;
        cluster.put("small", &noise(1_000, 5)).await.unwrap();
        let explain = async |key: &str, policy: &str| {
            let objects = [(BUCKET.to_owned(), key.to_owned())];
            let query = cluster
                .client
                .explain(&objects, Some(striate_baselines::read_policy(policy).unwrap()))
                .await
                .unwrap()
                .query;
            let chunks = query.blocks.into_iter().flat_map(|block| block.chunks);
            chunks.map(|chunk| chunk.choice).filter(|choice| choice.is_read()).collect::<Vec<ChunkChoice>>()
        };
        assert_eq!(explain("small", "published").await, [Drawn; 4]);
        runtime.sleep(std::time::Duration::from_secs(1)).await;
        assert_eq!(explain("small", "published").await, [LeastCost; 4]);
        assert_eq!(explain("object", "published").await, [SharedSite; 84]);
        assert_eq!(explain("small", "adaptive").await, [LeastCost; 5], "nobody waits: δ = 1");
        assert_eq!(explain("object", "adaptive").await, [SharedSite; 105]);
        assert_eq!(explain("object", "least-loaded").await, [LeastCost; 84]);
    });
}

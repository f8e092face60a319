//! Receivers that are slower than the origin, and other readers of the same object.

use futures::StreamExt;

use super::*;

/// Opens an object and takes its first piece only.
pub(crate) async fn begin(gateway: &Gateway, key: &str) -> (Vec<u8>, Body) {
    let mut body = gateway.open(key).await.into_body();
    let first = body.next().await.unwrap().unwrap().to_vec();
    (first, body)
}

pub(crate) async fn finish((mut bytes, mut body): (Vec<u8>, Body)) -> Vec<u8> {
    while let Some(piece) = body.next().await {
        bytes.extend_from_slice(&piece.unwrap());
    }
    bytes
}

/// Waits until a block is in memory.
pub(crate) async fn first_fill(gateway: &Gateway) {
    while gateway.cache.counts().fills.load(std::sync::atomic::Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn others_do_not_wait_for_a_slow_receiver() {
    let world = World::new(6).await;
    let (slow, fast) = (world.gateway(LONG).await, world.gateway(LONG).await);
    for (other, key) in [(&slow, "same"), (&fast, "another")] {
        let whole = noise(8 * MIB, key.len() as u64);
        world.store.put(key, whole.clone());
        let begun = begin(&slow, key).await;
        let answer = other.open(key).await;
        assert!(Gateway::was_hit(&answer), "{key}: the block came to memory at the origin's pace");
        assert!(bytes_of(answer).await == whole, "{key}");
        world.settle().await;
        let explained = other.origins.explain(BUCKET, key).await.unwrap();
        assert_eq!(explained.blocks_in_memory, 8, "{key}: the slow one gave up what it would have filled");
        assert!(finish(begun).await == whole, "{key}");
    }
}

#[tokio::test]
async fn what_a_slow_receiver_has_not_taken_counts_until_it_leaves() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    world.store.put("k", noise(8 * MIB, 1));
    let begun = begin(&gateway, "k").await;
    first_fill(&gateway).await;
    world.settle().await;
    let taken = || gateway.client.stripes().budget().view().taken;
    assert_eq!(taken(), MIB, "the block is in memory, and held for its receiver");
    drop(begun);
    assert_eq!(taken(), 0);
}

#[tokio::test]
async fn a_block_is_fetched_to_its_end_when_its_receiver_leaves() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    world.store.put("k", noise(8 * MIB, 1));
    drop(begin(&gateway, "k").await);
    first_fill(&gateway).await;
    assert!(Gateway::was_hit(&gateway.open("k").await));
}

//! Explanations of what a read would do.

use super::*;

#[tokio::test]
async fn an_explanation_asks_memory_sites_and_says_which_blocks_are_not_there_any_more() {
    let world = World::new(1).await;
    let gateway = world.gateway(LONG).await;
    world.store.put("k", noise(3 * MIB, 1));
    gateway.get("k").await;
    world.settle().await;
    let explained = gateway.origins.explain(BUCKET, "k").await.unwrap();
    assert_eq!((explained.would.as_str(), explained.blocks_in_memory), ("comes from memory", 3));
    assert_eq!(explained.first_blocks, ["in memory, whole"; 3]);

    let lost = world.caches[0].list(None, 1).await.unwrap().chunks[0].chunk;
    lose(&world, |split| split == lost).await;
    let explained = gateway.origins.explain(BUCKET, "k").await.unwrap();
    assert_eq!(explained.would, "comes from memory as far as it is there, and from the origin");
    assert_eq!(explained.blocks_in_memory, 2);
    let gone = "not in memory any more: evicted, or lost with a memory site";
    assert_eq!(explained.first_blocks.iter().filter(|block| *block == gone).count(), 1);
}

//! What counters say of reads.

use std::sync::atomic::Ordering;

use super::*;
use crate::pace::first_fill;

#[tokio::test]
async fn what_passes_by_counts_by_the_bytes_that_the_origin_sends() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    world.store.put("k", noise(100_000, 1));
    let past = [("x-amz-request-payer", "requester")];
    let counted = || {
        let bytes = gateway.origins.counts().bytes.load(Ordering::Relaxed);
        (gateway.cache.counts().reads(ReadOutcome::Bypass), bytes)
    };
    gateway.ask(Method::HEAD, "k", &past, none()).await.unwrap();
    let missing = gateway.ask(Method::GET, "none", &past, none()).await.unwrap();
    assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    assert_eq!(counted(), ((0, 0), 0), "no bytes of an object");
    let answer = gateway.ask(Method::GET, "k", &past, none()).await.unwrap();
    assert_eq!(answer.headers()["x-striate-cache"], "bypass");
    assert!(bytes_of(answer).await == noise(100_000, 1));
    assert_eq!(counted(), ((1, 100_000), 100_000));
}

#[tokio::test]
async fn fills_that_turn_out_not_to_be_needed_do_not_count_as_given_up() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    let whole = noise(4 * MIB, 1);
    world.store.put("k", whole.clone());
    // One block is in memory. A run that begins before it ends there.
    assert!(gateway.get_range("k", 2 * MIB..2 * MIB + 10).await == whole[2 * MIB..2 * MIB + 10]);
    first_fill(&gateway).await;
    assert!(gateway.get_range("k", 0..4 * MIB).await == whole);
    world.settle().await;
    let counts = gateway.cache.counts();
    assert_eq!(counts.given_up.load(Ordering::Relaxed), 0);
    assert_eq!(counts.fills.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn of_a_block_that_is_half_there_what_its_reader_gets_from_memory_counts() {
    let (world, gateway, whole) = with_one_block().await;
    let counts = gateway.cache.counts();
    let counted = || {
        let cached = counts.cached_bytes.load(Ordering::Relaxed);
        (counts.reads(ReadOutcome::Miss), counts.reads(ReadOutcome::Partial), cached)
    };
    let cold = (1, 4 * MIB as u64);
    assert_eq!(counted(), (cold, (0, 0), 0));
    let missed = (cold.0 + 1, cold.1 + 3_000);
    for (start, expected) in [(2 * MIB, (missed, (0, 0), 0)), (2 * MIB - 1_000, (missed, (1, 3_000), 1_000))]
    {
        world.settle().await;
        lose(&world, |split| split.index == 2 || split.index >= 4).await;
        let range = start..start + 3_000;
        assert!(gateway.get_range("k", range.clone()).await == whole[range]);
        assert_eq!(counted(), expected);
    }
}

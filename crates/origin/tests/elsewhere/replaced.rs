//! Objects that others replace at the origin, and that are read meanwhile.

use super::*;
use crate::pace::{begin, finish};

/// Reads the first bytes of an object into memory.
async fn read_first(world: &World, gateway: &Gateway, whole: &[u8], len: usize) {
    world.store.put("k", whole.to_vec());
    assert!(gateway.get_range("k", 0..len).await == whole[..len]);
    world.settle().await;
}

#[tokio::test]
async fn a_cold_object_that_is_replaced_while_it_is_read_is_answered_as_it_was() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    let (old, new) = (noise(30 * MIB, 1), noise(30 * MIB, 2));
    world.store.put("k", old.clone());
    let begun = begin(&gateway, "k").await;
    world.store.put("k", new);
    assert!(finish(begun).await == old, "all of it, and of one version");
}

#[tokio::test]
async fn an_object_that_is_half_there_is_answered_as_it_was_when_it_is_replaced() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    let (old, new) = (noise(30 * MIB, 1), noise(30 * MIB, 2));
    read_first(&world, &gateway, &old, 4 * MIB).await;
    let begun = begin(&gateway, "k").await;
    world.store.put("k", new);
    assert!(finish(begun).await == old, "all of it, and of one version");
    assert_eq!((world.store.sent(), world.store.asked()), (30 * MIB as u64, (2, 0)), "the rest once");
}

#[tokio::test]
async fn an_object_that_is_half_there_and_was_replaced_is_answered_as_it_is() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    let (old, new) = (noise(8 * MIB, 1), noise(8 * MIB, 2));
    read_first(&world, &gateway, &old, 2 * MIB).await;
    world.store.put("k", new.clone());
    assert!(gateway.get_range("k", 0..2 * MIB).await == old[..2 * MIB], "memory answers within the ttl");
    assert!(gateway.get("k").await == new, "nothing of the old one is answered if the rest is gone");
}

#[tokio::test]
async fn many_readers_of_an_object_that_is_half_there_fetch_the_other_half_together() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    let whole = noise(8 * MIB, 1);
    read_first(&world, &gateway, &whole, 2 * MIB).await;
    for bytes in join_all((0..8).map(|_| gateway.get("k"))).await {
        assert!(bytes == whole);
    }
    let sent = world.store.sent();
    assert!(sent < 16 * MIB as u64, "not each for itself: {sent} bytes");
}

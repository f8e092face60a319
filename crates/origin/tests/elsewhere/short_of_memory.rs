//! Reads while the memory for bodies is short.

use striate_stripe::{ByteBudget, Share};

use super::*;
use crate::pace::{begin, finish, first_fill};

impl Gateway {
    fn budget(&self) -> &ByteBudget {
        self.client.stripes().budget()
    }

    /// Takes all of the memory for bodies.
    fn take_memory(&self) -> Share {
        self.budget().try_acquire(self.budget().total()).unwrap()
    }

    /// Waits until a read waits for memory, and then until it has done so in vain. Nothing else may wait meanwhile.
    async fn refuse_memory(&self) {
        while self.budget().view().waiting == 0 {
            tokio::task::yield_now().await;
        }
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(6)).await;
        tokio::time::resume();
    }
}

#[tokio::test]
async fn what_there_is_no_memory_to_read_into_comes_from_the_origin_and_is_not_lost() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    let whole = noise(MIB, 1);
    world.store.put("k", whole.clone());
    assert!(gateway.get("k").await == whole);
    world.settle().await;
    let all = gateway.take_memory();
    let (read, ()) = futures::future::join(gateway.get("k"), gateway.refuse_memory()).await;
    assert!(read == whole);
    assert_eq!(world.store.sent(), 2 * MIB as u64);
    drop(all);
    assert!(Gateway::was_hit(&gateway.open("k").await), "it is known to be in memory");
    assert_eq!(world.store.sent(), 2 * MIB as u64);
}

#[tokio::test]
async fn a_block_that_is_half_there_comes_from_the_origin_if_there_is_no_memory_for_its_half() {
    let (world, gateway, whole) = with_one_block().await;
    world.settle().await;
    lose(&world, |split| split.index == 2 || split.index >= 4).await;
    // A range has room, and the block has none.
    let mut others = gateway.take_memory();
    others.shrink_to(others.len() - 2 * MIB);
    let range = 2 * MIB..2 * MIB + 1_000;
    let read = gateway.get_range("k", range.clone());
    let (read, ()) = futures::future::join(read, gateway.refuse_memory()).await;
    assert!(read == whole[range.clone()]);
    assert_eq!(gateway.budget().view().taken, others.len());
    assert_eq!(world.store.sent(), 4 * MIB as u64 + 1_000);
    drop(others);
    assert!(gateway.get_range("k", range.clone()).await == whole[range]);
    assert_eq!(world.store.sent(), 5 * MIB as u64 + 1_000, "its other half was not forgotten");
}

#[tokio::test]
async fn what_a_resting_receiver_has_not_taken_gives_way_and_is_read_again() {
    let mut world = World::new(6).await;
    world.block_len = 4 * MIB;
    let filling = world.gateway(LONG).await;
    let whole = noise(4 * MIB, 1);
    world.store.put("k", whole.clone());
    assert!(filling.get("k").await == whole);
    world.settle().await;
    world.in_flight_bytes = Some(6 * MIB);
    let gateway = world.gateway(LONG).await;
    gateway.ask(Method::HEAD, "k", &[], none()).await.unwrap();
    let begun = begin(&gateway, "k").await;
    assert!(gateway.budget().view().taken >= 4 * MIB);
    tokio::time::pause();
    drop(gateway.budget().acquire(5 * MIB).await.unwrap());
    assert_eq!(gateway.budget().view().taken, MIB, "the piece that the receiver has");
    assert!(finish(begun).await == whole);
    assert_eq!(gateway.budget().view().taken, 0);
    assert_eq!(world.store.sent(), 4 * MIB as u64, "all of it came from memory");
}

#[tokio::test]
async fn a_gathered_block_gives_way_once_it_is_in_memory_and_its_run_goes_on() {
    let world = World { in_flight_bytes: Some(4 * MIB), ..World::new(6).await };
    let gateway = world.gateway(LONG).await;
    let whole = noise(8 * MIB, 1);
    world.store.put("k", whole.clone());
    let begun = begin(&gateway, "k").await;
    first_fill(&gateway).await;
    world.settle().await;
    assert_eq!(gateway.budget().view().taken, MIB);
    drop(gateway.budget().acquire(4 * MIB).await.unwrap());
    assert!(finish(begun).await == whole);
    assert_eq!((world.store.sent(), world.store.asked()), (8 * MIB as u64, (1, 0)), "by one request");
}

#[tokio::test]
async fn a_block_that_there_is_no_memory_to_gather_is_passed_on_and_the_reason_is_known() {
    let mut world = World::new(6).await;
    let one = world.gateway(LONG).await;
    let whole = noise(MIB, 1);
    world.store.put("k", whole.clone());
    // All of the memory is taken, or the block is more than a quarter of it.
    for (in_flight, is_taken, reason) in [
        (64 * MIB, true, "too many other blocks were on their way"),
        (4 * MIB - 1, false, "--body-memory-mib"),
    ] {
        assert!(one.get("k").await == whole);
        world.settle().await;
        lose(&world, |_| true).await;
        world.in_flight_bytes = Some(in_flight);
        let other = world.gateway(LONG).await;
        let _all = is_taken.then(|| other.take_memory());
        for _ in 0..2 {
            assert!(other.get("k").await == whole);
            world.settle().await;
            let explained = other.origins.explain(BUCKET, "k").await.unwrap().first_blocks.remove(0);
            assert!(explained.contains(reason), "{explained}");
        }
    }
}

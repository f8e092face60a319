//! Cached writes of a bucket with an origin.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::{join, join_all, select};
use futures::stream;
use http::{Method, StatusCode};
use s3s::StdError;
use striate_client::ClientError;
use striate_s3::{RemoteBody, RemoteBuckets};
use striate_site::ChunkStore;

use crate::batches::put_all;
use crate::store::Faults;
use crate::{BUCKET, Gateway, LONG, MIB, World, bytes_of, noise};

impl World {
    async fn caching_writes(memory_sites: u32) -> Self {
        Self { fills_writes: true, ..Self::new(memory_sites).await }
    }

    /// Number of splits in memory.
    async fn splits(&self) -> usize {
        let mut splits = 0;
        for cache in &self.caches {
            splits += cache.list(None, 1_000).await.unwrap().chunks.len();
        }
        splits
    }
}

impl Gateway {
    /// Sends a PUT whose body comes in pieces, and breaks off after `breaks_after` of them.
    async fn put_in_pieces(
        &self,
        key: &str,
        headers: &[(&'static str, &str)],
        whole: &[u8],
        breaks_after: Option<usize>,
    ) -> Result<StatusCode, ClientError> {
        let pieces: Vec<Result<Bytes, StdError>> =
            whole.chunks(70_000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        let broken = breaks_after.map(|_| Err(StdError::from("its sender is gone")));
        let sent = stream::iter(pieces).take(breaks_after.unwrap_or(usize::MAX)).chain(stream::iter(broken));
        let body = RemoteBody::Streamed { bytes: sent.boxed(), len: whole.len() as u64 };
        Ok(self.ask(Method::PUT, key, headers, body).await?.status())
    }

    /// Numbers of writes that were cached, and of those that were not for lack of memory.
    fn writes(&self) -> (u64, u64) {
        let counts = self.origins.counts();
        (counts.cached_writes.load(Ordering::Relaxed), counts.uncached_writes.load(Ordering::Relaxed))
    }

    /// Taken bytes of the memory for bodies.
    fn taken(&self) -> usize {
        self.client.stripes().budget().view().taken
    }

    /// Waits until `writes` writes are in memory and the origin has received `heads` HEADs.
    async fn has_cached(&self, world: &World, writes: u64, heads: u64) {
        let is_done = || self.writes().0 == writes && self.taken() == 0 && world.store.asked().1 == heads;
        let wait = async {
            while !is_done() {
                world.runtime.sleep(Duration::from_millis(5)).await;
            }
        };
        world.runtime.timeout(Duration::from_secs(30), wait).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_written_comes_from_memory_and_its_origin_is_asked_for_nothing() {
    for memory_sites in [1, 6] {
        let world = World::caching_writes(memory_sites).await;
        let (gateway, other) = (world.gateway(LONG).await, world.gateway(LONG).await);
        for (number, len) in (1..).zip([1, 100_000, MIB, 5 * MIB + 3, 16 * MIB]) {
            let (key, whole) = (len.to_string(), noise(len, number));
            assert_eq!(gateway.put_in_pieces(&key, &[], &whole, None).await.unwrap(), StatusCode::OK);
            gateway.has_cached(&world, number, number).await;
            let before = (world.store.sent(), world.store.asked());
            let read = gateway.open(&key).await;
            assert_eq!(read.headers()["x-amz-meta-a"], "b", "what the origin says of it");
            assert!(Gateway::was_hit(&read) && bytes_of(read).await == whole);
            assert_eq!((world.store.sent(), world.store.asked()), before);
            assert!(Gateway::was_hit(&other.open(&key).await));
        }
        assert_eq!(gateway.writes(), (5, 0));
    }
}

#[tokio::test]
async fn an_object_that_is_written_through_striate_counts_as_fenced_where_it_was_known() {
    let world = World::new(6).await;
    let (gateway, other) = (world.gateway(LONG).await, world.gateway(LONG).await);
    let fenced = |of: &Gateway| of.origins.counts().fenced.load(Ordering::Relaxed);
    gateway.put_in_pieces("k", &[], &noise(1_000, 1), None).await.unwrap();
    for reader in [&gateway, &other] {
        assert_eq!(bytes_of(reader.open("k").await).await, noise(1_000, 1));
    }
    assert_eq!((fenced(&gateway), fenced(&other)), (0, 0), "nobody knew it before");
    gateway.put_in_pieces("k", &[], &noise(1_000, 2), None).await.unwrap();
    assert_eq!(bytes_of(other.open("k").await).await, noise(1_000, 2));
    assert_eq!((fenced(&gateway), fenced(&other)), (1, 1));
}

#[tokio::test]
async fn where_writes_are_not_cached_nothing_is() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    gateway.put_in_pieces("k", &[], &noise(MIB, 1), None).await.unwrap();
    world.settle().await;
    assert_eq!((world.splits().await, gateway.writes(), world.store.asked()), (0, (0, 0), (0, 0)));
}

#[tokio::test]
async fn a_write_for_which_there_is_no_memory_is_forwarded_and_not_cached() {
    // Half of the memory is for held bytes, so these are two blocks too many, and half a block too much.
    for (in_flight, len, fits) in [(2 * MIB, 3 * MIB, MIB), (MIB, MIB, MIB / 2)] {
        let world = World { in_flight_bytes: Some(in_flight), ..World::caching_writes(6).await };
        let gateway = world.gateway(LONG).await;
        let (large, small) = (noise(len, 1), noise(fits, 2));
        for round in 1..4 {
            gateway.put_in_pieces("large", &[], &large, None).await.unwrap();
            world.settle().await;
            assert_eq!((world.splits().await, gateway.writes()), (0, (0, round)));
        }
        assert!(gateway.get("large").await == large);
        // Fills by reads take memory too.
        world.settle().await;
        gateway.put_in_pieces("small", &[], &small, None).await.unwrap();
        gateway.has_cached(&world, 1, 1).await;
        let sent = world.store.sent();
        assert!(gateway.get("small").await == small);
        assert_eq!((world.store.sent(), gateway.writes()), (sent, (1, 3)), "there is memory again");
    }
}

#[tokio::test]
async fn held_bytes_of_a_write_that_rests_give_way_to_who_waits_for_memory() {
    let world = World { in_flight_bytes: Some(2 * MIB), ..World::caching_writes(6).await };
    let gateway = world.gateway(LONG).await;
    // The origin finishes the write after the end of this test.
    world.store.set_faults(Faults { slow_write: Duration::from_secs(600), ..Faults::default() });
    let (whole, budget) = (noise(MIB, 1), gateway.client.stripes().budget());
    let wait = async {
        while gateway.taken() < MIB {
            world.runtime.sleep(Duration::from_millis(5)).await;
        }
        drop(budget.acquire(2 * MIB).await.unwrap());
    };
    let put = gateway.put_in_pieces("k", &[], &whole, None);
    select(pin!(put), pin!(wait)).await;
    assert_eq!((gateway.writes(), gateway.taken()), ((0, 1), 0));
}

#[tokio::test]
async fn a_write_that_fails_or_is_cut_leaves_nothing_in_memory() {
    let world = World { in_flight_bytes: Some(16 * MIB), ..World::caching_writes(6).await };
    let gateway = world.gateway(LONG).await;
    let whole = noise(5 * MIB, 1);
    world.store.put("k", "as it was");
    for round in 0..5 {
        let breaks_after = (round == 3).then_some(20);
        let headers = if round == 4 { &[("if-none-match", "*")][..] } else { &[] };
        world.store.set_faults(match round {
            0 => Faults { cut_write: Some(3 * MIB), ..Faults::default() },
            1 => Faults { unavailable: 1, ..Faults::default() },
            2 => Faults { denied: Some("k"), ..Faults::default() },
            _ => Faults::default(),
        });
        let put = gateway.put_in_pieces("k", headers, &whole, breaks_after).await;
        assert!(put.is_err() || !put.unwrap().is_success(), "{round}");
        world.settle().await;
        assert_eq!((world.splits().await, gateway.writes(), gateway.taken()), (0, (0, 0), 0), "{round}");
    }
    world.store.set_faults(Faults::default());
    // The whole share for held bytes is free.
    gateway.put_in_pieces("other", &[], &noise(8 * MIB, 2), None).await.unwrap();
    gateway.has_cached(&world, 1, 1).await;
    assert_eq!(gateway.writes(), (1, 0));
}

#[tokio::test]
async fn a_body_that_breaks_off_is_not_the_fault_of_the_origin() {
    let world = World::new(0).await;
    let gateway = world.gateway(LONG).await;
    let error = gateway.put_in_pieces("k", &[], &noise(5 * MIB, 1), Some(20)).await.unwrap_err();
    assert!(matches!(&error, ClientError::Body(reason) if reason == "its sender is gone"), "{error}");
    assert!(world.store.get("k").is_none());
}

#[tokio::test]
async fn after_a_body_that_broke_off_what_is_in_memory_is_used_at_once() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    world.store.put("k", "as it was");
    gateway.get("k").await;
    world.settle().await;
    gateway.put_in_pieces("k", &[], &noise(5 * MIB, 1), Some(20)).await.unwrap_err();
    let read = gateway.open("k").await;
    assert!(Gateway::was_hit(&read) && bytes_of(read).await == b"as it was");
}

#[tokio::test]
async fn what_has_no_name_or_is_not_the_whole_object_is_not_cached() {
    let world = World::caching_writes(6).await;
    let gateway = world.gateway(LONG).await;
    let whole = noise(100_000, 1);
    for etag in ["", "W/\"weak\""] {
        world.store.set_faults(Faults { etag_of_writes: Some(etag), ..Faults::default() });
        gateway.put_in_pieces("k", &[], &whole, None).await.unwrap();
    }
    world.store.set_faults(Faults::default());
    for header in [
        ("x-amz-server-side-encryption-customer-algorithm", "AES256"),
        ("x-amz-write-offset-bytes", "5"),
        ("x-amz-copy-source", "ours/other"),
    ] {
        gateway.put_in_pieces("k", &[header], &whole, None).await.unwrap();
    }
    gateway.put_in_pieces("long", &[], &noise(16 * MIB + 1, 2), None).await.unwrap();
    world.settle().await;
    assert_eq!((world.splits().await, gateway.writes(), world.store.asked()), (0, (0, 0), (0, 0)));
}

#[tokio::test]
async fn blocks_of_a_write_whose_etag_its_origin_does_not_say_again_are_not_read() {
    let world = World::caching_writes(6).await;
    let gateway = world.gateway(Duration::ZERO).await;
    world.store.set_faults(Faults { etag_of_writes: Some("\"d41d8cd9-2\""), ..Faults::default() });
    let whole = noise(100_000, 1);
    gateway.put_in_pieces("k", &[], &whole, None).await.unwrap();
    gateway.has_cached(&world, 1, 1).await;
    assert!(world.splits().await > 0);
    assert!(gateway.get("k").await == whole);
    assert_eq!(world.store.sent(), whole.len() as u64, "no block has the name that the origin says");
}

#[tokio::test]
async fn what_others_put_in_its_place_at_the_origin_is_read() {
    let world = World::caching_writes(6).await;
    let gateway = world.gateway(Duration::ZERO).await;
    for round in 0..20 {
        gateway.put_in_pieces("k", &[], &noise(100_000, 2 * round), None).await.unwrap();
        let newer = noise(100_000, 2 * round + 1);
        world.store.put("k", newer.clone());
        assert!(gateway.get("k").await == newer);
    }
}

#[tokio::test]
async fn of_writes_that_race_all_gateways_read_the_last() {
    let world = World::caching_writes(6).await;
    let gateways = [world.gateway(LONG).await, world.gateway(LONG).await];
    for round in 0..8 {
        let write = |number: u64| {
            let bytes = noise(200_000, 4 * round + number);
            let gateway = &gateways[number as usize % 2];
            async move { gateway.put_in_pieces("k", &[], &bytes, None).await.unwrap() }
        };
        join(join_all((0..4).map(write)), join_all(gateways.iter().map(|gateway| gateway.get("k")))).await;
        let last = world.store.get("k").unwrap();
        for gateway in &gateways {
            assert!(gateway.get("k").await == last);
        }
        world.settle().await;
        assert!(gateways[0].get("k").await == last && gateways[1].get("k").await == last);
    }
}

#[tokio::test]
async fn items_of_a_batch_are_cached_too() {
    let world = World::caching_writes(6).await;
    let gateway = world.gateway(LONG).await;
    let wholes = [noise(1_000, 1), noise(3 * MIB, 2)];
    world.store.put("there", "old");
    let items = vec![put_all("0", &wholes[0]), put_all("1", &wholes[1]), put_all("there", b"new")];
    let made = gateway.origins.create_many(BUCKET, items).await;
    assert!(made[0].is_ok() && made[1].is_ok() && made[2].is_err());
    // Three before the writes, and two for the objects written.
    gateway.has_cached(&world, 2, 5).await;
    for (key, whole) in ["0", "1"].iter().zip(&wholes) {
        assert!(gateway.get(key).await == *whole);
    }
    assert_eq!((world.store.sent(), gateway.writes()), (0, (2, 0)));
}

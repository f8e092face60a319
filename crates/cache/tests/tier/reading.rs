//! Reads through the tier: what fills it, what comes from it, and what readers see meanwhile.

use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use striate_cache::{BlockLookup, CacheSettings, ReadOutcome};
use striate_client::{GetRequest, ReadOrder, ReadRange};

use striate_stripe::{MemoryBlock, Span};

use crate::fixture::*;

#[test]
fn what_was_read_once_comes_from_memory() {
    in_virtual_time(1, async |runtime| {
        for memory_sites in [1, 2, 6, 12] {
            let sites = Sites::new(&runtime, memory_sites, 64);
            let gateway = sites.gateway().await;
            for (number, len) in LENS.into_iter().enumerate() {
                gateway.put(&format!("{number}"), &noise(len, number as u64)).await;
                assert_eq!(gateway.whole(&format!("{number}")).await, noise(len, number as u64));
            }
            sites.settle().await;
            let (misses, fills) = (gateway.reads()[2], gateway.fills());
            assert!(misses == 7 && fills == misses, "{misses} misses, {fills} fills");
            sites.wipe_disks();
            for (number, len) in LENS.into_iter().enumerate() {
                let (key, whole) = (format!("{number}"), noise(len, number as u64));
                assert_eq!(gateway.whole(&key).await, whole);
                assert_eq!(
                    gateway.get(&key, from(len / 3, len / 2)).await,
                    whole[len / 3..len / 3 + len / 2]
                );
            }
            assert_eq!(gateway.reads()[1..], [0, misses, 0, 0], "{memory_sites} sites: only hits since");
        }
    });
}

#[test]
fn a_range_of_a_block_that_is_not_cached_is_read_alone_and_fills_the_block() {
    in_virtual_time(2, async |runtime| {
        let sites = Sites::new(&runtime, 6, 64);
        let gateway = sites.gateway().await;
        gateway.put("object", &noise(4 * MIB, 1)).await;
        assert_eq!(gateway.get("object", from(5, 10)).await, noise(4 * MIB, 1)[5..15]);
        sites.settle().await;
        assert_eq!((gateway.reads(), gateway.fills()), ([0, 0, 1, 0, 0], 1));
        sites.wipe_disks();
        assert_eq!(gateway.whole("object").await, noise(4 * MIB, 1));
    });
}

#[test]
fn a_block_of_which_only_parts_are_read_gets_more_parities_too() {
    in_virtual_time(3, async |runtime| {
        let sites = Sites::new(&runtime, 12, 64);
        let gateway = sites.gateway().await;
        gateway.put("object", &noise(4 * MIB, 1)).await;
        gateway.whole("object").await;
        sites.settle().await;
        let splits = sites.cached_splits().await.len();
        for second in 0..120 {
            assert_eq!(gateway.get("object", from(second, 10)).await, noise(4 * MIB, 1)[second..second + 10]);
            runtime.sleep(Duration::from_secs(1)).await;
        }
        let more = sites.cached_splits().await.len();
        assert!(more > splits, "{splits} splits, and {more} when it was popular");
        assert_eq!(gateway.reads(), [120, 0, 1, 0, 0], "what the gateway read for parities does not count");
    });
}

#[test]
fn an_overwrite_is_seen_at_once_through_every_gateway() {
    in_virtual_time(4, async |runtime| {
        let sites = Sites::new(&runtime, 4, 64);
        let (one, other) = (sites.gateway().await, sites.gateway().await);
        for version in 0..5 {
            let bytes = noise(2 * MIB, version);
            one.put("object", &bytes).await;
            for gateway in [&other, &one, &other] {
                assert_eq!(gateway.whole("object").await, bytes);
                sites.settle().await;
            }
        }
        assert_eq!(one.fills() + other.fills(), 5, "one for each version");
        assert_eq!(one.reads()[2] + other.reads()[2], 5);
    });
}

#[test]
fn many_readers_of_a_cold_block_fill_it_once() {
    in_virtual_time(5, async |runtime| {
        let sites = Sites::new(&runtime, 6, 64);
        let gateways = [sites.gateway().await, sites.gateway().await];
        let whole = noise(3 * MIB, 9);
        gateways[0].put("object", &whole).await;
        let reads = (0..64).map(|number| gateways[number % 2].whole("object"));
        assert!(join_all(reads).await.into_iter().all(|read| read == whole));
        sites.settle().await;
        assert_eq!(gateways.iter().map(Gateway::fills).sum::<u64>(), 1);
        let misses: u64 = gateways.iter().map(|gateway| gateway.reads()[2]).sum();
        assert_eq!(misses, 1, "the others have waited for it");
    });
}

/// Otherwise no gateway fills the block, and all of them wait for it.
#[test]
fn who_waits_for_a_process_that_has_died_fetches_in_its_place() {
    in_virtual_time(29, async |runtime| {
        let sites = Sites::new(&runtime, 6, 64);
        let (dead, one, other) = (sites.gateway().await, sites.gateway().await, sites.gateway().await);
        let block = [MemoryBlock { content: 7 << 64, len: MIB as u32, crc32c: None, placed: None }];
        let granted = dead.cache.look_up(&block, true).await.pop();
        assert!(matches!(granted, Some(BlockLookup::Granted(_))));
        // The process never reports that it gave up.
        std::mem::forget(granted);
        runtime.sleep(Duration::from_secs(1)).await;
        let Some(BlockLookup::Granted(fill)) = one.cache.look_up(&block, true).await.pop() else {
            panic!("the right passes on")
        };
        let bytes = noise(MIB, 1);
        let share = one.client.stripes().budget().acquire(MIB).await.unwrap();
        fill.fill(vec![bytes.clone().into()], share);
        assert!(matches!(other.cache.look_up(&block, true).await[..], [BlockLookup::There]));
        let read = other.cache.read(&block[0], 0..MIB as u32).await.unwrap();
        assert_eq!(read.blocks[0].concat(), bytes);
    });
}

/// Otherwise no gateway fills the block for ten seconds, and each read through another gateway waits half a second.
#[test]
fn a_read_that_comes_to_nothing_makes_way_for_another_to_fill() {
    in_virtual_time(34, async |runtime| {
        let mut sites = Sites::new(&runtime, 6, 64);
        let other = sites.gateway().await;
        other.put("object", &noise(4 * MIB, 1)).await;
        // This gateway reaches no disk.
        let durable = std::mem::take(&mut sites.durable);
        let one = sites.gateway().await;
        sites.durable = durable;
        one.get_in(BUCKET, "object", ReadRange::Whole).await.unwrap_err();
        sites.settle().await;
        let began = runtime.now();
        assert!(other.whole("object").await == noise(4 * MIB, 1));
        let took = runtime.now() - began;
        assert!(took < Duration::from_millis(100), "{took:?}");
        sites.settle().await;
        assert_eq!((one.cache.filling(), one.fills(), other.fills()), (0, 0, 1));
    });
}

#[test]
fn batches_read_from_memory_and_from_disks_in_one_query() {
    in_virtual_time(8, async |runtime| {
        let sites = Sites::new(&runtime, 6, 64);
        let gateway = sites.gateway().await;
        let whole = |number: usize| noise(70_000 + number, number as u64);
        for number in 0..20 {
            gateway.put(&format!("{number}"), &whole(number)).await;
        }
        for number in (0..20).step_by(2) {
            gateway.whole(&format!("{number}")).await;
        }
        sites.settle().await;
        let before = gateway.reads();
        let request = |number: usize| GetRequest {
            bucket: BUCKET.to_owned(),
            key: format!("{number}"),
            ..GetRequest::default()
        };
        let parts = gateway.client.read_many((0..20).map(request).collect(), ReadOrder::Requests);
        let parts: Vec<_> = parts.collect().await;
        for (number, (position, part)) in parts.into_iter().enumerate() {
            assert_eq!((position, part.unwrap().pieces.concat()), (number, whole(number)));
        }
        let after = gateway.reads();
        assert_eq!((after[0] - before[0], after[2] - before[2]), (10, 10));
    });
}

#[test]
fn a_read_that_fails_is_an_error_of_the_bytes_that_were_asked_for() {
    in_virtual_time(9, async |runtime| {
        let sites = Sites::new(&runtime, 1, 64);
        let gateway = sites.gateway().await;
        gateway.put("object", &noise(MIB, 1)).await;
        sites.wipe_disks();
        assert!(gateway.get_in(BUCKET, "object", from(5, 10)).await.is_err());
        assert_eq!(gateway.reads(), [0, 0, 0, 0, 1]);
        assert_eq!(gateway.cache.counts().reads(ReadOutcome::Error), (1, 10));
    });
}

#[test]
fn what_is_written_comes_from_memory_where_writes_are_cached() {
    in_virtual_time(10, async |runtime| {
        for (fills_writes, fills) in [(true, 4), (false, 0)] {
            let sites = Sites::new(&runtime, 6, 64);
            let gateway =
                sites.gateway_with(CacheSettings { fills_writes, ..CacheSettings::default() }).await;
            gateway.put("small", &noise(100_000, 1)).await;
            gateway.put("large", &noise(9 * MIB, 2)).await;
            sites.settle().await;
            assert_eq!(gateway.fills(), fills);
            if fills_writes {
                sites.wipe_disks();
                assert_eq!(gateway.whole("small").await, noise(100_000, 1));
                assert_eq!(gateway.whole("large").await, noise(9 * MIB, 2));
                assert_eq!(gateway.reads()[1..], [0; 4]);
            }
        }
    });
}

#[test]
fn services_read_past_the_cache_and_leave_no_trace_in_it() {
    in_virtual_time(11, async |runtime| {
        let sites = Sites::new(&runtime, 6, 64);
        let gateway = sites.gateway().await;
        gateway.put("object", &noise(2 * MIB, 1)).await;
        let blocks = gateway.client.blocks_of(BUCKET, "object").await.unwrap();
        let spans: Vec<Span> = blocks.into_iter().map(Span::whole).collect();
        let service = gateway.client.stripes().past_cache();
        assert_eq!(service.read_spans(&spans).await.unwrap().blocks.concat().concat(), noise(2 * MIB, 1));
        sites.settle().await;
        assert_eq!((gateway.reads(), gateway.fills()), ([0; 5], 0));
        gateway.whole("object").await;
        sites.settle().await;
        sites.wipe_disks();
        assert!(service.read_spans(&spans).await.is_err(), "it is on no disk any more");
        assert_eq!(gateway.whole("object").await, noise(2 * MIB, 1));
    });
}

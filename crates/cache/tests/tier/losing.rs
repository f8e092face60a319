//! Lost splits: parities replace them, memory sites come back empty, and evicted blocks are filled again.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use striate_cache::{BlockLookup, CacheSettings, ReadOutcome};
use striate_client::ReadRange;
use striate_site::ChunkStore;
use striate_stripe::MemoryBlock;

use crate::fixture::*;

#[test]
fn what_is_missing_comes_from_parities_or_from_where_it_is_kept_and_is_there_again_afterwards() {
    in_virtual_time(3, async |runtime| {
        let sites = Sites::new(&runtime, 8, 64);
        let settings = CacheSettings { refill_bytes_per_s: 0, ..CacheSettings::default() };
        let gateway = sites.gateway_with(settings).await;
        let whole = noise(4 * MIB, 1);
        gateway.put("object", &whole).await;
        gateway.whole("object").await;
        sites.settle().await;
        let splits = sites.cached_splits().await;
        assert_eq!(
            splits.iter().map(|(_, split)| split.index).collect::<std::collections::BTreeSet<_>>().len(),
            5
        );
        let of = |index: u8| *splits.iter().find(|(_, split)| split.index == index).unwrap();
        // One split is missing: the parity replaces it.
        sites.remove(of(1)).await;
        assert_eq!(gateway.whole("object").await, whole);
        assert_eq!(gateway.reads(), [1, 0, 1, 0, 0]);
        // Two are missing: one has to come from the disks, and only one.
        sites.remove(of(2)).await;
        assert_eq!(gateway.whole("object").await, whole);
        assert_eq!(gateway.reads(), [1, 1, 1, 0, 0]);
        let cached = gateway.cache.counts().cached_bytes.load(Ordering::Relaxed);
        assert_eq!(cached as usize, 4 * MIB + 2 * MIB, "two data splits were there");
        sites.settle().await;
        let again = sites.cached_splits().await;
        assert!((0..5).all(|index| again.iter().any(|(_, split)| split.index == index)), "{again:?}");
        sites.wipe_disks();
        assert_eq!(gateway.whole("object").await, whole);
    });
}

/// Caches objects of four splits and a parity. Then wipes the disks and restarts a memory site empty.
async fn restart_a_memory_site(sites: &Sites, gateways: &[&Gateway], objects: u64) {
    for number in 0..objects {
        gateways[0].put(&number.to_string(), &noise(4 * MIB, number)).await;
        for gateway in gateways {
            gateway.whole(&number.to_string()).await;
            sites.settle().await;
        }
    }
    sites.wipe_disks();
    for split in sites.cached_splits().await.into_iter().filter(|(site, _)| *site == 3) {
        sites.remove(split).await;
    }
}

async fn data_splits(sites: &Sites) -> usize {
    sites.cached_splits().await.iter().filter(|(_, split)| split.index < 4).count()
}

#[test]
fn a_memory_site_that_comes_back_empty_gets_what_is_read_from_its_peers() {
    // With and without reports of reads to the homes meanwhile, and for whole objects and parts.
    for (pause, len) in [(0, 4 * MIB), (6, 4 * MIB), (0, 100)] {
        in_virtual_time(30, async |runtime| {
            let sites = Sites::new(&runtime, 8, 256);
            let (one, other) = (sites.gateway().await, sites.gateway().await);
            restart_a_memory_site(&sites, &[&one, &other], 10).await;
            let lost = 10 * 4 - data_splits(&sites).await;
            assert!(lost > 2, "{lost} splits were on it");
            runtime.sleep(Duration::from_secs(pause)).await;
            for gateway in [&one, &other, &one] {
                for number in 0..10u64 {
                    let whole = noise(4 * MIB, number);
                    // Read a part of each split in turn: only a reader of a missing split learns of the loss.
                    for first in (0..4 * MIB).step_by(MIB.max(len)) {
                        let (start, end) = (first as u64, (first + len) as u64);
                        let range = ReadRange::Bytes { first: start, last: Some(end - 1) };
                        let read = gateway.get(&number.to_string(), range).await;
                        assert!(read == whole[first..first + len]);
                    }
                    runtime.sleep(Duration::from_millis(500)).await;
                }
            }
            assert_eq!(data_splits(&sites).await, 10 * 4);
        });
    }
}

#[test]
fn lost_splits_are_written_again_within_a_bound() {
    in_virtual_time(31, async |runtime| {
        let sites = Sites::new(&runtime, 8, 256);
        let settings = CacheSettings { refill_bytes_per_s: 4 << 20, ..CacheSettings::default() };
        let gateway = sites.gateway_with(settings).await;
        restart_a_memory_site(&sites, &[&gateway], 10).await;
        let mut left = data_splits(&sites).await;
        for number in 0..10u64 {
            assert!(gateway.whole(&number.to_string()).await == noise(4 * MIB, number));
        }
        sites.settle().await;
        let more = data_splits(&sites).await - left;
        assert!((1..=2).contains(&more), "a block a second, and one second ahead: {more}");
        left += more;
        for _ in 0..3 {
            runtime.sleep(Duration::from_secs(1)).await;
            for number in 0..10u64 {
                assert!(gateway.whole(&number.to_string()).await == noise(4 * MIB, number));
            }
            sites.settle().await;
        }
        assert!((2..=4).contains(&(data_splits(&sites).await - left)));
    });
}

/// The home is asked from time to time, and says that the block is absent. Its peers have it all the same.
#[test]
fn a_home_that_has_forgotten_a_block_gets_its_split_from_peers() {
    in_virtual_time(32, async |runtime| {
        let sites = Sites::new(&runtime, 8, 64);
        let gateway = sites.gateway().await;
        let whole = noise(4 * MIB, 1);
        gateway.put("object", &whole).await;
        gateway.whole("object").await;
        sites.settle().await;
        let first = sites.cached_splits().await.into_iter().find(|(_, split)| split.index == 0).unwrap();
        sites.remove(first).await;
        sites.wipe_disks();
        runtime.sleep(Duration::from_secs(6)).await;
        // This range is not in the missing split.
        let range = ReadRange::Bytes { first: 2 * MIB as u64, last: Some(2 * MIB as u64 + 9) };
        assert_eq!(gateway.get("object", range).await, whole[2 * MIB..2 * MIB + 10]);
        sites.settle().await;
        assert!(sites.cached_splits().await.contains(&first));
        assert_eq!(gateway.whole("object").await, whole);
    });
}

#[test]
fn what_was_evicted_is_filled_again_when_it_is_read() {
    in_virtual_time(16, async |runtime| {
        for (memory_sites, len) in [(1, 300_000), (1, 4 * MIB), (6, 300_000), (6, 4 * MIB)] {
            let sites = Sites::new(&runtime, memory_sites, 64);
            let gateway = sites.gateway().await;
            let whole = noise(len, 1);
            gateway.put("object", &whole).await;
            gateway.whole("object").await;
            sites.settle().await;
            for (range, wanted) in
                [(ReadRange::Whole, &whole[..]), (from(len / 2, 10), &whole[len / 2..][..10])]
            {
                let (before, fills) = (gateway.reads(), gateway.fills());
                for split in sites.cached_splits().await {
                    sites.remove(split).await;
                }
                let read = join_all((0..8).map(|_| gateway.get("object", range))).await;
                assert!(read.iter().all(|bytes| bytes == wanted));
                sites.settle().await;
                let [hits, partial, misses, ..] = gateway.reads();
                assert!(misses > before[2] && partial == before[1]);
                assert_eq!(gateway.fills(), fills + 1, "one of the eight fills it again");
                assert_eq!(gateway.whole("object").await, whole);
                assert_eq!(gateway.reads()[0], hits + 1, "{len} bytes on {memory_sites} sites");
            }
        }
    });
}

/// Where a site does not answer, its splits are looked for elsewhere. All others are where they were.
#[test]
fn without_one_memory_site_parities_stand_in_for_its_splits_alone() {
    for sites_in_all in [6, 8] {
        in_virtual_time(61, async |runtime| {
            let sites = Sites::new(&runtime, sites_in_all, 64);
            let gateway = sites.gateway().await;
            for number in 0..12 {
                gateway.put(&number.to_string(), &noise(4 * MIB, number)).await;
                gateway.whole(&number.to_string()).await;
                sites.settle().await;
            }
            sites.wipe_disks();
            for away in 0..sites_in_all as usize {
                gateway.let_answer(&sites, |at| at != away);
                let hits = gateway.reads()[0];
                for number in 0..12 {
                    assert_eq!(gateway.whole(&number.to_string()).await, noise(4 * MIB, number), "{away}");
                }
                assert_eq!(gateway.reads()[0], hits + 12, "without site {away} of {sites_in_all}");
            }
            gateway.let_answer(&sites, |_| false);
            assert_eq!(gateway.cache.missed(), ReadOutcome::Bypass, "members that are silent serve nothing");
        });
    }
}

#[test]
fn memory_sites_may_vanish_come_back_empty_and_change() {
    in_virtual_time(6, async |runtime| {
        let sites = Sites::new(&runtime, 7, 64);
        let gateway = sites.gateway().await;
        let whole = |number: u64| noise(4 * MIB, number);
        for number in 0..6 {
            gateway.put(&format!("{number}"), &whole(number)).await;
        }
        for round in 0..12 {
            for number in 0..6 {
                assert_eq!(gateway.whole(&format!("{number}")).await, whole(number), "round {round}");
            }
            sites.settle().await;
            let live: Vec<_> = sites.memory.iter().skip(round % 5).step_by(1 + round % 2).cloned().collect();
            gateway.use_memory(&live);
            let page = sites.caches[round % 7].list(None, 1_000).await.unwrap();
            for info in page.chunks {
                sites.remove((round % 7, info.chunk)).await;
            }
        }
        gateway.use_memory(&[]);
        let before = gateway.reads()[3];
        assert_eq!(gateway.whole("0").await, whole(0));
        assert_eq!(gateway.reads()[3], before + 1, "passed by");
    });
}

#[test]
fn a_full_tier_keeps_serving() {
    in_virtual_time(7, async |runtime| {
        let sites = Sites::new(&runtime, 3, 16);
        let gateway = sites.gateway().await;
        let whole = |number: u64| noise(3 * MIB, number);
        for number in 0..40 {
            gateway.put(&format!("{number}"), &whole(number)).await;
        }
        for round in 0..3 {
            for number in 0..40 {
                assert_eq!(gateway.whole(&format!("{number}")).await, whole(number), "round {round}");
            }
        }
        sites.settle().await;
        for cache in &sites.caches {
            let view = cache.view();
            assert!(view.charged_bytes <= view.bound_bytes && view.evicted_data > 0, "{view:?}");
        }
    });
}

/// Otherwise a gateway that is short of memory fetches again what is in the tier.
#[test]
fn a_block_that_there_is_no_memory_to_read_into_is_not_lost() {
    in_virtual_time(37, async |runtime| {
        let sites = Sites::new(&runtime, 6, 64);
        let gateway = sites.gateway().await;
        let block = [MemoryBlock { content: 7 << 64, len: MIB as u32, crc32c: None, placed: None }];
        let Some(BlockLookup::Granted(fill)) = gateway.cache.look_up(&block, true).await.pop() else {
            panic!("nobody fills it")
        };
        fill.fill(vec![noise(MIB, 1).into()], ());
        sites.settle().await;
        let budget = gateway.client.stripes().budget();
        let all = budget.try_acquire(budget.total()).unwrap();
        let missed = gateway.cache.read(&block[0], 0..MIB as u32).await.unwrap_err();
        assert!(missed.parts.is_empty() && missed.fill.is_none());
        drop(all);
        assert!(gateway.cache.knows(&block[0]));
        let read = gateway.cache.read(&block[0], 0..MIB as u32).await.unwrap();
        assert_eq!(read.blocks[0].concat(), noise(MIB, 1));
    });
}

//! Explanations of the state of blocks in the tier.

use std::sync::atomic::Ordering;

use striate_cache::BlockLookup;
use striate_stripe::{BlockCache, MemoryBlock, Span, StoredBytes};

use crate::fixture::*;

#[test]
fn an_explanation_says_what_is_in_memory() {
    in_virtual_time(9, async |runtime| {
        let sites = Sites::new(&runtime, 6, 64);
        let gateway = sites.gateway().await;
        gateway.put("object", &noise(4 * MIB, 1)).await;
        let stripes = gateway.client.stripes();
        let blocks = gateway.client.blocks_of(BUCKET, "object").await.unwrap();
        let spans: Vec<Span> = blocks.into_iter().map(Span::whole).collect();
        let explain = async || {
            let explained = stripes.explain(&spans, &stripes.options().read_policy).await.unwrap();
            explained.blocks[0].cached.clone().unwrap()
        };
        let before = explain().await;
        gateway.whole("object").await;
        sites.settle().await;
        let mut splits = sites.cached_splits().await;
        splits.sort_unstable_by_key(|(_, split)| split.index);
        let at: Vec<String> = splits.iter().map(|(site, _)| (101 + site).to_string()).collect();
        assert_eq!(
            before,
            format!(
                "not in memory, as far as this gateway knows, which has not read it recently; its home is memory site {}",
                at[0]
            )
        );
        assert_eq!(
            explain().await,
            format!("in memory: 4 data splits and 1 parity, on memory sites {}", at.join(", "))
        );
        sites.remove(splits[1]).await;
        assert_eq!(
            explain().await,
            format!(
                "in memory: 4 data splits and 1 parity, on memory sites {}; 4 of 5 are still there",
                at.join(", ")
            )
        );
        for split in splits {
            sites.remove(split).await;
        }
        assert_eq!(explain().await, "not in memory any more: evicted, or lost with a memory site");
        gateway.use_memory(&[]);
        assert_eq!(explain().await, "not in memory: no memory site answers");
    });
}

#[test]
fn an_explanation_says_why_a_block_was_not_cached() {
    in_virtual_time(9, async |runtime| {
        let sites = Sites::new(&runtime, 1, 64);
        let gateway = sites.gateway().await;
        let block = [MemoryBlock { content: 7 << 64, len: MIB as u32, crc32c: None, placed: None }];
        let spans = block.clone().map(|block| Span::whole(StoredBytes::Memory(block)));
        let granted = async || match gateway.cache.look_up(&block, true).await.remove(0) {
            BlockLookup::Granted(fill) => fill,
            other => panic!("nobody fills it: {other:?}"),
        };
        let explained = async || {
            sites.settle().await;
            let given_up = gateway.cache.counts().given_up.load(Ordering::Relaxed);
            (gateway.cache.explain(&spans).await.remove(0).text, given_up)
        };
        drop(granted().await);
        let unknown = "not in memory, as far as this gateway knows, which has not read it recently";
        assert_eq!(explained().await, (unknown.to_owned(), 0), "it was not needed");
        granted().await.begin_read();
        let not_read = "not in memory: given up, since it was not read to its end";
        assert_eq!(explained().await, (not_read.to_owned(), 1));
        granted().await.give_up_for_room();
        let no_room = "not in memory: given up, since too many other blocks were on their way";
        assert_eq!(explained().await, (no_room.to_owned(), 2));
    });
}

//! Blocks of other stores that take long to fetch.

use std::time::Duration;

use futures::future::{join, join3};
use striate_cache::{BlockFill, BlockLookup};
use striate_stripe::MemoryBlock;

use crate::fixture::*;

const BLOCK: [MemoryBlock; 1] =
    [MemoryBlock { content: 7 << 64, len: MIB as u32, crc32c: None, placed: None }];

impl Gateway {
    async fn look_up(&self) -> BlockLookup {
        self.cache.look_up(&BLOCK, true).await.remove(0)
    }

    async fn granted(&self) -> BlockFill {
        match self.look_up().await {
            BlockLookup::Granted(fill) => fill,
            other => panic!("nobody fetches it: {other:?}"),
        }
    }
}

#[test]
fn readers_wait_as_long_as_bytes_of_their_block_arrive() {
    in_virtual_time(51, async |runtime| {
        let sites = Sites::new(&runtime, 6, 64);
        let (one, other) = (sites.gateway().await, sites.gateway().await);
        let mut fill = one.granted().await;
        let fetch = async {
            for _ in 0..20 {
                runtime.sleep(Duration::from_secs(4)).await;
                fill.renew();
            }
            fill.fill(vec![noise(MIB, 1).into()], ());
        };
        let ((), of_one, of_other) = join3(fetch, one.look_up(), other.look_up()).await;
        for lookup in [of_one, of_other] {
            assert!(matches!(lookup, BlockLookup::There), "{lookup:?}");
        }
        assert_eq!((one.fills(), other.fills()), (1, 0));
    });
}

#[test]
fn a_fetch_that_stands_still_passes_to_one_of_those_that_wait() {
    in_virtual_time(52, async |runtime| {
        let sites = Sites::new(&runtime, 6, 64);
        let (one, other) = (sites.gateway().await, sites.gateway().await);
        let _still = one.granted().await;
        let fetched = async |gateway: &Gateway| match gateway.look_up().await {
            BlockLookup::Granted(fill) => {
                runtime.sleep(Duration::from_secs(2)).await;
                fill.fill(vec![noise(MIB, 1).into()], ());
                true
            }
            BlockLookup::There => false,
            other => panic!("others fetch it: {other:?}"),
        };
        let (by_one, by_other) = join(fetched(&one), fetched(&other)).await;
        assert!(by_one != by_other, "{by_one} and {by_other}");
    });
}

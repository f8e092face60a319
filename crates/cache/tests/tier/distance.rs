//! Memory sites behind a network: bytes take time, while a missing split is reported at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use striate_cache::{BlockLookup, CacheSettings};
use striate_core::{ChunkId, LoadReport, RackId, SiteId};
use striate_runtime::Runtime;
use striate_site::{
    AssembleRequest, ChunkInfo, ChunkPage, CombineRequest, DeleteRequest, ReadReply, ReadRequest, ReadStream,
    Site, SiteError, SiteStatus, SliceStream, Tend, Tended, WriteRequest,
};
use striate_stripe::{MemoryBlock, Span};

use crate::fixture::*;

/// Time that a split takes.
const TRANSFER: Duration = Duration::from_millis(10);
/// Time that a split takes whose site hangs.
const HANG: Duration = Duration::from_secs(3_600);

/// A memory site behind a network.
#[derive(Debug)]
struct DistantSite {
    site: Arc<dyn Site>,
    runtime: Runtime,
    delays: Arc<Delays>,
}

/// What is slow at all distant sites.
#[derive(Debug, Default)]
struct Delays {
    /// Number of splits that hang, of those that are sent next.
    hanging: AtomicUsize,
    /// Milliseconds that a home takes to answer.
    home_ms: AtomicU64,
}

impl DistantSite {
    /// Moves all memory sites behind a network.
    fn replace_memory(sites: &mut Sites) -> Arc<Delays> {
        let delays = Arc::new(Delays::default());
        for site in &mut sites.memory {
            let (runtime, delays) = (sites.runtime.clone(), delays.clone());
            *site = Arc::new(Self { site: site.clone(), runtime, delays });
        }
        delays
    }
}

#[async_trait]
impl Site for DistantSite {
    fn id(&self) -> SiteId {
        self.site.id()
    }

    fn rack(&self) -> RackId {
        self.site.rack()
    }

    fn last_load(&self) -> LoadReport {
        self.site.last_load()
    }

    fn knows_its_load(&self) -> bool {
        self.site.knows_its_load()
    }

    fn read(&self, request: ReadRequest) -> ReadStream {
        let (runtime, delays) = (self.runtime.clone(), self.delays.clone());
        let delayed = move |reply: ReadReply| {
            let (runtime, delays) = (runtime.clone(), delays.clone());
            async move {
                if reply.result.is_ok() {
                    let next = |left: usize| left.checked_sub(1);
                    let hangs =
                        delays.hanging.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok();
                    runtime.sleep(if hangs { HANG } else { TRANSFER }).await;
                }
                reply
            }
        };
        Box::pin(self.site.read(request).then(delayed))
    }

    async fn write(&self, request: WriteRequest) -> Result<LoadReport, SiteError> {
        self.site.write(request).await
    }

    async fn delete(&self, request: DeleteRequest) -> Result<LoadReport, SiteError> {
        self.site.delete(request).await
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        self.site.list(from, limit).await
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        self.site.verify(chunk).await
    }

    fn combine(&self, request: CombineRequest) -> SliceStream {
        self.site.combine(request)
    }

    async fn assemble(&self, request: AssembleRequest) -> Result<LoadReport, SiteError> {
        self.site.assemble(request).await
    }

    async fn tend(&self, blocks: Vec<Tend>) -> Result<Vec<Tended>, SiteError> {
        let home_ms = self.delays.home_ms.load(Ordering::Relaxed);
        self.runtime.sleep(Duration::from_millis(home_ms)).await;
        self.site.tend(blocks).await
    }

    async fn status(&self) -> Result<SiteStatus, SiteError> {
        self.site.status().await
    }
}

/// Removes all splits with these indices.
async fn lose(sites: &Sites, is_lost: impl Fn(u8) -> bool) {
    for split in sites.cached_splits().await.into_iter().filter(|(_, split)| is_lost(split.index)) {
        sites.remove(split).await;
    }
}

/// Fills the tier with a block that is on no disk, in four splits.
async fn fill_foreign_block(sites: &Sites, gateway: &Gateway, bytes: &[u8]) -> MemoryBlock {
    let block = MemoryBlock { content: 7 << 64, len: bytes.len() as u32, crc32c: None, placed: None };
    let lookup = gateway.cache.look_up(std::slice::from_ref(&block), true).await.pop();
    let Some(BlockLookup::Granted(fill)) = lookup else { panic!("it is not in memory") };
    fill.fill(vec![bytes.to_vec().into()], ());
    sites.settle().await;
    block
}

#[test]
fn all_that_is_there_of_a_block_is_returned_however_soon_a_split_is_known_to_be_missing() {
    in_virtual_time(41, async |runtime| {
        let mut sites = Sites::new(&runtime, 6, 64);
        DistantSite::replace_memory(&mut sites);
        let gateway = sites.gateway().await;
        let whole = noise(4 * MIB, 1);
        let block = fill_foreign_block(&sites, &gateway, &whole).await;
        lose(&sites, |index| index == 2 || index >= 4).await;
        let missed = gateway.cache.read(&block, 0..block.len).await.unwrap_err();
        let ranges: Vec<_> = missed.parts.iter().map(|(range, _)| range.clone()).collect();
        let mib = MIB as u32;
        assert_eq!(ranges, [0..mib, mib..2 * mib, 3 * mib..4 * mib]);
        for (range, bytes) in missed.parts {
            assert!(bytes.concat() == whole[range.start as usize..range.end as usize]);
        }
    });
}

#[test]
fn a_block_that_is_partly_there_is_one_read_which_its_reader_counts() {
    in_virtual_time(43, async |runtime| {
        let mut sites = Sites::new(&runtime, 6, 64);
        DistantSite::replace_memory(&mut sites);
        let gateway = sites.gateway().await;
        let whole = noise(4 * MIB, 1);
        let block = fill_foreign_block(&sites, &gateway, &whole).await;
        lose(&sites, |index| index == 2 || index >= 4).await;
        let missed = gateway.cache.read(&block, 0..block.len).await.unwrap_err();
        assert_eq!((missed.parts.len(), gateway.reads()), (3, [0; 5]));
        gateway.cache.fetched(block.len.into(), 3 * MIB as u64);
        assert_eq!(gateway.reads(), [0, 1, 0, 0, 0]);
        let cached = gateway.cache.counts().cached_bytes.load(Ordering::Relaxed);
        assert_eq!(cached as usize, 3 * MIB);
    });
}

#[test]
fn only_what_memory_lacks_is_read_from_disks_unless_a_site_is_late() {
    for (hanging_splits, mib_from_memory, least, most) in
        [(0, 3, TRANSFER, TRANSFER * 5), (1, 2, TRANSFER * 25, TRANSFER * 30)]
    {
        in_virtual_time(42, async |runtime| {
            let mut sites = Sites::new(&runtime, 6, 64);
            let delays = DistantSite::replace_memory(&mut sites);
            let gateway = sites.gateway().await;
            let whole = noise(4 * MIB, 1);
            gateway.put("object", &whole).await;
            gateway.whole("object").await;
            sites.settle().await;
            lose(&sites, |index| index == 1 || index >= 4).await;
            delays.hanging.store(hanging_splits, Ordering::Relaxed);
            let began = runtime.now();
            assert!(gateway.whole("object").await == whole);
            let took = runtime.now() - began;
            assert!((least..most).contains(&took), "{took:?}");
            assert_eq!(gateway.reads(), [0, 1, 1, 0, 0]);
            let cached = gateway.cache.counts().cached_bytes.load(Ordering::Relaxed);
            assert_eq!(cached as usize, mib_from_memory * MIB);
        });
    }
}

/// Of ten splits, those that hang are the last. Their sites are silent for less than the hedge time, and no split of
/// this length was read before.
#[test]
fn others_are_requested_instead_of_the_last_splits_soon_after_the_rest_has_come() {
    for (hanging_splits, parities) in [(2, 3), (1, 1)] {
        in_virtual_time(44, async |runtime| {
            let mut sites = Sites::new(&runtime, 10 + parities as u32, 64);
            let delays = DistantSite::replace_memory(&mut sites);
            let settings = CacheSettings { split_bytes: 10_000, ..CacheSettings::default() };
            let gateway = sites.gateway_by("adaptive", settings).await;
            let stripes = gateway.client.stripes();
            let read = async |bytes: &[u8]| {
                let block = stripes.keep_in_memory(bytes.to_vec().into(), 10, parities).await.unwrap();
                let (span, began, mut read) = ([Span::whole(block)], runtime.now(), Vec::new());
                let stats = stripes.read_ahead(&span, |_, pieces| read = pieces.concat()).await.unwrap();
                assert!(read == bytes);
                (stats, runtime.now() - began)
            };
            // Earlier reads pay for the hedge.
            for seed in 0..2 {
                let (stats, _) = read(&noise(100_000, seed)).await;
                assert_eq!((stats.chunks, stats.hedged_chunks), (10, 0));
            }
            delays.hanging.store(hanging_splits, Ordering::Relaxed);
            let (stats, took) = read(&noise(4_000_000, 2)).await;
            assert_eq!((stats.chunks, stats.hedged_chunks), (10 + hanging_splits, hanging_splits));
            assert!(took < TRANSFER * 3, "{took:?}");
        });
    }
}

/// The homes of blocks of this store are given up sooner: their disks are near.
#[test]
fn readers_of_a_block_of_another_store_wait_for_a_home_that_is_slow() {
    in_virtual_time(63, async |runtime| {
        let mut sites = Sites::new(&runtime, 6, 64);
        DistantSite::replace_memory(&mut sites).home_ms.store(300, Ordering::Relaxed);
        let (one, other) = (sites.gateway().await, sites.gateway().await);
        let block = [MemoryBlock { content: 7 << 64, len: MIB as u32, crc32c: None, placed: None }];
        let Some(BlockLookup::Granted(fill)) = one.cache.look_up(&block, true).await.pop() else {
            panic!("nobody fetches it")
        };
        let fetch = async {
            runtime.sleep(Duration::from_secs(3)).await;
            fill.fill(vec![noise(MIB, 1).into()], ());
        };
        let ((), found) = futures::future::join(fetch, other.cache.look_up(&block, true)).await;
        assert!(matches!(found[..], [BlockLookup::There]), "{found:?}");
        one.put("own", &noise(MIB, 2)).await;
        let began = runtime.now();
        assert_eq!(one.whole("own").await, noise(MIB, 2));
        assert!(runtime.now() - began < Duration::from_millis(100));
    });
}

//! The site in this process, over disks that hang.

use std::path::Path;
use std::time::Duration;

use futures::FutureExt;
use striate_core::{ClusterId, FencingEpoch};
use striate_runtime::run_in_virtual_time;

use super::*;
use crate::disk::{DiskStore, DiskStoreOptions};
use crate::filesystem::SimulatedFileSystem;
use crate::store::StoreStatus;
use crate::transport_conformance::{chunk, payload};

/// A disk that accepts everything and never replies.
#[derive(Debug)]
struct Hung;

#[async_trait]
impl ChunkStore for Hung {
    async fn write(&self, _: ChunkId, _: Bytes, _: Option<Arc<[u32]>>) -> Result<(), SiteError> {
        std::future::pending().await
    }

    async fn read(&self, _: ChunkRange) -> Result<Bytes, SiteError> {
        std::future::pending().await
    }

    fn try_read(&self, _: ChunkRange) -> Option<Result<Bytes, SiteError>> {
        None
    }

    async fn delete(&self, _: &[ChunkId], _: FencingEpoch) -> Result<(), SiteError> {
        std::future::pending().await
    }

    async fn list(&self, _: Option<ChunkId>, _: usize) -> Result<ChunkPage, SiteError> {
        std::future::pending().await
    }

    async fn verify(&self, _: ChunkId) -> Result<ChunkInfo, SiteError> {
        std::future::pending().await
    }

    fn status(&self) -> StoreStatus {
        StoreStatus::default()
    }
}

fn site(runtime: &Runtime, store: Arc<dyn ChunkStore>, limits: QueueLimits) -> LocalSite {
    let identity = SiteIdentity { cluster: ClusterId(1), site: SiteId(1), rack: RackId("rack".to_owned()) };
    LocalSite::new(runtime.clone(), identity, store, limits)
}

#[test]
fn a_disk_that_hangs_holds_up_nobody_for_longer_than_a_site_elsewhere() {
    run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
        let site = site(&runtime, Arc::new(Hung), QueueLimits::default());
        let begun = runtime.now();
        let delete = DeleteRequest { chunks: vec![chunk(1)], epoch: FencingEpoch(1) };
        let (deleted, listed, verified, products) = futures::join!(
            site.delete(delete),
            site.list(None, 10),
            site.verify(chunk(1)),
            site.products(chunk(1), 100),
        );
        assert_eq!(deleted.err(), Some(SiteError::Deadline));
        assert_eq!(listed.err(), Some(SiteError::Deadline));
        assert_eq!(verified.err(), Some(SiteError::Deadline));
        assert_eq!(products.err(), Some(SiteError::Deadline));
        assert_eq!(runtime.now() - begun, REPLY_TIMEOUT);
    });
}

#[test]
fn verifying_is_admitted_as_background_reads_are() {
    run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
        let limits = QueueLimits { bytes: 4 * VERIFY_BYTES, ..QueueLimits::default() };
        let site = site(&runtime, Arc::new(Hung), limits);
        let mut waiting: Vec<_> = (0..2).map(|number| site.verify(chunk(number))).collect();
        assert!(waiting.iter_mut().all(|verified| verified.now_or_never().is_none()));
        let load = site.last_load();
        assert_eq!((load.queue_requests, load.queue_bytes), (0, 2 * VERIFY_BYTES), "nobody yields to it");
        assert_eq!(site.verify(chunk(3)).await, Err(SiteError::Busy), "half of the bound");
        drop(waiting);
        assert_eq!(site.last_load().queue_bytes, 0);
    });
}

fn write_request(number: u64, len: usize) -> WriteRequest {
    let (chunk, payload) = (chunk(number), payload(number, len));
    WriteRequest { chunk, payload, granule_crcs: None, priority: Priority::Foreground }
}

/// Callers give up long before a hung disk recovers. Meanwhile the bytes that they gave it stay in memory.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_disk_that_hangs_was_given_counts_until_it_goes_on() {
    let (runtime, fs) = (Runtime::real(), SimulatedFileSystem::new(1, 1 << 30));
    let options = DiskStoreOptions { reserve_bytes: Some(0), ..DiskStoreOptions::default() };
    let store = DiskStore::open(&runtime, Arc::new(fs.clone()), Path::new("/disk"), options).expect("opened");
    let store = Arc::new(store);
    let limits = QueueLimits { requests: 5, ..QueueLimits::default() };
    let site = site(&runtime, Arc::clone(&store) as Arc<dyn ChunkStore>, limits);
    site.write(write_request(1, 1_000)).await.expect("written");
    let mut hang = fs.hold_next_sync();
    let writing = site.clone();
    let waits = runtime.spawn(async move { writing.write(write_request(2, 1_000)).await });
    hang.begun().await;
    for number in 3..=5 {
        assert!(site.write(write_request(number, 1_000)).now_or_never().is_none(), "it waits");
    }
    let delete = DeleteRequest { chunks: vec![chunk(1)], epoch: FencingEpoch(1) };
    assert!(site.delete(delete).now_or_never().is_none(), "it waits");
    let refused = site.write(write_request(6, 1_000)).now_or_never().expect("an answer at once");
    assert_eq!(refused, Err(SiteError::Busy));
    let load = site.last_load();
    assert_eq!((load.queue_requests, load.queue_bytes), (5, 4_000));
    drop(hang);
    waits.await.expect("it ends").expect("written");
    store.close().await.expect("closed");
    assert_eq!(store.status().chunks, 2, "what nobody waited for is not done");
    let load = site.last_load();
    assert_eq!((load.queue_requests, load.queue_bytes), (0, 0));
}

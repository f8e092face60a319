//! The site in this process over disks that hang.

use std::time::Duration;

use striate_core::{ClusterId, FencingEpoch};
use striate_runtime::run_in_virtual_time;

use super::*;
use crate::store::StoreStatus;
use crate::transport_conformance::chunk;

/// A disk that takes everything and answers nothing.
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

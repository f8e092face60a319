//! I8 at every delete that reaches a store, from any sender and however late: no committed stripe names the chunk
//! when the delete begins, and what a stripe names there still exists when the delete has ended.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use striate_core::{ChunkId, ChunkRange, FencingEpoch, Generation, SiteId};
use striate_meta::keys;
use striate_meta::records::Stripe;
use striate_site::{ChunkInfo, ChunkPage, ChunkStore, DiskStore, SiteError, StoreStatus};
use striate_stripe::own_locations;

use super::engine::EngineMachine;
use super::invariants::{Invariant, Violations};
use super::ledger::Ledger;

/// Knows which chunks a site must keep.
#[derive(Clone, Debug)]
pub struct Guard {
    site: SiteId,
    engine: Arc<EngineMachine>,
    ledger: Arc<Ledger>,
    broken: Arc<Violations>,
}

impl Guard {
    /// Creates the guard of a site.
    pub fn new(
        site: SiteId,
        engine: &Arc<EngineMachine>,
        ledger: &Arc<Ledger>,
        broken: &Arc<Violations>,
    ) -> Self {
        Self { site, engine: Arc::clone(engine), ledger: Arc::clone(ledger), broken: Arc::clone(broken) }
    }

    /// Wraps a store in the guard. `disk` is the same store without its delays and planted defects.
    pub fn over(self, store: Arc<dyn ChunkStore>, disk: Arc<DiskStore>) -> Arc<dyn ChunkStore> {
        Arc::new(GuardedStore { guard: self, store, disk })
    }

    /// Returns the files with this stripe and index that the committed record names on this site: the chunk and its
    /// copies.
    fn named(&self, chunk: ChunkId) -> Vec<ChunkId> {
        let row = self.engine.peek(&keys::stripe(chunk.stripe)).flatten();
        let record: Option<Stripe> = row.and_then(|row| row.record().ok());
        let Some(record) = record else { return Vec::new() };
        // The members of a wide stripe are files of other stripes.
        let location = own_locations(&record).find(|(index, _)| *index == usize::from(chunk.index));
        let location = location.map(|(_, at)| (at.site, at.generation));
        let copies = record.copies.iter().filter(|copy| copy.index == u32::from(chunk.index));
        let files = location.into_iter().chain(copies.map(|copy| (copy.site, copy.generation)));
        let here = files.filter(|(site, _)| *site == self.site.0);
        here.map(|(_, generation)| ChunkId { generation: Generation(generation), ..chunk }).collect()
    }

    fn check_before(&self, chunk: ChunkId) {
        if self.named(chunk).contains(&chunk) {
            let what = format!("chunk {chunk} on site {} is deleted while it is named", self.site);
            self.broken.report(Invariant::I8, what);
        }
    }

    fn check_after(&self, chunk: ChunkId, disk: &DiskStore) {
        for named in self.named(chunk).into_iter().filter(|&named| !self.ledger.is_hurt(self.site, named)) {
            if let Some(Err(SiteError::Missing(_))) = disk.verify(named).now_or_never() {
                let site = self.site;
                let what =
                    format!("deleting chunk {chunk} on site {site} has removed {named}, which is named");
                self.broken.report(Invariant::I8, what);
            }
        }
    }
}

/// A store under guard.
#[derive(Debug)]
struct GuardedStore {
    guard: Guard,
    store: Arc<dyn ChunkStore>,
    disk: Arc<DiskStore>,
}

#[async_trait]
impl ChunkStore for GuardedStore {
    async fn write(
        &self,
        chunk: ChunkId,
        payload: Bytes,
        granule_crcs: Option<Arc<[u32]>>,
    ) -> Result<(), SiteError> {
        self.store.write(chunk, payload, granule_crcs).await
    }

    async fn read(&self, range: ChunkRange) -> Result<Bytes, SiteError> {
        self.store.read(range).await
    }

    fn try_read(&self, range: ChunkRange) -> Option<Result<Bytes, SiteError>> {
        self.store.try_read(range)
    }

    async fn delete(&self, chunks: &[ChunkId], epoch: FencingEpoch) -> Result<(), SiteError> {
        chunks.iter().for_each(|&chunk| self.guard.check_before(chunk));
        let deleted = self.store.delete(chunks, epoch).await;
        if deleted.is_ok() {
            chunks.iter().for_each(|&chunk| self.guard.check_after(chunk, &self.disk));
        }
        deleted
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        self.store.list(from, limit).await
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        self.store.verify(chunk).await
    }

    fn status(&self) -> StoreStatus {
        self.store.status()
    }
}

//! A planted defect of sealing, between it and the sites: it computes only the local parities (S5).

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use striate_codec::MultipleChecksums;
use striate_core::{ChunkId, LoadReport, RackId, SiteId};
use striate_meta::keys;
use striate_meta::records::{Stripe, WideState};
use striate_site::{
    AssembleRequest, ChunkInfo, ChunkPage, CombineRequest, DeleteRequest, LoadStream, ReadRequest,
    ReadStream, Site, SiteError, SiteStatus, SliceStream, WriteRequest,
};

use crate::cluster::Cluster;

/// A site as seen by a sealer that computes a wide stripe's local parities and assumes that the others are complete.
#[derive(Debug)]
pub(super) struct LocalParitySite {
    site: Arc<dyn Site>,
    /// Tells which chunks are global parities of wide stripes under construction, from the records.
    is_global: IsGlobal,
    taken_for_made: Mutex<BTreeMap<ChunkId, u32>>,
}

/// Returns the length of a chunk if it is a global parity of a wide stripe under construction.
struct IsGlobal(Box<dyn Fn(ChunkId) -> Option<u32> + Send + Sync>);

impl std::fmt::Debug for IsGlobal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IsGlobal")
    }
}

impl LocalParitySite {
    pub(super) fn new(site: Arc<dyn Site>, cluster: &Cluster) -> Self {
        let engine = Arc::clone(&cluster.engine);
        let groups = cluster.wide_profile().and_then(|wide| wide.code.build().ok());
        let first_global = groups.map(|code| code.k() + code.local_groups().len()).unwrap_or(usize::MAX);
        let is_global = move |chunk: ChunkId| {
            let record: Stripe = engine.peek(&keys::stripe(chunk.stripe))??.record().ok()?;
            let is_building = record.wide_state() == WideState::Building;
            (is_building && usize::from(chunk.index) >= first_global).then_some(record.chunk_len)
        };
        Self { site, is_global: IsGlobal(Box::new(is_global)), taken_for_made: Mutex::default() }
    }
}

#[async_trait]
impl Site for LocalParitySite {
    fn id(&self) -> SiteId {
        self.site.id()
    }

    fn rack(&self) -> RackId {
        self.site.rack()
    }

    fn last_load(&self) -> LoadReport {
        self.site.last_load()
    }

    fn read(&self, request: ReadRequest) -> ReadStream {
        self.site.read(request)
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
        let crc32c = self.taken_for_made.lock().get(&chunk).copied();
        match crc32c.zip((self.is_global.0)(chunk)) {
            Some((crc32c, len)) => Ok(ChunkInfo { chunk, len, crc32c }),
            None => self.site.verify(chunk).await,
        }
    }

    fn combine(&self, request: CombineRequest) -> SliceStream {
        self.site.combine(request)
    }

    async fn assemble(&self, request: AssembleRequest) -> Result<LoadReport, SiteError> {
        if (self.is_global.0)(request.chunk).is_none() {
            return self.site.assemble(request).await;
        }
        self.taken_for_made.lock().insert(request.chunk, request.crc32c);
        Ok(self.site.last_load())
    }

    async fn products(&self, chunk: ChunkId, len: u32) -> Result<MultipleChecksums, SiteError> {
        self.site.products(chunk, len).await
    }

    async fn status(&self) -> Result<SiteStatus, SiteError> {
        self.site.status().await
    }

    fn watch(&self) -> LoadStream {
        self.site.watch()
    }

    fn knows_its_load(&self) -> bool {
        self.site.knows_its_load()
    }
}

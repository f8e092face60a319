//! Planted defects of the metadata store's users, as a wrapper of the store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use striate_core::{ChunkId, FencingEpoch, Generation, SiteId};
use striate_meta::records::{self, Garbage, Intent};
use striate_meta::{
    Commit, Lease, LeaseId, MetaError, MetaStore, Revision, Row, ScanRange, Transaction, Watch, Write, keys,
};
use striate_runtime::{Instant, Runtime};
use striate_site::{DeleteRequest, Site};
use striate_stripe::stripe_id;

use super::entries::OpenedEntries;
use super::wide::{self, FirstRecords};
use super::{Mutation, packing};
use crate::operation::BUCKET;

/// Time for which a cached record is served.
const CACHED_FOR: Duration = Duration::from_millis(100);

/// The metadata store as used by a defective process.
#[derive(Debug)]
pub(super) struct DefectiveMeta {
    mutation: Mutation,
    store: Arc<dyn MetaStore>,
    runtime: Runtime,
    sites: Vec<Arc<dyn Site>>,
    cache: Mutex<BTreeMap<Bytes, (Instant, Option<Row>)>>,
    opened: OpenedEntries,
    remembered: FirstRecords,
}

impl DefectiveMeta {
    pub(super) fn new(
        mutation: Mutation,
        store: Arc<dyn MetaStore>,
        runtime: Runtime,
        sites: Vec<Arc<dyn Site>>,
    ) -> Self {
        let (cache, opened, remembered) = Default::default();
        Self { mutation, store, runtime, sites, cache, opened, remembered }
    }

    /// Deletes what the transaction is about to turn into garbage.
    async fn delete_early(&self, tx: &Transaction) {
        for write in &tx.writes {
            let Write::Put(key, value) = write else { continue };
            if !key.starts_with(keys::GARBAGE) {
                continue;
            }
            let Ok(garbage) = records::decode::<Garbage>(value) else { continue };
            let Ok(stripe) = stripe_id(&garbage.stripe) else { continue };
            for chunk in &garbage.chunks {
                let site = self.sites.iter().find(|site| site.id() == SiteId(chunk.site));
                let generation = Generation(chunk.generation);
                let id = ChunkId { stripe, index: chunk.index as u8, generation };
                if let Some(site) = site {
                    let request = DeleteRequest { chunks: vec![id], epoch: FencingEpoch(u64::MAX >> 1) };
                    // The result does not matter: the defect is the request.
                    let _ = site.delete(request).await;
                }
            }
        }
    }

    /// Returns true if the transaction removes the intent of a live writer.
    async fn fences_a_live_writer(&self, tx: &Transaction) -> bool {
        for write in &tx.writes {
            let Write::Delete(key) = write else { continue };
            if !key.starts_with(keys::INTENTS) {
                continue;
            }
            let Ok(Some(row)) = self.store.get(key).await else { continue };
            let Ok(intent) = row.record::<Intent>() else { continue };
            if matches!(self.store.is_alive(LeaseId(intent.lease)).await, Ok(true)) {
                return true;
            }
        }
        false
    }

    /// Returns a row as the defective process believes it to be.
    fn believed(&self, row: Row) -> Row {
        match self.mutation {
            Mutation::CloseWithoutEntry => self.opened.believed(row),
            Mutation::OldWideRow => self.remembered.first(row),
            Mutation::OldContent => self.remembered.with_old_files(row),
            _ => row,
        }
    }

    fn cached(&self, key: &[u8]) -> Option<Option<Row>> {
        let cache = self.cache.lock();
        let (at, row) = cache.get(key)?;
        (self.runtime.now() < *at + CACHED_FOR).then(|| row.clone())
    }
}

#[async_trait]
impl MetaStore for DefectiveMeta {
    async fn get(&self, key: &[u8]) -> Result<Option<Row>, MetaError> {
        let is_cached = self.mutation == Mutation::RecordCache && key.starts_with(&keys::objects(BUCKET));
        if is_cached && let Some(row) = self.cached(key) {
            return Ok(row);
        }
        let row = self.store.get(key).await?.map(|row| self.believed(row));
        if is_cached {
            self.cache.lock().insert(Bytes::copy_from_slice(key), (self.runtime.now(), row.clone()));
        }
        Ok(row)
    }

    async fn get_many(&self, keys: &[Bytes]) -> Result<Vec<Option<Row>>, MetaError> {
        match self.mutation {
            Mutation::RecordCache => {
                futures::future::try_join_all(keys.iter().map(|key| self.get(key))).await
            }
            _ => {
                let rows = self.store.get_many(keys).await?;
                Ok(rows.into_iter().map(|row| row.map(|row| self.believed(row))).collect())
            }
        }
    }

    async fn scan(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        self.store.scan(range, limit).await
    }

    async fn scan_back(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        self.store.scan_back(range, limit).await
    }

    async fn commit(&self, mut transaction: Transaction) -> Result<Commit, MetaError> {
        match self.mutation {
            Mutation::DeleteBeforeCommit => {
                self.delete_early(&transaction).await;
                self.store.commit(transaction).await
            }
            Mutation::ConditionOutsideTransaction => {
                packing::ignore(&mut transaction, &keys::objects(BUCKET));
                self.store.commit(transaction).await
            }
            Mutation::CollectorIgnoresLiveUpload if self.fences_a_live_writer(&transaction).await => {
                Ok(Commit::Done(Revision(1)))
            }
            Mutation::CleanUpAfterUnknownOutcome => match self.store.commit(transaction).await {
                Err(MetaError::UnknownOutcome(reason)) => Err(MetaError::Corrupt(reason)),
                result => result,
            },
            Mutation::CloseWithoutEntry => {
                let transaction = self.opened.submit(&*self.store, transaction).await;
                self.store.commit(transaction).await
            }
            _ => {
                let transaction = packing::with_defect(self.mutation, &*self.store, transaction).await;
                let transaction = wide::with_defect(self.mutation, &*self.store, transaction).await;
                self.store.commit(transaction).await
            }
        }
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<Lease, MetaError> {
        self.store.grant_lease(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        self.store.keep_alive(lease).await
    }

    async fn is_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        match self.mutation {
            Mutation::CollectorIgnoresLiveUpload => Ok(false),
            _ => self.store.is_alive(lease).await,
        }
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.store.revoke_lease(lease).await
    }

    async fn watch(&self, prefix: &[u8]) -> Result<Watch, MetaError> {
        self.store.watch(prefix).await
    }
}

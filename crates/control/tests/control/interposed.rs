//! Metadata under which something happens between two steps of a process.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use striate_client::Client;
use striate_control::{MoveOutcome, move_chunk};
use striate_core::{Formats, InForce, StripeId};
use striate_meta::records::{self, GarbageChunk};
use striate_meta::{Commit, Lease, LeaseId, MetaError, MetaStore, Row, ScanRange, Transaction, Watch, keys};
use striate_plan::movement::ChunkMove;
use striate_site::Site;
use striate_stripe::{Stripes, add_garbage};

use crate::cluster::{Cluster, options};

/// What is done to a transaction before it is committed.
type Alteration = Box<dyn Fn(&mut Transaction) + Send + Sync>;

/// The way of one process to the metadata.
pub struct Interposed {
    inner: Arc<dyn MetaStore>,
    /// What happens after this row was read the next time, and before the reader has it.
    pub after_get: Mutex<Option<(Bytes, BoxFuture<'static, ()>)>>,
    /// What is wrong with this process's transactions.
    pub altered: Mutex<Option<Alteration>>,
}

impl std::fmt::Debug for Interposed {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Interposed").finish_non_exhaustive()
    }
}

impl Interposed {
    pub fn new(inner: Arc<dyn MetaStore>) -> Arc<Self> {
        Arc::new(Self { inner, after_get: Mutex::default(), altered: Mutex::default() })
    }

    /// A client of the cluster's sites over these metadata.
    pub async fn client(self: &Arc<Self>, cluster: &Cluster) -> Client {
        let sites = cluster.sites.iter().map(|site| site.clone() as Arc<dyn Site>).collect();
        let mut settings = options("rs(4,2)");
        settings.stripes.formats = InForce::new(Formats::NEWEST);
        Client::open(cluster.runtime.clone(), self.clone(), sites, settings).await.unwrap()
    }
}

#[async_trait]
impl MetaStore for Interposed {
    async fn get(&self, key: &[u8]) -> Result<Option<Row>, MetaError> {
        let row = self.inner.get(key).await?;
        let happens = {
            let mut after = self.after_get.lock();
            let is_now = after.as_ref().is_some_and(|(of, _)| of == key);
            if is_now { after.take() } else { None }
        };
        if let Some((_, happens)) = happens {
            happens.await;
        }
        Ok(row)
    }

    async fn get_many(&self, keys: &[Bytes]) -> Result<Vec<Option<Row>>, MetaError> {
        self.inner.get_many(keys).await
    }

    async fn scan(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        self.inner.scan(range, limit).await
    }

    async fn scan_back(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        self.inner.scan_back(range, limit).await
    }

    async fn commit(&self, mut transaction: Transaction) -> Result<Commit, MetaError> {
        if let Some(alter) = &*self.altered.lock() {
            alter(&mut transaction);
        }
        self.inner.commit(transaction).await
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<Lease, MetaError> {
        self.inner.grant_lease(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        self.inner.keep_alive(lease).await
    }

    async fn is_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        self.inner.is_alive(lease).await
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.inner.revoke_lease(lease).await
    }

    async fn watch(&self, prefix: &[u8]) -> Result<Watch, MetaError> {
        self.inner.watch(prefix).await
    }
}

/// Cancels the entries of a stripe, as anybody may at any time: what they speak of becomes garbage.
pub async fn cancel_entries(stripes: &Stripes, id: StripeId) {
    let stripe = stripes.find(id).await.unwrap().unwrap();
    let mut record = stripe.record;
    let entries = std::mem::take(&mut record.entries);
    assert!(!entries.is_empty(), "no change is under way");
    let files = entries.iter().flat_map(|entry| {
        let of = |place: &records::Place| GarbageChunk {
            index: place.index,
            site: place.site,
            generation: entry.generation,
        };
        entry.places.iter().map(of).collect::<Vec<_>>()
    });
    let mut tx = stripes.transaction();
    tx.require_unchanged(keys::stripe(id), Some(&stripe.row));
    add_garbage(&mut tx, id, files.collect());
    tx.put(keys::stripe(id), records::encode(&record)).delete(keys::change(id));
    assert!(matches!(stripes.meta().commit(tx).await.unwrap(), Commit::Done(_)));
}

/// Whether one of these moves was made.
pub async fn move_first(stripes: &Stripes, moves: &[ChunkMove]) -> bool {
    for wanted in moves {
        if matches!(move_chunk(stripes, wanted).await.unwrap(), MoveOutcome::Moved { .. }) {
            return true;
        }
    }
    false
}

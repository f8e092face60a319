//! A process that dies at a commit: before the metadata has it, or before the process learns that it does. Or a
//! process that stalls before a commit, whose transactions are refused or altered, or that is interrupted after it
//! has read a row.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::channel::oneshot;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use striate_client::Client;
use striate_core::{Formats, FormatsInForce};
use striate_meta::{Commit, Lease, LeaseId, MetaError, MetaStore, Row, ScanRange, Transaction, Watch, keys};
use striate_site::Site;

use crate::cluster::{Cluster, options};

/// Point at which a process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// Number of commits that succeed before.
    pub commits: usize,
    /// Whether the next commit is made as well, without the process learning of it.
    pub is_made: bool,
}

/// Point at which a process stalls, and until when.
#[derive(Debug)]
pub struct Stall {
    /// Number of commits that succeed before.
    pub commits: usize,
    pub until: oneshot::Receiver<()>,
}

/// Change of a transaction before it is committed.
type Alteration = Box<dyn Fn(&mut Transaction) + Send + Sync>;

/// One process's access to the metadata.
pub struct DyingStore {
    inner: Arc<dyn MetaStore>,
    pub death: Mutex<Option<Death>>,
    pub stall: Mutex<Option<Stall>>,
    /// Transactions that write one of these rows are refused.
    pub refused: Mutex<BTreeSet<Bytes>>,
    /// Runs after the next read of this row, before the reader gets it.
    pub after_get: Mutex<Option<(Bytes, BoxFuture<'static, ()>)>>,
    /// Alters this process's transactions.
    pub altered: Mutex<Option<Alteration>>,
    /// Whether readings of several stripes' rows never end.
    pub hangs_on_many: Mutex<bool>,
}

impl std::fmt::Debug for DyingStore {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("DyingStore").finish_non_exhaustive()
    }
}

impl DyingStore {
    pub fn new(inner: Arc<dyn MetaStore>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            death: Mutex::default(),
            stall: Mutex::default(),
            refused: Mutex::default(),
            after_get: Mutex::default(),
            altered: Mutex::default(),
            hangs_on_many: Mutex::default(),
        })
    }
}

#[async_trait]
impl MetaStore for DyingStore {
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
        let are_stripes = keys.len() > 1 && keys.iter().all(|key| key.starts_with(keys::STRIPES));
        let hangs = are_stripes && *self.hangs_on_many.lock();
        if hangs {
            return std::future::pending().await;
        }
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
        if transaction.writes.iter().any(|write| self.refused.lock().contains(write.key())) {
            return Err(MetaError::Unavailable("this row is refused".to_owned()));
        }
        let stall = {
            let mut stall = self.stall.lock();
            let stands_still = stall.take_if(|stall| stall.commits == 0);
            stall.iter_mut().for_each(|stall| stall.commits -= 1);
            stands_still
        };
        if let Some(Stall { until, .. }) = stall {
            until.await.expect("it goes on");
        }
        let death = *self.death.lock();
        if let Some(Death { commits: 0, is_made }) = death {
            if is_made {
                self.inner.commit(transaction).await?;
            }
            return std::future::pending().await;
        }
        *self.death.lock() = death.map(|death| Death { commits: death.commits - 1, ..death });
        self.inner.commit(transaction).await
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<Lease, MetaError> {
        self.inner.grant_lease(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        let is_dead = matches!(*self.death.lock(), Some(Death { commits: 0, .. }));
        if is_dead {
            return std::future::pending().await;
        }
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

/// Opens a client of the cluster's sites over metadata that fails as [`DyingStore`] is set.
pub async fn dying_client(cluster: &Cluster, meta: &Arc<DyingStore>) -> Client {
    let sites = cluster.sites.iter().map(|site| site.clone() as Arc<dyn Site>).collect();
    let mut settings = options("rs(4,2)");
    settings.stripes.formats = FormatsInForce::new(Formats::NEWEST);
    Client::open(cluster.runtime.clone(), meta.clone(), sites, settings).await.unwrap()
}

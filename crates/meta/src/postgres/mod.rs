//! The engine on the PostgreSQL protocol: PostgreSQL 12 or newer, and what speaks as it does.
//!
//! | module | what |
//! |--|--|
//! | `schema` | the tables, and their version |
//! | `connections`, `tls` | the pool, and what a failed statement means |
//! | `committer`, `group` | transactions that become durable together |
//! | `read` | gets and scans |
//! | `lease`, `watch` | leases on the server's clock, watches on a log of changes |
//! | `trim` | forgetting what is no longer needed |
//!
//! Order: the one row of `state` holds the revision. A process gathers the transactions that wait and commits
//! them as one transaction of the server, which locks that row first, so that the commits of all processes
//! come one after the other and the order of revisions is the order of commits. What that costs is measured
//! in docs/decisions/postgres-engine.md: one commit of the server for each *group*, not for each transaction.
//!
//! Nothing is used that only PostgreSQL has: no `LISTEN`, no advisory locks, no snapshots' internals. What it
//! does not do: it replicates nothing; that is the server's (docs/src/engines.md).

mod committer;
mod connections;
mod group;
mod lease;
mod read;
mod schema;
mod tls;
mod trim;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use striate_runtime::Runtime;
use tokio::sync::mpsc;

use crate::engine_url::PostgresUrl;
use crate::store::{Commit, Lease, LeaseId, MetaError, MetaStore, Row, ScanRange, Transaction, Watch};

/// Metadata in a PostgreSQL database, which any number of processes share.
#[derive(Debug)]
pub struct PostgresStore {
    server: Arc<connections::Server>,
    requests: mpsc::Sender<committer::Request>,
}

impl PostgresStore {
    /// Opens the cluster's schema of the database that `url` names; makes it when there is none.
    ///
    /// # Errors
    /// [`MetaError::Unavailable`] when no server answers or refuses this client or the TLS files cannot be
    /// used, [`MetaError::Corrupt`] when a newer program made the schema.
    pub async fn open(runtime: &Runtime, url: &PostgresUrl) -> Result<Self, MetaError> {
        let server = connections::Server::new(runtime.clone(), url).map_err(MetaError::Unavailable)?;
        let server = Arc::new(server);
        schema::make_or_check(&server).await?;
        let requests = committer::start(server.clone());
        Ok(Self { server, requests })
    }
}

#[async_trait]
impl MetaStore for PostgresStore {
    async fn get(&self, key: &[u8]) -> Result<Option<Row>, MetaError> {
        read::row(&self.server, key).await
    }

    async fn get_many(&self, keys: &[Bytes]) -> Result<Vec<Option<Row>>, MetaError> {
        read::rows(&self.server, keys).await
    }

    async fn scan(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        read::scan(&self.server, &range, limit, false).await
    }

    async fn scan_back(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        read::scan(&self.server, &range, limit, true).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Commit, MetaError> {
        committer::submit(&self.requests, transaction).await
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<Lease, MetaError> {
        lease::grant(&self.server, ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        lease::keep_alive(&self.server, lease).await
    }

    async fn is_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        lease::is_alive(&self.server, lease).await
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), MetaError> {
        lease::revoke(&self.server, lease).await
    }

    async fn watch(&self, prefix: &[u8]) -> Result<Watch, MetaError> {
        watch::start(&self.server, prefix).await
    }
}

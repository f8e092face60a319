//! The engine on the PostgreSQL protocol: PostgreSQL 12 or newer, and compatible servers.
//!
//! | module | content |
//! |--|--|
//! | `schema` | the tables, and their version |
//! | `connections`, `tls` | the pool, and the classification of failed statements |
//! | `committer`, `group` | transactions that become durable together |
//! | `read` | gets and scans |
//! | `lease`, `watch` | leases on the server's clock, watches on a log of changes |
//! | `trim` | removal of what is no longer needed |
//!
//! Order: the one row of `state` holds the revision. A process gathers waiting transactions and commits them as one
//! transaction of the server, which first locks that row. So the commits of all processes follow one another, and the
//! order of revisions is the order of commits. The cost is one commit of the server per *group*, not per transaction;
//! docs/decisions/postgres-engine.md has measurements.
//!
//! The engine uses nothing that only PostgreSQL has: no `LISTEN`, no advisory locks, no snapshot internals. What it
//! does not do: it does not replicate; the server does (docs/src/engines.md).

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

/// Metadata in a PostgreSQL database, shared by any number of processes.
#[derive(Debug)]
pub struct PostgresStore {
    server: Arc<connections::Server>,
    requests: mpsc::Sender<committer::Request>,
}

impl PostgresStore {
    /// Opens the cluster's schema of the database that `url` names, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`MetaError::Unavailable`] if no server answers or accepts this client, or if the TLS files cannot be used;
    /// [`MetaError::Corrupt`] if a newer program created the schema.
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

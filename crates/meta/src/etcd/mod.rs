//! The engine on etcd (v3 API, version 3.4 or newer).
//!
//! etcd's own transactions, revisions, leases and watches are close to those of the trait: a row's version is the
//! revision in which etcd last wrote it. Little is added:
//!
//! | module | content |
//! |--|--|
//! | `layout` | the keys of rows, transactions and leases |
//! | `members` | calls to whichever member answers, and what a failed call may have done |
//! | `commit` | transactions, and their outcome when an answer was lost |
//! | `read` | gets and scans of one revision |
//! | `lease`, `watch` | leases with a row for each, and watches that survive the failure of a member |
//! | `open` | the layout's version |
//!
//! The client is generated from the part of etcd's API that is used (docs/decisions/etcd-engine.md). What it does not
//! do: it does not compact etcd or disarm alarms; the operator does (docs/src/engines.md).

mod commit;
mod layout;
mod lease;
mod members;
mod open;
mod read;
mod watch;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::store::{Commit, Lease, LeaseId, MetaError, MetaStore, Row, ScanRange, Transaction, Watch};

/// Metadata in etcd, shared by any number of processes.
#[derive(Debug)]
pub struct EtcdStore {
    members: Arc<members::Members>,
    keys: layout::KeySpace,
    outcome_lease: lease::OutcomeLease,
    unresolved: commit::UnresolvedTransactions,
}

#[async_trait]
impl MetaStore for EtcdStore {
    async fn get(&self, key: &[u8]) -> Result<Option<Row>, MetaError> {
        self.read_row(key).await
    }

    async fn get_many(&self, keys: &[Bytes]) -> Result<Vec<Option<Row>>, MetaError> {
        self.read_rows(keys).await
    }

    async fn scan(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        self.scan_rows(&range, limit, false).await
    }

    async fn scan_back(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        self.scan_rows(&range, limit, true).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Commit, MetaError> {
        self.submit(&transaction).await
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<Lease, MetaError> {
        self.grant(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        self.renew(lease).await
    }

    async fn is_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        let answer = self.range(wire::get(self.keys.lease(lease))).await;
        Ok(!answer.map_err(members::Failure::into_error)?.kvs.is_empty())
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.revoke(lease).await
    }

    async fn watch(&self, prefix: &[u8]) -> Result<Watch, MetaError> {
        self.start_watch(prefix).await
    }
}

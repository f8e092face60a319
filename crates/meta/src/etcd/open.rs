//! Opens a cluster's part of an etcd, and creates it at the first use.

use tonic::Code;

use super::EtcdStore;
use super::layout::{KeySpace, LAYOUT_VERSION};
use super::lease::OutcomeLease;
use super::members::{Failure, Members};
use super::wire::{Answer, KeyValue, KvClient, RangeRequest, TxnRequest, get, get_op, has_revision, put_op};
use crate::engine_url::EtcdUrl;
use crate::store::MetaError;

/// Number of revisions beyond which an etcd counts as not being compacted.
const MAX_KEPT_REVISIONS: i64 = 5_000_000;

impl EtcdStore {
    /// Opens the cluster's part of the etcd that `url` names, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`MetaError::Unavailable`] if no member answers or the TLS files cannot be used, [`MetaError::Corrupt`] if a
    /// newer program created it.
    pub async fn open(runtime: &striate_runtime::Runtime, url: &EtcdUrl) -> Result<Self, MetaError> {
        let members = Members::new(runtime.clone(), url).map_err(MetaError::Unavailable)?;
        let store = Self {
            members: members.into(),
            keys: KeySpace::new(&url.prefix),
            outcome_lease: OutcomeLease::default(),
            unresolved: Default::default(),
        };
        store.make_or_check().await?;
        store.check_compaction().await;
        Ok(store)
    }

    async fn make_or_check(&self) -> Result<(), MetaError> {
        let version = self.keys.version();
        let request = TxnRequest {
            compare: vec![has_revision(version.clone(), 0)],
            success: vec![put_op(version.clone(), LAYOUT_VERSION.into(), 0)],
            failure: vec![get_op(version.clone())],
        };
        let call = |channel, request| async move { KvClient::new(channel).txn(request).await };
        let answer = self.members.call(request, call).await.map_err(Failure::into_error)?;
        let found = answer.responses.first().and_then(super::wire::found);
        match answer.succeeded || found.is_some_and(|row| row.value == LAYOUT_VERSION) {
            true => Ok(()),
            false => Err(MetaError::Corrupt(newer(found))),
        }
    }

    /// Warns if old revisions are never compacted, because the quota will then run out. etcd does not reveal its
    /// configuration, only whether it can still read an old revision.
    async fn check_compaction(&self) {
        let Ok(now) = self.range(get(self.keys.version())).await else { return };
        let old = now.revision() - MAX_KEPT_REVISIONS;
        if old <= 0 {
            return;
        }
        match self.range(RangeRequest { revision: old, ..get(self.keys.version()) }).await {
            Err(failure) if failure.is_refused_with(Code::OutOfRange) => {}
            Err(_) => {}
            Ok(_) => tracing::warn!(
                "etcd keeps more than {MAX_KEPT_REVISIONS} old revisions; start it with \
                 --auto-compaction-mode=periodic --auto-compaction-retention=10m, or its quota will run out"
            ),
        }
    }
}

/// Describes what is wrong with the layout's version.
pub(super) fn newer(found: Option<&KeyValue>) -> String {
    match found {
        Some(row) => format!(
            "the layout of the metadata in etcd has version {:?}, this program knows {LAYOUT_VERSION}; use a newer striate",
            String::from_utf8_lossy(&row.value)
        ),
        None => "the cluster's keys were removed from etcd".to_owned(),
    }
}

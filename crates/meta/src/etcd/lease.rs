//! Leases: etcd's own, each with a row that lives as long as the lease.
//!
//! A transaction cannot check whether a lease is alive, only whether a row exists. etcd removes the rows of a lease in
//! the same step of its log that ends the lease, so the two checks are equivalent.

use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use striate_runtime::Instant;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use super::EtcdStore;
use super::members::{Failure, Members};
use super::wire::{
    KvClient, LeaseClient, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest,
    LeaseKeepAliveResponse, LeaseRevokeRequest, TxnRequest, put_op,
};
use crate::store::{Lease, LeaseId, MetaError};

/// Requests a lease of at least `ttl`. If the answer is lost, the lease expires.
fn grant_request(ttl: Duration) -> LeaseGrantRequest {
    let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    LeaseGrantRequest { ttl: i64::try_from(seconds.max(1)).unwrap_or(i64::MAX), id: 0 }
}

async fn grant_once(
    channel: Channel,
    request: Request<LeaseGrantRequest>,
) -> Result<Response<LeaseGrantResponse>, Status> {
    LeaseClient::new(channel).lease_grant(request).await
}

async fn keep_alive_once(
    channel: Channel,
    request: Request<i64>,
) -> Result<Response<LeaseKeepAliveResponse>, Status> {
    let (metadata, extensions, id) = request.into_parts();
    let message = LeaseKeepAliveRequest { id };
    let request = Request::from_parts(metadata, extensions, stream::iter([message]));
    let mut answers = LeaseClient::new(channel).lease_keep_alive(request).await?.into_inner();
    let answer = answers.message().await?;
    answer.map(Response::new).ok_or_else(|| Status::unavailable("the member ended the call"))
}

impl EtcdStore {
    pub(super) async fn grant(&self, ttl: Duration) -> Result<Lease, MetaError> {
        let granted = self.members.call(grant_request(ttl), grant_once).await.map_err(Failure::into_error)?;
        let id = LeaseId(u64::try_from(granted.id).unwrap_or_default());
        let put = put_op(self.keys.lease(id), Bytes::new(), granted.id);
        let message = TxnRequest { success: vec![put], ..TxnRequest::default() };
        let call = |channel, request| async move { KvClient::new(channel).txn(request).await };
        self.members.call(message, call).await.map_err(Failure::into_error)?;
        Ok(Lease { id, ttl: Duration::from_secs(u64::try_from(granted.ttl).unwrap_or_default()) })
    }

    pub(super) async fn renew(&self, lease: LeaseId) -> Result<bool, MetaError> {
        let Ok(id) = i64::try_from(lease.0) else { return Ok(false) };
        match self.members.call(id, keep_alive_once).await {
            Ok(answer) => Ok(answer.ttl > 0),
            Err(failure) if failure.is_refused_with(Code::NotFound) => Ok(false),
            Err(failure) => Err(failure.into_error()),
        }
    }

    pub(super) async fn revoke(&self, lease: LeaseId) -> Result<(), MetaError> {
        let Ok(id) = i64::try_from(lease.0) else { return Ok(()) };
        let call = |channel, request| async move { LeaseClient::new(channel).lease_revoke(request).await };
        match self.members.call(LeaseRevokeRequest { id }, call).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.is_refused_with(Code::NotFound) => Ok(()),
            Err(failure) => Err(failure.into_error()),
        }
    }
}

/// Minimum time for which the outcome of a transaction is remembered.
pub(super) const REMEMBERED: Duration = Duration::from_secs(900);

/// Maximum number of transactions whose rows share a lease, and the time for which one lease is used. Few rows expire
/// at once, because etcd does nothing else meanwhile.
const ROWS_OF_A_LEASE: u32 = 1024;
const LEASE_IN_USE: Duration = Duration::from_secs(60);

/// The lease of the rows of the latest transactions. It is never kept alive.
#[derive(Debug, Default)]
pub(super) struct OutcomeLease(tokio::sync::Mutex<Option<CurrentLease>>);

#[derive(Debug)]
struct CurrentLease {
    id: i64,
    until: Instant,
    left: u32,
}

impl OutcomeLease {
    /// Returns the lease for the row of one more transaction.
    pub(super) async fn take(&self, members: &Members) -> Result<i64, Failure> {
        // While etcd is unavailable all transactions wait here, each for at most one attempt's timeout.
        let Ok(mut current) = members.runtime.timeout(members.attempt_timeout(), self.0.lock()).await else {
            return Err(Failure::NotSent("no lease is granted".to_owned()));
        };
        let now = members.runtime.now();
        if let Some(lease) = current.as_mut().filter(|lease| lease.left > 0 && now < lease.until) {
            lease.left -= 1;
            return Ok(lease.id);
        }
        let granted = members.attempt(grant_request(REMEMBERED + LEASE_IN_USE), grant_once).await?;
        *current = Some(CurrentLease { id: granted.id, until: now + LEASE_IN_USE, left: ROWS_OF_A_LEASE });
        Ok(granted.id)
    }

    /// Forgets the lease `id`, which has ended because this process was stopped for long.
    pub(super) async fn ended(&self, id: i64) {
        let mut current = self.0.lock().await;
        if current.as_ref().is_some_and(|lease| lease.id == id) {
            *current = None;
        }
    }
}

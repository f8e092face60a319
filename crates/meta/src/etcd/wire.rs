//! etcd's wire API, and the few requests that the engine sends.

use bytes::Bytes;

#[allow(missing_docs, clippy::all, reason = "generated from proto/etcd.proto")]
mod etcdserverpb {
    include!("../../proto/etcd.rs");
}

pub(super) use etcdserverpb::auth_client::AuthClient;
pub(super) use etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
pub(super) use etcdserverpb::event::EventType;
pub(super) use etcdserverpb::kv_client::KvClient;
pub(super) use etcdserverpb::lease_client::LeaseClient;
pub(super) use etcdserverpb::range_request::SortOrder;
pub(super) use etcdserverpb::request_op::Request;
pub(super) use etcdserverpb::response_op::Response;
pub(super) use etcdserverpb::watch_client::WatchClient;
pub(super) use etcdserverpb::watch_request::RequestUnion;
pub(super) use etcdserverpb::*;

/// A response, which carries the id of its etcd and a revision.
pub(super) trait Answer {
    fn header(&self) -> Option<&ResponseHeader>;

    fn revision(&self) -> i64 {
        self.header().map_or(0, |header| header.revision)
    }
}

macro_rules! answers {
    ($($response:ty),*) => {$(
        impl Answer for $response {
            fn header(&self) -> Option<&ResponseHeader> {
                self.header.as_ref()
            }
        }
    )*};
}

answers!(
    RangeResponse,
    TxnResponse,
    LeaseGrantResponse,
    LeaseRevokeResponse,
    LeaseKeepAliveResponse,
    AuthenticateResponse
);

/// Creates a request that reads one key.
pub(super) fn get(key: Bytes) -> RangeRequest {
    RangeRequest { key, ..RangeRequest::default() }
}

/// Creates an operation that reads one key.
pub(super) fn get_op(key: Bytes) -> RequestOp {
    RequestOp { request: Some(Request::RequestRange(get(key))) }
}

/// Creates an operation that sets a key for as long as `lease` lives (0: permanently).
pub(super) fn put_op(key: Bytes, value: Bytes, lease: i64) -> RequestOp {
    RequestOp { request: Some(Request::RequestPut(PutRequest { key, value, lease })) }
}

/// Creates an operation that removes a key.
pub(super) fn delete_op(key: Bytes) -> RequestOp {
    RequestOp { request: Some(Request::RequestDeleteRange(DeleteRangeRequest { key })) }
}

/// Requires that a key was last written at `revision`; 0: that it does not exist.
pub(super) fn has_revision(key: Bytes, revision: i64) -> Compare {
    compare(key, CompareResult::Equal, CompareTarget::Mod, TargetUnion::ModRevision(revision))
}

/// Requires that a key exists.
pub(super) fn exists(key: Bytes) -> Compare {
    compare(key, CompareResult::Greater, CompareTarget::Mod, TargetUnion::ModRevision(0))
}

/// Requires that a key has a value.
pub(super) fn has_value(key: Bytes, value: Bytes) -> Compare {
    compare(key, CompareResult::Equal, CompareTarget::Value, TargetUnion::Value(value))
}

fn compare(key: Bytes, result: CompareResult, target: CompareTarget, union: TargetUnion) -> Compare {
    Compare { result: result.into(), target: target.into(), key, target_union: Some(union) }
}

/// Returns the row that a [`get_op`] found.
pub(super) fn found(op: &ResponseOp) -> Option<&KeyValue> {
    match &op.response {
        Some(Response::ResponseRange(range)) => range.kvs.first(),
        _ => None,
    }
}

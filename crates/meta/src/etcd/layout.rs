//! The layout of etcd's key space.
//!
//! ```text
//! <prefix>/v              version of this layout, in decimal
//! <prefix>/r<key>         a row
//! <prefix>/t<id:16>       what became of a transaction; ends with a lease, so that it is forgotten by itself
//! <prefix>/l<lease:8>     there as long as the lease lives
//! ```
//!
//! Every key begins with the cluster's prefix, so several clusters can share an etcd. No key of one cluster lies in
//! another's range: the prefix ends with the first `/` that follows it.

use bytes::{BufMut, Bytes, BytesMut};

use crate::store::{LeaseId, Row, ScanRange, TxId, prefix_end};
use crate::{MetaError, Revision};

use super::wire::KeyValue;

/// Version of this layout.
pub(super) const LAYOUT_VERSION: &str = "1";

/// Value of a transaction's row: committed, with the row's own revision.
pub(super) const COMMITTED: &[u8] = b"";

/// Value of a transaction's row: no attempt submitted before the row's own revision will commit.
pub(super) const VOID: &[u8] = b"void";

/// The key space of one cluster.
#[derive(Clone, Debug)]
pub(super) struct KeySpace {
    prefix: Bytes,
}

impl KeySpace {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: format!("{prefix}/").into() }
    }

    fn key(&self, kind: u8, rest: &[u8]) -> Bytes {
        let mut key = BytesMut::with_capacity(self.prefix.len() + 1 + rest.len());
        key.put_slice(&self.prefix);
        key.put_u8(kind);
        key.put_slice(rest);
        key.freeze()
    }

    pub(super) fn version(&self) -> Bytes {
        self.key(b'v', b"")
    }

    pub(super) fn row(&self, key: &[u8]) -> Bytes {
        self.key(b'r', key)
    }

    pub(super) fn transaction(&self, id: TxId) -> Bytes {
        self.key(b't', &id.0.to_be_bytes())
    }

    pub(super) fn lease(&self, lease: LeaseId) -> Bytes {
        self.key(b'l', &lease.0.to_be_bytes())
    }

    /// Returns the first key and the end of the rows in `range`; `None` if the range is empty.
    pub(super) fn rows(&self, range: &ScanRange) -> Option<(Bytes, Bytes)> {
        let end = match range.end.is_empty() {
            true => prefix_end(&self.row(b"")),
            false if range.end <= range.start => return None,
            false => self.row(&range.end),
        };
        Some((self.row(&range.start), end))
    }

    /// Returns the key of the row that is stored under `key`.
    pub(super) fn row_key(&self, key: &Bytes) -> Bytes {
        key.slice((self.prefix.len() + 1).min(key.len())..)
    }

    pub(super) fn row_of(&self, found: &KeyValue) -> Result<Row, MetaError> {
        let version = revision(found.mod_revision)?;
        Ok(Row { key: self.row_key(&found.key), value: found.value.clone(), version })
    }
}

/// Converts a revision from etcd's type.
pub(super) fn revision(of_etcd: i64) -> Result<Revision, MetaError> {
    let revision = u64::try_from(of_etcd);
    Ok(Revision(revision.map_err(|_| MetaError::Corrupt(format!("etcd answers revision {of_etcd}")))?))
}

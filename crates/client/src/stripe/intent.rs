//! Intents: a writer's reservations of stripe names (design.md §10.3).
//!
//! A client registers as a *writer* under a lease and reserves stripe names in ranges, one row for each range.
//! Every commit that names a stripe requires the row of its range. A collector that finds the lease gone
//! deletes the row first, which fences every unfinished put of the range, and may then remove chunks that no
//! stripe row names. So a put costs no transaction of its own for its intent.
//!
//! A range's row is removed by its writer when all its stripes were named or their chunks removed. If one
//! put's outcome stayed unknown the row stays, and the collector decides after the writer's end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use striate_core::{FencingEpoch, StripeId};
use striate_meta::{Commit, LeaseId, MetaError, MetaStore, Transaction, TxId, keys, records};
use striate_runtime::Runtime;

use crate::error::ClientError;

/// Stripe names in one reservation.
const RANGE_LEN: u32 = 1_024;
const LEASE_TTL: Duration = Duration::from_secs(30);

/// This client's registration.
pub(crate) struct Writer {
    runtime: Runtime,
    meta: Arc<dyn MetaStore>,
    epoch: FencingEpoch,
    id: u64,
    lease: LeaseId,
    current: Mutex<Option<Arc<IntentRange>>>,
    next_sequence: tokio::sync::Mutex<u64>,
}

/// One reservation.
#[derive(Debug)]
pub(crate) struct IntentRange {
    writer: u64,
    first: u64,
    taken: AtomicU32,
    settled: AtomicU32,
    /// A put ended without a known outcome; the row must stay.
    unknown: AtomicBool,
}

/// A stripe's name, taken from a reservation.
#[derive(Clone, Debug)]
pub(crate) struct StripeName {
    pub(crate) id: StripeId,
    pub(crate) range: Arc<IntentRange>,
}

impl IntentRange {
    /// The reservation's row.
    pub(crate) fn key(&self) -> Bytes {
        keys::intent(self.writer, self.first)
    }

    fn take(self: &Arc<Self>) -> Option<StripeName> {
        let taken = self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
            (taken < RANGE_LEN).then_some(taken + 1)
        });
        let id = StripeId::new(self.writer, self.first + u64::from(taken.ok()?));
        Some(StripeName { id, range: self.clone() })
    }
}

impl Writer {
    /// Registers: takes a writer number and an epoch from the cluster's row, and a lease.
    pub(crate) async fn open(runtime: Runtime, meta: Arc<dyn MetaStore>) -> Result<Self, ClientError> {
        let lease = meta.grant_lease(LEASE_TTL).await?.id;
        let (id, epoch) = register(&runtime, meta.as_ref()).await?;
        keep_lease(&runtime, &meta, lease);
        let (current, next_sequence) = (Mutex::default(), tokio::sync::Mutex::new(0));
        Ok(Self { runtime, meta, epoch: FencingEpoch(epoch), id, lease, current, next_sequence })
    }

    pub(crate) fn epoch(&self) -> FencingEpoch {
        self.epoch
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn lease(&self) -> LeaseId {
        self.lease
    }

    /// A fresh stripe name under a reservation that is durable.
    pub(crate) async fn name_stripe(&self) -> Result<StripeName, ClientError> {
        loop {
            let current = self.current.lock().clone();
            if let Some(name) = current.as_ref().and_then(IntentRange::take) {
                return Ok(name);
            }
            let mut next = self.next_sequence.lock().await;
            let refilled = match (&current, &*self.current.lock()) {
                (Some(old), Some(new)) => !Arc::ptr_eq(old, new),
                (None, new) => new.is_some(),
                (Some(_), None) => false,
            };
            if !refilled {
                let range = self.reserve(*next).await?;
                *next += u64::from(RANGE_LEN);
                *self.current.lock() = Some(Arc::new(range));
            }
        }
    }

    async fn reserve(&self, first: u64) -> Result<IntentRange, ClientError> {
        let record =
            records::Intent { writer: self.id, first_sequence: first, count: RANGE_LEN, lease: self.lease.0 };
        let mut tx = Transaction::new(random_tx(&self.runtime));
        tx.require(striate_meta::Precondition::LeaseAlive(self.lease));
        tx.put(keys::intent(self.id, first), records::encode(&record));
        match self.meta.commit(tx).await? {
            Commit::Done(_) => Ok(IntentRange {
                writer: self.id,
                first,
                taken: AtomicU32::new(0),
                settled: AtomicU32::new(0),
                unknown: AtomicBool::new(false),
            }),
            Commit::Conflict { .. } => Err(MetaError::Unavailable(
                "this process's lease ended (it was paused for too long); restart it".to_owned(),
            )
            .into()),
        }
    }

    /// A name's stripe was named by a commit, or its chunks were removed. The last one of a range removes the
    /// range's row in the background.
    pub(crate) fn settle(&self, name: &StripeName) {
        let range = &name.range;
        let settled = range.settled.fetch_add(1, Ordering::AcqRel) + 1;
        if settled == RANGE_LEN && !range.unknown.load(Ordering::Acquire) {
            let mut tx = Transaction::new(random_tx(&self.runtime));
            tx.delete(range.key());
            let meta = self.meta.clone();
            self.runtime.spawn(async move {
                if let Err(error) = meta.commit(tx).await {
                    tracing::debug!(%error, "an intent's row stays for the collector");
                }
            });
        }
    }

    /// Nobody knows what became of the stripe: the reservation stays until the collector decides.
    pub(crate) fn leave_unknown(&self, name: &StripeName) {
        name.range.unknown.store(true, Ordering::Release);
    }
}

pub(crate) fn random_tx(runtime: &Runtime) -> TxId {
    TxId(u128::from(runtime.random_u64()) << 64 | u128::from(runtime.random_u64()))
}

/// The next writer number and epoch.
async fn register(runtime: &Runtime, meta: &dyn MetaStore) -> Result<(u64, u64), ClientError> {
    loop {
        let row = meta.get(&keys::cluster()).await?;
        let mut cluster: records::Cluster =
            row.as_ref().map(|row| row.record()).transpose()?.unwrap_or_default();
        cluster.next_writer += 1;
        cluster.next_epoch += 1;
        let mut tx = Transaction::new(random_tx(runtime));
        tx.require_unchanged(keys::cluster(), row.as_ref());
        tx.put(keys::cluster(), records::encode(&cluster));
        if let Commit::Done(_) = meta.commit(tx).await? {
            return Ok((cluster.next_writer, cluster.next_epoch));
        }
    }
}

/// Keeps the lease alive as long as the metadata store is in use by anybody else than this task.
fn keep_lease(runtime: &Runtime, meta: &Arc<dyn MetaStore>, lease: LeaseId) {
    let (weak, clock) = (Arc::downgrade(meta), runtime.clone());
    runtime.spawn(async move {
        loop {
            clock.sleep(LEASE_TTL / 3).await;
            let Some(meta) = weak.upgrade() else { return };
            if let Ok(false) = meta.keep_alive(lease).await {
                tracing::error!("the writer's lease has ended: writes fail until the process is restarted");
                return;
            }
        }
    });
}

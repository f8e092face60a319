//! Intents: a writer's reservations of stripe names (design.md §10.3).
//!
//! A client registers as a *writer* under a lease and reserves stripe names in ranges, one row per range. Every
//! commit that names a stripe requires the row of its range. A collector that finds the lease ended deletes the row
//! first, which fences every unfinished put of the range, and may then remove chunks that no stripe row names. So a
//! put needs no transaction of its own for its intent.
//!
//! A writer removes the row of a range once all its stripes were named or their chunks removed. If the outcome of one
//! put stays unknown, the row stays, and the collector decides after the writer's end.
//!
//! A lease that ended (because the process was paused, or the metadata store was unreachable for too long) ends the
//! writer, not the client: puts in progress fail at their commit, and the next put registers a new writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use striate_core::{FencingEpoch, StripeId};
use striate_meta::{Commit, LeaseId, MetaStore, Transaction, keys, records};
use striate_runtime::Runtime;

use crate::error::StripeError;

/// Stripe names per reservation of a writer of split stripes.
const RANGE_LEN: u32 = 1_024;
const LEASE_TTL: Duration = Duration::from_secs(30);

/// Registration of this client as a writer.
pub(crate) struct Writer {
    runtime: Runtime,
    meta: Arc<dyn MetaStore>,
    /// Epoch of the first registration, which never changes: an executor whose lease ended must stay fenced.
    epoch: FencingEpoch,
    registered: Arc<Mutex<RegisteredWriter>>,
    current: Mutex<Option<Arc<IntentRange>>>,
    /// Stripe names per reservation.
    range_len: u32,
    /// First sequence number of the next reservation, and its registration.
    next_sequence: tokio::sync::Mutex<(u64, RegisteredWriter)>,
}

/// A writer's number and its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegisteredWriter {
    pub(crate) id: u64,
    pub(crate) lease: LeaseId,
}

/// One reservation of stripe names.
#[derive(Debug)]
pub(crate) struct IntentRange {
    writer: u64,
    first: u64,
    names_taken: AtomicU32,
    len: u32,
    settled: Mutex<SettledNames>,
    /// True once a put ended without a known outcome: the row must stay.
    unknown: AtomicBool,
}

/// Settled names of a reservation: one bit each, and their count.
#[derive(Debug, Default)]
struct SettledNames {
    names: [u64; RANGE_LEN.div_ceil(u64::BITS) as usize],
    count: u32,
}

impl SettledNames {
    /// Settles a name in a range of `len`. Returns true once, for the last name to be settled.
    fn insert(&mut self, name: u64, len: u32) -> bool {
        let (word, bit) = ((name / 64) as usize, 1 << (name % 64));
        let is_new = self.names[word] & bit == 0;
        self.names[word] |= bit;
        self.count += u32::from(is_new);
        is_new && self.count == len
    }
}

/// A stripe's name, taken from a reservation.
#[derive(Clone, Debug)]
pub(crate) struct StripeName {
    pub(crate) id: StripeId,
    pub(crate) range: Arc<IntentRange>,
}

impl IntentRange {
    /// Returns the key of the reservation's row.
    pub(crate) fn key(&self) -> Bytes {
        keys::intent(self.writer, self.first)
    }

    fn take(self: &Arc<Self>) -> Option<StripeName> {
        let names_taken = self.names_taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, |names_taken| {
            (names_taken < self.len).then_some(names_taken + 1)
        });
        let id = StripeId::new(self.writer, self.first + u64::from(names_taken.ok()?));
        Some(StripeName { id, range: self.clone() })
    }
}

impl Writer {
    /// Registers a writer: takes a writer number and an epoch from the cluster's row, and a lease.
    pub(crate) async fn open(runtime: Runtime, meta: Arc<dyn MetaStore>) -> Result<Self, StripeError> {
        Self::with_ranges(runtime, meta, RANGE_LEN).await
    }

    /// As [`Writer::open`], but each name is a reservation of its own, which its owner ends.
    pub(crate) async fn open_single(runtime: Runtime, meta: Arc<dyn MetaStore>) -> Result<Self, StripeError> {
        Self::with_ranges(runtime, meta, 1).await
    }

    async fn with_ranges(
        runtime: Runtime,
        meta: Arc<dyn MetaStore>,
        range_len: u32,
    ) -> Result<Self, StripeError> {
        let (registered, epoch) = register(&runtime, meta.as_ref()).await?;
        let (current, next_sequence) = (Mutex::default(), tokio::sync::Mutex::new((0, registered)));
        let registered = Arc::new(Mutex::new(registered));
        keep_lease(&runtime, &meta, &registered);
        let epoch = FencingEpoch(epoch);
        Ok(Self { runtime, meta, epoch, registered, current, range_len, next_sequence })
    }

    pub(crate) fn epoch(&self) -> FencingEpoch {
        self.epoch
    }

    /// Registration under which new reservations and segments are made.
    pub(crate) fn registered(&self) -> RegisteredWriter {
        *self.registered.lock()
    }

    /// Registers a new writer to replace one whose lease has ended.
    pub(crate) async fn register_again(
        &self,
        ended: RegisteredWriter,
    ) -> Result<RegisteredWriter, StripeError> {
        if self.registered() != ended {
            return Ok(self.registered());
        }
        let (registered, _) = register(&self.runtime, self.meta.as_ref()).await?;
        Ok(replace(&self.registered, ended, registered))
    }

    /// Returns a fresh stripe name under a durable reservation.
    pub(crate) async fn name_stripe(&self) -> Result<StripeName, StripeError> {
        loop {
            let current = self.current.lock().clone();
            let (range_writer, current_writer) =
                (current.as_ref().map(|range| range.writer), self.registered().id);
            if let Some(name) =
                current.as_ref().filter(|_| range_writer == Some(current_writer)).and_then(IntentRange::take)
            {
                return Ok(name);
            }
            let mut next = self.next_sequence.lock().await;
            let refilled = match (&current, &*self.current.lock()) {
                (Some(old), Some(new)) => !Arc::ptr_eq(old, new),
                (None, new) => new.is_some(),
                (Some(_), None) => false,
            };
            if !refilled {
                let range = self.reserve(&mut next).await?;
                *self.current.lock() = Some(Arc::new(range));
            }
        }
    }

    /// Makes the next reservation, under a new registration if the lease of the last one has ended.
    async fn reserve(&self, next: &mut (u64, RegisteredWriter)) -> Result<IntentRange, StripeError> {
        loop {
            let registered = self.registered();
            if next.1 != registered {
                *next = (0, registered);
            }
            let (first, RegisteredWriter { id, lease }) = *next;
            let count = self.range_len;
            let record = records::Intent { writer: id, first_sequence: first, count, lease: lease.0 };
            let mut tx = Transaction::with_random_id(&self.runtime);
            tx.require(striate_meta::Precondition::LeaseAlive(lease));
            tx.put(keys::intent(id, first), records::encode(&record));
            if let Commit::Done(_) = self.meta.commit(tx).await? {
                next.0 += u64::from(count);
                return Ok(IntentRange {
                    writer: id,
                    first,
                    names_taken: AtomicU32::new(0),
                    len: count,
                    settled: Mutex::default(),
                    unknown: AtomicBool::new(false),
                });
            }
            self.register_again(registered).await?;
        }
    }

    /// Settles a name whose stripe a commit named, or whose chunks were removed. The last name of a range removes the
    /// range's row in the background. Settling a name again has no effect: several objects may share a stripe.
    pub(crate) fn settle(&self, name: &StripeName) {
        let range = &name.range;
        let is_last = range.settled.lock().insert(name.id.sequence() - range.first, range.len);
        if is_last && !range.unknown.load(Ordering::Acquire) {
            let mut tx = Transaction::with_random_id(&self.runtime);
            tx.delete(range.key());
            let meta = self.meta.clone();
            self.runtime.spawn(async move {
                if let Err(error) = meta.commit(tx).await {
                    tracing::debug!(%error, "removing an intent failed; the collector removes it");
                }
            });
        }
    }

    /// Records that the outcome of a stripe is unknown: the reservation stays until the collector decides.
    pub(crate) fn leave_unknown(&self, name: &StripeName) {
        name.range.unknown.store(true, Ordering::Release);
    }
}

/// Replaces a registration that has ended, unless another task was faster. Returns the one in force.
fn replace(
    registered: &Mutex<RegisteredWriter>,
    ended: RegisteredWriter,
    renewed: RegisteredWriter,
) -> RegisteredWriter {
    let mut registered = registered.lock();
    if *registered == ended {
        tracing::warn!(
            ended = ended.id,
            now = renewed.id,
            "the writer's lease expired; it continues under a new one"
        );
        *registered = renewed;
    }
    *registered
}

/// Takes a lease, the next writer number, and the next epoch.
async fn register(runtime: &Runtime, meta: &dyn MetaStore) -> Result<(RegisteredWriter, u64), StripeError> {
    let lease = meta.grant_lease(LEASE_TTL).await?.id;
    loop {
        let row = meta.get(&keys::cluster()).await?;
        let mut cluster: records::Cluster =
            row.as_ref().map(|row| row.record()).transpose()?.unwrap_or_default();
        cluster.next_writer += 1;
        cluster.next_epoch += 1;
        let mut tx = Transaction::with_random_id(runtime);
        tx.require_unchanged(keys::cluster(), row.as_ref());
        tx.put(keys::cluster(), records::encode(&cluster));
        if let Commit::Done(_) = meta.commit(tx).await? {
            return Ok((RegisteredWriter { id: cluster.next_writer, lease }, cluster.next_epoch));
        }
    }
}

/// Keeps the lease of the registration alive while its writer and the metadata store are in use.
fn keep_lease(runtime: &Runtime, meta: &Arc<dyn MetaStore>, registered: &Arc<Mutex<RegisteredWriter>>) {
    let (meta, clock, registered) = (Arc::downgrade(meta), runtime.clone(), Arc::downgrade(registered));
    runtime.spawn(async move {
        loop {
            clock.sleep(LEASE_TTL / 3).await;
            let (Some(meta), Some(registered)) = (meta.upgrade(), registered.upgrade()) else { return };
            let current = *registered.lock();
            if let Ok(false) = meta.keep_alive(current.lease).await
                && let Ok((renewed, _)) = register(&clock, meta.as_ref()).await
            {
                replace(&registered, current, renewed);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_range_ends_when_each_of_its_names_is_settled_however_often_some_are() {
        let runtime = Runtime::deterministic(1, Duration::from_secs(1_700_000_000));
        let meta: Arc<dyn MetaStore> = Arc::new(striate_meta::MemoryStore::new(runtime.clone()));
        let writer = Writer::open(runtime.clone(), meta.clone()).await.unwrap();
        let mut names = Vec::new();
        for _ in 0..RANGE_LEN {
            names.push(writer.name_stripe().await.unwrap());
        }
        let intent = names[0].range.key();
        let stands = async || {
            runtime.sleep(Duration::from_millis(1)).await;
            meta.get(&intent).await.unwrap().is_some()
        };
        // Objects of one stripe, each settled when its commit is known.
        (0..2 * RANGE_LEN).for_each(|_| writer.settle(&names[7]));
        assert!(stands().await, "1,023 names are open");
        names[1..].iter().for_each(|name| writer.settle(name));
        assert!(stands().await, "the first name is open");
        writer.settle(&names[0]);
        assert!(!stands().await);
    }
}

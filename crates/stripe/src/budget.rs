//! Budget for the bytes of bodies in memory, over all requests of a process (I12).
//!
//! A put takes a share for the block being gathered once more than a frame of it has arrived. Each block being
//! written holds its own share until its chunks are durable. A get holds a share for the block being sent, and
//! takes more for reading ahead only while no request waits.
//!
//! A holder whose peer is idle gives its memory back ([`crate::holders`]): when a request has to wait, and when
//! the gateway sweeps. So a share follows what the peer takes, and a waiter waits for work that finishes
//! without it. A cycle of puts that wait for what they gave back is possible; the deadline breaks it:
//! [`ByteBudget::acquire`] waits for [`StripeOptions::memory_wait`](crate::StripeOptions::memory_wait) at most.
//! Upkeep, and responses whose head is already sent, wait without a deadline ([`ByteBudget::wait`]).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use striate_runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::StripeError;
use crate::holders::{Holder, HolderRegistration, Holders};

/// Interval at which waiters reclaim memory from idle peers.
const RELIEF_EVERY: Duration = Duration::from_millis(100);
/// Idle time of a peer after which waiters reclaim its memory.
const IDLE: Duration = Duration::from_millis(100);
/// Idle peers may pin one part in this many of the budget before new reads start small.
const PINNED_SHARE: usize = 8;

/// A bounded number of bytes. Cheap to clone.
#[derive(Clone)]
pub struct ByteBudget {
    inner: Arc<Inner>,
}

struct Inner {
    runtime: Runtime,
    bytes: Arc<Semaphore>,
    total: usize,
    patience: Duration,
    holders: Holders,
    /// Bytes handed on to peers that then took nothing.
    pinned: AtomicUsize,
    waiting: AtomicUsize,
    waited: AtomicU64,
    refused: AtomicU64,
    released: AtomicU64,
}

/// Snapshot of a budget, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetView {
    /// Size of the budget in bytes.
    pub total: usize,
    /// Bytes in use.
    pub taken: usize,
    /// Bytes in use that were handed on to peers that then took nothing.
    pub pinned: usize,
    /// Requests that wait for a share now.
    pub waiting: usize,
    /// Requests that have had to wait, since the start.
    pub waited: u64,
    /// Requests that timed out while they waited.
    pub refused: u64,
    /// Times that memory was reclaimed from an idle peer.
    pub released: u64,
}

/// Bytes taken from the budget; returned on drop.
#[derive(Debug)]
pub struct Share {
    permit: OwnedSemaphorePermit,
}

/// A share that counts as pinned: its bytes were handed on to a peer that does not take them.
pub struct PinnedShare {
    share: Share,
    budget: Arc<Inner>,
}

/// Counts one waiter until dropped.
struct WaiterCount<'a>(&'a Inner);

impl Share {
    /// Size of the share in bytes.
    pub fn len(&self) -> usize {
        self.permit.num_permits()
    }

    /// Returns true for a share of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns everything beyond `len` bytes to the budget.
    pub fn shrink_to(&mut self, len: usize) {
        let more = self.len().saturating_sub(len);
        drop(self.permit.split(more));
    }

    /// Adds another share.
    pub fn merge(&mut self, other: Self) {
        self.permit.merge(other.permit);
    }
}

impl ByteBudget {
    /// Creates a budget of `total` bytes, at least one. [`ByteBudget::acquire`] waits for `patience` at most.
    pub fn new(runtime: Runtime, total: usize, patience: Duration) -> Self {
        let total = total.clamp(1, u32::MAX as usize);
        let inner = Inner {
            runtime,
            bytes: Arc::new(Semaphore::new(total)),
            total,
            patience,
            holders: Holders::default(),
            pinned: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            waited: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            released: AtomicU64::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Takes `len` bytes, waiting for a limited time. More than the whole budget counts as the whole budget.
    ///
    /// # Errors
    /// [`StripeError::Overloaded`] when they are not free in time.
    pub async fn acquire(&self, len: usize) -> Result<Share, StripeError> {
        if let Some(share) = self.try_acquire(len) {
            return Ok(share);
        }
        match self.inner.runtime.timeout(self.inner.patience, self.wait(len)).await {
            Ok(share) => Ok(share),
            Err(_) => {
                self.inner.refused.fetch_add(1, Ordering::Relaxed);
                Err(StripeError::Overloaded)
            }
        }
    }

    /// Takes `len` bytes, waiting as long as necessary. More than the whole budget counts as the whole budget.
    pub async fn wait(&self, len: usize) -> Share {
        let mut acquiring = pin!(Arc::clone(&self.inner.bytes).acquire_many_owned(self.clamped(len)));
        if let std::task::Poll::Ready(permit) = futures::poll!(acquiring.as_mut()) {
            return Share { permit: permit.expect("the semaphore is never closed") };
        }
        let _waiting = WaiterCount::new(&self.inner);
        loop {
            // The longest idle give back first, and only until the request is satisfied.
            for holder in self.idle(IDLE) {
                self.release(&*holder, IDLE);
                if let std::task::Poll::Ready(permit) = futures::poll!(acquiring.as_mut()) {
                    return Share { permit: permit.expect("the semaphore is never closed") };
                }
            }
            if let Ok(permit) = self.inner.runtime.timeout(RELIEF_EVERY, acquiring.as_mut()).await {
                return Share { permit: permit.expect("the semaphore is never closed") };
            }
        }
    }

    /// Takes `len` bytes if they are free now.
    pub fn try_acquire(&self, len: usize) -> Option<Share> {
        let permit = Arc::clone(&self.inner.bytes).try_acquire_many_owned(self.clamped(len)).ok()?;
        Some(Share { permit })
    }

    /// Registers a holder of memory for a peer until the returned guard is dropped.
    pub fn register(&self, holder: Arc<dyn Holder>) -> HolderRegistration {
        self.inner.holders.register(holder)
    }

    /// Reclaims memory from holders whose peers have been idle for `idle`.
    pub fn release_idle(&self, idle: Duration) {
        for holder in self.idle(idle) {
            self.release(&*holder, idle);
        }
    }

    fn idle(&self, idle: Duration) -> Vec<Arc<dyn Holder>> {
        self.inner.holders.idle(self.inner.runtime.now(), idle)
    }

    fn release(&self, holder: &dyn Holder, idle: Duration) {
        let since = self.inner.runtime.now().checked_sub(idle);
        if since.is_some_and(|since| holder.release_if_idle(since)) {
            self.inner.released.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Shrinks a share to `len` bytes and pins it: the bytes were handed on to a peer that does not take them.
    pub fn pin(&self, mut share: Share, len: usize) -> PinnedShare {
        share.shrink_to(len);
        self.inner.pinned.fetch_add(share.len(), Ordering::Relaxed);
        PinnedShare { share, budget: Arc::clone(&self.inner) }
    }

    /// Whether a read should start small while its receiver is still unknown: idle peers pin much.
    pub fn is_tight(&self) -> bool {
        self.inner.pinned.load(Ordering::Relaxed) > self.inner.total / PINNED_SHARE
    }

    /// Whether all reads should be small: idle peers pin half of the budget, or much of it while a request
    /// waits. If peers take their data, the wait ends without help, and small reads would only prolong it.
    pub fn is_pressed(&self) -> bool {
        let pinned = self.inner.pinned.load(Ordering::Relaxed);
        pinned > self.inner.total / 2 || (self.is_tight() && self.inner.waiting.load(Ordering::Relaxed) > 0)
    }

    /// While requests wait, returns the budget divided by the number of holders or of waiters, whichever is
    /// larger.
    pub fn fair_share(&self) -> Option<usize> {
        let waiting = self.inner.waiting.load(Ordering::Relaxed);
        (waiting > 0).then(|| self.inner.total / waiting.max(self.inner.holders.len()))
    }

    /// Size of the budget in bytes.
    pub fn total(&self) -> usize {
        self.inner.total
    }

    /// Returns a snapshot, for metrics.
    pub fn view(&self) -> BudgetView {
        let inner = &self.inner;
        BudgetView {
            total: inner.total,
            taken: inner.total - inner.bytes.available_permits(),
            pinned: inner.pinned.load(Ordering::Relaxed),
            waiting: inner.waiting.load(Ordering::Relaxed),
            waited: inner.waited.load(Ordering::Relaxed),
            refused: inner.refused.load(Ordering::Relaxed),
            released: inner.released.load(Ordering::Relaxed),
        }
    }

    fn clamped(&self, len: usize) -> u32 {
        len.min(self.inner.total) as u32
    }
}

impl<'a> WaiterCount<'a> {
    fn new(inner: &'a Inner) -> Self {
        inner.waiting.fetch_add(1, Ordering::Relaxed);
        inner.waited.fetch_add(1, Ordering::Relaxed);
        Self(inner)
    }
}

impl Drop for WaiterCount<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for PinnedShare {
    fn drop(&mut self) {
        self.budget.pinned.fetch_sub(self.share.len(), Ordering::Relaxed);
    }
}

impl std::fmt::Debug for ByteBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.view().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use striate_runtime::run_in_virtual_time;

    use super::*;

    fn budget(runtime: &Runtime) -> ByteBudget {
        ByteBudget::new(runtime.clone(), 100, Duration::from_secs(5))
    }

    #[tokio::test]
    async fn a_share_larger_than_the_budget_is_the_whole_budget_and_comes_back() {
        let budget = budget(&Runtime::real());
        let whole = budget.acquire(1_000).await.unwrap();
        assert_eq!(budget.view().taken, 100);
        assert!(budget.try_acquire(1).is_none());
        drop(whole);
        assert!(budget.try_acquire(100).is_some());
    }

    #[tokio::test]
    async fn those_who_wait_are_served_before_those_who_only_try() {
        let budget = budget(&Runtime::real());
        let first = budget.acquire(60).await.unwrap();
        let waiting = budget.acquire(100);
        tokio::pin!(waiting);
        assert!(futures::poll!(&mut waiting).is_pending());
        assert!(
            !budget.is_tight() && !budget.is_pressed(),
            "who waits for work that ends by itself presses nobody"
        );
        drop(first);
        assert!(budget.try_acquire(1).is_none());
        assert!(futures::poll!(&mut waiting).is_ready());
        assert_eq!(budget.fair_share(), None);
    }

    #[tokio::test]
    async fn reads_are_small_when_idle_peers_pin_half_or_much_while_somebody_waits() {
        let budget = budget(&Runtime::real());
        let pin = async |len| budget.pin(budget.acquire(len).await.unwrap(), len);
        let much = pin(13).await;
        assert_eq!((budget.is_tight(), budget.is_pressed()), (true, false));
        let waiting = budget.acquire(100);
        tokio::pin!(waiting);
        assert!(futures::poll!(&mut waiting).is_pending());
        assert_eq!((budget.is_tight(), budget.is_pressed()), (true, true));
        drop(much);
        assert!(futures::poll!(&mut waiting).is_ready());
        let half = pin(51).await;
        assert_eq!((budget.is_tight(), budget.is_pressed()), (true, true));
        drop(half);
        assert_eq!((budget.is_tight(), budget.is_pressed()), (false, false));
    }

    #[test]
    fn who_waits_in_vain_is_told_at_the_deadline_and_the_patient_wait_on() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let budget = budget(&runtime);
            let first = budget.acquire(100).await.unwrap();
            let (patient, began) = (budget.clone(), runtime.now());
            let patient = runtime.spawn(async move { patient.wait(1).await.len() });
            assert!(matches!(budget.acquire(1).await, Err(StripeError::Overloaded)));
            assert_eq!(runtime.now() - began, Duration::from_secs(5));
            runtime.sleep(Duration::from_secs(60)).await;
            assert_eq!((budget.view().waiting, budget.view().waited, budget.view().refused), (1, 2, 1));
            drop(first);
            assert_eq!(patient.await.unwrap(), 1);
        });
    }

    /// Holds a share for an idle peer.
    struct Idle(parking_lot::Mutex<Option<Share>>, striate_runtime::Instant);

    impl Holder for Idle {
        fn idle_since(&self) -> Option<striate_runtime::Instant> {
            self.0.lock().is_some().then_some(self.1)
        }

        fn release_if_idle(&self, _since: striate_runtime::Instant) -> bool {
            self.0.lock().take().is_some()
        }
    }

    #[test]
    fn who_waits_is_given_what_idle_peers_hold() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let budget = budget(&runtime);
            let mut registered = Vec::new();
            let mut idle = Vec::new();
            for _ in 0..4 {
                let holder = Idle(parking_lot::Mutex::new(budget.try_acquire(25)), runtime.now());
                idle.push(Arc::new(holder));
                registered.push(budget.register(idle.last().unwrap().clone()));
                runtime.sleep(Duration::from_secs(1)).await;
            }
            let began = runtime.now();
            assert_eq!(budget.acquire(30).await.unwrap().len(), 30);
            assert_eq!(
                (runtime.now(), budget.view().released),
                (began, 2),
                "at once, and no more than is needed"
            );
            let left: Vec<bool> = idle.iter().map(|idle| idle.0.lock().is_some()).collect();
            assert_eq!(left, [false, false, true, true], "the longest idle are the first");
        });
    }

    #[tokio::test]
    async fn shares_shrink_merge_and_are_pinned() {
        let budget = budget(&Runtime::real());
        let mut share = budget.acquire(90).await.unwrap();
        share.shrink_to(40);
        assert_eq!((share.len(), budget.view().taken), (40, 40));
        share.merge(budget.try_acquire(20).unwrap());
        share.shrink_to(100);
        assert_eq!((share.len(), share.is_empty()), (60, false));
        let pinned = budget.pin(share, 13);
        assert_eq!((budget.view().taken, budget.view().pinned, budget.is_tight()), (13, 13, true));
        drop(pinned);
        assert_eq!((budget.view().taken, budget.view().pinned, budget.is_tight()), (0, 0, false));
    }
}

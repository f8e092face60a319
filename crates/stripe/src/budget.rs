//! Budget for the bytes of bodies in memory, over all requests of a process (I12).
//!
//! A put holds what has arrived of the block being gathered ([`ArrivingBlock`](crate::ArrivingBlock)). Each block
//! being written holds its own share until its chunks are durable. A get holds a share for the block being sent, and
//! takes more for reading ahead only while no request waits. [`crate::ledger`] decides who is served and who is cut.
//!
//! A holder whose receiver is idle gives its memory back ([`crate::holders`]): when a request has to wait, and when
//! the gateway sweeps. So a share follows what the peer takes, and a waiter waits for work that finishes
//! without it. [`ByteBudget::acquire`] waits for [`StripeOptions::memory_wait`](crate::StripeOptions::memory_wait) at
//! most. Upkeep, and responses whose head is already sent, wait without a deadline ([`ByteBudget::wait`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use striate_runtime::{Instant, Runtime};
use tokio::sync::oneshot;

use crate::arriving::CutSignal;
use crate::error::StripeError;
use crate::holders::{Holder, HolderRegistration, Holders};
use crate::ledger::{Ledger, Payer, Want};

/// Interval at which waiters reclaim memory from idle and slow peers.
const RELIEF_EVERY: Duration = Duration::from_millis(100);
/// Idle time of a receiver after which waiters reclaim its memory.
const IDLE: Duration = Duration::from_millis(100);
/// Idle peers may pin one part in this many of the budget before new reads start small.
const PINNED_SHARE: usize = 8;

/// A bounded number of bytes, as one payer sees it. Cheap to clone.
#[derive(Clone)]
pub struct ByteBudget {
    inner: Arc<Inner>,
    payer: Payer,
}

struct Inner {
    runtime: Runtime,
    queue: Mutex<Queue>,
    total: usize,
    patience: Duration,
    holders: Holders,
    /// Bytes handed on to peers that then took nothing.
    pinned: AtomicUsize,
    waiting: AtomicUsize,
    waited: AtomicU64,
    refused: AtomicU64,
    released: AtomicU64,
    cut: AtomicU64,
}

struct Queue {
    ledger: Ledger,
    /// Those who wait, by ticket.
    waiters: BTreeMap<u64, oneshot::Sender<()>>,
    /// The puts whose blocks arrive.
    arrivals: BTreeMap<u64, Arc<CutSignal>>,
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
    /// Uploads that were ended because their senders were slow while others waited.
    pub cut: u64,
}

/// Bytes taken from the budget; returned on drop.
pub struct Share {
    budget: Arc<Inner>,
    payer: Payer,
    len: usize,
}

/// A share that counts as pinned: its bytes were handed on to a peer that does not take them.
pub struct PinnedShare {
    share: Share,
    budget: Arc<Inner>,
}

/// A place in the queue until dropped.
struct Place<'a> {
    inner: &'a Inner,
    ticket: u64,
    want: Want,
    /// Whether the waiter has received what it waited for.
    is_served: bool,
}

impl Share {
    /// Size of the share in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true for a share of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns everything beyond `len` bytes to the budget.
    pub fn shrink_to(&mut self, len: usize) {
        let more = self.len.saturating_sub(len);
        self.len -= more;
        self.budget.give_back(self.payer, more);
    }

    /// Adds another share.
    pub fn merge(&mut self, mut other: Self) {
        let len = std::mem::take(&mut other.len);
        if other.payer != self.payer {
            self.budget.queue.lock().ledger.transfer(other.payer, self.payer, len);
        }
        self.len += len;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.give_back(self.payer, self.len);
    }
}

impl std::fmt::Debug for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Share").field("payer", &self.payer).field("len", &self.len).finish()
    }
}

impl Inner {
    fn give_back(&self, payer: Payer, len: usize) {
        if len > 0 {
            self.change(|ledger| ledger.give_back(payer, len));
        }
    }

    /// Changes the ledger, and serves those who can be served then.
    fn change<T>(&self, change: impl FnOnce(&mut Ledger) -> T) -> T {
        let now = self.runtime.now();
        let mut queue = self.queue.lock();
        let changed = change(&mut queue.ledger);
        queue.serve(now);
        changed
    }

    /// Cuts slow senders that are in the way of one that waits.
    fn cut_for(&self, ticket: u64) {
        let now = self.runtime.now();
        let mut queue = self.queue.lock();
        let numbers = queue.ledger.cut_for(ticket, now);
        if numbers.is_empty() {
            return;
        }
        self.cut.fetch_add(numbers.len() as u64, Ordering::Relaxed);
        let cut: Vec<_> = numbers.iter().filter_map(|number| queue.arrivals.get(number).cloned()).collect();
        // Those among them that waited for memory wait no more.
        let Queue { ledger, waiters, .. } = &mut *queue;
        waiters.retain(|ticket, _| ledger.is_waiting(*ticket));
        queue.serve(now);
        drop(queue);
        cut.iter().for_each(|signal| signal.cut());
    }
}

impl Queue {
    /// Serves a request at once if those that wait lack something else.
    fn serve_now(&mut self, want: Want, now: Instant) -> bool {
        let ticket = self.ledger.enter(want);
        self.serve(now);
        !self.ledger.leave(ticket)
    }

    fn serve(&mut self, now: Instant) {
        while let Some(ticket) = self.ledger.serve(now) {
            // A waiter that is gone gives the bytes back itself.
            if let Some(waiter) = self.waiters.remove(&ticket) {
                let _ = waiter.send(());
            }
        }
    }
}

impl ByteBudget {
    /// Creates a budget of `total` bytes, at least one. [`ByteBudget::acquire`] waits for `patience` at most.
    pub fn new(runtime: Runtime, total: usize, patience: Duration) -> Self {
        let total = total.clamp(1, u32::MAX as usize);
        let queue = Queue { ledger: Ledger::new(total), waiters: BTreeMap::new(), arrivals: BTreeMap::new() };
        let inner = Inner {
            runtime,
            queue: Mutex::new(queue),
            total,
            patience,
            holders: Holders::default(),
            pinned: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            waited: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            released: AtomicU64::new(0),
            cut: AtomicU64::new(0),
        };
        Self { inner: Arc::new(inner), payer: Payer::STORE }
    }

    /// Returns the same budget, for memory that `payer` takes.
    pub fn paid_by(&self, payer: Payer) -> Self {
        Self { inner: Arc::clone(&self.inner), payer }
    }

    pub(crate) fn payer(&self) -> Payer {
        self.payer
    }

    /// Takes `len` bytes, waiting for a limited time. More than the payer's limit counts as the limit.
    ///
    /// # Errors
    /// [`StripeError::Overloaded`] when they are not free in time.
    pub async fn acquire(&self, len: usize) -> Result<Share, StripeError> {
        let want = self.want(len);
        self.obtain_in_time(want).await?;
        Ok(self.share(want.len))
    }

    /// Takes `len` bytes, waiting as long as necessary. More than the payer's limit counts as the limit.
    pub async fn wait(&self, len: usize) -> Share {
        let want = self.want(len);
        // Only an arrival can be cut.
        let _ = self.obtain(want).await;
        self.share(want.len)
    }

    /// Takes `len` bytes if they are free now and nobody waits for them.
    pub fn try_acquire(&self, len: usize) -> Option<Share> {
        let (want, now) = (self.want(len), self.inner.runtime.now());
        let mut queue = self.inner.queue.lock();
        let is_taken =
            queue.ledger.take(want, now) || (!queue.ledger.is_short(now) && queue.serve_now(want, now));
        drop(queue);
        is_taken.then(|| self.share(want.len))
    }

    fn want(&self, len: usize) -> Want {
        Want { payer: self.payer, len: self.clamped(len), arrival: None }
    }

    fn share(&self, len: usize) -> Share {
        Share { budget: Arc::clone(&self.inner), payer: self.payer, len }
    }

    /// Takes what is wanted, waiting for a limited time.
    ///
    /// # Errors
    /// [`StripeError::Overloaded`] when it is not free in time, or the arrival is cut.
    pub(crate) async fn obtain_in_time(&self, want: Want) -> Result<(), StripeError> {
        match self.inner.runtime.timeout(self.inner.patience, self.obtain(want)).await {
            Ok(obtained) => obtained,
            Err(_) => {
                self.inner.refused.fetch_add(1, Ordering::Relaxed);
                Err(StripeError::Overloaded)
            }
        }
    }

    /// Takes what is wanted, waiting as long as necessary.
    ///
    /// # Errors
    /// [`StripeError::Overloaded`] when the arrival is cut.
    async fn obtain(&self, want: Want) -> Result<(), StripeError> {
        let inner = &*self.inner;
        let (mut place, mut served) = {
            let now = inner.runtime.now();
            let mut queue = inner.queue.lock();
            if queue.ledger.take(want, now) {
                return Ok(());
            }
            let (waiter, served) = oneshot::channel();
            let ticket = queue.ledger.enter(want);
            queue.waiters.insert(ticket, waiter);
            queue.serve(now);
            drop(queue);
            inner.waiting.fetch_add(1, Ordering::Relaxed);
            (Place { inner, ticket, want, is_served: false }, served)
        };
        if served.try_recv().is_ok() {
            place.is_served = true;
            return Ok(());
        }
        inner.waited.fetch_add(1, Ordering::Relaxed);
        loop {
            // The longest idle give back first, and only until the request is satisfied.
            for holder in self.idle(IDLE) {
                self.release(&*holder, IDLE);
                if served.try_recv().is_ok() {
                    place.is_served = true;
                    return Ok(());
                }
            }
            inner.cut_for(place.ticket);
            match inner.runtime.timeout(RELIEF_EVERY, &mut served).await {
                Ok(Ok(())) => {
                    place.is_served = true;
                    return Ok(());
                }
                Ok(Err(_)) => return Err(StripeError::Overloaded),
                Err(_) => {}
            }
        }
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
        self.inner.queue.lock().ledger.forget(self.inner.runtime.now());
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
        pinned > self.inner.total / 2 || (self.is_tight() && self.pressing() > 0)
    }

    /// While requests wait, returns the budget divided by the number of holders or of waiters, whichever is
    /// larger.
    pub fn fair_share(&self) -> Option<usize> {
        let waiting = self.pressing();
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
            taken: inner.total - inner.queue.lock().ledger.free(),
            pinned: inner.pinned.load(Ordering::Relaxed),
            waiting: inner.waiting.load(Ordering::Relaxed),
            waited: inner.waited.load(Ordering::Relaxed),
            refused: inner.refused.load(Ordering::Relaxed),
            released: inner.released.load(Ordering::Relaxed),
            cut: inner.cut.load(Ordering::Relaxed),
        }
    }

    /// Number of requests that wait, without those of payers whose senders are slow.
    fn pressing(&self) -> usize {
        match self.inner.waiting.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.inner.queue.lock().ledger.pressing(self.inner.runtime.now()),
        }
    }

    pub(crate) fn clamped(&self, len: usize) -> usize {
        len.min(self.inner.queue.lock().ledger.most_of(self.payer))
    }

    pub(crate) fn register_arrival(&self, cut: Arc<CutSignal>) -> u64 {
        let mut queue = self.inner.queue.lock();
        let number = queue.ledger.begin_arrival(self.payer);
        queue.arrivals.insert(number, cut);
        number
    }

    pub(crate) fn await_more(&self, arrival: u64, arrived: usize) {
        let now = self.inner.runtime.now();
        self.inner.queue.lock().ledger.await_more(arrival, arrived, now);
    }

    pub(crate) fn end_wait(&self, arrival: u64) {
        let now = self.inner.runtime.now();
        self.inner.queue.lock().ledger.end_wait(arrival, now);
    }

    /// Ends an arrival that holds `held` bytes, and returns them.
    pub(crate) fn complete_arrival(&self, arrival: u64, held: usize) -> Share {
        self.inner.queue.lock().arrivals.remove(&arrival);
        let now = self.inner.runtime.now();
        self.inner.change(|ledger| ledger.complete_arrival(arrival, now));
        self.share(held)
    }

    /// Ends an arrival and gives back what it holds, if it has not ended.
    pub(crate) fn drop_arrival(&self, arrival: u64) {
        if self.inner.queue.lock().arrivals.remove(&arrival).is_some() {
            self.inner.change(|ledger| {
                let held = ledger.held_by(arrival);
                ledger.end_arrival(arrival);
                ledger.give_back(self.payer, held);
            });
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.inner.waiting.fetch_sub(1, Ordering::Relaxed);
        if self.is_served {
            return;
        }
        self.inner.queue.lock().waiters.remove(&self.ticket);
        self.inner.change(|ledger| {
            // What was served and not received is given back; an arrival gives it back when it ends.
            let was_served = !ledger.leave(self.ticket);
            if was_served && self.want.arrival.is_none() {
                ledger.give_back(self.want.payer, self.want.len);
            }
        });
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

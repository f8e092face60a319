//! Holders of memory for peers. A holder gives its memory back when its peer is idle.
//!
//! A response is a stream that its receiver polls. Between two polls its state is *parked* ([`ParkedStream`]) in a
//! cell that others can reach. Bytes that were read but not taken can be dropped there, and are read again when
//! the receiver resumes. Memory thus goes to active peers, at the price of a second read for those that
//! stalled. A put cannot drop the bytes it has received; it gives back the memory reserved for the rest
//! ([`Holder`] signals it, and the put's own task does it).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use striate_runtime::{Instant, Runtime};

use crate::budget::ByteBudget;

/// Minimum interval between two scans for idle holders. Waiters ask often, and scanning sooner finds nothing.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Holds memory for a peer.
pub trait Holder: Send + Sync {
    /// Returns when the peer became idle; `None` while it is active or nothing can be given back.
    fn idle_since(&self) -> Option<Instant>;

    /// Gives back what it can if the peer has been idle since `since`. Returns true if it gave back anything.
    fn release_if_idle(&self, since: Instant) -> bool;
}

/// All holders of memory for peers.
#[derive(Default)]
pub(crate) struct Holders {
    table: Arc<Mutex<HolderTable>>,
}

#[derive(Default)]
struct HolderTable {
    last: u64,
    holders: BTreeMap<u64, Arc<dyn Holder>>,
    last_scan: Option<Instant>,
}

/// Keeps a holder registered until dropped.
pub struct HolderRegistration {
    table: Arc<Mutex<HolderTable>>,
    number: u64,
}

impl Holders {
    pub(crate) fn register(&self, holder: Arc<dyn Holder>) -> HolderRegistration {
        let mut table = self.table.lock();
        table.last += 1;
        let number = table.last;
        table.holders.insert(number, holder);
        drop(table);
        HolderRegistration { table: Arc::clone(&self.table), number }
    }

    /// Number of holders.
    pub(crate) fn len(&self) -> usize {
        self.table.lock().holders.len()
    }

    /// Returns the holders whose peers have been idle for `idle`, the longest idle first. Empty when another
    /// caller has just scanned. The caller releases them without the lock, because what a holder drops may
    /// unregister other holders.
    pub(crate) fn idle(&self, now: Instant, idle: Duration) -> Vec<Arc<dyn Holder>> {
        let Some(since) = now.checked_sub(idle) else { return Vec::new() };
        let mut table = self.table.lock();
        if table.last_scan.is_some_and(|last_scan| now < last_scan + LOOK_EVERY) {
            return Vec::new();
        }
        table.last_scan = Some(now);
        let holders: Vec<Arc<dyn Holder>> = table.holders.values().cloned().collect();
        // Ask without the lock: a holder may call the budget while it holds a lock of its own.
        drop(table);
        let idle = holders.into_iter().filter_map(|holder| Some((holder.idle_since()?, holder)));
        let mut idle: Vec<_> = idle.filter(|(idle_since, _)| *idle_since <= since).collect();
        idle.sort_by_key(|(idle_since, _)| *idle_since);
        idle.into_iter().map(|(_, holder)| holder).collect()
    }
}

impl Drop for HolderRegistration {
    fn drop(&mut self) {
        let holder = self.table.lock().holders.remove(&self.number);
        // Drop it without the lock, as above.
        drop(holder);
    }
}

/// State of a stream that can drop what it holds and rebuild it.
pub trait Shrink: Send + 'static {
    /// Item of the stream.
    type Item: Send;

    /// Returns the next item; `None` at the end.
    fn next(&mut self) -> impl Future<Output = Option<Self::Item>> + Send;

    /// Drops what was not taken yet. The next call of [`Shrink::next`] rebuilds it.
    fn shrink(&mut self);
}

/// State of a stream between two polls.
pub struct ParkedStream<T> {
    cell: Arc<Cell<T>>,
    runtime: Runtime,
    _registered: HolderRegistration,
}

struct Cell<T>(Mutex<Slot<T>>);

struct Slot<T> {
    /// `None` while the stream is polled.
    state: Option<T>,
    since: Instant,
    is_small: bool,
}

impl<T: Shrink> ParkedStream<T> {
    /// Parks `state`; its receiver is about to take from it.
    pub fn new(runtime: Runtime, budget: &ByteBudget, state: T) -> Self {
        let slot = Slot { state: Some(state), since: runtime.now(), is_small: false };
        let cell = Arc::new(Cell(Mutex::new(slot)));
        let _registered = budget.register(cell.clone());
        Self { cell, runtime, _registered }
    }

    /// Returns the next item and the parked state for the one after it.
    pub async fn step(self) -> Option<(T::Item, Self)> {
        let mut state = self.cell.0.lock().state.take()?;
        let item = state.next().await?;
        let now = self.runtime.now();
        *self.cell.0.lock() = Slot { state: Some(state), since: now, is_small: false };
        Some((item, self))
    }
}

impl<T: Shrink> Holder for Cell<T> {
    fn idle_since(&self) -> Option<Instant> {
        let slot = self.0.lock();
        (!slot.is_small && slot.state.is_some()).then_some(slot.since)
    }

    fn release_if_idle(&self, since: Instant) -> bool {
        let mut slot = self.0.lock();
        if slot.is_small || slot.since > since {
            return false;
        }
        let Some(state) = &mut slot.state else { return false };
        state.shrink();
        slot.is_small = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts up. When shrunk, it forgets the numbers it has not handed out.
    struct Counter {
        next: u32,
        held: Vec<u32>,
    }

    impl Shrink for Counter {
        type Item = u32;

        async fn next(&mut self) -> Option<u32> {
            if self.held.is_empty() {
                self.held = (self.next..self.next + 3).rev().collect();
            }
            self.next += 1;
            self.held.pop()
        }

        fn shrink(&mut self) {
            self.held.clear();
        }
    }

    /// Takes the lock of the holders while it is asked itself.
    struct Asking(Arc<Mutex<HolderTable>>);

    impl Holder for Asking {
        fn idle_since(&self) -> Option<Instant> {
            assert!(
                self.0.try_lock().is_some(),
                "whoever holds a lock that this takes may count the holders"
            );
            None
        }

        fn release_if_idle(&self, _: Instant) -> bool {
            false
        }
    }

    #[tokio::test(start_paused = true)]
    async fn holders_are_asked_without_the_lock() {
        let (runtime, holders) = (Runtime::real(), Holders::default());
        let _registered = holders.register(Arc::new(Asking(Arc::clone(&holders.table))));
        runtime.sleep(Duration::from_secs(1)).await;
        assert!(holders.idle(runtime.now(), Duration::ZERO).is_empty());
        assert!(holders.table.lock().last_scan.is_some(), "it was asked");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_taken_is_dropped_when_its_receiver_is_idle_and_made_again() {
        let runtime = Runtime::real();
        let budget = ByteBudget::new(runtime.clone(), 100, Duration::ZERO);
        let parked = ParkedStream::new(runtime.clone(), &budget, Counter { next: 0, held: Vec::new() });
        let cell = parked.cell.clone();
        let held = |cell: &Cell<Counter>| cell.0.lock().state.as_ref().map(|state| state.held.len());
        let (first, parked) = parked.step().await.unwrap();
        assert_eq!((first, held(&cell)), (0, Some(2)));
        runtime.sleep(Duration::from_secs(1)).await;
        budget.release_idle(Duration::from_secs(2));
        assert_eq!((held(&cell), budget.view().released), (Some(2), 0), "it is not idle for long");
        runtime.sleep(Duration::from_secs(1)).await;
        budget.release_idle(Duration::from_secs(2));
        assert_eq!((held(&cell), budget.view().released), (Some(0), 1));
        let (second, parked) = parked.step().await.unwrap();
        assert_eq!((second, held(&cell)), (1, Some(2)));
        drop(parked);
        runtime.sleep(Duration::from_secs(9)).await;
        budget.release_idle(Duration::ZERO);
        assert_eq!(budget.view().released, 1, "it is not known any more");
    }
}

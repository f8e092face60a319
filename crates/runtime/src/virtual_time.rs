//! Virtual time with a resolution of one nanosecond.
//!
//! Tokio's paused clock counts timers in whole milliseconds, which is longer than a round trip in a rack. So virtual
//! time here has its own clock and timer queue, and takes only the executor from tokio: a single-threaded scheduler
//! whose *park hook* runs when no task can run. The hook advances the clock to the next timer and wakes its waiter.
//! Work takes no virtual time; only waiting does.
//!
//! Timers that are due at the same instant fire in the order in which they were set, and tasks run in the order in
//! which they were woken, so a run depends on nothing but its seed (I14).
//!
//! Cost: two operations on a binary heap per timer. A timer that is dropped before it fires leaves a small entry
//! behind; the heap is rebuilt when more than half of its entries are dead.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Runtime;

/// Entries below which the heap is never rebuilt.
const MIN_REBUILD: usize = 1024;

/// The clock and timers of one run in virtual time.
#[derive(Debug)]
pub(crate) struct VirtualClock {
    start: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    now_ns: u64,
    next_sequence: u64,
    /// Timers by due time, then by the order in which they were set.
    queue: BinaryHeap<Reverse<Entry>>,
    slots: Vec<Slot>,
    free_slots: Vec<u32>,
    live: usize,
    finished: bool,
    /// Wakes the executor itself.
    executor: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    due_ns: u64,
    sequence: u64,
    slot: u32,
}

/// A timer that is set. The sequence distinguishes it from earlier timers in the same slot.
#[derive(Debug, Default)]
struct Slot {
    sequence: u64,
    waker: Option<Waker>,
}

/// Identifies a timer that is set.
#[derive(Clone, Copy, Debug)]
struct Key {
    slot: u32,
    sequence: u64,
}

impl VirtualClock {
    fn new() -> Arc<Self> {
        Arc::new(Self { start: Instant::now(), state: Mutex::default() })
    }

    pub(crate) fn now(&self) -> Instant {
        self.start + Duration::from_nanos(self.state.lock().now_ns)
    }

    fn due_ns(&self, deadline: Instant) -> u64 {
        u64::try_from(deadline.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Advances the clock to the next timer and wakes all that are due then.
    ///
    /// # Panics
    /// If nothing is due although the run has not finished: its tasks wait for each other.
    fn advance(&self) {
        let mut state = self.state.lock();
        if state.finished {
            return;
        }
        let mut due = Vec::new();
        while let Some(&Reverse(entry)) = state.queue.peek() {
            if !due.is_empty() && entry.due_ns > state.now_ns {
                break;
            }
            state.queue.pop();
            if let Some(waker) = state.take(Key { slot: entry.slot, sequence: entry.sequence }) {
                state.now_ns = entry.due_ns.max(state.now_ns);
                due.push(waker);
            }
        }
        let executor = state.executor.clone();
        drop(state);
        assert!(!due.is_empty(), "virtual time stands still: every task waits and no timer is set");
        due.into_iter().for_each(Waker::wake);
        // The woken waiter may not lead to a runnable task, for instance a future of a set that is not polled now. The
        // executor then parks again, and the next timer is due.
        executor.into_iter().for_each(Waker::wake);
    }

    fn finish(&self) {
        self.state.lock().finished = true;
    }
}

impl State {
    fn set(&mut self, due_ns: u64, waker: Waker) -> Key {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 timers")
        });
        self.slots[slot as usize] = Slot { sequence, waker: Some(waker) };
        self.queue.push(Reverse(Entry { due_ns, sequence, slot }));
        self.live += 1;
        Key { slot, sequence }
    }

    /// Removes the timer and returns its waker, if it is still set.
    fn take(&mut self, key: Key) -> Option<Waker> {
        let slot = &mut self.slots[key.slot as usize];
        let waker = slot.waker.take_if(|_| slot.sequence == key.sequence)?;
        self.free_slots.push(key.slot);
        self.live -= 1;
        Some(waker)
    }

    fn drop_dead_entries(&mut self) {
        if self.queue.len() < MIN_REBUILD || self.queue.len() < 2 * self.live {
            return;
        }
        let slots = &self.slots;
        self.queue.retain(|Reverse(entry)| {
            let slot = &slots[entry.slot as usize];
            slot.waker.is_some() && slot.sequence == entry.sequence
        });
    }
}

/// A wait for an instant of virtual time.
#[derive(Debug)]
pub(crate) struct VirtualTimer {
    clock: Arc<VirtualClock>,
    due_ns: u64,
    key: Option<Key>,
}

impl VirtualTimer {
    pub(crate) fn new(clock: Arc<VirtualClock>, deadline: Instant) -> Self {
        Self { due_ns: clock.due_ns(deadline), clock, key: None }
    }
}

impl Future for VirtualTimer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut state = this.clock.state.lock();
        if state.now_ns >= this.due_ns {
            return Poll::Ready(());
        }
        let waker = this.key.and_then(|key| state.slots[key.slot as usize].waker.as_mut());
        match waker {
            // A waiting timer keeps its slot until it fires, so this is the waker that it set.
            Some(waker) => waker.clone_from(context.waker()),
            None => this.key = Some(state.set(this.due_ns, context.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for VirtualTimer {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut state = self.clock.state.lock();
        let waker = state.take(key);
        if waker.is_some() {
            state.drop_dead_entries();
        }
        drop(state);
        // Outside the lock: dropping the last handle of a task runs that task's destructors.
        drop(waker);
    }
}

/// Runs `main` to its end in virtual time, in this thread. All randomness of the runtime that it gets derives from
/// `seed`. The wall clock starts at `wall_start` since the Unix epoch. Tasks that are still running at the end are
/// dropped.
///
/// # Panics
/// If `main` panics, or if it waits and nothing is left that could wake it.
pub fn run_in_virtual_time<M, F>(seed: u64, wall_start: Duration, main: M) -> F::Output
where
    M: FnOnce(Runtime) -> F,
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let clock = VirtualClock::new();
    let hook = Arc::clone(&clock);
    let tokio = tokio::runtime::Builder::new_current_thread()
        .on_thread_park(move || hook.advance())
        .build()
        .expect("a runtime without drivers needs nothing of the system");
    let main = main(Runtime::on_virtual_clock(seed, wall_start, Arc::clone(&clock)));
    // The root future is polled separately from the tasks and may be pending when the hook runs, so `main` runs as a
    // task.
    let result = tokio.block_on(async move {
        let finished = Arc::clone(&clock);
        let task = tokio::spawn(async move {
            let output = main.await;
            finished.finish();
            output
        });
        let mut task = pin!(task);
        poll_fn(|context| {
            clock.state.lock().executor.get_or_insert_with(|| context.waker().clone());
            task.as_mut().poll(context)
        })
        .await
    });
    match result {
        Ok(output) => output,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MICROSECOND: Duration = Duration::from_micros(1);

    fn run<F>(main: impl FnOnce(Runtime) -> F) -> F::Output
    where
        F: Future<Output: Send> + Send + 'static,
    {
        run_in_virtual_time(1, Duration::ZERO, main)
    }

    #[test]
    fn time_passes_to_the_nanosecond_and_only_by_waiting() {
        let uptime = run(|runtime| async move {
            runtime.sleep(Duration::from_nanos(1)).await;
            runtime.sleep(MICROSECOND * 3).await;
            runtime.uptime()
        });
        assert_eq!(uptime, Duration::from_nanos(3_001));
    }

    #[test]
    fn tasks_wake_in_the_order_of_their_deadlines_then_of_their_waiting() {
        let order = run(|runtime| async move {
            let woken = Arc::new(Mutex::new(Vec::new()));
            for (name, wait) in [("c", 7), ("a", 5), ("b", 5)] {
                let (runtime_of_task, woken) = (runtime.clone(), Arc::clone(&woken));
                runtime.spawn(async move {
                    runtime_of_task.sleep(MICROSECOND * wait).await;
                    woken.lock().push(name);
                });
            }
            runtime.sleep(MICROSECOND * 8).await;
            woken.lock().clone()
        });
        assert_eq!(order, ["a", "b", "c"]);
    }

    #[test]
    fn timeouts_drop_what_is_late_and_let_pass_what_is_not() {
        run(|runtime| async move {
            let late = runtime.timeout(MICROSECOND, runtime.sleep(MICROSECOND * 2)).await;
            assert!(late.is_err());
            assert_eq!(runtime.uptime(), MICROSECOND);
            assert_eq!(runtime.timeout(MICROSECOND, async { 5 }).await.ok(), Some(5));
        });
    }

    #[test]
    fn dropped_timers_do_not_hold_up_time_or_pile_up() {
        run(|runtime| async move {
            for _ in 0..10 * MIN_REBUILD {
                let long = runtime.sleep(Duration::from_secs(3_600));
                assert!(runtime.timeout(MICROSECOND, long).await.is_err());
            }
            let crate::Clock::Virtual(clock) = &runtime.inner.clock else { panic!("not in virtual time") };
            assert!(clock.state.lock().queue.len() <= MIN_REBUILD);
            assert_eq!(runtime.uptime(), MICROSECOND * 10 * MIN_REBUILD as u32);
        });
    }

    #[test]
    fn a_timer_whose_waiter_cannot_go_on_does_not_hold_up_the_next() {
        let uptime = run(|runtime| async move {
            let mut timer = runtime.timer(runtime.now() + MICROSECOND);
            let first = Pin::new(&mut timer).poll(&mut Context::from_waker(Waker::noop()));
            assert!(first.is_pending());
            runtime.sleep(MICROSECOND * 2).await;
            runtime.uptime()
        });
        assert_eq!(uptime, MICROSECOND * 2);
    }

    #[test]
    #[should_panic(expected = "virtual time stands still")]
    fn a_deadlock_is_a_panic_and_not_a_hang() {
        run(|_| std::future::pending::<()>());
    }

    #[test]
    #[should_panic(expected = "as intended")]
    fn a_panic_of_the_run_reaches_the_caller() {
        run(|_| async { panic!("as intended") });
    }
}

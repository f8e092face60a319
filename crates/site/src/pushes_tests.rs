//! Which reports watchers receive and how often, in virtual time.

use std::future::Future;

use futures::FutureExt;
use striate_runtime::run_in_virtual_time;

use super::*;
use crate::alarm::UNREPORTED_BYTES;
use crate::api::Priority;
use crate::memory::MemoryStore;
use crate::queue::{Permit, Queue, QueueLimits};

/// A queue that the tests fill, and its pushes.
struct Subject {
    runtime: Runtime,
    queue: Arc<Queue<()>>,
    pushes: Arc<Pushes>,
}

impl Subject {
    fn new(runtime: Runtime) -> Self {
        let queue = Queue::new(QueueLimits::default());
        let (counts, store) = (Arc::clone(queue.counts()), Arc::new(MemoryStore::default()));
        let load = LoadMeter::new(runtime.clone(), counts, 4, store);
        let pushes = Pushes::new(runtime.clone(), Arc::new(load));
        Self { runtime, queue, pushes }
    }

    /// Adds a request, which stays until dropped.
    fn request(&self, bytes: u64) -> Permit {
        self.queue.admit(Priority::Foreground, bytes).expect("the queue has room")
    }

    fn watch(&self) -> LoadStream {
        self.pushes.watch().expect("it takes watchers")
    }

    /// Adds and removes a request every 100 µs for a tenth of a second.
    async fn storm(&self) {
        for _ in 0..1_000 {
            let _request = self.request(1_000);
            self.runtime.sleep(Duration::from_micros(100)).await;
        }
    }
}

async fn next(reports: &mut LoadStream) -> (u32, u64) {
    let report = reports.next().await.expect("the site pushes").expect("without an error");
    (report.queue_requests, report.queue_bytes)
}

fn run<F: Future<Output = ()> + Send + 'static>(main: impl FnOnce(Subject) -> F) {
    run_in_virtual_time(1, Duration::ZERO, |runtime| main(Subject::new(runtime)));
}

#[test]
fn who_asks_nothing_learns_of_a_queue_that_others_make() {
    run(|of| async move {
        let held = of.request(100);
        let mut reports = of.watch();
        assert_eq!(next(&mut reports).await, (1, 100), "at once");
        of.runtime.sleep(Duration::from_secs(1)).await;
        let began = of.runtime.now();
        let other = of.request(50);
        assert_eq!((next(&mut reports).await, of.runtime.now()), ((2, 150), began), "after a pause at once");
        of.runtime.sleep(Duration::from_secs(1)).await;
        let began = of.runtime.now();
        drop(held);
        assert_eq!((next(&mut reports).await, of.runtime.now()), ((1, 50), began), "an end as well");
        drop(other);
        assert_eq!(next(&mut reports).await, (0, 0));
        assert_eq!(of.runtime.now() - began, PUSH_INTERVAL);
    });
}

#[test]
fn nothing_is_said_while_the_queue_is_as_it_was_told() {
    run(|of| async move {
        let mut reports = of.watch();
        next(&mut reports).await;
        let counts = of.queue.counts();
        let little = counts.buffer(UNREPORTED_BYTES - 1);
        let waits = of.runtime.timeout(Duration::from_secs(3_600), next(&mut reports)).await;
        assert!(waits.is_err(), "{waits:?}");
        let more = counts.buffer(1);
        assert_eq!(next(&mut reports).await, (0, UNREPORTED_BYTES));
        drop(little);
        let waits = of.runtime.timeout(Duration::from_secs(3_600), next(&mut reports)).await;
        assert!(waits.is_err(), "{waits:?}");
        drop(more);
        assert_eq!(next(&mut reports).await, (0, 0));
    });
}

#[test]
fn a_storm_is_told_once_in_an_interval_and_its_end_too() {
    run(|of| async move {
        let mut reports = of.watch();
        next(&mut reports).await;
        let began = of.runtime.now();
        let told = of.runtime.spawn(async move {
            let mut told = 0;
            while next(&mut reports).await != (3, 30) {
                told += 1;
            }
            told
        });
        of.storm().await;
        let intervals = (of.runtime.now() - began).as_micros() / PUSH_INTERVAL.as_micros();
        let _last = [10, 10, 10].map(|bytes| of.request(bytes));
        let told =
            of.runtime.timeout(2 * PUSH_INTERVAL, told).await.expect("the last state gets out").unwrap();
        assert!((1..=intervals + 1).contains(&told), "{told} reports in {intervals} intervals");
    });
}

#[test]
fn a_watcher_that_stalls_holds_nobody_up_and_finds_the_newest_state() {
    run(|of| async move {
        let (mut stalled, mut other) = (of.watch(), of.watch());
        let told = of.runtime.spawn(async move { while next(&mut other).await != (2, 20) {} });
        of.storm().await;
        let _last = [10, 10].map(|bytes| of.request(bytes));
        told.await.unwrap();
        assert_eq!(next(&mut stalled).await, (2, 20));
        assert!(next(&mut stalled).now_or_never().is_none(), "one report");
    });
}

/// A watcher that arrives while the queue differs from the last report is also told of the difference.
#[test]
fn a_watcher_that_comes_in_between_misses_nothing() {
    run(|of| async move {
        let mut first = of.watch();
        next(&mut first).await;
        let request = of.request(1);
        assert_eq!(next(&mut first).await, (1, 1));
        drop(request);
        let mut second = of.watch();
        let told = next(&mut second).await;
        let _again = of.request(1);
        of.runtime.sleep(2 * PUSH_INTERVAL).await;
        let last = next(&mut second).now_or_never().unwrap_or(told);
        assert_eq!(last, (1, 1));
    });
}

#[test]
fn watchers_are_bounded_and_make_room_when_they_go() {
    run(|of| async move {
        let mut watchers: Vec<LoadStream> = (0..MAX_WATCHERS).map(|_| of.watch()).collect();
        assert_eq!(of.pushes.watch().err(), Some(SiteError::Busy));
        watchers.pop();
        next(&mut of.watch()).await;
        drop(watchers);
        of.runtime.sleep(2 * PUSH_INTERVAL).await;
        assert!(!of.pushes.state.lock().runs, "nothing runs for nobody");
        let _request = of.request(1);
        assert_eq!(next(&mut of.watch()).await, (1, 1));
    });
}

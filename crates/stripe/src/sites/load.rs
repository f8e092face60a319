//! o_j: what is before a request at a site, estimated from what the site reported and what was asked since
//! (EC-Store §IV-A, Eq. 1).
//!
//! A report rides on every reply. What this client has begun and ended at the site since then is added, so that a
//! burst of its own is seen before the next reply; what the report has seen of this client is not counted twice. A
//! report grows old: with [`MEMORY`] the estimate returns to what sites usually have, or a client would stay away from a
//! site that was busy once, or all clients would run to the one that was idle when they last heard of it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use striate_core::LoadReport;
use striate_runtime::Instant;

/// After this time a report counts only 1/e against what is usual.
const MEMORY: Duration = Duration::from_millis(500);
/// Weight of a report in what is usual.
const USUAL_WEIGHT: f64 = 1.0 / 64.0;

/// What this client knows of one site's queue.
#[derive(Debug, Default)]
pub(super) struct SiteLoad {
    /// Reads of this client that are under way there.
    in_flight: AtomicU32,
    heard: Mutex<Option<Heard>>,
}

/// A report, and how things stood when it came.
#[derive(Clone, Copy, Debug)]
struct Heard {
    at: Instant,
    sequence: u64,
    queue: u32,
    workers: u32,
    in_flight: u32,
}

/// What the queues of all sites usually are.
#[derive(Debug, Default)]
pub(super) struct UsualQueue(Mutex<f64>);

/// A site's queue, as estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Queue {
    /// Requests before the next one: those of the last report, as far as it is fresh,
    pub(crate) reported: f64,
    /// what is usual in the place of the rest,
    pub(crate) usual: f64,
    /// and what this client has begun there since, less what has ended.
    pub(crate) own: f64,
    /// Of these, for each of the site's workers, the ones that must wait.
    pub(crate) waiting: f64,
}

impl Queue {
    /// Requests before the next one.
    pub(crate) fn requests(&self) -> f64 {
        self.reported + self.usual + self.own
    }
}

impl UsualQueue {
    fn get(&self) -> f64 {
        *self.0.lock()
    }

    fn note(&self, queue: u32) {
        let mut usual = self.0.lock();
        *usual += (f64::from(queue) - *usual) * USUAL_WEIGHT;
    }
}

impl SiteLoad {
    /// A read of this client begins.
    pub(super) fn begin(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// It has ended.
    pub(super) fn end(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes note of the last report, if it is a new one. Sites of this process make theirs when they are asked, under
    /// the number of their last reply.
    pub(super) fn hear(&self, report: &LoadReport, now: Instant, usual: &UsualQueue) {
        let mut heard = self.heard.lock();
        let is_known =
            |heard: &Heard| (heard.sequence, heard.queue) == (report.sequence, report.queue_requests);
        if !heard.as_ref().is_some_and(is_known) {
            usual.note(report.queue_requests);
            *heard = Some(Heard {
                at: now,
                sequence: report.sequence,
                queue: report.queue_requests,
                workers: report.workers,
                in_flight: self.in_flight.load(Ordering::Relaxed),
            });
        }
    }

    /// The estimate.
    pub(super) fn queue(&self, now: Instant, usual: &UsualQueue) -> Queue {
        let in_flight = f64::from(self.in_flight.load(Ordering::Relaxed));
        let Some(heard) = *self.heard.lock() else {
            let usual = usual.get();
            return Queue { usual, own: (in_flight - usual).max(0.0), ..Queue::default() };
        };
        let weight = (-now.saturating_duration_since(heard.at).as_secs_f64() / MEMORY.as_secs_f64()).exp();
        let (reported, usual) = (weight * f64::from(heard.queue), (1.0 - weight) * usual.get());
        // No fewer than this client has there.
        let own = (in_flight - f64::from(heard.in_flight)).max(in_flight - (reported + usual));
        let queue = Queue { reported, usual, own, waiting: 0.0 };
        let workers = f64::from(heard.workers.max(1));
        Queue { waiting: (queue.requests() - workers).max(0.0) / workers, ..queue }
    }
}

#[cfg(test)]
mod tests {
    use striate_runtime::run_in_virtual_time;

    use super::*;

    fn report(sequence: u64, queue_requests: u32) -> LoadReport {
        LoadReport { sequence, queue_requests, workers: 2, ..LoadReport::default() }
    }

    #[test]
    fn what_the_report_has_seen_of_this_client_is_counted_once() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let (load, usual) = (SiteLoad::default(), UsualQueue::default());
            let now = runtime.now();
            (0..3).for_each(|_| load.begin());
            load.hear(&report(1, 7), now, &usual);
            let queue = load.queue(now, &usual);
            assert_eq!((queue.requests(), queue.waiting), (7.0, 2.5));
            load.begin();
            assert_eq!(load.queue(now, &usual).requests(), 8.0);
            (0..3).for_each(|_| load.end());
            assert_eq!(load.queue(now, &usual).requests(), 5.0);
            // The same report again changes nothing.
            load.hear(&report(1, 7), now, &usual);
            assert_eq!(load.queue(now, &usual).requests(), 5.0);
        });
    }

    #[test]
    fn a_site_has_at_least_what_this_client_has_there() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let (load, usual) = (SiteLoad::default(), UsualQueue::default());
            (0..4).for_each(|_| load.begin());
            assert_eq!(load.queue(runtime.now(), &usual).requests(), 4.0);
            load.hear(&report(1, 0), runtime.now(), &usual);
            assert_eq!(load.queue(runtime.now(), &usual).requests(), 4.0);
        });
    }

    #[test]
    fn an_old_report_gives_way_to_what_is_usual() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let (load, usual) = (SiteLoad::default(), UsualQueue::default());
            let other = SiteLoad::default();
            (1..1_000).for_each(|sequence| other.hear(&report(sequence, 4), runtime.now(), &usual));
            load.hear(&report(1, 100), runtime.now(), &usual);
            let fresh = load.queue(runtime.now(), &usual).requests();
            runtime.sleep(MEMORY * 20).await;
            let old = load.queue(runtime.now(), &usual).requests();
            assert_eq!(fresh, 100.0);
            assert!((4.0..6.0).contains(&old), "{old}");
        });
    }
}

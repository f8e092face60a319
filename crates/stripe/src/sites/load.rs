//! Estimates the queue ahead of a request at a site, from the site's reports and this client's requests since: in
//! requests (o_j, EC-Store §IV-A, Eq. 1) and in bytes (the loads L of Hu et al., §3.2).
//!
//! Every reply carries a report, and a watched site pushes one when its queue has changed. The reads that this client
//! has begun and ended at the site since then are added, so that its own burst counts before the next reply. Reads of
//! this client that the report already includes are not counted twice.
//!
//! *Pushed.* While a site pushes, its queue is the last one it pushed, however long ago: it would have pushed a
//! change. A reply with a higher number is newer, but only for [`NEWER_FOR`]: had the queue stayed so, the site would
//! have pushed that since.
//!
//! *Not pushed.* A report ages: over [`MEMORY`] the estimate returns to the sites' usual queue. Otherwise a client
//! would avoid a site that was busy once, or all clients would rush to the one that was idle when they last heard of
//! it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use striate_core::LoadReport;
use striate_runtime::Instant;
use striate_site::PUSH_INTERVAL;

/// Time constant after which a report counts only 1/e against the usual queue.
const MEMORY: Duration = Duration::from_millis(500);
/// How long a reply stays newer than an earlier push: the push interval, and as long again for a push in flight.
/// Reports overtake each other by less than this.
const NEWER_FOR: Duration = PUSH_INTERVAL.saturating_mul(2);
/// Weight of a report in the usual queue.
const USUAL_WEIGHT: f64 = 1.0 / 64.0;

/// State of one site's queue, as this client knows it.
#[derive(Debug, Default)]
pub(super) struct SiteLoad {
    /// Reads of this client in flight there.
    in_flight: AtomicU32,
    /// Bytes of those reads not received yet.
    in_flight_bytes: AtomicU64,
    reports: Mutex<LastReports>,
}

/// Last reports of the site.
#[derive(Debug, Default)]
struct LastReports {
    /// Last report of a reply.
    by_reply: Option<ReceivedReport>,
    /// Last pushed report; `None` while the site does not push.
    by_push: Option<ReceivedReport>,
}

/// A report, and this client's reads when it came.
#[derive(Clone, Copy, Debug)]
struct ReceivedReport {
    at: Instant,
    sequence: u64,
    workers: u32,
    /// Queue that the site reported.
    queue: RequestVolume,
    in_flight: RequestVolume,
}

/// Requests and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct RequestVolume {
    requests: f64,
    bytes: f64,
}

/// Usual queue, over all sites.
#[derive(Debug, Default)]
pub(super) struct TypicalQueue(Mutex<RequestVolume>);

/// Estimated queue of a site.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Queue {
    /// Part of the requests ahead that comes from the last report, as far as it is fresh.
    pub(crate) reported: f64,
    /// Part of the requests ahead that is the usual queue, in place of the stale part of the report.
    pub(crate) usual: f64,
    /// Part of the requests ahead that this client has begun since the report, less those that ended.
    pub(crate) own: f64,
    /// Requests ahead that must wait, per worker of the site.
    pub(crate) waiting: f64,
    /// Bytes that the site has not sent yet, estimated in the same way.
    pub(crate) bytes: f64,
    /// Bytes ahead of the next request, per worker: 0 while a worker is idle.
    pub(crate) bytes_ahead: f64,
}

impl Queue {
    /// Requests ahead of the next one.
    pub(crate) fn requests(&self) -> f64 {
        self.reported + self.usual + self.own
    }
}

impl TypicalQueue {
    fn get(&self) -> RequestVolume {
        *self.0.lock()
    }

    fn note(&self, queue: RequestVolume) {
        let mut usual = self.0.lock();
        usual.requests += (queue.requests - usual.requests) * USUAL_WEIGHT;
        usual.bytes += (queue.bytes - usual.bytes) * USUAL_WEIGHT;
    }
}

impl ReceivedReport {
    /// Whether this report is newer, at `now`, than another one of `sequence`.
    fn is_newer(&self, sequence: u64, now: Instant) -> bool {
        self.sequence > sequence && now.saturating_duration_since(self.at) < NEWER_FOR
    }
}

impl LastReports {
    /// Returns the report that counts now, and its weight.
    fn newest(&self, now: Instant) -> Option<(ReceivedReport, f64)> {
        if let Some(pushed) = self.by_push {
            let reply = self.by_reply.filter(|reply| reply.is_newer(pushed.sequence, now));
            return Some((reply.unwrap_or(pushed), 1.0));
        }
        let age = |heard: &ReceivedReport| now.saturating_duration_since(heard.at).as_secs_f64();
        self.by_reply.map(|heard| (heard, (-age(&heard) / MEMORY.as_secs_f64()).exp()))
    }
}

impl SiteLoad {
    /// Records the start of a read of this client.
    pub(super) fn begin(&self, bytes: u64) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.in_flight_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Records bytes of a read that arrived, or are no longer expected.
    pub(super) fn note_received(&self, bytes: u64) {
        self.in_flight_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Records the end of a read.
    pub(super) fn end(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    fn in_flight(&self) -> RequestVolume {
        let bytes = self.in_flight_bytes.load(Ordering::Relaxed) as f64;
        RequestVolume { requests: f64::from(self.in_flight.load(Ordering::Relaxed)), bytes }
    }

    /// Records the report of a reply, if it is new. Sites of this process make a report when asked, under the number
    /// of their last reply. A restarted site numbers its reports from 1 again, so a lower number is older only right
    /// after a higher one.
    pub(super) fn hear(&self, report: &LoadReport, now: Instant, usual: &TypicalQueue) {
        let mut reports = self.reports.lock();
        let new = self.heard(report, now);
        let is_known = |heard: &ReceivedReport| {
            (heard.sequence, heard.queue) == (new.sequence, new.queue) || heard.is_newer(new.sequence, now)
        };
        if !reports.by_reply.as_ref().is_some_and(is_known) {
            usual.note(new.queue);
            reports.by_reply = Some(new);
        }
    }

    /// Records a report that the site pushed. Pushes arrive in order.
    pub(super) fn hear_push(&self, report: &LoadReport, now: Instant, usual: &TypicalQueue) {
        let pushed = self.heard(report, now);
        usual.note(pushed.queue);
        self.reports.lock().by_push = Some(pushed);
    }

    /// Records that the site has stopped pushing: its last report ages from now on.
    pub(super) fn end_pushes(&self, now: Instant) {
        let mut reports = self.reports.lock();
        let newest = reports.newest(now).filter(|_| reports.by_push.is_some());
        if let Some((heard, _)) = newest {
            *reports = LastReports { by_reply: Some(ReceivedReport { at: now, ..heard }), by_push: None };
        }
    }

    /// Whether the site pushes its reports.
    pub(super) fn is_pushed(&self) -> bool {
        self.reports.lock().by_push.is_some()
    }

    fn heard(&self, report: &LoadReport, at: Instant) -> ReceivedReport {
        let queue =
            RequestVolume { requests: f64::from(report.queue_requests), bytes: report.queue_bytes as f64 };
        let (sequence, workers, in_flight) = (report.sequence, report.workers, self.in_flight());
        ReceivedReport { at, sequence, workers, queue, in_flight }
    }

    /// Estimates the queue.
    pub(super) fn queue(&self, now: Instant, usual: &TypicalQueue) -> Queue {
        let (in_flight, usual) = (self.in_flight(), usual.get());
        let Some((heard, weight)) = self.reports.lock().newest(now) else {
            let own = (in_flight.requests - usual.requests).max(0.0);
            let bytes = in_flight.bytes.max(usual.bytes);
            // The number of workers is unknown too.
            return Queue { usual: usual.requests, own, bytes, bytes_ahead: bytes, ..Queue::default() };
        };
        // The queue before, plus this client's reads since: no less than all reads of this client.
        let estimate = |part: fn(&RequestVolume) -> f64| {
            let (reported, usual) = (weight * part(&heard.queue), (1.0 - weight) * part(&usual));
            let in_flight_now = part(&in_flight);
            let own = (in_flight_now - part(&heard.in_flight)).max(in_flight_now - (reported + usual));
            (reported, usual, own)
        };
        let (reported, usual_bytes, own) = estimate(|amount| amount.bytes);
        let bytes = reported + usual_bytes + own;
        let (reported, usual, own) = estimate(|amount| amount.requests);
        let workers = f64::from(heard.workers.max(1));
        let requests = reported + usual + own;
        let waiting = (requests - workers).max(0.0) / workers;
        let busy = (requests - (workers - 1.0)).clamp(0.0, 1.0);
        Queue { reported, usual, own, waiting, bytes, bytes_ahead: busy * bytes / workers }
    }
}

#[cfg(test)]
mod tests {
    use striate_runtime::run_in_virtual_time;

    use super::*;

    fn report(sequence: u64, queue_requests: u32) -> LoadReport {
        let queue_bytes = 1_000 * u64::from(queue_requests);
        LoadReport { sequence, queue_requests, queue_bytes, workers: 2, ..LoadReport::default() }
    }

    #[test]
    fn what_the_report_has_seen_of_this_client_is_counted_once() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let (load, usual) = (SiteLoad::default(), TypicalQueue::default());
            let now = runtime.now();
            let estimate = || {
                let queue = load.queue(now, &usual);
                (queue.requests(), queue.bytes)
            };
            (0..3).for_each(|_| load.begin(2_000));
            load.hear(&report(1, 7), now, &usual);
            assert_eq!((estimate(), load.queue(now, &usual).waiting), ((7.0, 7_000.0), 2.5));
            assert_eq!(load.queue(now, &usual).bytes_ahead, 3_500.0, "two workers share them");
            load.begin(500);
            assert_eq!(estimate(), (8.0, 7_500.0));
            load.note_received(1_000);
            assert_eq!(estimate(), (8.0, 6_500.0));
            load.note_received(5_000);
            (0..3).for_each(|_| load.end());
            assert_eq!(estimate(), (5.0, 1_500.0));
            // The same report again changes nothing.
            load.hear(&report(1, 7), now, &usual);
            assert_eq!(estimate(), (5.0, 1_500.0));
        });
    }

    /// With one of two workers idle, a new request waits for no bytes.
    #[test]
    fn nothing_is_ahead_of_a_request_while_a_worker_is_idle() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let (load, usual) = (SiteLoad::default(), TypicalQueue::default());
            for (sequence, requests, ahead) in [(1, 1, 0.0), (2, 2, 1_000.0), (3, 3, 1_500.0)] {
                load.hear(&report(sequence, requests), runtime.now(), &usual);
                let queue = load.queue(runtime.now(), &usual);
                assert_eq!((queue.bytes, queue.bytes_ahead), (1_000.0 * f64::from(requests), ahead));
            }
        });
    }

    #[test]
    fn a_site_has_at_least_what_this_client_has_there() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let (load, usual) = (SiteLoad::default(), TypicalQueue::default());
            (0..4).for_each(|_| load.begin(100));
            for _ in 0..2 {
                let queue = load.queue(runtime.now(), &usual);
                assert_eq!((queue.requests(), queue.bytes), (4.0, 400.0));
                load.hear(&report(1, 0), runtime.now(), &usual);
            }
        });
    }

    #[test]
    fn a_report_that_was_overtaken_is_not_heard_and_one_after_a_restart_is() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let (load, usual) = (SiteLoad::default(), TypicalQueue::default());
            load.hear(&report(9, 4), runtime.now(), &usual);
            load.hear(&report(8, 7), runtime.now(), &usual);
            assert_eq!(load.queue(runtime.now(), &usual).requests(), 4.0);
            runtime.sleep(NEWER_FOR).await;
            load.hear(&report(1, 7), runtime.now(), &usual);
            assert_eq!(load.queue(runtime.now(), &usual).requests(), 7.0);
        });
    }

    #[test]
    fn what_is_pushed_does_not_grow_old_until_the_pushes_end() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let (load, usual) = (SiteLoad::default(), TypicalQueue::default());
            let requests = || load.queue(runtime.now(), &usual).requests();
            load.hear_push(&report(5, 6), runtime.now(), &usual);
            runtime.sleep(MEMORY * 100).await;
            assert_eq!(requests(), 6.0);
            // The site was restarted: its numbers start at 1 again, on a new stream.
            load.hear_push(&report(1, 8), runtime.now(), &usual);
            assert_eq!(requests(), 8.0);
            load.end_pushes(runtime.now());
            assert_eq!((requests(), load.is_pushed()), (8.0, false));
            runtime.sleep(MEMORY * 20).await;
            assert!(requests() < 1.0, "{}", requests());
        });
    }

    /// Had the queue stayed as the reply reported it, the site would have pushed that.
    #[test]
    fn a_reply_is_newer_than_a_push_for_a_moment() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let (load, usual) = (SiteLoad::default(), TypicalQueue::default());
            let requests = || load.queue(runtime.now(), &usual).requests();
            load.hear_push(&report(5, 1), runtime.now(), &usual);
            load.hear(&report(4, 9), runtime.now(), &usual);
            assert_eq!(requests(), 1.0, "older");
            load.hear(&report(6, 3), runtime.now(), &usual);
            assert_eq!(requests(), 3.0);
            runtime.sleep(NEWER_FOR).await;
            assert_eq!(requests(), 1.0);
        });
    }

    #[test]
    fn own_reads_are_counted_once_beside_what_is_pushed() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let (load, usual) = (SiteLoad::default(), TypicalQueue::default());
            let estimate = || {
                let queue = load.queue(runtime.now(), &usual);
                (queue.requests(), queue.bytes)
            };
            load.hear_push(&report(5, 2), runtime.now(), &usual);
            load.begin(1_000);
            assert_eq!(estimate(), (3.0, 3_000.0), "the site has not told of it");
            load.hear_push(&report(6, 3), runtime.now(), &usual);
            assert_eq!(estimate(), (3.0, 3_000.0), "it has");
            // The read ends. A push from before its end arrives after its reply, followed by one from after its end.
            load.note_received(1_000);
            load.end();
            load.hear(&report(8, 2), runtime.now(), &usual);
            load.hear_push(&report(7, 3), runtime.now(), &usual);
            assert_eq!(estimate(), (2.0, 2_000.0));
            load.hear_push(&report(9, 2), runtime.now(), &usual);
            assert_eq!(estimate(), (2.0, 2_000.0));
        });
    }

    #[test]
    fn an_old_report_gives_way_to_what_is_usual() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let (load, usual) = (SiteLoad::default(), TypicalQueue::default());
            let other = SiteLoad::default();
            (1..1_000).for_each(|sequence| other.hear(&report(sequence, 4), runtime.now(), &usual));
            load.hear(&report(1, 100), runtime.now(), &usual);
            let fresh = load.queue(runtime.now(), &usual);
            runtime.sleep(MEMORY * 20).await;
            let old = load.queue(runtime.now(), &usual);
            assert_eq!((fresh.requests(), fresh.bytes), (100.0, 100_000.0));
            assert!((4.0..6.0).contains(&old.requests()), "{old:?}");
            assert!((4_000.0..6_000.0).contains(&old.bytes), "{old:?}");
        });
    }
}

//! An alarm that rings when a site's queue no longer matches the last load report.
//!
//! Every change of the queue passes through here. An unarmed alarm costs it one load, an armed one a comparison. The
//! alarm rings once and then stays silent until it is armed again, so a storm of requests wakes the listener no more
//! often than the listener wants.
//!
//! No change is missed. A writer changes the counts and then checks whether the alarm is armed; the listener arms it
//! and then reads the counts. Both use one total order ([`Ordering::SeqCst`]), so at least one of them sees the other.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use striate_core::LoadReport;
use tokio::sync::Notify;

/// Bytes by which a queue may differ from the last report before a new one is due: what a disk reads in about a
/// millisecond. In the model of load direction, front ends may be wrong about a millisecond of work.
pub(crate) const UNREPORTED_BYTES: u64 = 256 << 10;

/// Length of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLength {
    /// Requests waiting or being served.
    pub requests: u32,
    /// Bytes that these requests ask for, plus bytes read and not yet fetched.
    pub bytes: u64,
}

impl QueueLength {
    /// Returns the length that a report states.
    pub fn of_report(report: &LoadReport) -> Self {
        Self { requests: report.queue_requests, bytes: report.queue_bytes }
    }

    /// Returns whether a watcher that was last sent `reported` needs a new report: when the number of requests differs,
    /// when the bytes differ by [`UNREPORTED_BYTES`], or when no bytes are left.
    pub(crate) fn is_news_after(self, reported: Self) -> bool {
        let is_other =
            self.requests != reported.requests || self.bytes.abs_diff(reported.bytes) >= UNREPORTED_BYTES;
        is_other || (self.bytes == 0 && reported.bytes > 0)
    }
}

/// Wakes one listener when the queue differs from the last report.
#[derive(Debug, Default)]
pub struct Alarm {
    is_armed: AtomicBool,
    /// Written only by the listener, before it arms the alarm.
    reported_requests: AtomicU32,
    reported_bytes: AtomicU64,
    bell: Notify,
}

impl Alarm {
    /// Arms the alarm to ring when the queue is news after `reported`. The caller must read the counts itself
    /// afterwards.
    pub(crate) fn arm(&self, reported: QueueLength) {
        self.is_armed.store(false, Ordering::SeqCst);
        self.reported_requests.store(reported.requests, Ordering::Relaxed);
        self.reported_bytes.store(reported.bytes, Ordering::Relaxed);
        self.is_armed.store(true, Ordering::SeqCst);
    }

    /// Disarms the alarm: there are no listeners.
    pub fn disarm(&self) {
        self.is_armed.store(false, Ordering::SeqCst);
    }

    /// Checks the queue after a change; `length` returns its current length.
    pub fn look(&self, length: impl FnOnce() -> QueueLength) {
        if !self.is_armed.load(Ordering::SeqCst) {
            return;
        }
        let (requests, bytes) = (&self.reported_requests, &self.reported_bytes);
        let (requests, bytes) = (requests.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed));
        if length().is_news_after(QueueLength { requests, bytes })
            && self.is_armed.swap(false, Ordering::SeqCst)
        {
            self.ring();
        }
    }

    /// Wakes the listener, whatever the queue holds.
    pub fn ring(&self) {
        self.bell.notify_one();
    }

    /// Completes when the alarm rings, or at once if it has rung since the last wait.
    pub async fn wait(&self) {
        self.bell.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn it_rings_once_for_a_request_or_a_milliseconds_bytes() {
        let (alarm, reported) = (Alarm::default(), QueueLength { requests: 2, bytes: UNREPORTED_BYTES });
        let rings = |requests, bytes| {
            alarm.look(|| QueueLength { requests, bytes });
            alarm.wait().now_or_never().is_some()
        };
        assert!(!rings(9, 0), "not armed");
        for (requests, bytes, news) in [
            (2, UNREPORTED_BYTES, false),
            (2, 2 * UNREPORTED_BYTES - 1, false),
            (2, 2 * UNREPORTED_BYTES, true),
            (2, 1, false),
            (2, 0, true),
            (1, UNREPORTED_BYTES, true),
            (3, UNREPORTED_BYTES, true),
        ] {
            alarm.arm(reported);
            assert_eq!(rings(requests, bytes), news, "{requests} requests, {bytes} bytes");
            assert_eq!(rings(requests, 9 * UNREPORTED_BYTES), !news, "once");
        }
        alarm.arm(reported);
        alarm.disarm();
        assert!(!rings(9, 0));
    }
}

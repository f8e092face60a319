//! Rings when a site's queue is not any more what was told of it.
//!
//! Everything that enters or leaves the queue passes here, so an alarm that is not armed costs it one load, and an armed one
//! a comparison. It rings once and is then silent until it is armed again: a storm of requests wakes its listener no more
//! often than the listener wants.
//!
//! Nothing is missed: who changes the queue changes the counts and then looks whether the alarm is armed; who listens arms it and
//! then looks at the counts. Both in one order ([`Ordering::SeqCst`]), so one of them sees the other.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use striate_core::LoadReport;
use tokio::sync::Notify;

/// Bytes by which a queue may differ from what was told of it: what a disk reads in about a millisecond. In the model of load
/// direction a millisecond of work is what front ends may believe wrongly.
pub(crate) const UNTOLD_BYTES: u64 = 256 << 10;

/// What is in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLength {
    /// Requests waiting or being served.
    pub requests: u32,
    /// Bytes that they ask for, or that were read and not yet fetched.
    pub bytes: u64,
}

impl QueueLength {
    /// As a report tells it.
    pub fn told(report: &LoadReport) -> Self {
        Self { requests: report.queue_requests, bytes: report.queue_bytes }
    }

    /// Whether who was told `told` must be told again: of any request more or less, of [`UNTOLD_BYTES`], and that nothing is left.
    pub(crate) fn is_news_after(self, told: Self) -> bool {
        let is_other = self.requests != told.requests || self.bytes.abs_diff(told.bytes) >= UNTOLD_BYTES;
        is_other || (self.bytes == 0 && told.bytes > 0)
    }
}

/// The alarm; see the module.
#[derive(Debug, Default)]
pub struct Alarm {
    is_armed: AtomicBool,
    /// Written only by who arms it, before it does.
    told_requests: AtomicU32,
    told_bytes: AtomicU64,
    bell: Notify,
}

impl Alarm {
    /// From now on it rings when the queue is news after `told`. The caller looks at the queue itself afterwards.
    pub(crate) fn arm(&self, told: QueueLength) {
        self.is_armed.store(false, Ordering::SeqCst);
        self.told_requests.store(told.requests, Ordering::Relaxed);
        self.told_bytes.store(told.bytes, Ordering::Relaxed);
        self.is_armed.store(true, Ordering::SeqCst);
    }

    /// Nobody listens any more.
    pub fn disarm(&self) {
        self.is_armed.store(false, Ordering::SeqCst);
    }

    /// The queue has changed; `length` tells what is in it now.
    pub fn look(&self, length: impl FnOnce() -> QueueLength) {
        if !self.is_armed.load(Ordering::SeqCst) {
            return;
        }
        let (requests, bytes) = (&self.told_requests, &self.told_bytes);
        let (requests, bytes) = (requests.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed));
        if length().is_news_after(QueueLength { requests, bytes })
            && self.is_armed.swap(false, Ordering::SeqCst)
        {
            self.ring();
        }
    }

    /// Wakes who waits, whatever is in the queue.
    pub fn ring(&self) {
        self.bell.notify_one();
    }

    /// Completes when it rings, or has rung since somebody waited for it.
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
        let (alarm, told) = (Alarm::default(), QueueLength { requests: 2, bytes: UNTOLD_BYTES });
        let rings = |requests, bytes| {
            alarm.look(|| QueueLength { requests, bytes });
            alarm.wait().now_or_never().is_some()
        };
        assert!(!rings(9, 0), "not armed");
        for (requests, bytes, news) in [
            (2, UNTOLD_BYTES, false),
            (2, 2 * UNTOLD_BYTES - 1, false),
            (2, 2 * UNTOLD_BYTES, true),
            (2, 1, false),
            (2, 0, true),
            (1, UNTOLD_BYTES, true),
            (3, UNTOLD_BYTES, true),
        ] {
            alarm.arm(told);
            assert_eq!(rings(requests, bytes), news, "{requests} requests, {bytes} bytes");
            assert_eq!(rings(requests, 9 * UNTOLD_BYTES), !news, "once");
        }
        alarm.arm(told);
        alarm.disarm();
        assert!(!rings(9, 0));
    }
}

//! How long a look at cold data changes wide stripes and makes new ones. Meanwhile the service does nothing else: it
//! packs nothing, and reclaims no space.
//!
//! When the time is over, the look only reads and counts what is left. So it may change things for much longer than it
//! reads.

use std::ops::ControlFlow;
use std::time::Duration;

use striate_runtime::{Instant, Runtime};

/// A look has time for changes for at least this many times as long as it reads.
const TIMES_READING: u32 = 9;

/// The time that a look has for changes.
pub(super) struct LookTime {
    runtime: Runtime,
    /// Time for changes, at least.
    least: Duration,
    began: Instant,
    /// Time spent on reading.
    reading: Duration,
    /// Whether the time was over when something was to be changed.
    pub(super) is_cut_short: bool,
    /// Whether the caller has ended the look.
    pub(super) is_stopped: bool,
}

impl LookTime {
    pub(super) fn new(runtime: Runtime, least: Duration) -> Self {
        let began = runtime.now();
        Self { runtime, least, began, reading: Duration::ZERO, is_cut_short: false, is_stopped: false }
    }

    /// Records that the look has only read since `since`.
    pub(super) fn note_reading(&mut self, since: Instant) {
        self.reading += self.runtime.now() - since;
    }

    /// Returns whether the time for changes is over.
    pub(super) fn is_over(&mut self) -> bool {
        let changing = (self.runtime.now() - self.began).saturating_sub(self.reading);
        let is_over = changing >= self.least.max(TIMES_READING * self.reading);
        self.is_cut_short |= is_over;
        is_over
    }

    /// Takes the answer of a progress callback. Returns `Break` if the look is ended, or its time for changes is over.
    pub(super) fn goes_on(&mut self, answer: ControlFlow<()>) -> ControlFlow<()> {
        self.is_stopped |= answer.is_break();
        if self.is_stopped || self.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[cfg(test)]
mod tests {
    use striate_runtime::run_in_virtual_time;

    use super::*;

    #[test]
    fn a_look_changes_things_for_its_time_and_nine_times_as_long_as_it_reads() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let second = Duration::from_secs(1);
            let mut time = LookTime::new(runtime.clone(), 20 * second);
            runtime.sleep(19 * second).await;
            assert!(!time.is_over() && !time.is_cut_short);
            runtime.sleep(second).await;
            assert!(time.is_over());
            let since = runtime.now();
            runtime.sleep(3 * second).await;
            time.note_reading(since);
            assert!(!time.is_over() && time.is_cut_short, "it was over before");
            runtime.sleep(7 * second).await;
            assert_eq!(time.goes_on(ControlFlow::Continue(())), ControlFlow::Break(()));
            assert!(!time.is_stopped);
            let mut stopped = LookTime::new(runtime, second);
            assert_eq!(stopped.goes_on(ControlFlow::Break(())), ControlFlow::Break(()));
            assert!(stopped.is_stopped && !stopped.is_cut_short);
        });
    }
}

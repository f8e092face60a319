//! The pace at which groups are written: a share of the time, in short steps, and no more than the processors have to
//! spare.
//!
//! A group written in one go would delay every request that arrives meanwhile. So while processors are busy, there
//! are pauses between its steps. The pause at its end, when it no longer holds memory, keeps the overall share of the
//! time.

use std::time::Duration;

use striate_runtime::{Instant, Processors};
use striate_stripe::Stripes;

use crate::packing::PackOptions;

/// Minimum share of the time for a group, however busy the processors are.
const LEAST_SHARE: f64 = 0.1;
/// Resolution of timers.
const LEAST_PAUSE: Duration = Duration::from_millis(1);

/// Paces the work on one group; see the module's documentation.
#[derive(Debug)]
pub(crate) struct Pacer<'a> {
    stripes: &'a Stripes,
    /// Shares of the time: within a group, and overall.
    within: f64,
    over_all: f64,
    /// Start of the work, start of the current step, and the time spent in steps.
    began: Instant,
    step: Instant,
    worked: Duration,
}

impl<'a> Pacer<'a> {
    /// Starts with the first step.
    pub(crate) fn new(stripes: &'a Stripes, processors: &Processors, options: &PackOptions) -> Self {
        let spare = if options.yields { 1.0 - processors.busy() } else { 1.0 };
        let now = stripes.runtime().now();
        Self {
            stripes,
            within: spare.max(LEAST_SHARE),
            over_all: options.pace.clamp(0.01, 1.0),
            began: now,
            step: now,
            worked: Duration::ZERO,
        }
    }

    /// Restarts the clock: the time before was not work.
    pub(crate) fn begin(&mut self) {
        self.began = self.stripes.runtime().now();
        self.step = self.began;
    }

    /// Ends a step and pauses as long as it demands, unless a request waits for memory, since the group holds some.
    pub(crate) async fn rest(&mut self) {
        self.end_step();
        if self.stripes.budget().view().waiting == 0 {
            self.pause(self.within).await;
        }
    }

    /// Ends the last step, and pauses for the overall share.
    pub(crate) async fn end(&mut self) {
        self.end_step();
        self.pause(self.within.min(self.over_all)).await;
    }

    fn end_step(&mut self) {
        let now = self.stripes.runtime().now();
        self.worked += now - self.step;
        self.step = now;
    }

    async fn pause(&mut self, share: f64) {
        let runtime = self.stripes.runtime();
        let until = self.began + self.worked.div_f64(share);
        if until >= runtime.now() + LEAST_PAUSE {
            runtime.sleep_until(until).await;
        }
        self.step = runtime.now();
    }
}

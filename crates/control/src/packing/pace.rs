//! How fast groups are written: a share of the time, in short steps, and no more than processors have to spare.
//!
//! A group written in one go would delay every request that comes meanwhile. While processors are busy there are therefore
//! pauses between its steps. The pause at its end, when it holds no memory any more, keeps the share of the time over all.

use std::time::Duration;

use striate_runtime::{Instant, Processors};
use striate_stripe::Stripes;

use crate::packing::PackOptions;

/// A group takes this share of the time at least, however busy processors are.
const LEAST_SHARE: f64 = 0.1;
/// Timers are no finer.
const LEAST_PAUSE: Duration = Duration::from_millis(1);

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Pace<'a> {
    stripes: &'a Stripes,
    /// Shares of the time: within a group, and over all.
    within: f64,
    over_all: f64,
    /// When the work began, when its last step did, and how long steps took.
    began: Instant,
    step: Instant,
    worked: Duration,
}

impl<'a> Pace<'a> {
    /// Begins with the first step.
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

    /// Begins only now: what came before was no work.
    pub(crate) fn begin(&mut self) {
        self.began = self.stripes.runtime().now();
        self.step = self.began;
    }

    /// Ends a step, and pauses as long as it asks for; not while somebody waits for memory, of which the group holds some.
    pub(crate) async fn rest(&mut self) {
        self.end_step();
        if self.stripes.budget().view().waiting == 0 {
            self.pause(self.within).await;
        }
    }

    /// Ends the last step, and pauses for the share over all.
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

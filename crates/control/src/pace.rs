//! A share of the time for work that nobody waits for, in short steps.
//!
//! Work in one go and a pause as long take the same share, but whoever comes meanwhile meets all of the work.

use std::time::Duration;

use striate_runtime::{Instant, Runtime};

/// Timers are no finer.
const LEAST_PAUSE: Duration = Duration::from_millis(1);

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Pace {
    runtime: Runtime,
    /// Seconds of pause for a second of work.
    pauses: f64,
    /// When the step began.
    began: Instant,
    /// Pauses that are still to be made.
    owed: Duration,
}

impl Pace {
    /// Begins with the first step of work that may take this share of the time, from 0.01 to 1.
    pub(crate) fn new(runtime: &Runtime, share: f64) -> Self {
        let pauses = 1.0 / share.clamp(0.01, 1.0) - 1.0;
        Self { runtime: runtime.clone(), pauses, began: runtime.now(), owed: Duration::ZERO }
    }

    /// Ends a step, and pauses as long as it asks for.
    pub(crate) async fn rest(&mut self) {
        let ended = self.runtime.now();
        self.owed += (ended - self.began).mul_f64(self.pauses);
        if self.owed >= LEAST_PAUSE {
            self.runtime.sleep(self.owed).await;
        }
        self.began = self.runtime.now();
        self.owed = self.owed.saturating_sub(self.began - ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_takes_its_share_of_the_time_however_long_its_steps_are() {
        let runtime = Runtime::deterministic(1, Duration::ZERO);
        for (share, step_ms, steps) in [(0.5, 1, 1_000), (0.1, 3, 1_000), (0.25, 40, 100), (1.0, 1, 100)] {
            let (began, mut pace) = (runtime.now(), Pace::new(&runtime, share));
            for _ in 0..steps {
                runtime.sleep(Duration::from_millis(step_ms)).await;
                pace.rest().await;
            }
            let found = (step_ms * steps) as f64 / (runtime.now() - began).as_millis() as f64;
            assert!((found / share - 1.0).abs() < 0.02, "{share}, steps of {step_ms} ms: {found}");
        }
    }
}

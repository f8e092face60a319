//! Processor time, which stops while another task has the processor.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Processor time of this thread since it was started.
pub struct Stopwatch(Duration);

impl Stopwatch {
    pub fn start() -> Stopwatch {
        Stopwatch(Stopwatch::now())
    }

    pub fn nanoseconds(&self) -> u64 {
        let elapsed = Stopwatch::now() - self.0;
        u64::try_from(elapsed.as_nanos()).expect("a measurement takes less than centuries")
    }

    fn now() -> Duration {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::try_from(time).expect("processor time is not negative")
    }
}

//! A budget of bytes per second.

use std::time::Duration;

use parking_lot::Mutex;
use striate_runtime::{Instant, Runtime};

/// Limits throughput to a number of bytes per second. Unused budget does not accumulate.
#[derive(Debug)]
pub(super) struct Throttle {
    bytes_per_s: u64,
    /// Time at which everything let through so far is paid for.
    free_at: Mutex<Option<Instant>>,
}

impl Throttle {
    /// Creates a throttle; the rate is at least one byte per second.
    pub(super) fn new(bytes_per_s: u64) -> Self {
        Self { bytes_per_s: bytes_per_s.max(1), free_at: Mutex::default() }
    }

    /// Waits until `bytes` may pass.
    pub(super) async fn wait_for(&self, runtime: &Runtime, bytes: u64) {
        let now = runtime.now();
        let begin = {
            let mut free_at = self.free_at.lock();
            let begin = free_at.map_or(now, |free_at| free_at.max(now));
            *free_at = Some(begin + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64));
            begin
        };
        if begin > now {
            runtime.sleep_until(begin).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use striate_runtime::run_in_virtual_time;

    use super::*;

    #[test]
    fn no_more_goes_than_the_budget_and_idle_time_is_not_saved() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let throttle = Throttle::new(1_000);
            let begin = runtime.now();
            for _ in 0..3 {
                throttle.wait_for(&runtime, 2_000).await;
            }
            assert_eq!(runtime.now() - begin, Duration::from_secs(4), "the third waits for two");
            runtime.sleep(Duration::from_secs(100)).await;
            let begin = runtime.now();
            throttle.wait_for(&runtime, 500).await;
            throttle.wait_for(&runtime, 500).await;
            assert_eq!(runtime.now() - begin, Duration::from_millis(500));
        });
    }
}

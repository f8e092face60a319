//! Recent throughput, for rates shown to people.

use std::collections::VecDeque;
use std::time::Duration;

use striate_runtime::Instant;

/// Length of the window that rates are averaged over.
const WINDOW: Duration = Duration::from_secs(60);
/// Events within this time are counted together.
const STEP: Duration = Duration::from_secs(1);

/// Work done in the last minute.
#[derive(Debug, Default)]
pub(crate) struct RecentWork {
    began: Option<Instant>,
    /// Start of each step, the number of items done in it, and their bytes.
    steps: VecDeque<(Instant, u64, u64)>,
}

impl RecentWork {
    /// Starts measuring at `now`.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.began = Some(now);
    }

    /// Records `count` items of `bytes` in total, done just now.
    pub(crate) fn add(&mut self, now: Instant, count: u64, bytes: u64) {
        match self.steps.back_mut() {
            Some((begin, of_step, bytes_of_step)) if now - *begin < STEP => {
                *of_step += count;
                *bytes_of_step += bytes;
            }
            _ => self.steps.push_back((now, count, bytes)),
        }
    }

    /// Returns items per thousand seconds, and bytes per second.
    pub(crate) fn rates(&mut self, now: Instant) -> (u64, u64) {
        while self.steps.front().is_some_and(|(begin, ..)| now - *begin > WINDOW) {
            self.steps.pop_front();
        }
        let since = self.began.map_or(WINDOW, |began| now - began).clamp(STEP, WINDOW).as_secs_f64();
        let sum = |value: fn(&(Instant, u64, u64)) -> u64| self.steps.iter().map(value).sum::<u64>() as f64;
        ((sum(|step| step.1) * 1_000.0 / since) as u64, (sum(|step| step.2) / since) as u64)
    }
}

#[cfg(test)]
mod tests {
    use striate_runtime::run_in_virtual_time;

    use super::*;

    #[test]
    fn rates_are_of_the_last_minute_or_of_all_the_time_there_was() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let mut recent = RecentWork::default();
            recent.begin(runtime.now());
            for _ in 0..10 {
                runtime.sleep(Duration::from_secs(1)).await;
                recent.add(runtime.now(), 2, 500);
            }
            assert_eq!(recent.rates(runtime.now()), (2_000, 500));
            runtime.sleep(Duration::from_secs(50)).await;
            assert_eq!(recent.rates(runtime.now()), (20_000 / 60, 5_000 / 60));
            runtime.sleep(Duration::from_secs(61)).await;
            assert_eq!(recent.rates(runtime.now()), (0, 0));
        });
    }
}

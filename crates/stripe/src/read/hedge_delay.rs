//! Decides how long a read waits for a chunk before it asks other sites.
//!
//! A fixed time is wrong on busy media: when every chunk takes that long, every read asks for more, and the media
//! become busier still. So a chunk is late when it takes twice as long as three of four recent chunk reads did, and
//! never before the configured time. One slow or silent site in six hardly moves that quartile; load on all of them
//! does. Dean and Barroso hedge at the 95th percentile ("The Tail at Scale", CACM 2013): with one site of six gone
//! slow, that percentile would be the slow site's own.

use std::time::Duration;

use parking_lot::Mutex;

/// Number of recent chunk reads kept.
const WINDOW: usize = 64;
/// New chunk reads before the quartile is recomputed.
const REFRESH: usize = 8;
/// Multiple of the quartile after which a chunk is late.
const FACTOR: u32 = 2;

/// Hedge time of one client's reads.
#[derive(Debug)]
pub(super) struct HedgeDelay {
    least: Duration,
    most: Duration,
    recent: Mutex<RecentTimes>,
}

#[derive(Debug)]
struct RecentTimes {
    times: Vec<Duration>,
    next: usize,
    hedge_after: Duration,
}

impl HedgeDelay {
    /// Creates a hedge time that stays between `least` and `most`.
    pub(super) fn new(least: Duration, most: Duration) -> Self {
        let recent = RecentTimes { times: Vec::with_capacity(WINDOW), next: 0, hedge_after: least };
        Self { least, most: most.max(least), recent: Mutex::new(recent) }
    }

    /// Records the arrival of a chunk after `took`.
    pub(super) fn record(&self, took: Duration) {
        let mut recent = self.recent.lock();
        let slot = recent.next % WINDOW;
        match recent.times.get_mut(slot) {
            Some(time) => *time = took,
            None => recent.times.push(took),
        }
        recent.next = recent.next.wrapping_add(1);
        if recent.next.is_multiple_of(REFRESH) {
            let mut times = recent.times.clone();
            let at = (times.len() * 3 / 4).min(times.len() - 1);
            let (_, quartile, _) = times.select_nth_unstable(at);
            recent.hedge_after = (*quartile * FACTOR).clamp(self.least, self.most);
        }
    }

    /// Returns the time after which a chunk is late.
    pub(super) fn hedge_after(&self) -> Duration {
        self.recent.lock().hedge_after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_millis(250);

    fn after(times: impl IntoIterator<Item = u64>) -> Duration {
        let hedge_delay = HedgeDelay::new(LEAST, Duration::from_secs(10));
        times.into_iter().for_each(|ms| hedge_delay.record(Duration::from_millis(ms)));
        hedge_delay.hedge_after()
    }

    #[test]
    fn quick_reads_leave_the_least_time() {
        assert_eq!(after([]), LEAST);
        assert_eq!(after((0..200).map(|_| 1)), LEAST);
    }

    #[test]
    fn one_slow_site_of_six_changes_nothing() {
        assert_eq!(after((0..300).map(|read| if read % 6 == 0 { 2_000 } else { 3 })), LEAST);
    }

    #[test]
    fn busy_media_are_given_time_until_they_are_quick_again() {
        assert_eq!(after((0..100).map(|_| 400)), Duration::from_millis(800));
        assert_eq!(after((0..100).map(|_| 9_000)), Duration::from_secs(10), "never past the deadline");
        assert_eq!(after((0..100).map(|_| 400).chain((0..64).map(|_| 2))), LEAST);
    }
}

//! Predicts when a chunk counts as late, from earlier chunks that were requested under the same conditions.
//!
//! The conditions are the site's estimated queue, in quarters of powers of two, and the bytes that the site sends up
//! to this chunk, in powers of two. A chunk is *late* when it takes longer than 95 of 100 recent ones did: either the
//! request is slow, or the site is slower than its queue suggests. Asking other sites then costs little, as long as
//! few chunks are late; [`HedgeBudget`] ensures that. Dean and Barroso defer a second request to the 95th percentile
//! of all requests together ("The Tail at Scale", CACM 2013). With the conditions, a chunk that merely waits in a
//! queue is not late.

use std::time::Duration;

use parking_lot::Mutex;

/// Classes of queue lengths: quarters of powers of two of requests.
const QUEUES: usize = 4 * 12;
/// Classes of sizes: powers of two of bytes, from [`LEAST_BYTES`] on.
const SIZES: usize = 14;
const LEAST_BYTES: u64 = 4_096;
/// Number of recent arrivals kept per class of conditions.
const WINDOW: usize = 64;
/// Minimum number of arrivals for a prediction.
const LEAST: usize = 16;
/// New arrivals before the percentile is recomputed.
const REFRESH: usize = 8;

/// Arrival times of chunks under all conditions.
#[derive(Debug)]
pub(super) struct ArrivalTimes {
    cells: Mutex<Vec<Cell>>,
}

/// Arrival times under the same conditions.
#[derive(Clone, Debug, Default)]
struct Cell {
    recent: Vec<Duration>,
    next: usize,
    late_after: Option<Duration>,
}

/// Conditions under which a chunk is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Conditions(usize);

impl Conditions {
    /// Creates the conditions of a queue of `queue` requests and of `bytes` bytes up to the chunk's last.
    pub(super) fn new(queue: f64, bytes: u64) -> Self {
        let queue = ((4.0 * (1.0 + queue.max(0.0)).log2()) as usize).min(QUEUES - 1);
        let size = ((bytes / LEAST_BYTES).max(1).ilog2() as usize).min(SIZES - 1);
        Self(queue * SIZES + size)
    }
}

impl ArrivalTimes {
    pub(super) fn new() -> Self {
        Self { cells: Mutex::new(vec![Cell::default(); QUEUES * SIZES]) }
    }

    /// Records the arrival of a chunk after `took`.
    pub(super) fn record(&self, under: Conditions, took: Duration) {
        let cell = &mut self.cells.lock()[under.0];
        let slot = cell.next % WINDOW;
        match cell.recent.get_mut(slot) {
            Some(time) => *time = took,
            None => cell.recent.push(took),
        }
        cell.next = cell.next.wrapping_add(1);
        if cell.recent.len() >= LEAST && cell.next.is_multiple_of(REFRESH) {
            let mut times = cell.recent.clone();
            let at = times.len() * 95 / 100;
            cell.late_after = Some(*times.select_nth_unstable(at).1);
        }
    }

    /// Returns the time after which a chunk is late; `None` while too few have arrived.
    pub(super) fn late_after(&self, under: Conditions) -> Option<Duration> {
        self.cells.lock()[under.0].late_after
    }
}

/// Bounds the chunks that are requested because others are late, as a fraction of all chunks.
#[derive(Debug, Default)]
pub(super) struct HedgeBudget(Mutex<f64>);

impl HedgeBudget {
    /// Chunks that may be requested because others are late, per chunk that a plan requests.
    const SHARE: f64 = 0.1;
    /// Maximum number of chunks saved up.
    const MOST: f64 = 64.0;

    /// Records that a plan requests `chunks` chunks.
    pub(super) fn earn(&self, chunks: usize) {
        let mut saved = self.0.lock();
        *saved = (*saved + chunks as f64 * Self::SHARE).min(Self::MOST);
    }

    /// Takes `chunks` chunks from the budget; returns false if it has fewer.
    pub(super) fn spend(&self, chunks: usize) -> bool {
        let mut saved = self.0.lock();
        let is_enough = *saved >= chunks as f64;
        if is_enough {
            *saved -= chunks as f64;
        }
        is_enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn late_is_what_takes_longer_than_95_of_100_under_the_same_conditions() {
        let arrivals = ArrivalTimes::new();
        let (idle, busy) = (Conditions::new(0.0, 50_000), Conditions::new(30.0, 50_000));
        for turn in 0..1_000 {
            arrivals.record(idle, if turn % 50 == 0 { MS * 90 } else { MS * 2 });
            arrivals.record(busy, MS * 40);
        }
        assert_eq!(arrivals.late_after(idle), Some(MS * 2));
        assert_eq!(arrivals.late_after(busy), Some(MS * 40));
    }

    #[test]
    fn few_arrivals_tell_nothing() {
        let arrivals = ArrivalTimes::new();
        let under = Conditions::new(3.0, 1 << 20);
        (1..LEAST).for_each(|_| arrivals.record(under, MS));
        assert_eq!(arrivals.late_after(under), None);
        arrivals.record(under, MS);
        assert_eq!(arrivals.late_after(under), Some(MS));
    }

    #[test]
    fn any_queue_and_size_has_its_conditions() {
        for (queue, bytes) in [(-1.0, 0), (0.0, 1), (f64::MAX, u64::MAX), (f64::NAN, 1 << 40)] {
            assert!(Conditions::new(queue, bytes).0 < QUEUES * SIZES);
        }
        assert_ne!(Conditions::new(0.0, 1 << 20), Conditions::new(1.0, 1 << 20));
        assert_ne!(Conditions::new(0.0, 1 << 20), Conditions::new(0.0, 1 << 21));
    }

    #[test]
    fn a_tenth_of_what_is_asked_for_may_be_asked_again() {
        let budget = HedgeBudget::default();
        assert!(!budget.spend(1));
        budget.earn(25);
        assert!(budget.spend(2) && !budget.spend(1));
        budget.earn(1_000_000);
        assert!(budget.spend(64) && !budget.spend(1), "no more than that is saved up");
    }
}

//! When a chunk that is asked of a site should have come, by what chunks took that were asked under the same
//! conditions.
//!
//! The conditions are the site's estimated queue, in quarters of powers of two, and the bytes that the site sends up to
//! this chunk, in powers of two. A chunk is *late* when it takes longer than 95 of 100 of the recent ones did: a slow
//! request, or a site that is slower than its queue tells. Asking others then costs little, as long as few are late;
//! [`HedgeBudget`] keeps it so. Dean and Barroso defer a second request to the 95th percentile for all requests together
//! ("The Tail at Scale", CACM 2013); with the conditions, what merely waits in a queue is not late.

use std::time::Duration;

use parking_lot::Mutex;

/// Quarters of powers of two of requests in the queue.
const QUEUES: usize = 4 * 12;
/// Powers of two of bytes, from [`LEAST_BYTES`] on.
const SIZES: usize = 14;
const LEAST_BYTES: u64 = 4_096;
/// How many recent arrivals count under the same conditions.
const WINDOW: usize = 64;
/// Fewer tell nothing.
const LEAST: usize = 16;
/// After how many more the percentile is computed anew.
const REFRESH: usize = 8;

/// What chunks took under all conditions.
#[derive(Debug)]
pub(super) struct Arrivals {
    cells: Mutex<Vec<Cell>>,
}

/// Arrivals under the same conditions.
#[derive(Clone, Debug, Default)]
struct Cell {
    recent: Vec<Duration>,
    next: usize,
    late_after: Option<Duration>,
}

/// Under which a chunk is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Conditions(usize);

impl Conditions {
    /// A queue of so many requests, and so many bytes up to the chunk's last.
    pub(super) fn new(queue: f64, bytes: u64) -> Self {
        let queue = ((4.0 * (1.0 + queue.max(0.0)).log2()) as usize).min(QUEUES - 1);
        let size = ((bytes / LEAST_BYTES).max(1).ilog2() as usize).min(SIZES - 1);
        Self(queue * SIZES + size)
    }
}

impl Arrivals {
    pub(super) fn new() -> Self {
        Self { cells: Mutex::new(vec![Cell::default(); QUEUES * SIZES]) }
    }

    /// A chunk arrived after this time.
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

    /// After what time a chunk is late; `None` where too little is known.
    pub(super) fn late_after(&self, under: Conditions) -> Option<Duration> {
        self.cells.lock()[under.0].late_after
    }
}

/// Bounds the chunks that are asked for because others are late, as a share of all.
#[derive(Debug, Default)]
pub(super) struct HedgeBudget(Mutex<f64>);

impl HedgeBudget {
    /// Chunks asked for because others are late, for each that a plan asks for.
    const SHARE: f64 = 0.1;
    /// So many may be saved up.
    const MOST: f64 = 64.0;

    /// A plan asks for so many chunks.
    pub(super) fn earn(&self, chunks: usize) {
        let mut saved = self.0.lock();
        *saved = (*saved + chunks as f64 * Self::SHARE).min(Self::MOST);
    }

    /// Whether so many more may be asked for, and if so takes them.
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
        let arrivals = Arrivals::new();
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
        let arrivals = Arrivals::new();
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

//! The budget of moves that make reads cheaper.

use std::time::Duration;

use striate_runtime::Instant;

/// Limit on what may be moved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Allowance {
    /// This many bytes for each byte that requests read.
    OfTraffic(f64),
    /// This many chunks per second, whatever is read (EC-Store §VI-C5 has less than one).
    ChunksPerSecond(f64),
}

/// Maximum number of chunks that a rate in chunks accumulates.
const SAVED_CHUNKS: f64 = 8.0;
/// Maximum time over which a share of the traffic accumulates.
const SAVED_OVER: Duration = Duration::from_secs(60);

/// What may be moved now, in bytes or in chunks, as the allowance counts.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    allowance: Allowance,
    available: f64,
    /// Time of the last grant, and the number of requests at that time. Reports bring requests in lumps.
    granted: Option<(Instant, u64)>,
}

impl Budget {
    pub(super) fn new(allowance: Allowance) -> Self {
        Self { allowance, available: 0.0, granted: None }
    }

    /// Adds what has accrued since the last grant. The first call adds nothing, because the start of the period is
    /// unknown.
    pub(super) fn grant(&mut self, now: Instant, requests: u64, request_bytes: f64) {
        let is_of_traffic = matches!(self.allowance, Allowance::OfTraffic(_));
        if is_of_traffic && self.granted.is_some_and(|(_, before)| before == requests) {
            return;
        }
        let Some((since, before)) = self.granted.replace((now, requests)) else { return };
        let elapsed_s = now.saturating_duration_since(since).as_secs_f64();
        let (granted, saved) = match self.allowance {
            Allowance::OfTraffic(share) => {
                let granted = share * requests.saturating_sub(before) as f64 * request_bytes;
                (granted, granted * (SAVED_OVER.as_secs_f64() / elapsed_s.max(f64::MIN_POSITIVE)).max(1.0))
            }
            Allowance::ChunksPerSecond(rate) => (rate * elapsed_s, SAVED_CHUNKS),
        };
        self.available = (self.available + granted).min(saved.max(self.available));
    }

    /// Returns whether one more chunk may be moved. With a share of the traffic the last chunk may overdraw the
    /// budget; later grants make up for it.
    pub(super) fn allows_more(&self) -> bool {
        match self.allowance {
            Allowance::OfTraffic(_) => self.available > 0.0,
            Allowance::ChunksPerSecond(_) => self.available >= 1.0,
        }
    }

    /// Charges a moved chunk of `bytes`.
    pub(super) fn spend(&mut self, bytes: u64) {
        self.available -= match self.allowance {
            Allowance::OfTraffic(_) => bytes as f64,
            Allowance::ChunksPerSecond(_) => 1.0,
        };
    }

    /// Returns what is left.
    pub(super) fn available(&self) -> f64 {
        self.available
    }
}

#[cfg(test)]
mod tests {
    use striate_runtime::run_in_virtual_time;

    use super::*;

    #[test]
    fn a_share_of_the_traffic_is_granted_and_saved_up_for_a_while() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let mut budget = Budget::new(Allowance::OfTraffic(0.01));
            budget.grant(runtime.now(), 5_000, 1_000.0);
            assert_eq!(budget.available(), 0.0, "traffic before the first grant is not counted");
            for round in 1..=200 {
                runtime.sleep(Duration::from_secs(1)).await;
                budget.grant(runtime.now(), 5_000 + 100 * round, 1_000.0);
            }
            assert_eq!(budget.available(), 60.0 * 1_000.0, "a minute's");
            budget.spend(70_000);
            assert!(!budget.allows_more(), "the last chunk may go beyond");
            // Traffic that is reported in one lump counts in full.
            runtime.sleep(Duration::from_secs(10)).await;
            budget.grant(runtime.now(), 27_000, 1_000.0);
            assert_eq!(budget.available(), 10_000.0);
        });
    }

    #[test]
    fn no_more_chunks_than_the_rate() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let mut budget = Budget::new(Allowance::ChunksPerSecond(0.5));
            let mut moved = 0;
            for round in 0..=1_000 {
                budget.grant(runtime.now(), round, 0.0);
                while budget.allows_more() {
                    budget.spend(1 << 20);
                    moved += 1;
                }
                runtime.sleep(Duration::from_millis(100)).await;
            }
            assert!((49..=50).contains(&moved), "{moved}");
            runtime.sleep(Duration::from_secs(1_000)).await;
            budget.grant(runtime.now(), 0, 0.0);
            assert_eq!(budget.available(), SAVED_CHUNKS);
        });
    }
}

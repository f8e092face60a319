//! Response times: recording without coordinated omission, and summaries.
//!
//! In a closed loop with zero think time, an operation's response time starts when its client was free to send it. In
//! an open loop it starts when the operation was *due*, even if the client had fallen behind. A stall therefore shows
//! in every operation that should have happened during it.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// A histogram of response times with three significant figures, from 1 µs to one hour.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(into = "Counts", from = "Counts")]
pub struct Latencies {
    histogram: Histogram<u64>,
    /// Sum of the exact times, not of the histogram's rounded ones.
    total_s: f64,
}

/// The serialised form of a histogram: its values and their counts.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Counts {
    total_s: f64,
    /// (nanoseconds, count).
    counts: Vec<(u64, u64)>,
}

impl From<Latencies> for Counts {
    fn from(latencies: Latencies) -> Self {
        let recorded = latencies.histogram.iter_recorded();
        let counts = recorded.map(|value| (value.value_iterated_to(), value.count_at_value())).collect();
        Self { total_s: latencies.total_s, counts }
    }
}

impl From<Counts> for Latencies {
    fn from(counts: Counts) -> Self {
        let mut latencies = Self { total_s: counts.total_s, ..Self::default() };
        for (value, times) in counts.counts {
            latencies.histogram.saturating_record_n(value, times);
        }
        latencies
    }
}

/// Percentiles in a [`Summary`].
pub const PERCENTILES: [f64; 8] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 100.0];

/// Summary of response times, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of operations.
    pub count: u64,
    /// Mean response time.
    pub mean_ms: f64,
    /// (percentile, milliseconds), for each of [`PERCENTILES`].
    pub percentiles_ms: Vec<(f64, f64)>,
}

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1_000, 3_600_000_000_000, 3);
        Self { histogram: histogram.expect("the bounds are in order"), total_s: 0.0 }
    }
}

impl Latencies {
    /// Records one response time.
    pub fn record(&mut self, time: Duration) {
        self.histogram.saturating_record(time.as_nanos() as u64);
        self.total_s += time.as_secs_f64();
    }

    /// Adds all response times of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("all have the same bounds");
        self.total_s += other.total_s;
    }

    /// Returns the response time at this percentile, in milliseconds.
    pub fn at_percentile_ms(&self, percentile: f64) -> f64 {
        self.histogram.value_at_percentile(percentile) as f64 / 1e6
    }

    /// Returns (milliseconds, share of operations at or below): every percent up to 90, then every tenth of a
    /// percent.
    pub fn cdf(&self) -> Vec<(f64, f64)> {
        let below = (1..=90).map(f64::from);
        let tail = (901..=999).map(|permille| f64::from(permille) / 10.0);
        below.chain(tail).map(|percent| (self.at_percentile_ms(percent), percent / 100.0)).collect()
    }

    /// Summarises the recorded times.
    pub fn summary(&self) -> Summary {
        let at = |percentile| (percentile, self.at_percentile_ms(percentile));
        Summary {
            count: self.histogram.len(),
            mean_ms: 1e3 * self.total_s / self.histogram.len().max(1) as f64,
            percentiles_ms: PERCENTILES.map(at).to_vec(),
        }
    }
}

impl Summary {
    /// Returns the response time at one of [`PERCENTILES`], in milliseconds; NaN for any other.
    pub fn percentile(&self, percentile: f64) -> f64 {
        self.percentiles_ms.iter().find(|(at, _)| *at == percentile).map_or(f64::NAN, |(_, ms)| *ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_exact_in_the_mean_and_to_three_figures_in_percentiles() {
        let (mut one, mut other) = (Latencies::default(), Latencies::default());
        for ms in 1..=1_000 {
            if ms % 2 == 0 { &mut one } else { &mut other }.record(Duration::from_millis(ms));
        }
        one.merge(&other);
        let summary = one.summary();
        assert_eq!(summary.count, 1_000);
        assert!((summary.mean_ms - 500.5).abs() < 1e-9);
        let kept = serde_json::to_string(&one).unwrap();
        assert_eq!(serde_json::from_str::<Latencies>(&kept).unwrap().cdf(), one.cdf());
        for (percentile, expected) in [(50.0, 500.0), (99.0, 990.0), (100.0, 1_000.0)] {
            assert!((summary.percentile(percentile) / expected - 1.0).abs() < 1e-3);
        }
    }
}

//! When a disk will be full, from samples of its free space.
//!
//! A line is laid through the samples by least squares: its slope is the present rate. Writes come in bursts, and
//! compaction gives space back in steps, so a line through the two ends would jump. Nothing is said while there are too
//! few samples, while space is not shrinking, and beyond a horizon that no present rate predicts.
//!
//! Cost: one pass over the samples. It does not know how much compaction could still reclaim.

use std::time::Duration;

/// Fewest samples that say anything.
const MIN_SAMPLES: usize = 5;
/// Shortest time that the samples must cover.
const MIN_SPAN: Duration = Duration::from_secs(60);
/// Longest time that a present rate is believed to last, in spans of the samples.
const HORIZON_SPANS: f64 = 200.0;

/// Free space of a disk at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSample {
    /// Time of the sample, on any clock that does not go back.
    pub at: Duration,
    /// Bytes that could be written then.
    pub free_bytes: u64,
}

/// Returns the time after the last of `samples`, which are in the order of time, at which the disk will be full if it
/// goes on filling as it did; `None` if that cannot be known.
pub fn time_until_full(samples: &[FreeSample]) -> Option<Duration> {
    let (first, last) = (samples.first()?, samples.last()?);
    let span = last.at.saturating_sub(first.at);
    if samples.len() < MIN_SAMPLES || span < MIN_SPAN {
        return None;
    }
    let slope = slope_bytes_per_s(samples, first.at);
    if slope >= 0.0 {
        return None;
    }
    let seconds = last.free_bytes as f64 / -slope;
    (seconds <= span.as_secs_f64() * HORIZON_SPANS).then(|| Duration::from_secs_f64(seconds))
}

/// Returns the slope of the line of least squares through the free bytes.
fn slope_bytes_per_s(samples: &[FreeSample], origin: Duration) -> f64 {
    let seconds = |sample: &FreeSample| sample.at.saturating_sub(origin).as_secs_f64();
    let count = samples.len() as f64;
    let mean_at = samples.iter().map(seconds).sum::<f64>() / count;
    let mean_free = samples.iter().map(|sample| sample.free_bytes as f64).sum::<f64>() / count;
    let (mut covariance, mut variance) = (0.0, 0.0);
    for sample in samples {
        let apart = seconds(sample) - mean_at;
        covariance += apart * (sample.free_bytes as f64 - mean_free);
        variance += apart * apart;
    }
    if variance > 0.0 { covariance / variance } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// One sample a minute.
    fn samples(free: impl IntoIterator<Item = u64>) -> Vec<FreeSample> {
        let sample = |(minute, free_bytes): (u64, u64)| FreeSample {
            at: Duration::from_secs(60 * minute),
            free_bytes,
        };
        (0..).zip(free).map(sample).collect()
    }

    #[test]
    fn a_disk_that_fills_evenly_is_full_when_its_free_bytes_are_used_up_at_that_rate() {
        let minutes =
            time_until_full(&samples((0..10).map(|i| (100 - i) * GIB))).expect("known").as_secs_f64() / 60.0;
        assert!((minutes - 91.0).abs() < 0.01, "{minutes}");
    }

    #[test]
    fn steps_of_compaction_bend_the_line_little() {
        let jagged = (0..60).map(|i: u64| (1_000 - i) * GIB + if i % 10 < 3 { 4 * GIB } else { 0 });
        let minutes = time_until_full(&samples(jagged)).expect("known").as_secs_f64() / 60.0;
        assert!((900.0..1_000.0).contains(&minutes), "{minutes}");
    }

    #[test]
    fn nothing_is_said_where_nothing_can_be_known() {
        assert_eq!(time_until_full(&[]), None);
        assert_eq!(time_until_full(&samples([9 * GIB, 8 * GIB, 7 * GIB])), None, "too few");
        let at_once = FreeSample { at: Duration::ZERO, free_bytes: GIB };
        assert_eq!(time_until_full(&[at_once; 20]), None, "of one moment");
        assert_eq!(time_until_full(&samples([GIB; 20])), None, "nothing is written");
        assert_eq!(time_until_full(&samples((1..20).map(|i| i * GIB))), None, "it empties");
        assert_eq!(time_until_full(&samples((0..20).map(|i| 1_000_000 * GIB - i))), None, "beyond any plan");
    }

    #[test]
    fn a_full_disk_is_full_now() {
        assert_eq!(time_until_full(&samples((0..10).rev().map(|i| i * GIB))), Some(Duration::ZERO));
    }
}

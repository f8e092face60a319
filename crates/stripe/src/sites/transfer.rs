//! m_j: the cost of a byte at a site, calibrated from the durations of reads (EC-Store §V-B3, where it is measured
//! once).
//!
//! The chunks of one request arrive one after the other. The time between two of them is the cost of the later one,
//! and does not depend on the site's queue, for which the first one waited. The time to the first chunk at a site
//! without waiting requests, less the cost of its own bytes, is the cost of asking: the unit of Eq. 1. Both are
//! running means that start with the first reads of a client and follow slowly, so that a single read does not
//! overturn plans.

use std::time::Duration;

use parking_lot::Mutex;
use striate_plan::USUAL_PER_BYTE;

/// Seconds to compute and check a data chunk, per byte that it is computed from: about the speed of one core.
const DECODE_S_PER_BYTE: f64 = 2e-10;
/// Maximum factor by which busy processors make decoding more expensive.
const MOST_BUSY: f64 = 32.0;
/// Measurements needed before a mean counts.
const LEAST: u32 = 16;
/// Approximate number of recent measurements that a mean covers.
const MEMORY: u32 = 256;
/// Minimum duration of asking a site, in seconds.
const LEAST_UNIT_S: f64 = 1e-6;
/// m_j stays within this factor of the usual one: beyond it, the measurement means something else.
const MOST: f64 = 64.0;

/// A running mean that forgets slowly.
#[derive(Clone, Copy, Debug, Default)]
struct RunningMean {
    value: f64,
    count: u32,
}

impl RunningMean {
    fn note(&mut self, value: f64) {
        self.count = (self.count + 1).min(MEMORY);
        self.value += (value - self.value) / f64::from(self.count);
    }

    fn settled(&self) -> Option<f64> {
        (self.count >= LEAST).then_some(self.value)
    }
}

/// Seconds per byte at one site.
#[derive(Debug, Default)]
pub(super) struct SiteTransfer(Mutex<RunningMean>);

/// Seconds to ask a site without waiting requests, over all sites.
#[derive(Debug, Default)]
pub(super) struct AskTime(Mutex<RunningMean>);

impl SiteTransfer {
    /// Records that a chunk of `len` bytes arrived `after` the one before it in the same request.
    pub(super) fn note_next(&self, len: u64, after: Duration) {
        if len > 0 {
            self.0.lock().note(after.as_secs_f64() / len as f64);
        }
    }

    /// m_j, where asking an idle site costs 1.
    pub(super) fn per_byte(&self, asking: &AskTime) -> f64 {
        let (seconds, unit) = (self.0.lock().settled(), asking.0.lock().settled());
        match (seconds, unit) {
            (Some(seconds), Some(unit)) if unit > 0.0 => {
                (seconds / unit).clamp(USUAL_PER_BYTE / MOST, USUAL_PER_BYTE * MOST)
            }
            _ => USUAL_PER_BYTE,
        }
    }
}

impl AskTime {
    /// Records that the first chunk of a request, of `len` bytes, `took` this long at a site without waiting
    /// requests.
    pub(super) fn note_first(&self, len: u64, took: Duration, transfer: &SiteTransfer) {
        let bytes = transfer.0.lock().settled().unwrap_or(0.0) * len as f64;
        self.0.lock().note((took.as_secs_f64() - bytes).max(0.0));
    }

    /// Seconds to ask an idle site; `None` while unknown.
    pub(super) fn unit_s(&self) -> Option<f64> {
        self.0.lock().settled().map(|unit| unit.max(LEAST_UNIT_S))
    }

    /// Returns the cost of decoding per byte, where asking an idle site costs 1; 0 while that is unknown. If chunks
    /// come from memory, decoding costs more than asking one more site; beside a disk it costs nothing. When
    /// processors are `busy` for a fraction of their time, decoding takes theirs from all other requests: it counts
    /// as much longer as a queue that is equally busy would make it.
    pub(super) fn decode_per_byte(&self, busy: f64) -> f64 {
        let slowdown = (1.0 / (1.0 - busy)).clamp(1.0, MOST_BUSY);
        match self.0.lock().settled() {
            Some(unit) => slowdown * DECODE_S_PER_BYTE / unit.max(LEAST_UNIT_S),
            None => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn a_site_is_as_dear_as_its_bytes_are_slow() {
        let (asking, fast, slow) = (AskTime::default(), SiteTransfer::default(), SiteTransfer::default());
        for _ in 0..LEAST {
            fast.note_next(50_000, US * 500);
            slow.note_next(50_000, US * 2_000);
        }
        // Asking takes 2.5 ms, without the time for the chunk's own bytes.
        (0..LEAST).for_each(|_| asking.note_first(50_000, US * 3_000, &fast));
        let near = |value: f64, expected: f64| (value / expected - 1.0).abs() < 1e-9;
        assert!(near(fast.per_byte(&asking) * 50_000.0, 0.2));
        assert!(near(slow.per_byte(&asking) * 50_000.0, 0.8));
    }

    #[test]
    fn decoding_is_dear_where_asking_is_quick() {
        let (quick, slow, site) = (AskTime::default(), AskTime::default(), SiteTransfer::default());
        assert_eq!(quick.decode_per_byte(0.5), 0.0, "not known yet");
        (0..LEAST).for_each(|_| quick.note_first(1, US * 100, &site));
        (0..LEAST).for_each(|_| slow.note_first(1, US * 10_000, &site));
        let of_four_mib = |asking: &AskTime| asking.decode_per_byte(0.0) * f64::from(4 << 20);
        assert!(of_four_mib(&quick) > 8.0 && of_four_mib(&slow) < 0.1);
        assert_eq!(quick.decode_per_byte(0.75), 4.0 * quick.decode_per_byte(0.0));
        assert_eq!(quick.decode_per_byte(1.0), MOST_BUSY * quick.decode_per_byte(0.0));
    }

    #[test]
    fn few_measurements_tell_nothing_and_odd_ones_little() {
        let (asking, site) = (AskTime::default(), SiteTransfer::default());
        assert_eq!(site.per_byte(&asking), USUAL_PER_BYTE);
        (1..LEAST).for_each(|_| site.note_next(1_000, US));
        site.note_next(0, US);
        (0..LEAST).for_each(|_| asking.note_first(1_000, US * 1_000, &site));
        assert_eq!(site.per_byte(&asking), USUAL_PER_BYTE, "a byte's price is not known yet");
        (0..LEAST).for_each(|_| site.note_next(1, US * 1_000_000));
        assert_eq!(site.per_byte(&asking), USUAL_PER_BYTE * MOST);
    }

    #[test]
    fn one_slow_chunk_moves_the_price_little() {
        let (asking, site) = (AskTime::default(), SiteTransfer::default());
        for _ in 0..1_000 {
            site.note_next(50_000, US * 500);
            asking.note_first(50_000, US * 3_000, &site);
        }
        let before = site.per_byte(&asking);
        site.note_next(50_000, US * 5_000);
        assert!((1.0..1.05).contains(&(site.per_byte(&asking) / before)));
    }
}

//! Sampled requests on their way into the co-access statistics (EC-Store §V-A).
//!
//! A request is what a caller asked for at once: a query of many blocks, one call of [`Client::read_many`], or one get.
//! Blocks count as far as they were asked for. Which requests are sampled is decided by a generator of its own, so
//! that the runtime's draws, and with them a run in virtual time, are the same with and without sampling.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use striate_core::StripeId;
use striate_meta::records::Block;
use striate_plan::{CoAccess, CoAccessLimits, CoAccessSnapshot, CoAccessTotals};

use crate::Client;

/// SplitMix64's step (Steele, Lea and Flood, OOPSLA 2014).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Chooses requests and keeps what they asked for.
#[derive(Debug)]
pub(crate) struct Sampler {
    /// Requests are sampled whose draw is below this: the rate times 2⁶⁴.
    below: u64,
    state: AtomicU64,
    statistics: Mutex<CoAccess>,
}

/// One sampled request; observed when the last of its readers is done.
#[derive(Debug)]
pub(crate) struct Sample {
    sampler: Arc<Sampler>,
    blocks: Mutex<Vec<StripeId>>,
}

impl Sampler {
    /// Samples this share of the requests, and keeps as much of them.
    pub(crate) fn new(rate: f64, limits: CoAccessLimits) -> Self {
        // Saturates: a rate of 1 or more is below every draw but the last, one in 2⁶⁴.
        let below = (rate.max(0.0) * 2.0_f64.powi(64)) as u64;
        Self { below, state: AtomicU64::new(0), statistics: Mutex::new(CoAccess::new(limits)) }
    }

    /// A request begins; `None` if it is not sampled.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<Arc<Sample>> {
        if self.below == 0 {
            return None;
        }
        let mut draw = self.state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        draw = (draw ^ (draw >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        draw = (draw ^ (draw >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        draw ^= draw >> 31;
        (draw < self.below).then(|| Arc::new(Sample { sampler: Arc::clone(self), blocks: Mutex::default() }))
    }
}

impl Sample {
    /// The request asks for a block.
    pub(crate) fn add(&self, block: &Block) {
        let Ok(id) = block.stripe.as_ref().try_into() else { return };
        let mut blocks = self.blocks.lock();
        // The statistics count no more of one request. They leave out repetitions.
        if blocks.len() < CoAccessLimits::default().request_blocks {
            blocks.push(StripeId::from_bytes(id));
        }
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        let blocks = std::mem::take(self.blocks.get_mut());
        self.sampler.statistics.lock().observe(blocks);
    }
}

impl Client {
    /// The statistics of sampled requests: which blocks are asked for together.
    pub fn with_co_access<R>(&self, look: impl FnOnce(&CoAccess) -> R) -> R {
        look(&self.inner.sampler.statistics.lock())
    }

    /// The statistics as a whole.
    pub fn co_access_totals(&self) -> CoAccessTotals {
        self.with_co_access(CoAccess::totals)
    }

    /// Requests until now, sampled or not, as those that were sampled tell.
    pub fn requests(&self) -> u64 {
        let sampling = self.options().sampling.clamp(f64::MIN_POSITIVE, 1.0);
        (self.co_access_totals().observed as f64 / sampling) as u64
    }

    /// The statistics, to be merged with those of other clients.
    pub fn co_access_snapshot(&self) -> CoAccessSnapshot {
        self.with_co_access(CoAccess::snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_requests_are_sampled_as_the_rate_says() {
        for (rate, range) in
            [(0.0, 0..=0), (0.125, 1_150..=1_350), (1.0, 10_000..=10_000), (7.0, 10_000..=10_000)]
        {
            let sampler = Arc::new(Sampler::new(rate, CoAccessLimits::default()));
            let sampled = (0..10_000).filter(|_| sampler.begin().is_some()).count();
            assert!(range.contains(&sampled), "{sampled} at {rate}");
        }
    }
}

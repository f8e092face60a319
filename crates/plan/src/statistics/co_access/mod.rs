//! Which blocks are requested together: λ_{b,i} over a sliding interval of sampled requests (EC-Store §IV-C, §V-A).
//!
//! λ_{b,i} = P({b, i} ⊆ Q | b ∈ Q) is the share of the sampled requests for b that also request i. The paper counts
//! every pair of every request and subtracts the pairs when the request leaves the interval of the last 5,000. Pairs
//! are many (4,950 in a request of 100 blocks), so this module stores none: it keeps the requests, and for each block
//! the list of requests that include it ([`interval`]). Then
//!
//! - The counts over the interval are *exact* for every block, popular or not, and a request that leaves has no further
//!   effect.
//! - Memory is bounded by the block ids in the interval, whatever the requests look like: at most 100,000 ids, about 15
//!   MB if all are different, and 5 MB with ten blocks per request as in the paper's workloads.
//! - Observing a request costs the number of its blocks, not its square. Listing b's partners costs the sizes of the
//!   requests for b; the mover does so a few times per second.
//!
//! If requests are long, the interval is shorter than 5,000 requests, because the bound is on ids. Of a request of more
//! than 1,024 blocks, the first 1,024 count.
//!
//! Requests that left the interval are forgotten: no decision needs older popularity.
//!
//! Statistics are hints: losing them, or a gateway that held some, does no harm. [`CoAccess::snapshot`] and
//! [`CoAccess::merged`] combine what several gateways observed; likelihoods in the merged interval are those over all
//! its requests.

mod interval;
mod snapshot;

#[cfg(test)]
mod tests;

use rand::Rng;
use striate_core::StripeId;

use interval::Interval;
pub use snapshot::{CoAccessSnapshot, SnapshotError};

/// Limits of the interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoAccessLimits {
    /// Maximum number of requests in the interval.
    pub requests: usize,
    /// Maximum number of block ids in the interval, counted in each request that includes them.
    pub blocks: usize,
    /// Maximum number of blocks counted in one request.
    pub request_blocks: usize,
}

/// A block that is requested together with another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Partner {
    /// The block i.
    pub block: StripeId,
    /// λ_{b,i}, in (0, 1].
    pub likelihood: f64,
}

/// Totals of the observed requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoAccessTotals {
    /// Requests in the interval.
    pub requests: usize,
    /// Blocks of these requests, counted in each request that includes them.
    pub accesses: usize,
    /// Different blocks in the interval.
    pub blocks: usize,
    /// Requests observed since the start.
    pub observed: u64,
    /// Blocks of over-long requests that were not counted, since the start.
    pub left_out: u64,
    /// Memory of the statistics in bytes, at the current capacity of the tables.
    pub memory_bytes: usize,
}

/// Co-access statistics of a sliding interval of requests.
#[derive(Clone, Debug)]
pub struct CoAccess {
    limits: CoAccessLimits,
    interval: Interval,
    observed: u64,
    left_out: u64,
}

impl Default for CoAccessLimits {
    /// The paper's 5,000 requests, of up to 20 blocks on average.
    fn default() -> Self {
        Self::of_requests(5_000)
    }
}

impl CoAccessLimits {
    /// Returns the limits for this many requests, of up to 20 blocks on average; at least 100,000 blocks.
    pub const fn of_requests(requests: usize) -> Self {
        let blocks = if requests > 5_000 { 20 * requests } else { 100_000 };
        Self { requests, blocks, request_blocks: 1_024 }
    }
}

impl Default for CoAccess {
    fn default() -> Self {
        Self::new(CoAccessLimits::default())
    }
}

impl CoAccess {
    /// Creates empty statistics. Limits are clamped to 1 to 2³⁰; a request never counts more blocks than the interval
    /// holds.
    pub fn new(limits: CoAccessLimits) -> Self {
        let within = |limit: usize| limit.clamp(1, 1 << 30);
        let blocks = within(limits.blocks);
        let request_blocks = within(limits.request_blocks).min(blocks);
        Self {
            limits: CoAccessLimits { requests: within(limits.requests), blocks, request_blocks },
            interval: Interval::default(),
            observed: 0,
            left_out: 0,
        }
    }

    /// Records a sampled request: the blocks it requests, in any order. A block counts once per request. The oldest
    /// requests leave the interval when it has too many requests or blocks.
    pub fn observe(&mut self, request: impl IntoIterator<Item = StripeId>) {
        let mut request = request.into_iter().peekable();
        if request.peek().is_none() {
            return;
        }
        self.observed += 1;
        while self.interval.requests() >= self.limits.requests {
            self.interval.remove_oldest();
        }
        self.interval.begin();
        let mut counted = 0;
        for block in request {
            if self.interval.is_in_newest(block) {
                continue;
            }
            if counted == self.limits.request_blocks {
                self.left_out += 1;
                continue;
            }
            while self.interval.accesses() >= self.limits.blocks {
                self.interval.remove_oldest();
            }
            self.interval.add(block);
            counted += 1;
        }
    }

    /// Returns the number of requests in the interval for `block`.
    pub fn count(&self, block: StripeId) -> usize {
        self.interval.count(block)
    }

    /// Returns the number of requests in the interval for both blocks.
    pub fn count_together(&self, one: StripeId, other: StripeId) -> usize {
        self.interval.count_together(one, other)
    }

    /// Returns λ_{b,i}: the likelihood that a request for `b` in the interval also requests `i`; 0 if there is no
    /// request for `b`.
    pub fn likelihood(&self, b: StripeId, i: StripeId) -> f64 {
        match self.count(b) {
            0 => 0.0,
            count => self.count_together(b, i) as f64 / count as f64,
        }
    }

    /// Returns the blocks that are requested together with `b`, most likely first, at most `most` of them; ties in the
    /// order of their ids. Costs the sizes of the requests for `b`.
    pub fn partners(&self, b: StripeId, most: usize) -> Vec<Partner> {
        let count = self.count(b) as f64;
        let mut together = self.interval.partners(b);
        together.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        together.truncate(most);
        let partner = |(block, times)| Partner { block, likelihood: f64::from(times) / count };
        together.into_iter().map(partner).collect()
    }

    /// Returns the positions of the newest requests in the interval for `b`, at most `most` of them; [`Self::request`]
    /// returns their blocks. Costs the number of requests for `b`.
    pub(crate) fn requests_of(&self, b: StripeId, most: usize) -> Vec<usize> {
        let all: Vec<usize> = self.interval.requests_of(b).collect();
        all.into_iter().rev().take(most).collect()
    }

    /// Returns the blocks of the request at a position in the interval, counted from the oldest; empty beyond the
    /// newest.
    pub fn request(&self, place: usize) -> Vec<StripeId> {
        match place < self.interval.requests() {
            true => self.interval.blocks_of(place).collect(),
            false => Vec::new(),
        }
    }

    /// Returns the share of the interval's requests that include `block`: the access likelihood by which load moves
    /// with a chunk (EC-Store §IV-C).
    pub fn popularity(&self, block: StripeId) -> f64 {
        self.count(block) as f64 / self.interval.requests().max(1) as f64
    }

    /// Draws a block with a probability in proportion to the requests for it, as the mover does to find candidates
    /// (Algorithm 1, line 1). `None` if nothing was observed.
    pub fn draw(&self, rng: &mut impl Rng) -> Option<StripeId> {
        match self.interval.accesses() {
            0 => None,
            accesses => Some(self.interval.access(rng.random_range(0..accesses))),
        }
    }

    /// Returns the blocks with the most requests in the interval, at most `most` of them; ties in the order of their
    /// ids. O(blocks of the interval).
    pub fn hottest(&self, most: usize) -> Vec<StripeId> {
        let mut counts: Vec<(StripeId, usize)> = self.interval.counts().collect();
        let order = |a: &(StripeId, usize), b: &(StripeId, usize)| b.1.cmp(&a.1).then(a.0.cmp(&b.0));
        if most < counts.len() {
            counts.select_nth_unstable_by(most, order);
            counts.truncate(most);
        }
        counts.sort_unstable_by(order);
        counts.into_iter().map(|(block, _)| block).collect()
    }

    /// Returns the totals of the observed requests.
    pub fn totals(&self) -> CoAccessTotals {
        CoAccessTotals {
            requests: self.interval.requests(),
            accesses: self.interval.accesses(),
            blocks: self.interval.blocks(),
            observed: self.observed,
            left_out: self.left_out,
            memory_bytes: self.interval.memory_bytes(),
        }
    }
}

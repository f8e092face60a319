//! Which blocks are asked for together: λ_{b,i} over a sliding interval of sampled requests (EC-Store §IV-C, §V-A).
//!
//! λ_{b,i} = P({b, i} ⊆ Q | b ∈ Q) is the share, among the sampled requests that ask for b, of those that ask for i as
//! well. The paper counts every pair of every request and takes the pairs out again when the request leaves the
//! interval of the last 5,000. Pairs are many (4,950 in a request of 100 blocks), so this keeps none: it keeps the
//! requests, and for each block the list of the requests it is in ([`interval`]). Then
//!
//! - what is answered for the interval is *exact* for every block, popular or not, and a request that leaves is gone
//!   without a rest;
//! - memory is bounded by the block ids in the interval, whatever the requests look like: 100,000 ids at most, about 15 MB
//!   when all are different, 5 MB with the ten blocks a request that the paper's workloads have;
//! - observing costs the request's blocks, not their square; asking for b's partners costs the sizes of the requests that
//!   asked for b, which is paid by the mover, a few times in a second.
//!
//! Where requests are long the interval is shorter than 5,000 of them, because its ids are what is bounded; of a request
//! of more than 1,024 blocks the first 1,024 count.
//!
//! Nothing is remembered of requests that left the interval: no decision needs popularity that is older.
//!
//! Statistics are hints: losing them, or a gateway that had some, does no harm. [`CoAccess::snapshot`] and
//! [`CoAccess::merged`] bring together what several gateways saw; likelihoods of the merged interval are those of all
//! its requests.

mod interval;
mod snapshot;

#[cfg(test)]
mod tests;

use rand::Rng;
use striate_core::StripeId;

use interval::Interval;
pub use snapshot::{CoAccessSnapshot, SnapshotError};

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoAccessLimits {
    /// Requests in the interval.
    pub requests: usize,
    /// Block ids in the interval, counted in each request they are in.
    pub blocks: usize,
    /// Blocks of one request that count.
    pub request_blocks: usize,
}

/// A block that is asked for together with another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Partner {
    /// The block i.
    pub block: StripeId,
    /// λ_{b,i}, in (0, 1].
    pub likelihood: f64,
}

/// What was observed, as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoAccessTotals {
    /// Requests in the interval.
    pub requests: usize,
    /// Their blocks, each counted in every request it is in.
    pub accesses: usize,
    /// Different blocks in the interval.
    pub blocks: usize,
    /// Requests observed since the beginning.
    pub observed: u64,
    /// Blocks of over-long requests that were not counted, since the beginning.
    pub left_out: u64,
    /// Bytes that the statistics take, as far as their tables have grown.
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
    /// So many requests, of up to 20 blocks on average; 100,000 blocks at least.
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
    /// Nothing observed yet. Limits are taken as 1 at least, and at most 2³⁰; a request never counts more blocks than the
    /// interval holds.
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

    /// Takes note of a sampled request: the blocks it asks for, in any order. A block counts once in a request. The
    /// oldest requests leave when there are too many, or too many blocks.
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

    /// Requests in the interval that ask for `block`.
    pub fn count(&self, block: StripeId) -> usize {
        self.interval.count(block)
    }

    /// Requests in the interval that ask for both.
    pub fn count_together(&self, one: StripeId, other: StripeId) -> usize {
        self.interval.count_together(one, other)
    }

    /// λ_{b,i}: how likely a request for `b` asks for `i` too, in the interval; 0 where nobody asked for `b`.
    pub fn likelihood(&self, b: StripeId, i: StripeId) -> f64 {
        match self.count(b) {
            0 => 0.0,
            count => self.count_together(b, i) as f64 / count as f64,
        }
    }

    /// The blocks that are asked for together with `b`, most likely first, at most `most` of them; equals in the order of
    /// their ids. Costs the sizes of the requests that asked for `b`.
    pub fn partners(&self, b: StripeId, most: usize) -> Vec<Partner> {
        let count = self.count(b) as f64;
        let mut together = self.interval.partners(b);
        together.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        together.truncate(most);
        let partner = |(block, times)| Partner { block, likelihood: f64::from(times) / count };
        together.into_iter().map(partner).collect()
    }

    /// Requests of the interval that ask for `b`, at most the `most` newest of them, by their places, with which
    /// [`Self::request`] tells their blocks. Costs the number of requests that asked for `b`.
    pub(crate) fn requests_of(&self, b: StripeId, most: usize) -> Vec<usize> {
        let all: Vec<usize> = self.interval.requests_of(b).collect();
        all.into_iter().rev().take(most).collect()
    }

    /// The blocks of the request at a place of the interval, counted from the oldest; nothing beyond the newest.
    pub fn request(&self, place: usize) -> Vec<StripeId> {
        match place < self.interval.requests() {
            true => self.interval.blocks_of(place).collect(),
            false => Vec::new(),
        }
    }

    /// The share of the interval's requests that ask for `block`: the access likelihood by which load is shifted with a
    /// chunk (EC-Store §IV-C).
    pub fn popularity(&self, block: StripeId) -> f64 {
        self.count(block) as f64 / self.interval.requests().max(1) as f64
    }

    /// A block, drawn with a probability in proportion to the requests that ask for it: how the mover finds candidates
    /// (Algorithm 1, line 1). `None` when nothing was observed.
    pub fn draw(&self, rng: &mut impl Rng) -> Option<StripeId> {
        match self.interval.accesses() {
            0 => None,
            accesses => Some(self.interval.access(rng.random_range(0..accesses))),
        }
    }

    /// The blocks that most requests of the interval ask for, at most `most` of them; equals in the order of their ids.
    /// O(blocks of the interval).
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

    /// What was observed, as a whole.
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

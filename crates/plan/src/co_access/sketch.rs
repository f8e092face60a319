//! A count-min sketch (Cormode and Muthukrishnan, J. Algorithms 2005) of how often blocks were asked for.
//!
//! Each of d = 4 rows of w = 2¹⁶ counters adds a block to one of its counters; the least of a block's four is the
//! estimate. It is never too low, and with N accesses in the sketch too high by more than e·N/w with a probability of at
//! most e⁻⁴ = 1.8%. An interval of 5,000 requests of ten blocks keeps N ≤ 10⁵, so that this error is 4.
//!
//! Counters are halved from time to time, which halves N too: old accesses fade.

use striate_core::StripeId;
use striate_splitmix::hash;

const ROWS: usize = 4;
/// w, a power of two.
const WIDTH: usize = 1 << 16;

#[derive(Clone, Debug, Default)]
pub(super) struct Sketch {
    /// Row by row; empty until something is added.
    counters: Vec<u32>,
}

impl Sketch {
    /// The number of counters.
    pub(super) const LEN: usize = ROWS * WIDTH;

    pub(super) fn add(&mut self, block: StripeId, times: u32) {
        for place in places(block) {
            self.add_at(place, times);
        }
    }

    /// Adds to one counter, as another sketch had it.
    pub(super) fn add_at(&mut self, place: usize, times: u32) {
        if self.counters.is_empty() {
            self.counters.resize(Self::LEN, 0);
        }
        let counter = &mut self.counters[place];
        *counter = counter.saturating_add(times);
    }

    pub(super) fn estimate(&self, block: StripeId) -> u32 {
        let counter = |place: usize| self.counters.get(place).copied().unwrap_or(0);
        places(block).map(counter).min().unwrap_or(0)
    }

    pub(super) fn halve(&mut self) {
        self.counters.iter_mut().for_each(|counter| *counter /= 2);
    }

    /// Counters that are not zero, with their places.
    pub(super) fn counters(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.counters.iter().copied().enumerate().filter(|(_, counter)| *counter > 0)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.counters.capacity() * size_of::<u32>()
    }
}

/// A block's counter in each row: g(row) = h1 + row·h2, two hashes for all rows (Kirsch and Mitzenmacher, ESA 2006). The
/// same in every process, so that sketches can be added.
fn places(block: StripeId) -> impl Iterator<Item = usize> {
    let h1 = hash(block.writer() ^ hash(block.sequence()));
    let h2 = hash(h1) | 1;
    let of_row = move |row: usize| h1.wrapping_add(h2.wrapping_mul(row as u64)) >> (64 - WIDTH.ilog2());
    (0..ROWS).map(move |row| row * WIDTH + of_row(row) as usize)
}

//! The requests that reach front ends: sessions that read one object several times in quick succession.
//!
//! Sessions begin as a Poisson process. Each picks an object by its rank and reads it a geometric number of times,
//! with exponential gaps. Every read has its own lognormal size: only the ratio of sizes matters to the model.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use striate_splitmix::hash;

use super::{FittedLoad, OBJECTS, PARTITIONS, Table};
use crate::draws::{exponential, lognormal};

/// Mean bytes of a read. The speed of nodes follows from this and their mean service time.
pub const MEAN_BYTES: f64 = 100_000.0;
/// Ranks whose weights are summed exactly; the rest of the sum is an integral.
const EXACT_RANKS: u64 = 1 << 16;

/// A read of some bytes of an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Arrival time, in seconds.
    pub at: f64,
    /// The object's partition, below [`PARTITIONS`].
    pub partition: usize,
    /// D: bytes to read.
    pub bytes: u32,
}

/// Draws all requests of a run, in the order of their times.
pub fn draw(fit: &FittedLoad, table: Table, length_s: f64, seed: u64) -> Vec<Request> {
    Sessions { fit, table, load: 1.0, day: 0 }.draw(length_s, seed)
}

/// The source of sessions.
#[derive(Clone, Copy, Debug)]
pub struct Sessions<'a> {
    /// Objects, sizes and bursts of the sessions.
    pub fit: &'a FittedLoad,
    /// Table whose request rate determines the number of sessions.
    pub table: Table,
    /// Factor on that rate.
    pub load: f64,
    /// Number of the day. Other days have other sessions for the same objects in the same places.
    pub day: u64,
}

impl Sessions<'_> {
    /// Draws all requests of `length_s` seconds, in the order of their times.
    pub fn draw(&self, length_s: f64, seed: u64) -> Vec<Request> {
        let of_day = if self.day == 0 { seed } else { seed ^ hash(self.day ^ 0xda1) };
        let mut rng = SmallRng::seed_from_u64(hash(of_day));
        let ranks = Ranks::new(self.fit.exponent, self.fit.shift);
        let sessions_per_s = self.load * self.table.requests_per_s() / self.fit.burst;
        let mut requests = Vec::new();
        let mut begins = exponential(&mut rng, 1.0 / sessions_per_s);
        while begins < length_s {
            let partition = partition_of(ranks.draw(&mut rng), seed);
            let mut at = begins;
            loop {
                let bytes = MEAN_BYTES * lognormal(&mut rng, self.fit.sigma);
                let bytes = bytes.clamp(1.0, f64::from(u32::MAX));
                requests.push(Request { at, partition, bytes: bytes as u32 });
                if rng.random::<f64>() < 1.0 / self.fit.burst {
                    break;
                }
                at += exponential(&mut rng, self.fit.gap_s);
            }
            begins += exponential(&mut rng, 1.0 / sessions_per_s);
        }
        requests.retain(|request| request.at < length_s);
        requests.sort_by(|a, b| a.at.total_cmp(&b.at));
        requests
    }
}

/// Returns the partition of an object. It depends only on the seed, as if objects were placed at random.
pub(super) fn partition_of(object: u64, seed: u64) -> usize {
    (hash(seed ^ hash(object)) % PARTITIONS as u64) as usize
}

/// Ranks from 0, drawn with weight (i + 1 + q)^−a.
struct Ranks {
    exponent: f64,
    shift: f64,
    /// Cumulative weights of the first ranks.
    sums: Vec<f64>,
    /// Sum of all weights.
    total: f64,
}

impl Ranks {
    fn new(exponent: f64, shift: f64) -> Self {
        let mut sum = 0.0;
        let sums: Vec<f64> = (0..EXACT_RANKS)
            .map(|rank| {
                sum += (rank as f64 + 1.0 + shift).powf(-exponent);
                sum
            })
            .collect();
        let mut ranks = Self { exponent, shift, sums, total: 0.0 };
        ranks.total = sum + ranks.integral(OBJECTS);
        ranks
    }

    /// Returns the total weight of the ranks from [`EXACT_RANKS`] to `end`.
    fn integral(&self, end: u64) -> f64 {
        let at = |rank: u64| (rank as f64 + 0.5 + self.shift).powf(1.0 - self.exponent);
        (at(EXACT_RANKS) - at(end)) / (self.exponent - 1.0)
    }

    fn draw(&self, rng: &mut SmallRng) -> u64 {
        let weight = rng.random::<f64>() * self.total;
        let place = self.sums.partition_point(|sum| *sum <= weight);
        if place < self.sums.len() {
            return place as u64;
        }
        let beyond = weight - self.sums[self.sums.len() - 1];
        let begin = (EXACT_RANKS as f64 + 0.5 + self.shift).powf(1.0 - self.exponent);
        let at = (begin - beyond * (self.exponent - 1.0)).powf(1.0 / (1.0 - self.exponent));
        ((at - 0.5 - self.shift) as u64).clamp(EXACT_RANKS, OBJECTS - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a3() -> FittedLoad {
        FittedLoad::named("A3").unwrap()
    }

    #[test]
    fn requests_come_at_their_rate_in_bursts_and_by_their_seed() {
        let requests = draw(&a3(), Table::One, 400.0, 1);
        assert!(requests.is_sorted_by(|a, b| a.at <= b.at));
        let rate = requests.len() as f64 / 400.0;
        assert!((rate / 222.2 - 1.0).abs() < 0.05, "{rate}");
        let near = requests.windows(2).filter(|pair| pair[1].at - pair[0].at < 0.001).count();
        assert!(near > requests.len() / 5, "a Poisson process of this rate has a fifth: {near}");
        let mean =
            requests.iter().map(|request| f64::from(request.bytes)).sum::<f64>() / requests.len() as f64;
        assert!((mean / MEAN_BYTES - 1.0).abs() < 0.05, "{mean}");
        assert_eq!(requests, draw(&a3(), Table::One, 400.0, 1));
        assert_ne!(requests[..9], draw(&a3(), Table::One, 400.0, 2)[..9]);
    }

    /// With weights (i + 3)^−2, the first rank's is 1/9 of Σ_{n ≥ 3} n^−2 = π²/6 − 5/4.
    #[test]
    fn ranks_are_drawn_by_their_weights() {
        let (ranks, mut rng) = (Ranks::new(2.0, 2.0), SmallRng::seed_from_u64(1));
        let expected = 1.0 / 9.0 / (std::f64::consts::PI.powi(2) / 6.0 - 1.25);
        assert!((1.0 / 9.0 / ranks.total - expected).abs() < 1e-6);
        let drawn: Vec<u64> = (0..200_000).map(|_| ranks.draw(&mut rng)).collect();
        let first = drawn.iter().filter(|&&rank| rank == 0).count() as f64 / 200_000.0;
        assert!((first / expected - 1.0).abs() < 0.02, "{first} for {expected}");
        // The share of ranks beyond 10⁶, by the integral of the weights.
        let flat = Ranks::new(1.2, 0.0);
        let far = (0..200_000).filter(|_| flat.draw(&mut rng) >= 1_000_000).count() as f64 / 200_000.0;
        let tail = 5.0 * (1e6f64.powf(-0.2) - 1.2e7f64.powf(-0.2)) / flat.total;
        assert!((far / tail - 1.0).abs() < 0.05, "{far} for {tail}");
    }
}

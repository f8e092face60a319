//! Key distributions.
//!
//! Zipf draws use rejection-inversion (Hörmann and Derflinger, 1996). It is exact for every exponent above 0,
//! including 1, and needs constant time and memory for any number of keys.

use rand::Rng;
use rand::rngs::SmallRng;
use striate_splitmix::hash;

/// Distribution of the drawn keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeyDistribution {
    /// All keys are equally likely.
    Uniform,
    /// Key i has a probability proportional to (i+1)^−exponent: popular keys are neighbours.
    Zipf {
        /// The exponent, above 0.
        exponent: f64,
    },
    /// Zipf, with the popular keys spread over the key space.
    ScrambledZipf {
        /// The exponent, above 0.
        exponent: f64,
    },
    /// Zipf from the newest key backwards.
    Latest {
        /// The exponent, above 0.
        exponent: f64,
    },
}

/// Draws ranks 1 to n with a probability proportional to rank^−exponent.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    n: f64,
    exponent: f64,
    /// Integral of the density's hull at 1.5, less the first rank's probability, and at n + 1/2.
    lowest: f64,
    highest: f64,
    shortcut: f64,
}

impl Zipf {
    /// Creates a distribution over `n` ranks.
    ///
    /// # Panics
    /// If `n` is 0 or the exponent is not above 0.
    pub fn new(n: u64, exponent: f64) -> Self {
        assert!(n > 0 && exponent > 0.0, "a Zipf distribution has ranks and a positive exponent");
        let mut zipf = Self { n: n as f64, exponent, lowest: 0.0, highest: 0.0, shortcut: 0.0 };
        zipf.lowest = zipf.integral(1.5) - 1.0;
        zipf.highest = zipf.integral(zipf.n + 0.5);
        zipf.shortcut = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    fn density(&self, x: f64) -> f64 {
        x.powf(-self.exponent)
    }

    /// ∫ t^−exponent dt from 1 to x: (x^(1−e) − 1)/(1−e), or ln x if e is 1.
    fn integral(&self, x: f64) -> f64 {
        let (log, rest) = (x.ln(), 1.0 - self.exponent);
        if (rest * log).abs() < 1e-8 { log } else { (rest * log).exp_m1() / rest }
    }

    fn inverse(&self, area: f64) -> f64 {
        let rest = 1.0 - self.exponent;
        if (rest * area).abs() < 1e-8 { area.exp() } else { ((rest * area).ln_1p() / rest).exp() }
    }

    /// Draws a rank from 1 to n.
    pub fn rank(&self, rng: &mut SmallRng) -> u64 {
        loop {
            let area = self.highest + rng.random::<f64>() * (self.lowest - self.highest);
            let x = self.inverse(area);
            let rank = x.round().clamp(1.0, self.n);
            if rank - x <= self.shortcut || area >= self.integral(rank + 0.5) - self.density(rank) {
                return rank as u64;
            }
        }
    }
}

/// Draws keys of a key space that may grow.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    distribution: KeyDistribution,
    count: u64,
    zipf: Option<Zipf>,
}

impl Keys {
    /// Draws from the keys 0 to `count` − 1.
    ///
    /// # Panics
    /// As [`Zipf::new`].
    pub fn new(distribution: KeyDistribution, count: u64) -> Self {
        let exponent = match distribution {
            KeyDistribution::Uniform => None,
            KeyDistribution::Zipf { exponent }
            | KeyDistribution::ScrambledZipf { exponent }
            | KeyDistribution::Latest { exponent } => Some(exponent),
        };
        Self { distribution, count, zipf: exponent.map(|exponent| Zipf::new(count, exponent)) }
    }

    /// Number of keys.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Extends the key space to `count` keys, with the same distribution.
    pub fn grow_to(&mut self, count: u64) {
        *self = Self::new(self.distribution, count);
    }

    /// Draws a key.
    pub fn draw(&self, rng: &mut SmallRng) -> u64 {
        let rank = self.zipf.map_or(0, |zipf| zipf.rank(rng) - 1);
        match self.distribution {
            KeyDistribution::Uniform => rng.random_range(0..self.count),
            KeyDistribution::Zipf { .. } => rank,
            KeyDistribution::ScrambledZipf { .. } => scramble(rank) % self.count,
            KeyDistribution::Latest { .. } => self.count - 1 - rank,
        }
    }
}

/// A fixed hash of a rank, like YCSB's scrambling: two ranks may get the same key.
fn scramble(rank: u64) -> u64 {
    let bytes = rank.to_le_bytes();
    bytes
        .into_iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A pseudo-random permutation of the numbers below `n`. It spreads popular ranks over the key space without
/// collisions.
///
/// A four-round Feistel network over the next power of four, applied again until the result is below `n` (cycle
/// walking): fewer than four steps on average.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    n: u64,
    half_bits: u32,
    seed: u64,
}

impl Permutation {
    /// Creates a permutation of the numbers below `n`.
    ///
    /// # Panics
    /// If `n` is 0 or above 2⁶².
    pub fn new(n: u64, seed: u64) -> Self {
        assert!(n > 0 && n <= 1 << 62, "a permutation is of at least one number");
        let bits = u64::BITS - (n - 1).leading_zeros();
        Self { n, half_bits: bits.div_ceil(2).max(1), seed }
    }

    /// Returns the image of `number`.
    ///
    /// # Panics
    /// If `number` is not below `n`.
    pub fn of(&self, number: u64) -> u64 {
        assert!(number < self.n, "{number} is not below {}", self.n);
        let mut at = number;
        loop {
            at = self.round_trip(at);
            if at < self.n {
                return at;
            }
        }
    }

    fn round_trip(&self, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for round in 0..4 {
            (left, right) = (right, left ^ (hash(self.seed ^ hash(right ^ round << 62)) & mask));
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    const DRAWS: usize = 400_000;

    fn counts(distribution: KeyDistribution, keys: u64) -> Vec<f64> {
        let (keys, mut rng) = (Keys::new(distribution, keys), SmallRng::seed_from_u64(3));
        let mut counts = vec![0.0; keys.count() as usize];
        (0..DRAWS).for_each(|_| counts[keys.draw(&mut rng) as usize] += 1.0);
        counts
    }

    /// Pearson's χ² against the exact probabilities, for exponents below, at and above 1.
    #[test]
    fn zipf_draws_have_the_exact_probabilities() {
        for exponent in [0.5, 0.99, 1.0, 1.5] {
            let counts = counts(KeyDistribution::Zipf { exponent }, 50);
            let weights: Vec<f64> = (1..=50).map(|rank| f64::from(rank).powf(-exponent)).collect();
            let total: f64 = weights.iter().sum();
            let chi_squared: f64 = counts
                .iter()
                .zip(&weights)
                .map(|(count, weight)| {
                    let expected = weight / total * DRAWS as f64;
                    (count - expected).powi(2) / expected
                })
                .sum();
            // 49 degrees of freedom: χ² exceeds 85.4 once in a thousand runs.
            assert!(chi_squared < 85.4, "exponent {exponent}: {chi_squared}");
        }
    }

    #[test]
    fn the_other_distributions_are_what_they_say() {
        let uniform = counts(KeyDistribution::Uniform, 10);
        assert!(uniform.iter().all(|count| (count / DRAWS as f64 - 0.1).abs() < 0.003), "{uniform:?}");
        let latest = counts(KeyDistribution::Latest { exponent: 1.0 }, 10);
        assert!(latest.is_sorted(), "{latest:?}");
        let scrambled = counts(KeyDistribution::ScrambledZipf { exponent: 1.0 }, 1_000);
        let hottest = scrambled.iter().copied().fold(0.0, f64::max);
        assert!(hottest > DRAWS as f64 / 10.0 && scrambled[0] < hottest && scrambled[1] < hottest);
    }

    #[test]
    fn a_grown_key_is_the_latest() {
        let mut keys = Keys::new(KeyDistribution::Latest { exponent: 1.0 }, 5);
        keys.grow_to(6);
        let mut rng = SmallRng::seed_from_u64(1);
        assert!((0..100).any(|_| keys.draw(&mut rng) == 5));
    }
    #[test]
    fn a_permutation_takes_every_number_to_one_place_and_neighbours_apart() {
        for n in [1, 2, 3, 5, 16, 17, 1_000, 4_097] {
            let permutation = Permutation::new(n, 9);
            let mut places: Vec<u64> = (0..n).map(|number| permutation.of(number)).collect();
            let still = places.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
            assert!(n < 1_000 || still < 10, "{still} of {n} neighbours stayed neighbours");
            places.sort_unstable();
            assert!(places.into_iter().eq(0..n), "{n}");
        }
    }
}

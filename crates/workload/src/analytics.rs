//! Reads of large objects, as in data analytics, after the EC-Cache paper: objects of 1 to 100 MB (§6.5), drawn from
//! Zipf(0.9) (§6.2). Chosen here: half of the objects have 1 to 10 MB, the other half 10 to 100 MB.

use rand::rngs::SmallRng;

use crate::keys::Permutation;
use crate::{Operation, SizeDistribution, Sizes, Workload, Zipf};

/// The Zipf parameter of EC-Cache's evaluation.
pub const EXPONENT: f64 = 0.9;
/// The smallest object, in bytes.
pub const MIN_SIZE: u64 = 1_000_000;
/// The largest object, in bytes.
pub const MAX_SIZE: u64 = 100_000_000;

/// Reads of whole large objects.
#[derive(Clone, Debug)]
pub struct Analytics {
    objects: u64,
    popularity: Zipf,
    places: Permutation,
    sizes: Sizes,
}

impl Analytics {
    /// Creates a workload of `objects` objects, drawn from Zipf with this exponent. Sizes are multiplied by `scale`.
    ///
    /// # Panics
    /// If `objects` is 0 or the exponent is not above 0.
    pub fn new(objects: u64, exponent: f64, scale: f64, seed: u64) -> Self {
        let scaled = |size: u64| ((size as f64 * scale) as u64).max(1);
        let sizes = SizeDistribution::LogUniform { min: scaled(MIN_SIZE), max: scaled(MAX_SIZE) };
        Self {
            objects,
            popularity: Zipf::new(objects, exponent),
            places: Permutation::new(objects, seed),
            sizes: Sizes::new(sizes, seed),
        }
    }
}

impl Workload for Analytics {
    fn objects(&self) -> u64 {
        self.objects
    }

    fn size(&self, object: u64) -> u64 {
        self.sizes.of(object)
    }

    fn next(&mut self, rng: &mut SmallRng) -> Operation {
        Operation::read_one(self.places.of(self.popularity.rank(rng) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_objects_are_below_10_mb_and_none_is_outside() {
        let analytics = Analytics::new(20_000, EXPONENT, 1.0, 1);
        let sizes: Vec<u64> = (0..20_000).map(|object| analytics.size(object)).collect();
        let below = sizes.iter().filter(|&&size| size < 10_000_000).count() as f64 / 20_000.0;
        assert!((below - 0.5).abs() < 0.01, "{below}");
        assert!(sizes.iter().all(|size| (MIN_SIZE..=MAX_SIZE).contains(size)));
    }
}

//! Small objects in partitions, after the SoCC'17 paper on load balancing in coded storage (§3, §4).
//!
//! The paper replays a day of Windows Azure Storage: reads of single objects, 12 million of them, randomly grouped
//! into 2,004 partitions of equal size, with highly skewed demand. It prints no figures for sizes or skew, and the
//! trace is not public. This workload keeps the number of objects per partition, the random grouping and the absence
//! of writes. Zipf(1) and the sizes are chosen here: a power law with a median of 64 KB and a maximum of 4 MB.
//!
//! The objects of a partition have consecutive numbers and share a key prefix.

use rand::rngs::SmallRng;

use crate::keys::Permutation;
use crate::sizes::PowerLaw;
use crate::{Operation, SizeDistribution, Sizes, Workload, Zipf};

/// Objects per partition: 12 million in 2,004 partitions.
pub const OBJECTS_PER_PARTITION: u64 = 12_000_000 / 2_004;
/// Median object size, in bytes.
pub const MEDIAN_SIZE: u64 = 64_000;
/// Maximum object size, in bytes.
pub const MAX_SIZE: u64 = 4_000_000;

/// Small objects, grouped into partitions.
#[derive(Clone, Debug)]
pub struct Partitions {
    objects: u64,
    per_partition: u64,
    popularity: Zipf,
    sizes: Sizes,
    places: Permutation,
}

impl Partitions {
    /// Creates a workload of `objects` objects, `per_partition` to a partition, drawn from Zipf with this exponent.
    ///
    /// # Panics
    /// If `objects` or `per_partition` is 0, or the exponent is not above 0.
    pub fn new(objects: u64, per_partition: u64, exponent: f64, seed: u64) -> Self {
        assert!(per_partition > 0, "a partition has objects");
        let sizes = PowerLaw::with_median(MEDIAN_SIZE as f64, MAX_SIZE as f64, 1.0);
        Self {
            objects,
            per_partition,
            popularity: Zipf::new(objects, exponent),
            sizes: Sizes::new(SizeDistribution::PowerLaw(sizes), seed),
            places: Permutation::new(objects, seed),
        }
    }

    /// Returns the partition of an object.
    pub fn partition(&self, object: u64) -> u64 {
        object / self.per_partition
    }
}

impl Workload for Partitions {
    fn objects(&self) -> u64 {
        self.objects
    }

    fn size(&self, object: u64) -> u64 {
        self.sizes.of(object)
    }

    fn next(&mut self, rng: &mut SmallRng) -> Operation {
        Operation::read_one(self.places.of(self.popularity.rank(rng) - 1))
    }

    fn key(&self, object: u64) -> String {
        format!("partition-{:06}/{object:010}", self.partition(object))
    }

    fn object(&self, key: &str) -> Option<u64> {
        let object = key.rsplit_once('/')?.1.parse().ok()?;
        (self.key(object) == key).then_some(object)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    /// Random grouping leaves the demand of partitions skewed, but far less than that of objects.
    #[test]
    fn hot_objects_are_few_and_lie_in_partitions_at_random() {
        let (mut partitions, mut rng) = (Partitions::new(20_000, 200, 1.0, 4), SmallRng::seed_from_u64(6));
        let (mut objects, mut groups) = (vec![0.0; 20_000], [0.0; 100]);
        for _ in 0..100_000 {
            let Operation::Read(read) = partitions.next(&mut rng) else { panic!("not a read") };
            for object in read.iter() {
                objects[object as usize] += 1e-5;
                groups[partitions.partition(object) as usize] += 1e-5;
            }
        }
        objects.sort_by(|a: &f64, b| b.total_cmp(a));
        // The hottest 1% of the objects get H(200)/H(20000) = 0.5609 of the demand.
        let head: f64 = objects[..200].iter().sum();
        assert!((head - 0.561).abs() < 0.01, "{head}");
        let hottest = groups.iter().copied().fold(0.0, f64::max);
        assert!((0.095..0.2).contains(&hottest) && groups.iter().all(|&share| share > 0.001), "{groups:?}");
    }

    #[test]
    fn sizes_and_keys_are_what_they_say() {
        let partitions = Partitions::new(50_000, OBJECTS_PER_PARTITION, 1.0, 4);
        let mut sizes: Vec<u64> = (0..50_000).map(|object| partitions.size(object)).collect();
        sizes.sort_unstable();
        assert!((sizes[25_000] as f64 / MEDIAN_SIZE as f64 - 1.0).abs() < 0.03, "{}", sizes[25_000]);
        assert!(sizes[49_999] <= MAX_SIZE);
        let key = partitions.key(12_345);
        assert_eq!((key.as_str(), partitions.object(&key)), ("partition-000002/0000012345", Some(12_345)));
        assert_eq!(partitions.object("partition-000001/0000012345"), None);
    }
}

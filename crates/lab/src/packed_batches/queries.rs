//! The queries: distinct objects by Zipf's law, in a Poisson process.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use striate_splitmix::hash;
use striate_workload::keys::{Permutation, Zipf};

use super::{EXPONENT, FRONT_ENDS, OBJECTS};

/// Range of the number of objects in a query.
const COUNTS: std::ops::RangeInclusive<usize> = 10..=20;

/// A batch read.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// Arrival time. Initially in units of the mean time between two queries; see [`pace`].
    pub at: f64,
    /// Gateway that receives the query.
    pub front_end: usize,
    /// Objects to read, without duplicates.
    pub objects: Vec<u64>,
}

/// Draws queries, on average one per unit of time.
pub fn draw(count: usize, seed: u64) -> Vec<Query> {
    let mut rng = SmallRng::seed_from_u64(hash(seed));
    let (zipf, places) = (Zipf::new(OBJECTS, EXPONENT), Permutation::new(OBJECTS, hash(seed ^ 0x0b7ec7)));
    let mut at = 0.0;
    let query = |_| {
        at -= (1.0 - rng.random::<f64>()).ln();
        let object_count = rng.random_range(COUNTS);
        let mut objects = Vec::with_capacity(object_count);
        while objects.len() < object_count {
            let object = places.of(zipf.rank(&mut rng) - 1);
            if !objects.contains(&object) {
                objects.push(object);
            }
        }
        Query { at, front_end: rng.random_range(0..FRONT_ENDS), objects }
    };
    (0..count).map(query).collect()
}

/// Scales the arrival times to `per_s` queries per second.
pub fn pace(queries: &mut [Query], per_s: f64) {
    queries.iter_mut().for_each(|query| query.at /= per_s);
}

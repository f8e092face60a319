//! What is read: distinct objects by Zipf's law, in a Poisson process.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use striate_splitmix::hash;
use striate_workload::keys::{Permutation, Zipf};

use super::{EXPONENT, FRONT_ENDS, OBJECTS};

/// Objects of a query.
const COUNTS: std::ops::RangeInclusive<usize> = 10..=20;

/// A query.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// When it comes. At first in units of the mean time between two; see [`pace`].
    pub at: f64,
    /// The gateway that it comes to.
    pub front_end: usize,
    /// Its objects, each once.
    pub objects: Vec<u64>,
}

/// Draws queries, one in a unit of time.
pub fn draw(count: usize, seed: u64) -> Vec<Query> {
    let mut rng = SmallRng::seed_from_u64(hash(seed));
    let (zipf, places) = (Zipf::new(OBJECTS, EXPONENT), Permutation::new(OBJECTS, hash(seed ^ 0x0b7ec7)));
    let mut at = 0.0;
    let query = |_| {
        at -= (1.0 - rng.random::<f64>()).ln();
        let wanted = rng.random_range(COUNTS);
        let mut objects = Vec::with_capacity(wanted);
        while objects.len() < wanted {
            let object = places.of(zipf.rank(&mut rng) - 1);
            if !objects.contains(&object) {
                objects.push(object);
            }
        }
        Query { at, front_end: rng.random_range(0..FRONT_ENDS), objects }
    };
    (0..count).map(query).collect()
}

/// Lets `per_s` of them come in a second.
pub fn pace(queries: &mut [Query], per_s: f64) {
    queries.iter_mut().for_each(|query| query.at /= per_s);
}

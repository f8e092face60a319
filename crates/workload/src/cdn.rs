//! A content delivery network, from histograms of sizes and popularity in the format of CacheLib's cachebench.
//!
//! Meta publishes such histograms of its CDN (facebook/CacheLib, `cachebench/test_configs/hit_ratio/cdn`,
//! Apache-2.0): 7.5 million keys in 403 popularity classes, sizes of 13, 78 and 274 KB at p50, p90 and p99, reads
//! only. A share of the reads (`oneHits`) asks for keys that are read only once; here these reads are spread evenly
//! over all objects.
//!
//! With fewer objects than the histogram has keys, each object stands for several keys of neighbouring popularity:
//! the most popular x% of the objects get the same share of the reads.

use rand::Rng;
use rand::rngs::SmallRng;
use serde::Deserialize;

use crate::keys::Permutation;
use crate::sizes::{Histogram, cumulative};
use crate::{Operation, SizeDistribution, Sizes, Workload};

/// Errors in a histogram.
#[derive(Debug, thiserror::Error)]
pub enum CdnError {
    /// The text is not a histogram of sizes.
    #[error(
        "the histogram of sizes: {0}; it needs \"valSizeRange\" (bytes, ascending) and as many \
         \"valSizeRangeProbability\" (weights)"
    )]
    Sizes(String),
    /// The text is not a histogram of popularity.
    #[error(
        "the histogram of popularity: {0}; it needs \"popularityBuckets\" (numbers of keys), as many \
         \"popularityWeights\", and may have \"oneHits\" (a share, 0 to 1)"
    )]
    Popularity(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SizeFile {
    val_size_range: Vec<f64>,
    val_size_range_probability: Vec<f64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PopularityFile {
    popularity_buckets: Vec<u64>,
    popularity_weights: Vec<f64>,
    #[serde(default)]
    one_hits: f64,
}

/// The reads of a CDN.
#[derive(Clone, Debug)]
pub struct Cdn {
    objects: u64,
    sizes: Sizes,
    /// End of each popularity class, as a share of all keys; the most popular class first.
    class_ends: Vec<f64>,
    /// Cumulative share of the reads, up to and including each class.
    class_shares: Vec<f64>,
    one_hits: f64,
    places: Permutation,
}

impl Cdn {
    /// Creates a workload of `objects` objects from JSON histograms of sizes and popularity.
    ///
    /// # Errors
    /// If either text is not such a histogram.
    ///
    /// # Panics
    /// If `objects` is 0.
    pub fn new(objects: u64, sizes: &str, popularity: &str, seed: u64) -> Result<Self, CdnError> {
        let histogram = parse_sizes(sizes).map_err(CdnError::Sizes)?;
        let (class_ends, class_shares, one_hits) =
            parse_popularity(popularity).map_err(CdnError::Popularity)?;
        Ok(Self {
            objects,
            sizes: Sizes::new(SizeDistribution::Histogram(histogram), seed),
            class_ends,
            class_shares,
            one_hits,
            places: Permutation::new(objects, seed),
        })
    }

    /// Draws an object's popularity rank; 0 is the most popular.
    fn rank(&self, rng: &mut SmallRng) -> u64 {
        if rng.random::<f64>() < self.one_hits {
            return rng.random_range(0..self.objects);
        }
        let draw: f64 = rng.random();
        let class = self.class_shares.partition_point(|&share| share <= draw);
        let start = if class == 0 { 0.0 } else { self.class_ends[class - 1] };
        let at = start + rng.random::<f64>() * (self.class_ends[class] - start);
        ((at * self.objects as f64) as u64).min(self.objects - 1)
    }
}

impl Workload for Cdn {
    fn objects(&self) -> u64 {
        self.objects
    }

    fn size(&self, object: u64) -> u64 {
        self.sizes.of(object)
    }

    fn next(&mut self, rng: &mut SmallRng) -> Operation {
        Operation::read_one(self.places.of(self.rank(rng)))
    }
}

fn parse_sizes(text: &str) -> Result<Histogram, String> {
    let file: SizeFile = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if let Some(bad) = file.val_size_range.iter().find(|size| !(0.0..1e15).contains(*size)) {
        return Err(format!("{bad} is no size"));
    }
    let values: Vec<u64> = file.val_size_range.iter().map(|&size| size as u64).collect();
    Histogram::new(&values, &file.val_size_range_probability)
}

type Classes = (Vec<f64>, Vec<f64>, f64);

fn parse_popularity(text: &str) -> Result<Classes, String> {
    let file: PopularityFile = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let (keys, weights) = (&file.popularity_buckets, &file.popularity_weights);
    if keys.len() != weights.len() {
        return Err(format!("{} numbers of keys and {} weights", keys.len(), weights.len()));
    }
    if !(0.0..=1.0).contains(&file.one_hits) {
        return Err(format!("oneHits is {}", file.one_hits));
    }
    let keys: Vec<f64> = keys.iter().map(|&count| count as f64).collect();
    Ok((cumulative(&keys)?, cumulative(weights)?, file.one_hits))
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    /// Shortened from the histograms named in the module documentation: 247 size classes, 37 popularity classes.
    const SIZES: &str = include_str!("../tests/data/meta-cdn-sizes.json");
    const POPULARITY: &str = include_str!("../tests/data/meta-cdn-popularity.json");

    #[test]
    fn sizes_have_the_quantiles_of_the_histogram() {
        let cdn = Cdn::new(200_000, SIZES, POPULARITY, 1).unwrap();
        let mut sizes: Vec<u64> = (0..200_000).map(|object| cdn.size(object)).collect();
        sizes.sort_unstable();
        for (share, bytes) in [(0.5, 13_343.0), (0.9, 77_631.0), (0.99, 274_239.0)] {
            let size = sizes[(share * 200_000.0) as usize] as f64;
            assert!((size / bytes - 1.0).abs() < 0.06, "{share}: {size}");
        }
    }

    /// The share of the most popular keys does not depend on the number of objects.
    #[test]
    fn the_head_gets_its_share_of_reads() {
        let file: PopularityFile = serde_json::from_str(POPULARITY).unwrap();
        let total_keys: u64 = file.popularity_buckets.iter().sum();
        let total_weight: f64 = file.popularity_weights.iter().sum();
        // The classes that end nearest below 1% and 20% of the keys.
        for wanted in [0.01, 0.2] {
            let (mut keys, mut weight) = (0, 0.0);
            for (&count, &one) in file.popularity_buckets.iter().zip(&file.popularity_weights) {
                if (keys + count) as f64 / total_keys as f64 > wanted {
                    break;
                }
                keys += count;
                weight += one;
            }
            let head = keys as f64 / total_keys as f64;
            let expected = (1.0 - file.one_hits) * weight / total_weight + file.one_hits * head;
            for objects in [10_000, 1_000_000] {
                let (cdn, mut rng) =
                    (Cdn::new(objects, SIZES, POPULARITY, 2).unwrap(), SmallRng::seed_from_u64(3));
                let hits =
                    (0..100_000).filter(|_| (cdn.rank(&mut rng) as f64) < head * objects as f64).count();
                let share = hits as f64 / 100_000.0;
                assert!((share - expected).abs() < 0.008, "{head}: {share} of {expected}");
            }
        }
    }

    #[test]
    fn what_is_no_histogram_is_refused_with_what_is_needed() {
        let sizes = |text| Cdn::new(10, text, POPULARITY, 1).unwrap_err().to_string();
        assert!(sizes("{}").contains("valSizeRange"));
        assert!(sizes(r#"{"valSizeRange": [1, -2], "valSizeRangeProbability": [1, 1]}"#).contains("-2"));
        assert!(sizes(r#"{"valSizeRange": [1, 2], "valSizeRangeProbability": [1]}"#).contains("1 weights"));
        let popularity = |text| Cdn::new(10, SIZES, text, 1).unwrap_err().to_string();
        assert!(popularity(r#"{"popularityBuckets": [1], "popularityWeights": [0]}"#).contains("above 0"));
        assert!(
            popularity(r#"{"popularityBuckets": [1], "popularityWeights": [1], "oneHits": 2}"#)
                .contains("oneHits")
        );
    }
}

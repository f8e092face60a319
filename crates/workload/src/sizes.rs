//! Object sizes.
//!
//! An object's size is a quantile of the distribution, at a point given by a hash of the seed and the object's
//! number. This takes no memory, two processes agree on it, and it does not depend on the order in which objects are
//! created.

use striate_splitmix::hash;

/// A distribution of sizes, in bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum SizeDistribution {
    /// All objects have the same size.
    Fixed(u64),
    /// Uniform in the logarithm, between two bounds: as many objects of 1 to 2 units as of 2 to 4.
    LogUniform {
        /// Minimum size.
        min: u64,
        /// Maximum size.
        max: u64,
    },
    /// A truncated power law.
    PowerLaw(PowerLaw),
    /// Weighted sizes.
    Histogram(Histogram),
}

/// The bounded Pareto distribution: above `min`, P(X > x) falls as x^−exponent and reaches 0 at `max`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PowerLaw {
    min: f64,
    max: f64,
    exponent: f64,
}

impl PowerLaw {
    /// Creates the power law with this median, maximum and tail exponent.
    ///
    /// # Panics
    /// Unless 0 < `median` < `max` and the exponent is above 0.
    pub fn with_median(median: f64, max: f64, exponent: f64) -> Self {
        assert!(0.0 < median && median < max && exponent > 0.0, "a power law has a median below its maximum");
        // Half of the mass lies below m: 1 − (L/m)^e = ½ (1 − (L/H)^e), solved for L.
        let min = (0.5 / (median.powf(-exponent) - 0.5 * max.powf(-exponent))).powf(exponent.recip());
        Self { min, max, exponent }
    }

    /// Returns the value below which a share `u` (0 to 1) of the distribution lies.
    pub fn quantile(&self, u: f64) -> f64 {
        let cut = 1.0 - (self.min / self.max).powf(self.exponent);
        self.min * (1.0 - u * cut).powf(-self.exponent.recip())
    }
}

/// Weighted values, as measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    values: Vec<u64>,
    /// Cumulative share up to and including each value; the last is 1.
    cumulative: Vec<f64>,
}

impl Histogram {
    /// Creates a histogram of ascending values and their weights.
    ///
    /// # Errors
    /// If there are no values, the numbers of values and weights differ, the values do not ascend, or the weights are
    /// negative or all zero.
    pub fn new(values: &[u64], weights: &[f64]) -> Result<Self, String> {
        if values.len() != weights.len() {
            return Err(format!("{} values and {} weights: as many are needed", values.len(), weights.len()));
        }
        if let Some(pair) = values.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(format!("values must ascend, and {} stands before {}", pair[0], pair[1]));
        }
        Ok(Self { values: values.to_vec(), cumulative: cumulative(weights)? })
    }

    /// Returns the value at the cumulative share `u`, from 0 to below 1.
    pub fn quantile(&self, u: f64) -> u64 {
        let at = self.cumulative.partition_point(|&share| share <= u);
        self.values[at.min(self.values.len() - 1)]
    }
}

/// Returns the cumulative shares of the weights: ascending, the last is 1.
///
/// # Errors
/// If there are no weights, or they are negative or all zero.
pub(crate) fn cumulative(weights: &[f64]) -> Result<Vec<f64>, String> {
    if let Some(bad) = weights.iter().find(|weight| !weight.is_finite() || **weight < 0.0) {
        return Err(format!("{bad} is no weight: 0 or more is needed"));
    }
    let total: f64 = weights.iter().sum();
    if total <= 0.0 {
        return Err("no weight is above 0".to_owned());
    }
    let mut sum = 0.0;
    let mut shares: Vec<f64> = weights
        .iter()
        .map(|weight| {
            sum += weight;
            sum / total
        })
        .collect();
    // Rounding must not leave a gap below 1 into which a draw could fall.
    let last = weights.iter().rposition(|&weight| weight > 0.0).unwrap_or(0);
    shares[last..].fill(1.0);
    Ok(shares)
}

impl SizeDistribution {
    /// Returns the size at the cumulative share `u`, from 0 to below 1.
    pub fn quantile(&self, u: f64) -> u64 {
        match self {
            Self::Fixed(size) => *size,
            Self::LogUniform { min, max } => {
                let (low, high) = (*min as f64, *max as f64);
                (low * (high / low).powf(u)).round() as u64
            }
            Self::PowerLaw(law) => law.quantile(u).round() as u64,
            Self::Histogram(histogram) => histogram.quantile(u),
        }
    }
}

/// Sizes of numbered objects.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    distribution: SizeDistribution,
    seed: u64,
}

impl Sizes {
    /// Draws sizes from this distribution.
    pub fn new(distribution: SizeDistribution, seed: u64) -> Self {
        Self { distribution, seed }
    }

    /// Gives all objects the same size.
    pub fn fixed(size: u64) -> Self {
        Self::new(SizeDistribution::Fixed(size), 0)
    }

    /// Returns the size of an object, in bytes.
    pub fn of(&self, object: u64) -> u64 {
        match self.distribution {
            SizeDistribution::Fixed(size) => size,
            _ => self.distribution.quantile(unit(hash(self.seed ^ hash(object)))),
        }
    }
}

/// Maps a hash to a number from 0 to below 1.
pub(crate) fn unit(hash: u64) -> f64 {
    (hash >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(distribution: SizeDistribution) -> Vec<u64> {
        let sizes = Sizes::new(distribution, 7);
        let mut all: Vec<u64> = (0..100_001).map(|object| sizes.of(object)).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn a_power_law_has_its_median_its_bounds_and_its_tail() {
        let law = PowerLaw::with_median(500_000.0, 20_000_000.0, 1.0);
        assert!(
            (law.quantile(0.5) - 500_000.0).abs() < 1.0 && (law.quantile(1.0) - 20_000_000.0).abs() < 1.0
        );
        let all = sorted(SizeDistribution::PowerLaw(law));
        assert!((all[50_000] as f64 / 500_000.0 - 1.0).abs() < 0.02, "{}", all[50_000]);
        // With exponent 1, twice the size is half as common, apart from the truncated tail.
        let above = |size: u64| all.iter().filter(|&&one| one > size).count() as f64;
        assert!((above(1_000_000) / above(2_000_000) - 2.1).abs() < 0.1);
        assert!(*all.last().unwrap() <= 20_000_000);
    }

    #[test]
    fn log_uniform_sizes_are_as_common_in_every_octave() {
        let all = sorted(SizeDistribution::LogUniform { min: 1_000, max: 1_000_000 });
        assert!((all[50_000] as f64 / 31_623.0 - 1.0).abs() < 0.03, "{}", all[50_000]);
        assert!(all[0] >= 1_000 && all[100_000] <= 1_000_000);
    }

    #[test]
    fn a_histogram_gives_its_values_at_their_shares() {
        let histogram = Histogram::new(&[10, 20, 30, 40], &[1.0, 2.0, 1.0, 0.0]).unwrap();
        let at = |u| histogram.quantile(u);
        assert_eq!([at(0.0), at(0.24), at(0.26), at(0.74), at(0.76), at(0.999)], [10, 10, 20, 20, 30, 30]);
        let all = sorted(SizeDistribution::Histogram(histogram));
        let share = all.iter().filter(|&&size| size == 20).count() as f64 / all.len() as f64;
        assert!((share - 0.5).abs() < 0.01 && !all.contains(&40), "{share}");
        for (values, weights) in
            [(&[1, 2][..], &[1.0][..]), (&[2, 1], &[1.0, 1.0]), (&[1], &[-1.0]), (&[], &[])]
        {
            assert!(Histogram::new(values, weights).is_err(), "{values:?} {weights:?}");
        }
    }
}

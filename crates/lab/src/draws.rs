//! Random draws from the distributions of the models.

use rand::Rng;
use rand::rngs::SmallRng;

/// Draws from the standard normal distribution (Box–Muller).
pub(crate) fn normal(rng: &mut SmallRng) -> f64 {
    // 1 − u is never 0.
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()
}

/// Draws from the lognormal distribution with mean 1: exp(σz − σ²/2).
pub(crate) fn lognormal(rng: &mut SmallRng, sigma: f64) -> f64 {
    (sigma * normal(rng) - sigma * sigma / 2.0).exp()
}

/// Draws from the exponential distribution.
pub(crate) fn exponential(rng: &mut SmallRng, mean: f64) -> f64 {
    -mean * (1.0 - rng.random::<f64>()).ln()
}

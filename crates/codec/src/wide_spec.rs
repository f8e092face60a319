//! Wide codes by their goals: k, f and a redundancy instead of a locality (ECWide §3.4).

use crate::error::CodecError;
use crate::spec::CodeSpec;

/// Tolerance for rounding errors of decimal fractions: 20 × (1.15 − 1) counts as 3.
const ROUNDING: f64 = 1e-9;

impl CodeSpec {
    /// Returns the wide code of `data` chunks that tolerates `tolerance` losses, stores at most `redundancy` bytes per
    /// byte, and needs the fewest chunks across racks for a repair: n = k + ⌈k/r⌉ + f − 1 (Eq. 2) for the least r with
    /// ⌈k/r⌉ ≤ k(γ − 1) − f + 1 (Eq. 3).
    ///
    /// That r is rounded up until a group of r + 1 chunks fills its racks of f. This adds no rack to a group and no
    /// parity: for k = 128, f = 4, γ = 1.063 it turns 26 into 27, as in the paper.
    ///
    /// # Errors
    /// [`CodecError::Parameters`] with the arithmetic if the redundancy is too small, and as [`CodeSpec::check`].
    pub fn wide_within(data: usize, tolerance: usize, redundancy: f64) -> Result<Self, CodecError> {
        let refuse = |reason: String| {
            let code = format!("wide(k={data},f={tolerance},redundancy={redundancy})");
            Err(CodecError::Parameters { code, reason })
        };
        if data == 0 || tolerance < 2 || !redundancy.is_finite() {
            return refuse("it needs k ≥ 1, f ≥ 2 and a redundancy such as 1.1".to_owned());
        }
        let (k, f) = (data as f64, tolerance as f64);
        let parities = k * (redundancy - 1.0);
        let groups = (parities - f + 1.0 + ROUNDING).floor();
        if groups < 1.0 {
            let least = ((k + f) / k * 1e5).ceil() / 1e5;
            return refuse(format!(
                "a redundancy of {redundancy} allows {parities:.2} parities for {data} data chunks; {} are global ones, \
                 and one for a local group makes {tolerance}: allow {least} or more",
                tolerance - 1
            ));
        }
        let least = data.div_ceil((groups as usize).min(data)).max(2);
        let aligned = (least + 1).next_multiple_of(tolerance) - 1;
        let spec = Self::Wide { data, locality: aligned.min(data), tolerance };
        spec.check()?;
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(data: usize, tolerance: usize, redundancy: f64) -> String {
        CodeSpec::wide_within(data, tolerance, redundancy)
            .map_or_else(|no| no.to_string(), |is| is.to_string())
    }

    #[test]
    fn the_papers_redundancies_give_the_papers_codes() {
        assert_eq!(within(128, 4, 1.1), "wide(128,15,4)");
        assert_eq!(within(128, 4, 1.063), "wide(128,27,4)");
        assert_eq!(within(20, 3, 1.3), "wide(20,5,3)");
        assert_eq!(within(20, 2, 3.0), "wide(20,3,2)");
    }

    #[test]
    fn a_code_stores_no_more_than_allowed_and_one_that_crosses_fewer_racks_would() {
        for (data, tolerance) in [(20, 3), (42, 4), (64, 2), (128, 4), (120, 3)] {
            for percent in 1..60 {
                let redundancy = 1.0 + f64::from(percent) / 100.0;
                let Ok(spec) = CodeSpec::wide_within(data, tolerance, redundancy) else {
                    assert!(data * percent as usize / 100 < tolerance, "{data}, {tolerance}, {redundancy}");
                    continue;
                };
                let CodeSpec::Wide { locality, .. } = spec else { unreachable!() };
                let allowed = data + data * percent as usize / 100;
                assert!(spec.chunk_count() <= allowed, "{spec}");
                // A repair with one rack less needs more parities than allowed.
                let shorter = (locality.div_ceil(tolerance) - 1) * tolerance;
                let next = shorter.checked_sub(1).filter(|r| *r >= 1);
                if let Some(next) = next {
                    assert!(data + data.div_ceil(next) + tolerance - 1 > allowed, "{spec}, {redundancy}");
                }
            }
        }
    }

    #[test]
    fn a_redundancy_that_is_too_small_is_refused_with_the_arithmetic() {
        let refusal = within(128, 4, 1.02);
        assert!(refusal.contains("2.56 parities") && refusal.contains("allow 1.03125 or more"), "{refusal}");
        assert_eq!(within(128, 4, 1.03125), "wide(128,128,4)");
        assert!(within(128, 1, 1.1).contains("f ≥ 2"));
        assert!(within(128, 4, f64::NAN).contains("such as 1.1"));
    }
}

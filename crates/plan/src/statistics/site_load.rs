//! ω_j, the load of a site, and Ω_j, its distance from the average (EC-Store §IV-C, §V-A).
//!
//! The paper derives the load from CPU utilisation, I/O load and the number of chunks, and gives no weights. Here
//!
//! ```text
//! ω_j = w_cpu · cpu_j + w_io · io_j + w_chunks · chunks_j / mean chunks
//! ```
//!
//! where cpu_j and io_j are shares of time in [0, 1]. They are added as they are, not relative to their means, because
//! a chunk that moves takes its part of them along, and because their ratios are noise at idle sites. The number of
//! chunks is relative, since it has no natural unit, and weighs a tenth: it decides if there is no load, and otherwise
//! has little effect.
//!
//! Loads are averaged with the previous report, half and half, so that a mover does not react to every second.

use striate_core::LoadReport;

/// Weights of the parts of ω_j.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadWeights {
    /// w_cpu: weight of the share of processor time.
    pub cpu: f64,
    /// w_io: weight of the share of the workers' time spent in disk operations.
    pub io: f64,
    /// w_chunks: weight of the number of chunks over its mean.
    pub chunks: f64,
}

impl Default for LoadWeights {
    /// Equal weights of processor and disk, and a tenth for chunks.
    fn default() -> Self {
        Self { cpu: 1.0, io: 1.0, chunks: 0.1 }
    }
}

/// The parts of ω_j, smoothed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SiteLoad {
    /// Share of the processor in use, in [0, 1].
    pub cpu: f64,
    /// Share of the workers' time spent in disk operations, in [0, 1].
    pub io: f64,
    /// Number of chunks stored.
    pub chunks: f64,
}

impl SiteLoad {
    /// Returns the load according to one report.
    pub fn of(report: &LoadReport) -> Self {
        let share = |permille: u16| f64::from(permille) / 1_000.0;
        Self { cpu: share(report.cpu_permille), io: share(report.io_permille), chunks: report.chunks as f64 }
    }

    /// Averages the load with this report; the number of chunks is as reported.
    #[must_use]
    pub fn smoothed(&self, report: &LoadReport) -> Self {
        let new = Self::of(report);
        Self { cpu: f64::midpoint(self.cpu, new.cpu), io: f64::midpoint(self.io, new.io), ..new }
    }
}

/// Returns ω_j of every site, in the order of `loads`.
pub fn site_loads(loads: &[SiteLoad], weights: LoadWeights) -> Vec<f64> {
    let mean_chunks = mean(loads.iter().map(|load| load.chunks));
    let relative = |chunks: f64| if mean_chunks > 0.0 { chunks / mean_chunks } else { 0.0 };
    let omega = |load: &SiteLoad| {
        weights.cpu * load.cpu + weights.io * load.io + weights.chunks * relative(load.chunks)
    };
    loads.iter().map(omega).collect()
}

/// Returns Ω_j = |1 − ω_j / ω̃| of every site, where ω̃ is the mean; 0 if there is no load at all.
pub fn load_imbalances(omegas: &[f64]) -> Vec<f64> {
    let mean = mean(omegas.iter().copied());
    let imbalance = |omega: &f64| if mean > 0.0 { (1.0 - omega / mean).abs() } else { 0.0 };
    omegas.iter().map(imbalance).collect()
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len();
    if count == 0 { 0.0 } else { values.sum::<f64>() / count as f64 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn report(cpu_permille: u16, io_permille: u16, chunks: u64) -> LoadReport {
        LoadReport { cpu_permille, io_permille, chunks, ..LoadReport::default() }
    }

    fn omegas(reports: &[LoadReport]) -> Vec<f64> {
        let loads: Vec<_> = reports.iter().map(SiteLoad::of).collect();
        site_loads(&loads, LoadWeights::default())
    }

    #[test]
    fn the_parts_add_up_by_their_weights() {
        let omegas = omegas(&[report(500, 250, 30), report(0, 0, 10)]);
        assert!((omegas[0] - (0.5 + 0.25 + 0.1 * 1.5)).abs() < 1e-12, "{omegas:?}");
        assert!((omegas[1] - 0.1 * 0.5).abs() < 1e-12, "{omegas:?}");
    }

    #[test]
    fn idle_sites_are_told_apart_by_their_chunks_and_busy_ones_by_their_load() {
        let idle = load_imbalances(&omegas(&[report(0, 0, 150), report(0, 0, 50)]));
        assert!(idle.iter().all(|imbalance| (imbalance - 0.5).abs() < 1e-12), "{idle:?}");
        let busy = omegas(&[report(100, 100, 150), report(400, 700, 50)]);
        assert!(busy[1] > 3.0 * busy[0], "{busy:?}");
    }

    #[test]
    fn one_loud_second_is_half_forgotten_at_the_next_report() {
        let calm = SiteLoad::of(&report(0, 0, 5));
        let loud = calm.smoothed(&report(1_000, 800, 6));
        assert_eq!(loud, SiteLoad { cpu: 0.5, io: 0.4, chunks: 6.0 });
        assert_eq!(loud.smoothed(&report(0, 0, 6)), SiteLoad { cpu: 0.25, io: 0.2, chunks: 6.0 });
    }

    #[test]
    fn no_sites_and_no_load_are_no_imbalance() {
        assert!(load_imbalances(&omegas(&[])).is_empty());
        assert_eq!(load_imbalances(&omegas(&[report(0, 0, 0); 3])), [0.0; 3]);
    }

    proptest! {
        #[test]
        fn equal_sites_are_balanced_and_imbalances_do_not_depend_on_the_unit(
            cpu in 0..=1_000_u16, io in 0..=1_000_u16, chunks in 0..1_000_u64, sites in 1..20_usize, unit in 0.1..10.0,
        ) {
            let equal = omegas(&vec![report(cpu, io, chunks); sites]);
            prop_assert!(load_imbalances(&equal).iter().all(|imbalance| *imbalance < 1e-9));
            let some: Vec<f64> = (0..sites).map(|site| (site * 7 % 5) as f64 + 1.0).collect();
            let scaled: Vec<f64> = some.iter().map(|omega| omega * unit).collect();
            for (one, other) in load_imbalances(&some).iter().zip(load_imbalances(&scaled)) {
                prop_assert!((one - other).abs() < 1e-9);
            }
        }
    }
}

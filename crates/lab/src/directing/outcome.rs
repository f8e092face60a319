//! Results of a run, and the paper's tables.

use serde::Serialize;

use super::Table;

/// Response times of a run in seconds, and its probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// Mean response time.
    pub mean: f64,
    /// Variance of the response times.
    pub variance: f64,
    /// Median response time.
    pub median: f64,
    /// 95th percentile of the response times.
    pub p95: f64,
    /// Minimum response time.
    pub min: f64,
    /// Maximum response time.
    pub max: f64,
    /// Probes per second.
    pub probes_per_s: f64,
}

impl Row {
    /// Creates a row from ascending response times and the probes per second.
    ///
    /// # Panics
    /// If there are no response times.
    pub fn of(times: &[f64], probes_per_s: f64) -> Self {
        assert!(!times.is_empty(), "no request was answered");
        let count = times.len() as f64;
        let mean = times.iter().sum::<f64>() / count;
        let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / count;
        let at = |share: f64| times[((count * share) as usize).min(times.len() - 1)];
        let (min, max) = (times[0], times[times.len() - 1]);
        Self { mean, variance, median: at(0.5), p95: at(0.95), min, max, probes_per_s }
    }

    /// Returns mean, median and 95th percentile.
    pub fn cells(&self) -> [f64; 3] {
        [self.mean, self.median, self.p95]
    }

    /// Returns mean, median and 95th percentile relative to those of another row.
    pub fn relative_to(&self, other: &Self) -> [f64; 3] {
        let (own, others) = (self.cells(), other.cells());
        [0, 1, 2].map(|cell| own[cell] / others[cell])
    }
}

/// Returns the policies of a table: text for [`striate_baselines::read_policy`], name in the paper, and the paper's
/// row.
pub fn paper(table: Table) -> Vec<(&'static str, &'static str, Row)> {
    let row = |[mean, variance, median, p95, min, max, probes_per_s]: [f64; 7]| Row {
        mean,
        variance,
        median,
        p95,
        min,
        max,
        probes_per_s,
    };
    match table {
        Table::One => vec![
            ("normal(2s)", "Normal", row([0.114, 0.022, 0.047, 0.424, 0.003, 1.244, 0.0])),
            ("lmlf-lazy", "LMLF Lazy", row([0.087, 0.013, 0.037, 0.324, 0.003, 1.197, 270.0])),
            ("opt-lazy", "Opt Lazy", row([0.048, 0.005, 0.025, 0.177, 0.003, 1.038, 67.5])),
            ("lmlf-pw2", "LMLF PW2", row([0.033, 0.001, 0.026, 0.080, 0.008, 1.038, 888.9])),
            ("llf-pw2", "LLF PW2", row([0.036, 0.001, 0.027, 0.094, 0.008, 1.040, 888.9])),
        ],
        Table::Two => vec![
            ("normal(2s)", "Normal", row([0.207, 0.056, 0.105, 0.695, 0.003, 1.951, 0.0])),
            ("lmlf-lazy", "LMLF Lazy", row([0.180, 0.041, 0.094, 0.607, 0.003, 1.331, 270.0])),
            ("opt-lazy", "Opt Lazy", row([0.148, 0.031, 0.069, 0.520, 0.003, 1.420, 67.5])),
            ("lmlf-pw2", "LMLF PW2", row([0.073, 0.005, 0.054, 0.196, 0.012, 3.043, 784.5])),
            ("llf-pw2", "LLF PW2", row([0.076, 0.004, 0.058, 0.203, 0.012, 0.684, 784.5])),
            ("lmlf", "LMLF", row([0.070, 0.003, 0.055, 0.174, 0.014, 1.016, 1_008.7])),
            ("llf", "LLF", row([0.069, 0.002, 0.057, 0.166, 0.015, 1.053, 1_008.7])),
        ],
    }
}

/// Returns the median of some values; 0 if there are none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_sums_up_its_times() {
        let row = Row::of(&(1..=100).map(f64::from).collect::<Vec<_>>(), 7.0);
        assert_eq!(row.cells(), [50.5, 51.0, 96.0]);
        assert_eq!((row.min, row.max, row.probes_per_s, row.variance), (1.0, 100.0, 7.0, 833.25));
        assert_eq!(row.relative_to(&row), [1.0; 3]);
        assert_eq!((median(vec![3.0, 1.0]), median(vec![5.0, 1.0, 2.0])), (2.0, 2.0));
    }

    /// The paper's probes per second match its request rates: 4, 7 and 9 per request, and 90 nodes by 3 front ends.
    #[test]
    fn the_papers_probes_are_those_of_its_request_rates() {
        for (table, policy, each) in
            [(Table::One, "lmlf-pw2", 4.0), (Table::Two, "llf-pw2", 7.0), (Table::Two, "lmlf", 9.0)]
        {
            let row = paper(table).into_iter().find(|(text, ..)| *text == policy).unwrap().2;
            assert!((row.probes_per_s / (each * table.requests_per_s()) - 1.0).abs() < 1e-3, "{policy}");
        }
    }
}

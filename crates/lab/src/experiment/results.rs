//! Results of an experiment: one entry for each policy and seed, and statistics over the seeds.

use serde::{Deserialize, Serialize};

use super::file::{Experiment, Figure, Metric, PaperFigure};
use super::run::RunOutput;
use crate::latency::Summary;
use crate::movement::MovementTotals;
use crate::program::commit;

/// A mean over seeds with its 95% confidence interval (Student's t).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Statistic {
    /// Mean over the seeds.
    pub mean: f64,
    /// Half the interval's width; `None` with one seed.
    pub half_width: Option<f64>,
}

/// Two-sided 95% quantiles of Student's t for 1 to 30 degrees of freedom.
const STUDENT_T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

impl Statistic {
    /// Computes the statistic of one value per seed.
    pub fn of(values: &[f64]) -> Self {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let half_width = (values.len() > 1).then(|| {
            let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
            let t = STUDENT_T.get(values.len() - 2).copied().unwrap_or(1.960);
            t * (variance / n).sqrt()
        });
        Self { mean, half_width }
    }
}

impl std::fmt::Display for Statistic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = if self.mean.abs() >= 10.0 { 1 } else { 3 };
        write!(f, "{:.digits$}", self.mean)?;
        match self.half_width {
            Some(half_width) => write!(f, " ± {half_width:.digits$}"),
            None => Ok(()),
        }
    }
}

/// One run: a policy with a seed. Times are in milliseconds of virtual time, averaged over operations.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SeedResult {
    /// Seed of the run.
    pub seed: u64,
    /// Hash of the run's events, and their number (I14).
    pub trace: String,
    /// Response times of the measured phase.
    pub response: Summary,
    /// Time to look up stripes.
    pub metadata_ms: f64,
    /// Time to plan.
    pub plan_ms: f64,
    /// Time to retrieve chunks.
    pub retrieve_ms: f64,
    /// Time to decode.
    pub decode_ms: f64,
    /// Time of the client's own work.
    pub client_work_ms: f64,
    /// λ in percent, over the actual mean load.
    pub imbalance_over_mean: f64,
    /// λ in percent over the actual mean load, in the last quarter of the measured phase, if the run reached it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_imbalance: Option<f64>,
    /// λ in percent, over the oracle's mean load.
    pub imbalance_over_oracle: f64,
    /// Bytes that each site read.
    pub site_bytes: Vec<u64>,
    /// Bytes that the sites read, over the bytes of requested blocks.
    pub read_amplification: f64,
    /// Sites asked per operation.
    pub sites_per_operation: f64,
    /// Chunks requested in the measured phase.
    pub chunks: u64,
    /// Chunks requested at once beyond a sufficient set (δ).
    pub extra_chunks: u64,
    /// Chunks requested because others were late.
    pub hedged_chunks: u64,
    /// Operations served by a cached plan.
    pub cached_plans: u64,
    /// Blocks that were planned again after a failure.
    pub planned_again: u64,
    /// Chunks moved in the warm-up and in the measured phase, if chunks are moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<[MovementTotals; 2]>,
    /// Mean response time in each interval; `None` if no operation was answered.
    pub over_time_ms: Vec<Option<f64>>,
    /// Real time of the run, in seconds.
    pub real_s: f64,
}

/// All runs of a policy.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyResult {
    /// Name of the policy.
    pub name: String,
    /// Code of the blocks.
    pub profile: String,
    /// Read policy.
    pub read: String,
    /// Objective of moves, if chunks are moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub movement: Option<String>,
    /// Number of sites whose storage service died after the warm-up.
    pub failed_sites: u32,
    /// Results of each seed.
    pub seeds: Vec<SeedResult>,
    /// (response time in ms, share of operations at or below it), over all seeds.
    pub cdf: Vec<(f64, f64)>,
}

/// A figure of the paper beside ours.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Description of the value.
    pub what: String,
    /// The paper's value.
    pub paper: f64,
    /// Where the paper gives the value.
    pub source: String,
    /// Our value.
    pub ours: Statistic,
}

/// An experiment's results.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Name of the experiment.
    pub experiment: String,
    /// Title of the experiment.
    pub title: String,
    /// Always `virtual`: only `real_s` is measured by a real clock.
    pub time: &'static str,
    /// Commit of the program.
    pub commit: String,
    /// Figures and tables of the paper that the results reproduce.
    #[serde(skip)]
    pub figures: Vec<Figure>,
    /// Calibration: P, A or D.
    pub calibration: String,
    /// Divisor of blocks, phases and interval.
    pub scale: f64,
    /// Number of blocks of each run.
    pub blocks: u32,
    /// Measured virtual time of each run, in seconds.
    pub measured_s: f64,
    /// Width of the intervals of `over_time_ms`, in seconds.
    pub interval_s: f64,
    /// Results of each policy.
    pub policies: Vec<PolicyResult>,
    /// The paper's values beside ours.
    pub comparisons: Vec<Comparison>,
}

impl SeedResult {
    /// Collects the measurements of one run.
    pub(super) fn new(seed: u64, ran: &RunOutput, intervals: usize, real_s: f64) -> Self {
        let RunOutput { measured, trace, moved } = ran;
        let response = measured.latencies.summary();
        let operations = response.count.max(1) as f64;
        let mean_ms = |sum: std::time::Duration| 1e3 * sum.as_secs_f64() / operations;
        let breakdown = &measured.breakdown;
        let read_bytes: u64 = measured.site_bytes.iter().sum();
        let interval = |&(sum, count): &(f64, u64)| (count > 0).then(|| 1e3 * sum / count as f64);
        Self {
            seed,
            trace: trace.clone(),
            metadata_ms: mean_ms(breakdown.metadata),
            plan_ms: mean_ms(breakdown.plan),
            retrieve_ms: mean_ms(breakdown.retrieve),
            decode_ms: mean_ms(breakdown.decode),
            client_work_ms: mean_ms(breakdown.client_work),
            imbalance_over_mean: measured.imbalance_over_mean(),
            last_imbalance: measured.last_imbalance(),
            imbalance_over_oracle: measured.imbalance_over_oracle(),
            site_bytes: measured.site_bytes.clone(),
            read_amplification: read_bytes as f64 / measured.block_bytes.max(1) as f64,
            sites_per_operation: measured.site_reads as f64 / operations,
            chunks: measured.chunks,
            extra_chunks: measured.extra_chunks,
            hedged_chunks: measured.hedged_chunks,
            cached_plans: measured.cached_plans,
            planned_again: measured.planned_again,
            moved: *moved,
            // Operations sent in the last interval may be answered after it.
            over_time_ms: measured.over_time.iter().take(intervals).map(interval).collect(),
            real_s,
            response,
        }
    }

    fn metric(&self, metric: Metric) -> f64 {
        match metric {
            Metric::Mean => self.response.mean_ms,
            Metric::P95 => self.response.percentile(95.0),
            Metric::P99 => self.response.percentile(99.0),
            Metric::Retrieve => self.retrieve_ms,
            Metric::ImbalanceOverMean => self.imbalance_over_mean,
            Metric::ImbalanceOverOracle => self.imbalance_over_oracle,
        }
    }
}

impl PolicyResult {
    /// Computes a statistic over the seeds.
    pub fn statistic(&self, value: impl Fn(&SeedResult) -> f64) -> Statistic {
        Statistic::of(&self.seeds.iter().map(value).collect::<Vec<_>>())
    }
}

impl Results {
    /// Assembles the results of an experiment from those of its policies.
    pub fn new(experiment: &Experiment, policies: Vec<PolicyResult>) -> Self {
        let [_, measured, interval] = experiment.scaled_times();
        let comparisons = experiment.paper.iter().filter_map(|figure| compare(figure, &policies)).collect();
        Self {
            experiment: experiment.name.clone(),
            title: experiment.title.clone(),
            time: "virtual",
            commit: commit().to_owned(),
            figures: experiment.figures.clone(),
            calibration: experiment.calibration.clone(),
            scale: experiment.scale,
            blocks: experiment.scaled_blocks(),
            measured_s: measured.as_secs_f64(),
            interval_s: interval.as_secs_f64(),
            policies,
            comparisons,
        }
    }
}

/// Compares seed by seed: the seeds of two policies share their workload's randomness.
fn compare(figure: &PaperFigure, policies: &[PolicyResult]) -> Option<Comparison> {
    let find = |name: &String| policies.iter().find(|policy| policy.name == *name);
    let policy = find(&figure.of)?;
    let name = match figure.metric {
        Metric::Mean => "mean response time",
        Metric::P95 => "95th percentile",
        Metric::P99 => "99th percentile",
        Metric::Retrieve => "mean time to retrieve chunks",
        Metric::ImbalanceOverMean => "λ over the actual mean",
        Metric::ImbalanceOverOracle => "λ over the oracle's mean",
    };
    let values = |policy: &PolicyResult| -> Vec<f64> {
        policy.seeds.iter().map(|seed| seed.metric(figure.metric)).collect()
    };
    let (mut what, mut ours) = (format!("{name}, {}", figure.of), values(policy));
    if let Some(other) = &figure.over {
        what = format!("{what} / {other}");
        ours.iter_mut().zip(values(find(other)?)).for_each(|(value, other)| *value /= other);
    }
    if let Some(other) = &figure.minus {
        what = format!("{what} − {other}");
        ours.iter_mut().zip(values(find(other)?)).for_each(|(value, other)| *value -= other);
    }
    let ours = Statistic::of(&ours);
    Some(Comparison { what, paper: figure.value, source: figure.source.clone(), ours })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confidence_intervals_are_students() {
        let statistic = Statistic::of(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(statistic.mean, 3.0);
        // s = √2.5, t(4) = 2.776.
        assert!((statistic.half_width.unwrap() - 2.776 * (2.5f64 / 5.0).sqrt()).abs() < 1e-12);
        assert_eq!(Statistic::of(&[7.0]), Statistic { mean: 7.0, half_width: None });
    }
}

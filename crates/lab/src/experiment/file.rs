//! The files under `lab/experiments/`.
//!
//! Lengths and block counts are those of the paper. A run shrinks only by `scale`: blocks, phases and the reporting
//! interval are all divided by it, and the report states it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use striate_control::movement::Allowance;
use striate_core::{Formats, Profile};
use striate_plan::ReadPolicy;
use striate_plan::movement::Objective;

use crate::calibration::Calibration;
use crate::movement::MovementOptions;

/// The built-in experiments: (name, text).
pub const BUILT_IN: &[(&str, &str)] = &[
    ("ec-store-ycsb-p", include_str!("../../../../lab/experiments/ec-store-ycsb-p.toml")),
    ("ec-store-ycsb-a", include_str!("../../../../lab/experiments/ec-store-ycsb-a.toml")),
    ("ec-store-ycsb-d", include_str!("../../../../lab/experiments/ec-store-ycsb-d.toml")),
    ("ec-store-ycsb-p-10k", include_str!("../../../../lab/experiments/ec-store-ycsb-p-10k.toml")),
    ("ec-store-ycsb-p-1m", include_str!("../../../../lab/experiments/ec-store-ycsb-p-1m.toml")),
    ("ec-store-failures-p", include_str!("../../../../lab/experiments/ec-store-failures-p.toml")),
    ("ec-store-wikipedia-p", include_str!("../../../../lab/experiments/ec-store-wikipedia-p.toml")),
    ("plans-p", include_str!("../../../../lab/experiments/plans-p.toml")),
    ("plans-a", include_str!("../../../../lab/experiments/plans-a.toml")),
    ("plans-robust-p", include_str!("../../../../lab/experiments/plans-robust-p.toml")),
    ("plans-slow-p", include_str!("../../../../lab/experiments/plans-slow-p.toml")),
    ("plans-p-10k", include_str!("../../../../lab/experiments/plans-p-10k.toml")),
    ("plans-p-1m", include_str!("../../../../lab/experiments/plans-p-1m.toml")),
    ("plans-wikipedia-p", include_str!("../../../../lab/experiments/plans-wikipedia-p.toml")),
    ("plans-98-p", include_str!("../../../../lab/experiments/plans-98-p.toml")),
    ("movement-sweeps-p", include_str!("../../../../lab/experiments/movement-sweeps-p.toml")),
    ("movement-scrambled-p", include_str!("../../../../lab/experiments/movement-scrambled-p.toml")),
];

/// Errors in loading an experiment.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// There is neither a file nor a built-in experiment of this name.
    #[error("there is no experiment {name:?}: {reason}; `striate-lab list` shows those that are built in")]
    Missing {
        /// The requested name.
        name: String,
        /// Why the file cannot be read.
        reason: String,
    },
    /// The text is not a valid experiment.
    #[error("experiment {name:?}: {reason}")]
    Invalid {
        /// Name of the experiment.
        name: String,
        /// What is wrong.
        reason: String,
    },
}

/// An experiment: policies under one workload on one cluster.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Name: the file's, without its extension.
    #[serde(skip)]
    pub name: String,
    /// Title: what the experiment shows.
    pub title: String,
    /// Source of the experiment.
    pub source: String,
    /// Calibration: P, A or D.
    pub calibration: String,
    /// Number of sites, one per machine.
    pub sites: u32,
    /// Number of racks.
    pub racks: u32,
    /// Number of client services, on the first machines.
    pub client_services: u32,
    /// Number of closed-loop clients, spread over the client services.
    pub clients: u32,
    /// Workload of the clients.
    #[serde(default)]
    pub workload: WorkloadUnderTest,
    /// Number of blocks.
    pub blocks: u32,
    /// Length of a block in bytes; the maximum if lengths differ.
    pub block_len: u32,
    /// Exponent of the measured phase's Zipf distribution.
    pub zipf_exponent: f64,
    /// Length of the warm-up, in seconds.
    pub warm_up_s: f64,
    /// Length of the measurement, in seconds.
    pub measured_s: f64,
    /// Width of the points of response time over time, in seconds.
    pub interval_s: f64,
    /// Divisor of the number of blocks and of all times.
    pub scale: f64,
    /// Maximum number of operations; the measurement ends when they are sent, if that is earlier.
    pub operations: Option<u64>,
    /// The trace file of [`WorkloadUnderTest::Trace`].
    pub trace: Option<PathBuf>,
    /// Speed of a trace's replay, relative to the recording.
    #[serde(default = "as_recorded")]
    pub trace_speed: f64,
    /// Number of seeds.
    pub seeds: u32,
    /// The compared policies.
    #[serde(rename = "policy")]
    pub policies: Vec<PolicyUnderTest>,
    /// Figures and tables of the paper that the experiment reproduces.
    #[serde(default, rename = "figure")]
    pub figures: Vec<Figure>,
    /// Values from the paper.
    #[serde(default, rename = "paper")]
    pub paper: Vec<PaperFigure>,
}

/// One of the compared configurations.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyUnderTest {
    /// Name in the report.
    pub name: String,
    /// Code of the blocks.
    pub profile: Profile,
    /// Read policy, as text for a [`ReadPolicy`].
    pub read: String,
    /// Number of neighbouring blocks that were written to the same sites; 1 puts each block on random sites.
    #[serde(default = "ungrouped")]
    pub group: usize,
    /// Number of sites, chosen at random, whose storage service dies after the warm-up.
    #[serde(default)]
    pub failed_sites: u32,
    /// Slow sites and requests that replace the calibration's.
    pub slow: Option<Slowness>,
    /// Seconds between probes of the published policy, at any scale. Default: five, divided by the scale.
    pub probe_s: Option<f64>,
    /// True if the popularity of keys is independent of their order.
    #[serde(default)]
    pub scrambled: bool,
    /// Movement of chunks to speed up reads, in the warm-up too.
    pub movement: Option<MovementUnderTest>,
}

/// How chunks are moved. Intervals and rates are those of an unscaled run.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MovementUnderTest {
    /// Objective and rate of moves: `published` (one chunk per second) or `improved` (1% of the traffic).
    pub objective: String,
    /// w2 of the published objective, instead of 3.
    pub w2: Option<f64>,
    /// Chunks moved per second, instead of the objective's rate.
    pub chunks_per_s: Option<f64>,
    /// Number of requests in the statistics, instead of 5,000.
    pub window: Option<usize>,
    /// Seconds between reports, instead of 10.
    pub report_s: Option<f64>,
    /// Blocks drawn for each search, instead of 32.
    pub candidates: Option<usize>,
}

/// Slow sites and slow requests that replace a calibration's.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slowness {
    /// Slowdown factor of a site in an episode; 1 for no episodes.
    pub factor: f64,
    /// Duration of an episode, in seconds.
    pub length_s: f64,
    /// Mean time between episodes of a site, in seconds.
    pub gap_s: f64,
    /// Share of requests that are slow on their own.
    pub request_share: f64,
    /// Slowdown factor of these requests.
    pub request_factor: f64,
}

fn as_recorded() -> f64 {
    1.0
}

fn ungrouped() -> usize {
    1
}

/// Workload of an experiment's clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkloadUnderTest {
    /// [`EcStoreScans`](crate::workload::EcStoreScans): uniform in the warm-up, then Zipf.
    #[default]
    EcStoreScans,
    /// [`Pages`](crate::workload::Pages): all images of a page, each a block; uniform in the warm-up, then Zipf.
    Pages,
    /// The reads of a trace, in open loop and without a warm-up. Its objects exist before, in the order of their
    /// first appearance.
    Trace,
}

/// A figure or table of the paper, and the plot that reproduces it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Number in the paper: `4a`, `table-2`.
    pub name: String,
    /// The plot.
    pub plot: Plot,
}

/// The plots of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Plot {
    /// Mean response time over time.
    OverTime,
    /// Breakdown of an operation's time.
    Breakdown,
    /// The upper tenth of the distribution function.
    Tail,
    /// Bytes that each site reads.
    Sites,
    /// λ over the actual mean load.
    Imbalance,
}

impl Plot {
    /// All plots, in the order of a report.
    pub const ALL: [Self; 5] = [Self::OverTime, Self::Breakdown, Self::Tail, Self::Sites, Self::Imbalance];
}

/// A value from the paper, to compare with ours.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperFigure {
    /// Compared metric.
    pub metric: Metric,
    /// Policy of the value.
    pub of: String,
    /// Policy by whose value it is divided, if given.
    pub over: Option<String>,
    /// Policy whose value is subtracted, if given.
    pub minus: Option<String>,
    /// The paper's value.
    pub value: f64,
    /// Where the paper gives the value.
    pub source: String,
}

/// Metric of one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Mean response time.
    Mean,
    /// 95th percentile of response times.
    P95,
    /// 99th percentile of response times.
    P99,
    /// Mean time to retrieve chunks.
    Retrieve,
    /// λ over the actual mean load.
    ImbalanceOverMean,
    /// λ over the oracle's mean load.
    ImbalanceOverOracle,
}

impl Experiment {
    /// Loads a built-in experiment by its name, or a file.
    ///
    /// # Errors
    /// If there is no such experiment, or it is not valid.
    pub fn load(name: &str) -> Result<Self, ExperimentError> {
        if let Some((_, text)) = BUILT_IN.iter().find(|(built_in, _)| *built_in == name) {
            return Self::parse(name, text);
        }
        let text = std::fs::read_to_string(name)
            .map_err(|error| ExperimentError::Missing { name: name.to_owned(), reason: error.to_string() })?;
        let stem = Path::new(name).file_stem().map_or(name.into(), |stem| stem.to_string_lossy());
        Self::parse(&stem, &text)
    }

    /// Returns the built-in experiment behind a figure or table of the paper, and its plot.
    ///
    /// # Errors
    /// If there is no experiment for this figure in this calibration.
    pub fn of_figure(figure: &str, calibration: &str) -> Result<(Self, Plot), ExperimentError> {
        let mut figure_names = Vec::new();
        for (name, text) in BUILT_IN {
            let experiment = Self::parse(name, text)?;
            let here = experiment.calibration == calibration;
            for known_figure in experiment.figures.iter().filter(|_| here) {
                if known_figure.name == figure {
                    let plot = known_figure.plot;
                    return Ok((experiment, plot));
                }
                figure_names.push(known_figure.name.clone());
            }
        }
        let reason = format!(
            "no experiment with calibration {calibration} is for it; there are {}",
            figure_names.join(", ")
        );
        Err(ExperimentError::Invalid { name: format!("figure {figure}"), reason })
    }

    /// Parses an experiment's text.
    ///
    /// # Errors
    /// If the text is not a valid experiment.
    pub fn parse(name: &str, text: &str) -> Result<Self, ExperimentError> {
        let invalid = |reason: String| ExperimentError::Invalid { name: name.to_owned(), reason };
        let mut experiment: Self = toml::from_str(text).map_err(|error| invalid(error.to_string()))?;
        experiment.name = name.to_owned();
        experiment.check().map_err(invalid)?;
        Ok(experiment)
    }

    /// Checks that the experiment can be run.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub fn check(&self) -> Result<(), String> {
        if Calibration::named(&self.calibration).is_none() {
            return Err(format!("there is no calibration {:?}: write P, A or D", self.calibration));
        }
        let positive = [self.zipf_exponent, self.measured_s, self.interval_s, self.scale];
        if positive.into_iter().any(|number| number.is_nan() || number <= 0.0) || self.warm_up_s < 0.0 {
            return Err("exponent, lengths, interval and scale must be above 0".to_owned());
        }
        if self.scaled_blocks() == 0 || self.clients == 0 || self.seeds == 0 || self.policies.is_empty() {
            return Err("it needs at least one block, client, seed and policy".to_owned());
        }
        if self.client_services == 0 || self.client_services > self.sites {
            return Err(format!("client services run on machines with sites: 1 to {}", self.sites));
        }
        let is_above_0 = self.trace_speed > 0.0;
        if self.workload == WorkloadUnderTest::Trace && !is_above_0 {
            return Err("trace_speed must be above 0".to_owned());
        }
        for policy in &self.policies {
            self.check_policy(policy)?;
        }
        let is_known = |name: &String| self.policies.iter().any(|policy| policy.name == *name);
        let named = self
            .paper
            .iter()
            .flat_map(|figure| std::iter::once(&figure.of).chain(&figure.over).chain(&figure.minus));
        match named.into_iter().find(|name| !is_known(name)) {
            Some(name) => Err(format!("a figure of the paper names the policy {name:?}, which is not run")),
            None => Ok(()),
        }
    }

    /// Checks that the experiment can be run under a policy.
    fn check_policy(&self, policy: &PolicyUnderTest) -> Result<(), String> {
        policy.read_policy()?;
        policy.movement.as_ref().map(MovementUnderTest::options).transpose()?;
        policy.profile.check_supported(Formats::NEWEST).map_err(|error| error.to_string())?;
        let code = policy.profile.code;
        if policy.failed_sites as usize > code.chunk_count() - code.data_count() {
            return Err(format!("{} does not survive {} failed sites", policy.profile, policy.failed_sites));
        }
        if code.chunk_count() > self.sites as usize {
            return Err(format!("{} needs {} sites", policy.profile, code.chunk_count()));
        }
        if !self.block_len.is_multiple_of(code.data_count() as u32) {
            return Err(format!(
                "{} does not cut {} bytes into equal chunks",
                policy.profile, self.block_len
            ));
        }
        Ok(())
    }

    /// Removes all other policies, and the paper's figures that need them.
    ///
    /// # Errors
    /// If the experiment has no policy of one of these names.
    pub fn keep_policies(&mut self, names: &[String]) -> Result<(), String> {
        if let Some(name) = names.iter().find(|name| self.policies.iter().all(|policy| policy.name != **name))
        {
            let policy_names: Vec<&str> = self.policies.iter().map(|policy| policy.name.as_str()).collect();
            return Err(format!("it has no policy {name:?}; it has {}", policy_names.join("; ")));
        }
        self.policies.retain(|policy| names.contains(&policy.name));
        self.paper.retain(|figure| {
            let mut needed = std::iter::once(&figure.of).chain(&figure.over).chain(&figure.minus);
            needed.all(|name| names.contains(name))
        });
        Ok(())
    }

    /// Returns the calibration.
    pub fn calibration(&self) -> Calibration {
        Calibration::named(&self.calibration).expect("checked when it was read")
    }

    /// Returns the number of blocks of a run.
    pub fn scaled_blocks(&self) -> u32 {
        (f64::from(self.blocks) / self.scale) as u32
    }

    /// Returns the warm-up, measurement and interval of a run.
    pub fn scaled_times(&self) -> [Duration; 3] {
        [self.warm_up_s, self.measured_s, self.interval_s]
            .map(|seconds| Duration::from_secs_f64(seconds / self.scale))
    }
}

impl MovementUnderTest {
    /// Returns the options of the services, unscaled.
    ///
    /// # Errors
    /// What is wrong with the description.
    pub fn options(&self) -> Result<MovementOptions, String> {
        let mut options = match self.objective.as_str() {
            "published" => MovementOptions::published(),
            "improved" => MovementOptions::improved(),
            other => return Err(format!("there is no objective {other:?}: write published or improved")),
        };
        match (self.w2, self.objective.as_str()) {
            (None, _) => {}
            (Some(w2), "published") => options.objective = Objective::published_with(w2),
            (Some(_), _) => return Err("only the published objective has a w2".to_owned()),
        }
        options.allowance = self.chunks_per_s.map_or(options.allowance, Allowance::ChunksPerSecond);
        options.window = self.window.unwrap_or(options.window);
        options.report_every = self.report_s.map_or(options.report_every, Duration::from_secs_f64);
        options.draws = self.candidates.unwrap_or(options.draws);
        match options.window > 0 && options.draws > 0 && !options.report_every.is_zero() {
            true => Ok(options),
            false => Err("window, candidates and report_s of a movement must be above 0".to_owned()),
        }
    }
}

impl PolicyUnderTest {
    /// Parses the read policy.
    ///
    /// # Errors
    /// What is wrong with its text.
    pub fn read_policy(&self) -> Result<ReadPolicy, String> {
        striate_baselines::read_policy(&self.read).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_experiment_can_be_run() {
        for (name, text) in BUILT_IN {
            let experiment = Experiment::parse(name, text).unwrap();
            assert_eq!(experiment.name, *name);
            let is_papers = name.starts_with("ec-store");
            assert_eq!(experiment.figures.is_empty(), !is_papers, "the paper's figures");
            for figure in experiment.figures.iter().take(1) {
                let (of_figure, _) = Experiment::of_figure(&figure.name, &experiment.calibration).unwrap();
                assert_eq!(of_figure.calibration, experiment.calibration);
            }
        }
        for figure in ["4a", "4b", "4c", "4d", "4e", "4f", "4g", "4h", "table-2"] {
            assert!(Experiment::of_figure(figure, "P").is_ok(), "{figure}");
        }
        let unknown = Experiment::of_figure("4z", "P").unwrap_err().to_string();
        assert!(unknown.contains("4a") && unknown.contains("table-2"), "{unknown}");
    }

    #[test]
    fn what_cannot_be_run_is_refused_with_the_reason() {
        let text = BUILT_IN[0].1;
        let refused = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            Experiment::parse("x", &text.replacen(from, to, 1)).unwrap_err().to_string()
        };
        assert!(refused("calibration = \"P\"", "calibration = \"Q\"").contains("write P, A or D"));
        assert!(refused("read = \"random\"", "read = \"fast\"").contains("not a read policy"));
        assert!(refused("sites = 32", "sites = 3").contains("client services"));
        assert!(refused("block_len = 100_000", "block_len = 100_001").contains("equal chunks"));
        assert!(refused("scale = ", "skale = ").contains("skale"));
        assert!(refused("of = \"R\"", "of = \"S\"").contains("\"S\""));
    }
}

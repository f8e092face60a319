//! The files under `lab/experiments/`.
//!
//! Lengths and block counts stand as in the paper. `scale` is the one factor by which a run may shrink: blocks,
//! phases and reporting interval are all divided by it, and the report says so.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use striate_core::Profile;
use striate_plan::ReadPolicy;

use crate::calibration::Calibration;

/// The experiments that come with the program: (name, text).
pub const BUILT_IN: &[(&str, &str)] = &[
    ("ec-store-ycsb-p", include_str!("../../../../lab/experiments/ec-store-ycsb-p.toml")),
    ("ec-store-ycsb-a", include_str!("../../../../lab/experiments/ec-store-ycsb-a.toml")),
    ("ec-store-ycsb-d", include_str!("../../../../lab/experiments/ec-store-ycsb-d.toml")),
];

/// Why an experiment cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// There is neither a file nor a built-in experiment of this name.
    #[error("there is no experiment {name:?}: {reason}; `striate lab list` shows those that are built in")]
    Missing {
        /// What was asked for.
        name: String,
        /// Why the file cannot be read.
        reason: String,
    },
    /// The text is no experiment.
    #[error("experiment {name:?}: {reason}")]
    Invalid {
        /// Whose text.
        name: String,
        /// What is wrong.
        reason: String,
    },
}

/// An experiment: policies under one workload on one cluster.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Its name: the file's, without the ending.
    #[serde(skip)]
    pub name: String,
    /// What it shows.
    pub title: String,
    /// Where it comes from.
    pub source: String,
    /// P, A or D.
    pub calibration: String,
    /// Sites, one on each machine.
    pub sites: u32,
    /// Racks.
    pub racks: u32,
    /// Client services, on the first machines.
    pub client_services: u32,
    /// Closed-loop clients, spread over the client services.
    pub clients: u32,
    /// Blocks that exist.
    pub blocks: u32,
    /// Length of a block, in bytes.
    pub block_len: u32,
    /// Exponent of the measured phase's Zipf distribution.
    pub zipf_exponent: f64,
    /// Length of the warm-up, in seconds.
    pub warm_up_s: f64,
    /// Length of the measurement, in seconds.
    pub measured_s: f64,
    /// Width of the points of response time over time, in seconds.
    pub interval_s: f64,
    /// What all of these are divided by.
    pub scale: f64,
    /// How many seeds are run.
    pub seeds: u32,
    /// What is compared.
    #[serde(rename = "policy")]
    pub policies: Vec<PolicyUnderTest>,
    /// What the paper says.
    #[serde(default, rename = "paper")]
    pub paper: Vec<PaperFigure>,
}

/// One of the compared configurations.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyUnderTest {
    /// As the report names it.
    pub name: String,
    /// Code of the blocks.
    pub profile: Profile,
    /// A [`ReadPolicy`].
    pub read: String,
}

/// A figure of the paper, to stand beside ours.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperFigure {
    /// What is compared.
    pub metric: Metric,
    /// Of which policy.
    pub of: String,
    /// Divided by that of this one, if given.
    pub over: Option<String>,
    /// The paper's value.
    pub value: f64,
    /// Where it stands there.
    pub source: String,
}

/// A figure of one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Mean response time.
    Mean,
    /// Mean time to retrieve chunks.
    Retrieve,
    /// λ over the actual mean load.
    ImbalanceOverMean,
    /// λ over the oracle's mean load.
    ImbalanceOverOracle,
}

impl Experiment {
    /// Reads a file, or a built-in experiment by its name.
    ///
    /// # Errors
    /// When there is none, or it says something impossible.
    pub fn load(name: &str) -> Result<Self, ExperimentError> {
        if let Some((_, text)) = BUILT_IN.iter().find(|(built_in, _)| *built_in == name) {
            return Self::parse(name, text);
        }
        let text = std::fs::read_to_string(name)
            .map_err(|error| ExperimentError::Missing { name: name.to_owned(), reason: error.to_string() })?;
        let stem = Path::new(name).file_stem().map_or(name.into(), |stem| stem.to_string_lossy());
        Self::parse(&stem, &text)
    }

    /// Reads an experiment's text.
    ///
    /// # Errors
    /// When it says something impossible.
    pub fn parse(name: &str, text: &str) -> Result<Self, ExperimentError> {
        let invalid = |reason: String| ExperimentError::Invalid { name: name.to_owned(), reason };
        let mut experiment: Self = toml::from_str(text).map_err(|error| invalid(error.to_string()))?;
        experiment.name = name.to_owned();
        experiment.check().map_err(invalid)?;
        Ok(experiment)
    }

    /// Whether it can be run.
    ///
    /// # Errors
    /// Why not.
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
        for policy in &self.policies {
            policy.read_policy()?;
            let code = policy.profile.code;
            if code.chunk_count() > self.sites as usize {
                return Err(format!("{} needs {} sites", policy.profile, code.chunk_count()));
            }
            if !self.block_len.is_multiple_of(code.data_count() as u32) {
                return Err(format!(
                    "{} does not cut {} bytes into equal chunks",
                    policy.profile, self.block_len
                ));
            }
        }
        let is_known = |name: &String| self.policies.iter().any(|policy| policy.name == *name);
        let named = self.paper.iter().flat_map(|figure| std::iter::once(&figure.of).chain(&figure.over));
        match named.into_iter().find(|name| !is_known(name)) {
            Some(name) => Err(format!("a figure of the paper names the policy {name:?}, which is not run")),
            None => Ok(()),
        }
    }

    /// Its constants.
    pub fn calibration(&self) -> Calibration {
        Calibration::named(&self.calibration).expect("checked when it was read")
    }

    /// Blocks of a run.
    pub fn scaled_blocks(&self) -> u32 {
        (f64::from(self.blocks) / self.scale) as u32
    }

    /// Warm-up, measurement and interval of a run.
    pub fn scaled_times(&self) -> [Duration; 3] {
        [self.warm_up_s, self.measured_s, self.interval_s]
            .map(|seconds| Duration::from_secs_f64(seconds / self.scale))
    }
}

impl PolicyUnderTest {
    /// How it reads.
    ///
    /// # Errors
    /// What is wrong with its text.
    pub fn read_policy(&self) -> Result<ReadPolicy, String> {
        self.read.parse().map_err(|error: striate_plan::query::PolicyError| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_experiment_can_be_run() {
        for (name, text) in BUILT_IN {
            let experiment = Experiment::parse(name, text).unwrap();
            assert!(!experiment.paper.is_empty() && experiment.name == *name);
        }
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

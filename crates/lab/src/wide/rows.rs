//! Values beside those of the paper's text.

use serde::Serialize;

/// Maximum relative deviation from the paper's value.
pub const BAR: f64 = 0.20;

/// One value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The figure, or `beyond` if the paper has none.
    pub figure: &'static str,
    /// Parameters of the value.
    pub set: String,
    /// Description of the value.
    pub what: String,
    /// Unit of the value.
    pub unit: &'static str,
    /// Mean over the rounds.
    pub value: f64,
    /// Minimum over the rounds.
    pub least: f64,
    /// Maximum over the rounds.
    pub most: f64,
    /// Value in the paper's text.
    pub paper: Option<f64>,
    /// True if a rate was fitted to this value.
    pub is_fitted: bool,
}

impl Row {
    /// Returns the relative deviation from the paper's value.
    pub fn deviation(&self) -> Option<f64> {
        self.paper.map(|paper| self.value / paper - 1.0)
    }

    /// Returns true if the deviation is within [`BAR`].
    pub fn is_within_bar(&self) -> Option<bool> {
        self.deviation().map(|deviation| deviation.abs() <= BAR)
    }
}

/// Extent of the runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    /// First seed.
    pub seed: u64,
    /// Number of seeds.
    pub rounds: u64,
    /// Chunks of the failing node, in the cluster of 1,000 sites.
    pub chunks: usize,
    /// Updates and reads for each point of Fig. 13.
    pub operations: usize,
}

/// Collects rows, and reports each.
pub(super) struct Table<'a> {
    pub(super) extent: Extent,
    pub(super) rows: Vec<Row>,
    pub(super) done: &'a mut dyn FnMut(&Row),
}

/// Figure, parameters, description and unit of a row.
pub(super) type Name<'a> = (&'static str, &'a str, &'a str, &'static str);

impl Table<'_> {
    pub(super) fn add(&mut self, name: Name<'_>, values: &[f64], paper: Option<f64>) {
        self.push(name, values, paper, false);
    }

    pub(super) fn push(
        &mut self,
        (figure, set, what, unit): Name<'_>,
        values: &[f64],
        paper: Option<f64>,
        is_fitted: bool,
    ) {
        let row = Row {
            figure,
            set: set.to_owned(),
            what: what.to_owned(),
            unit,
            value: values.iter().sum::<f64>() / values.len() as f64,
            least: values.iter().copied().fold(f64::INFINITY, f64::min),
            most: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            paper,
            is_fitted,
        };
        (self.done)(&row);
        self.rows.push(row);
    }

    pub(super) fn seeds(&self) -> std::ops::Range<u64> {
        self.extent.seed..self.extent.seed + self.extent.rounds
    }
}

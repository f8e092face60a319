//! Values, each with what the paper's text says of it.

use serde::Serialize;

/// How far a value may be from the paper's, as a share of it.
pub const BAR: f64 = 0.20;

/// One value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The figure, or `beyond` if the paper has none.
    pub figure: &'static str,
    /// What was set, and how.
    pub set: String,
    /// What the value is.
    pub what: String,
    /// Its unit.
    pub unit: &'static str,
    /// What came out: the mean over the rounds,
    pub value: f64,
    /// the least of them,
    pub least: f64,
    /// and the most.
    pub most: f64,
    /// What the paper's text says.
    pub paper: Option<f64>,
    /// Whether a rate was chosen so that it comes out.
    pub is_fitted: bool,
}

impl Row {
    /// How far it is from the paper's value, as a share of that.
    pub fn deviation(&self) -> Option<f64> {
        self.paper.map(|paper| self.value / paper - 1.0)
    }

    /// Whether it is within [`BAR`] of the paper's.
    pub fn is_within_bar(&self) -> Option<bool> {
        self.deviation().map(|deviation| deviation.abs() <= BAR)
    }
}

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    /// The first seed.
    pub seed: u64,
    /// Seeds of what is random.
    pub rounds: u64,
    /// Chunks of the node of 1,000 sites that fails.
    pub chunks: usize,
    /// Updates and reads of each point of Fig. 13.
    pub operations: usize,
}

/// Collects rows, and tells of each.
pub(super) struct Table<'a> {
    pub(super) extent: Extent,
    pub(super) rows: Vec<Row>,
    pub(super) done: &'a mut dyn FnMut(&Row),
}

/// Where a row is, what it is, and its unit.
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

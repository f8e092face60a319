//! Experiments: a file describes a comparison, the lab runs it, and a report shows it beside the paper's figures.
//!
//! - [`mod@file`]: the format of the files under `lab/experiments/`.
//! - [`mod@run`]: runs every policy with every seed.
//! - [`cells`]: finished runs, kept so that none is repeated.
//! - [`results`]: the results with confidence intervals; the machine-readable form.
//! - `trace`: the reads of a trace file.
//! - [`report`], [`svg`]: one self-contained HTML page; [`pages`]: the index of all pages.

pub mod cells;
pub mod file;
pub mod pages;
pub mod report;
pub mod results;
pub mod run;
pub mod svg;
mod trace;

pub use cells::Cells;
pub use file::{BUILT_IN, Experiment, ExperimentError, MovementUnderTest, Plot, PolicyUnderTest};
pub use results::{Results, Statistic};
pub use run::{Progress, RunFailure, RunOptions, run};

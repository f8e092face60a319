//! Compares the lab with reality.

use std::fmt::Write;

use serde::Serialize;

use super::path_cost::PathCost;
use super::{Responses, Setting};
use crate::experiment::results::Statistic;
use crate::experiment::svg::{LinePlot, escape};
use crate::latency::Latencies;

/// Maximum relative difference of the means.
pub const MEAN_BAR: f64 = 0.10;
/// Maximum relative difference of the 99th percentiles.
pub const P99_BAR: f64 = 0.20;

/// Use of the processors during a real run's warm-up and measured phases.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Processors {
    /// Number of processors.
    pub count: usize,
    /// Share of their time that sites and clients used.
    pub own_share: f64,
    /// Share of their time that other programs used, which makes sites and clients wait.
    pub other_share: f64,
    /// Processor time of sites and clients for each operation, in milliseconds.
    pub own_ms_per_operation: f64,
}

/// Results of one setting on both sides.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Name of the case: R, EC, …
    pub name: String,
    /// Calibration: P, A or D.
    pub calibration: String,
    /// Code of the blocks.
    pub profile: String,
    /// Read policy.
    pub policy: String,
    /// Number of sites, which are processes on the real side.
    pub sites: u32,
    /// Number of closed-loop clients.
    pub clients: u32,
    /// Path between sites and clients, as measured and as set in the lab.
    pub way: PathCost,
    /// Length of the measured phase of each run, in seconds.
    pub measured_s: f64,
    /// Response times on real processes, over all runs.
    pub real: Responses,
    /// Response times in virtual time, over all seeds.
    pub lab: Responses,
    /// Means of the real runs.
    pub real_mean_ms: Statistic,
    /// 99th percentiles of the real runs.
    pub real_p99_ms: Statistic,
    /// Means of the lab's seeds, each as long as a real run.
    pub lab_mean_ms: Statistic,
    /// 99th percentiles of the lab's seeds.
    pub lab_p99_ms: Statistic,
    /// Error of the mean: lab / real − 1.
    pub mean_error: f64,
    /// Error of the 99th percentile: lab / real − 1.
    pub p99_error: f64,
    /// Use of the processors in the real runs.
    pub processors: Processors,
}

impl Outcome {
    /// Compares the runs of both sides.
    pub fn of(
        name: &str,
        setting: &Setting,
        real: &[Latencies],
        lab: &[Latencies],
        processors: Processors,
    ) -> Self {
        let merged = |runs: &[Latencies]| {
            let mut all = Latencies::default();
            runs.iter().for_each(|run| all.merge(run));
            Responses::of(&all)
        };
        let over = |runs: &[Latencies], value: fn(&Latencies) -> f64| {
            Statistic::of(&runs.iter().map(value).collect::<Vec<_>>())
        };
        let mean = |run: &Latencies| run.summary().mean_ms;
        let p99 = |run: &Latencies| run.at_percentile_ms(99.0);
        let (real_all, lab_all) = (merged(real), merged(lab));
        Self {
            name: name.to_owned(),
            calibration: setting.calibration.name.to_owned(),
            profile: setting.profile.to_string(),
            policy: setting.policy.to_string(),
            sites: setting.sites,
            clients: setting.clients,
            way: setting.way,
            measured_s: setting.length.as_secs_f64(),
            real_mean_ms: over(real, mean),
            real_p99_ms: over(real, p99),
            lab_mean_ms: over(lab, mean),
            lab_p99_ms: over(lab, p99),
            mean_error: lab_all.mean_ms / real_all.mean_ms - 1.0,
            p99_error: lab_all.p99_ms / real_all.p99_ms - 1.0,
            real: real_all,
            lab: lab_all,
            processors,
        }
    }

    /// Returns true if both errors are within the bars.
    pub fn agrees(&self) -> bool {
        self.mean_error.abs() <= MEAN_BAR && self.p99_error.abs() <= P99_BAR
    }
}

/// Renders the report as one HTML page: a table, and both curves of every setting.
pub fn html(outcomes: &[Outcome]) -> String {
    let mut page = String::new();
    let _ = write!(
        page,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>The lab and reality</title>\
         <style>{}</style></head><body><h1>The lab and reality</h1>\
         <p>The same workload on <code>striate site</code> processes with modelled media, on a real clock, and in \
         virtual time. ± is the 95% confidence interval over the runs of each side. Error: lab / real − 1; the \
         bars are {:.0}% for means and {:.0}% for 99th percentiles. Commit {}.</p>",
        crate::experiment::report::STYLE,
        100.0 * MEAN_BAR,
        100.0 * P99_BAR,
        crate::program::commit(),
    );
    page.push_str(
        "<table><tr><th>setting</th><th>real mean, ms</th><th>lab mean, ms</th><th>error</th>\
         <th>real p99, ms</th><th>lab p99, ms</th><th>error</th><th>processors: own</th><th>others</th></tr>",
    );
    for outcome in outcomes {
        push_row(&mut page, outcome);
    }
    page.push_str("</table>");
    for outcome in outcomes {
        for (title, y_from) in [("all response times", 0.0), ("the tail", 0.9)] {
            let caption = format!("{}, calibration {}: {title}", outcome.name, outcome.calibration);
            let _ = write!(
                page,
                "<figure>{}<figcaption>{}</figcaption></figure>",
                curves(outcome, y_from).render(),
                escape(&caption)
            );
        }
    }
    page + "</body></html>\n"
}

/// Appends the row of a setting to the table.
fn push_row(page: &mut String, outcome: &Outcome) {
    let _ = write!(
        page,
        "<tr><td>{}, calibration {}<br><small>{}, {}, {} sites, {} clients</small></td><td>{}</td><td>{}</td>\
         <td>{:+.1}%</td><td>{}</td><td>{}</td><td>{:+.1}%</td><td>{:.0}%</td><td>{:.0}%</td></tr>",
        escape(&outcome.name),
        outcome.calibration,
        escape(&outcome.profile),
        escape(&outcome.policy),
        outcome.sites,
        outcome.clients,
        outcome.real_mean_ms,
        outcome.lab_mean_ms,
        100.0 * outcome.mean_error,
        outcome.real_p99_ms,
        outcome.lab_p99_ms,
        100.0 * outcome.p99_error,
        100.0 * outcome.processors.own_share,
        100.0 * outcome.processors.other_share,
    );
}

fn curves(outcome: &Outcome, y_from: f64) -> LinePlot {
    LinePlot {
        x_label: "response time, ms".into(),
        y_label: "share of requests".into(),
        y_from,
        x_to: Some(1.5 * outcome.real.p99_ms.max(outcome.lab.p99_ms)),
        lines: vec![
            ("real processes".to_owned(), outcome.real.cdf.clone()),
            ("lab".to_owned(), outcome.lab.cdf.clone()),
        ],
    }
}

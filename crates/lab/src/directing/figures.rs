//! Figures 5 to 8 of the paper: distributions of request latencies, task latencies, waiting times and front ends'
//! times.
//!
//! A curve is the median over several loads at each of its shares, so that one lucky placement does not decide a
//! figure. The paper's own curves are known only from its tables of request latencies: minimum, median, 95th
//! percentile and maximum. The maxima are TCP's connection retries (1 and 3 s) and are left out.

use std::fmt::Write;

use super::Table;
use super::contest::loads::Load;
use super::outcome::{median, paper};
use super::prediction::WARM_UP_S;
use super::simulation::{self, Director, PROBE_S, Run, RunTimes, quantile};
use super::store_default::StoreDefault;
use crate::experiment::svg::LinePlot;

/// Steps of a curve from 0 to 1.
const STEPS: usize = 200;
/// The metrics: name in files, and label.
const METRICS: [(&str, &str); 4] = [
    ("requests", "request latency"),
    ("tasks", "task latency"),
    ("waits", "task waiting time"),
    ("controllers", "front end's time"),
];

/// Curves of one policy, in the order of [`METRICS`]: seconds at each step.
#[derive(Clone, Debug)]
struct Curves {
    name: String,
    metrics: [Vec<f64>; 4],
}

/// The figures of a table.
#[derive(Clone, Debug)]
pub struct Figures {
    table: Table,
    curves: Vec<Curves>,
}

impl Figures {
    /// Runs the table's policies and the store's default on these loads.
    pub fn of(table: Table, loads: &[Load]) -> Self {
        let published = paper(table).into_iter().map(|(text, name, _)| {
            let policy = striate_baselines::read_policy(text).expect("the table's policies are known");
            (name.to_owned(), Director::Published(policy))
        });
        let ours = ("T + w X".to_owned(), Director::Store(StoreDefault::default()));
        let curves = published
            .chain([ours])
            .map(|(name, director)| Curves { name, metrics: curves(table, &director, loads) });
        Self { table, curves: curves.collect() }
    }

    /// Returns all plots: file name and SVG.
    pub fn plots(&self) -> Vec<(String, String)> {
        let (number, figure) = if self.table == Table::One { (1, 5) } else { (2, 7) };
        let to_s = if self.table == Table::One { 0.3 } else { 0.6 };
        let plot = |label: &str, to_s: f64, lines: Vec<(String, Vec<(f64, f64)>)>| {
            let plot = LinePlot {
                x_label: format!("{label}, s"),
                y_label: "share".to_owned(),
                y_from: 0.0,
                x_to: Some(to_s),
                lines,
            };
            plot.render()
        };
        let mut plots = Vec::new();
        for (place, (file, label)) in METRICS.into_iter().enumerate() {
            let line = |curves: &Curves| (curves.name.clone(), points(&curves.metrics[place]));
            let to_s = if file == "controllers" { 0.03 } else { to_s };
            let lines = self.curves.iter().map(line).collect();
            plots.push((format!("load-direction-{figure}-{file}.svg"), plot(label, to_s, lines)));
        }
        let published = paper(self.table).into_iter().map(|(_, name, row)| {
            (name.to_owned(), vec![(row.min, 0.0), (row.median, 0.5), (row.p95, 0.95)])
        });
        let label = format!("request latency as Table {number} has it (least, median, 95th)");
        plots.push((format!("load-direction-{figure}-paper.svg"), plot(&label, to_s, published.collect())));
        plots
    }

    /// Returns all curves as CSV.
    pub fn csv(&self) -> String {
        let mut text = "policy,metric,share,seconds\n".to_owned();
        for curves in &self.curves {
            for ((file, _), curve) in METRICS.into_iter().zip(&curves.metrics) {
                for (step, seconds) in curve.iter().enumerate() {
                    let share = step as f64 / STEPS as f64;
                    let _ = writeln!(text, "{},{file},{share},{seconds:.6}", curves.name.replace(',', ""));
                }
            }
        }
        text
    }

    /// Returns the box plots of Figures 6 and 8 as Markdown: 5th percentile, quartiles and 95th.
    pub fn boxes(&self) -> String {
        let mut text = "| policy |".to_owned();
        METRICS.iter().for_each(|(_, label)| {
            let _ = write!(text, " {label}, ms |");
        });
        text.push_str("\n|--|--|--|--|--|\n");
        for curves in &self.curves {
            let _ = write!(text, "| {} |", curves.name);
            for curve in &curves.metrics {
                let at = |share: f64| 1e3 * curve[(share * STEPS as f64) as usize];
                let [low, first, middle, third, high] = [0.05, 0.25, 0.5, 0.75, 0.95].map(at);
                let _ = write!(text, " {low:.1} · {first:.1} **{middle:.1}** {third:.1} · {high:.1} |");
            }
            text.push('\n');
        }
        text
    }
}

fn points(curve: &[f64]) -> Vec<(f64, f64)> {
    curve.iter().enumerate().map(|(step, seconds)| (*seconds, step as f64 / STEPS as f64)).collect()
}

/// Returns the median over the loads at each step, for each metric.
fn curves(table: Table, director: &Director, loads: &[Load]) -> [Vec<f64>; 4] {
    let steps = |times: &[f64]| -> Vec<f64> {
        (0..=STEPS).map(|step| quantile(times, step as f64 / STEPS as f64)).collect()
    };
    let of_load = |load: &Load| -> [Vec<f64>; 4] {
        let run = Run {
            fit: &load.fit,
            table,
            director: director.clone(),
            probe_s: PROBE_S,
            warm_up_s: WARM_UP_S,
            seed: load.seed,
            slow: None,
            copies: None,
        };
        let (_, RunTimes { requests, tasks, waits, controllers }) =
            simulation::run_in_full(&run, &load.requests);
        [steps(&requests), steps(&tasks), steps(&waits), steps(&controllers)]
    };
    let all: Vec<[Vec<f64>; 4]> = loads.iter().map(of_load).collect();
    let over_loads = |place: usize, step: usize| median(all.iter().map(|load| load[place][step]).collect());
    [0, 1, 2, 3].map(|place| (0..=STEPS).map(|step| over_loads(place, step)).collect())
}

#[cfg(test)]
mod tests {
    use super::super::requests::draw;
    use super::super::{FITS, requests};
    use super::*;

    #[test]
    fn figures_have_a_curve_of_each_policy_that_rises() {
        let load = Load {
            name: "A3".to_owned(),
            seed: 1,
            fit: FITS[2],
            requests: draw(&FITS[2], Table::One, 40.0, 1),
            before: Vec::<requests::Request>::new(),
        };
        let figures = Figures::of(Table::One, &[load]);
        assert_eq!(figures.curves.len(), 6);
        for curves in &figures.curves {
            assert!(curves.metrics.iter().all(|curve| curve.is_sorted() && curve.len() == STEPS + 1));
        }
        assert_eq!(figures.csv().lines().count(), 1 + 6 * 4 * (STEPS + 1));
        assert_eq!(figures.plots().len(), 5);
        assert_eq!(figures.boxes().lines().count(), 8);
    }
}

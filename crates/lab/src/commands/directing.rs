//! `striate-lab directing`.

use std::fmt::Write;

use serde::Serialize;
use striate_runtime::Runtime;

use super::contest;
use super::write_file;
use crate::args::DirectingArgs;
use crate::directing::contest::loads;
use crate::directing::figures::Figures;
use crate::directing::outcome::paper;
use crate::directing::prediction::{Cell, Loads, Plan, Prediction, TimeoutResult};
use crate::directing::{FittedLoad, Table, tables};
use crate::failure::{Failure, Outcome};

/// Predicts the tables and prints them beside the paper's, or runs the other requested mode.
pub(super) fn run(clock: &Runtime, args: &DirectingArgs) -> Outcome {
    let loads = loads(args)?;
    if let Some(path) = &args.write_problems {
        return write_file(path, &to_json(&tables::solve_instances(|| clock.uptime()))?);
    }
    if args.default {
        return contest::run(args, loads);
    }
    let mut reports = Vec::new();
    for (number, table) in both_tables(args) {
        let plan = plan(args, table, loads);
        if args.time_outs {
            println!("{}", render_time_outs(number, table, &plan.sweep_time_outs(args.seed..)));
        } else if let Some(folder) = &args.figures {
            let figures = Figures::of(table, &loads::family(&plan, seeds(args)));
            for (name, svg) in figures.plots() {
                write_file(&folder.join(name), &svg)?;
            }
            write_file(&folder.join(format!("load-direction-table-{number}.csv")), &figures.csv())?;
            println!("\n{}", figures.boxes());
        } else {
            let prediction = plan.predict(seeds(args));
            check_loads(prediction.chosen.len(), number, prediction.tried, args)?;
            println!("{}", render(number, table, &prediction, args));
            reports.push(PredictionReport::of(number, table, &prediction));
        }
    }
    match &args.json {
        Some(path) => write_file(path, &to_json(&reports)?),
        None => Ok(()),
    }
}

/// Returns the requested loads, after checking the arguments.
fn loads(args: &DirectingArgs) -> Result<Loads, Failure> {
    if args.placements == 0 || args.length <= 0.0 || args.within <= 0.0 || args.probe_ms < 0.0 {
        return Err(Failure::refused(
            "--placements, --length and --within must be above 0, --probe-ms not below",
        ));
    }
    match &args.fit {
        None => Ok(Loads::Family),
        Some(name) => FittedLoad::named(name).map(Loads::Fitted).ok_or_else(|| {
            Failure::refused(format!("there is no fit {name:?}: write A1 to A4, or nothing for the family"))
        }),
    }
}

/// Returns the requested tables.
pub(super) fn both_tables(args: &DirectingArgs) -> impl Iterator<Item = (u32, Table)> {
    let only = args.table;
    [(1, Table::One), (2, Table::Two)]
        .into_iter()
        .filter(move |(number, _)| only.is_none_or(|only| only == *number))
}

/// Returns the plan of a table.
pub(super) fn plan(args: &DirectingArgs, table: Table, loads: Loads) -> Plan {
    Plan {
        table,
        loads,
        load_count: args.placements,
        jointly: args.jointly,
        within: args.within,
        length_s: args.length,
        probe_s: args.probe_ms / 1e3,
    }
}

/// Returns the seeds to try.
pub(super) fn seeds(args: &DirectingArgs) -> Vec<u64> {
    match args.seeds.is_empty() {
        true => (args.seed..args.seed.saturating_add(args.tries)).collect(),
        false => args.seeds.clone(),
    }
}

/// Fails if no loads were found.
pub(super) fn check_loads(found: usize, number: u32, tried: u64, args: &DirectingArgs) -> Outcome {
    if found > 0 {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "none of {tried} loads gives Normal's row of Table {number} to within {:.0}%",
        100.0 * args.within
    )))
}

pub(super) fn to_json(value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|error| Failure::failed(error.to_string()))
}

/// The serialised form of a prediction.
#[derive(Serialize)]
struct PredictionReport {
    table: u32,
    tried: u64,
    seeds: Vec<u64>,
    policies: Vec<PolicyReport>,
}

/// A policy's row: mean, median and 95th percentile relative to Normal, and medians over the loads.
#[derive(Serialize)]
struct PolicyReport {
    name: &'static str,
    cells: [Cell; 3],
    mean_s: f64,
    min_s: f64,
    task_mean_s: f64,
    probes_per_s: f64,
    probes_of_paper: f64,
}

impl PredictionReport {
    fn of(number: u32, table: Table, prediction: &Prediction) -> Self {
        let policy =
            |(place, (_, name, row)): (usize, (&str, &'static str, crate::directing::outcome::Row))| {
                PolicyReport {
                    name,
                    cells: prediction.cells(table, place),
                    mean_s: prediction.median_of(place, |summary| summary.requests.mean),
                    min_s: prediction.median_of(place, |summary| summary.requests.min),
                    task_mean_s: prediction.median_of(place, |summary| summary.tasks.mean),
                    probes_per_s: prediction.median_of(place, |summary| summary.requests.probes_per_s),
                    probes_of_paper: row.probes_per_s,
                }
            };
        Self {
            table: number,
            tried: prediction.tried,
            seeds: prediction.chosen.iter().map(|chosen| chosen.seed).collect(),
            policies: paper(table).into_iter().enumerate().map(policy).collect(),
        }
    }
}

/// Renders a table as Markdown.
fn render(number: u32, table: Table, prediction: &Prediction, args: &DirectingArgs) -> String {
    let mut text = format!(
        "## Table {number}: {}\n\n{} of {} loads give Normal's mean, median and 95th to within {:.0}%; runs of {} s, probes of {} ms.\n\
         Relative to Normal: the paper's, the median over the loads (their range), its error.\n\n\
         | policy | probes/s (paper) | mean, s (paper) | mean | median | 95th | task, s | tasks a request | timed out |\n\
         |--|--|--|--|--|--|--|--|--|\n",
        table.code(),
        prediction.chosen.len(),
        prediction.tried,
        100.0 * args.within,
        args.length,
        args.probe_ms,
    );
    for (policy, (_, name, row)) in paper(table).into_iter().enumerate() {
        let [mean, median, p95] = prediction.cells(table, policy).map(cell);
        writeln!(
            text,
            "| {name} | {:.1} ({}) | {:.3} ({:.3}) | {mean} | {median} | {p95} | {:.3} | {:.2} | {:.2}% |",
            prediction.median_of(policy, |summary| summary.requests.probes_per_s),
            row.probes_per_s,
            prediction.median_of(policy, |summary| summary.requests.mean),
            row.mean,
            prediction.median_of(policy, |summary| summary.tasks.mean),
            prediction.median_of(policy, |summary| summary.tasks_per_request),
            100.0 * prediction.median_of(policy, |summary| summary.timed_out),
        )
        .expect("a text takes any length");
    }
    let seeds: Vec<String> = prediction.chosen.iter().map(|chosen| chosen.seed.to_string()).collect();
    writeln!(text, "\nSeeds: {}", seeds.join(",")).expect("a text takes any length");
    text
}

/// Renders Normal's time-outs as Markdown.
fn render_time_outs(number: u32, table: Table, swept: &[TimeoutResult]) -> String {
    let mut text = format!(
        "## Table {number}: {}, Normal's time-out\n\n| load | policy | mean, s | median | 95th | timed out |\n|--|--|--|--|--|--|\n",
        table.code()
    );
    for TimeoutResult { fit, policy, cells: [mean, median, p95], share } in swept {
        writeln!(
            text,
            "| {} | {policy} | {mean:.3} | {median:.3} | {p95:.3} | {:.2}% |",
            fit.name,
            100.0 * share
        )
        .expect("a text takes any length");
    }
    text
}

fn cell(cell: Cell) -> String {
    format!(
        "{:.2}: {:.2} ({:.2}–{:.2}) {:+.0}%",
        cell.paper,
        cell.median,
        cell.least,
        cell.greatest,
        100.0 * cell.error()
    )
}

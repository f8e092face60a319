//! `striate-lab directing`.

use std::fmt::Write;

use crate::args::DirectingArgs;
use crate::directing::outcome::paper;
use crate::directing::prediction::{Cell, Loads, Plan, Prediction, TimedOut};
use crate::directing::{Fit, Table};
use crate::failure::{Failure, Outcome};

/// Predicts the tables and prints them beside the paper's.
pub(super) fn run(args: &DirectingArgs) -> Outcome {
    let loads = match &args.fit {
        None => Loads::Family,
        Some(name) => Loads::Fitted(Fit::named(name).ok_or_else(|| {
            Failure::refused(format!("there is no fit {name:?}: write A1 to A4, or nothing for the family"))
        })?),
    };
    if args.placements == 0 || args.length <= 0.0 || args.within <= 0.0 || args.probe_ms < 0.0 {
        return Err(Failure::refused(
            "--placements, --length and --within must be above 0, --probe-ms not below",
        ));
    }
    for (number, table) in [(1, Table::One), (2, Table::Two)] {
        if args.table.is_some_and(|only| only != number) {
            continue;
        }
        let plan = Plan {
            table,
            loads,
            wanted: args.placements,
            jointly: args.jointly,
            within: args.within,
            length_s: args.length,
            probe_s: args.probe_ms / 1e3,
        };
        if args.time_outs {
            println!("{}", render_time_outs(number, table, &plan.sweep_time_outs(args.seed..)));
            continue;
        }
        let prediction = plan.predict(args.seed..args.seed.saturating_add(args.tries));
        if prediction.chosen.is_empty() {
            return Err(Failure::failed(format!(
                "none of {} loads gives Normal's row of Table {number} to within {:.0}%",
                prediction.tried,
                100.0 * args.within
            )));
        }
        println!("{}", render(number, table, &prediction, args));
    }
    Ok(())
}

/// A table in Markdown.
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
            prediction.median_of(policy, |seen| seen.requests.probes_per_s),
            row.probes_per_s,
            prediction.median_of(policy, |seen| seen.requests.mean),
            row.mean,
            prediction.median_of(policy, |seen| seen.tasks.mean),
            prediction.median_of(policy, |seen| seen.tasks_per_request),
            100.0 * prediction.median_of(policy, |seen| seen.timed_out),
        )
        .expect("a text takes any length");
    }
    text
}

/// Normal's time-outs in Markdown.
fn render_time_outs(number: u32, table: Table, swept: &[TimedOut]) -> String {
    let mut text = format!(
        "## Table {number}: {}, Normal's time-out\n\n| load | policy | mean, s | median | 95th | timed out |\n|--|--|--|--|--|--|\n",
        table.code()
    );
    for TimedOut { fit, policy, cells: [mean, median, p95], share } in swept {
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

fn cell(of: Cell) -> String {
    format!(
        "{:.2}: {:.2} ({:.2}–{:.2}) {:+.0}%",
        of.paper,
        of.median,
        of.least,
        of.greatest,
        100.0 * of.error()
    )
}

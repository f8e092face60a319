//! `striate-lab directing --default`.

use std::fmt::Write;
use std::path::Path;

use super::directing::{both_tables, check_loads, plan, seeds, to_json};
use super::write_file;
use crate::args::DirectingArgs;
use crate::directing::Table;
use crate::directing::contest::loads::{self, Histograms, Load};
use crate::directing::contest::{self, Case, Contest};
use crate::directing::outcome::median;
use crate::directing::prediction::{Loads, Plan};
use crate::failure::{Failure, Outcome};

/// Compares the store's default with the best of the seven policies and prints its lead.
pub(super) fn run(args: &DirectingArgs, from: Loads) -> Outcome {
    let cases = cases(args)?;
    let mut all = Vec::new();
    for (number, table) in both_tables(args) {
        let plan = plan(args, table, from);
        let family = if cases.iter().all(|case| *case == Case::Trace || *case == Case::Skews) {
            Vec::new()
        } else {
            let family = loads::family(&plan, seeds(args));
            check_loads(family.len(), number, seeds(args).len() as u64, args)?;
            family
        };
        for &case in &cases {
            let contest = Contest { table, length_s: args.length, is_brief: args.brief };
            let outcome = contest.run(case, &loads_of(args, case, &plan, &family)?);
            println!("{}", render(number, table, case, &outcome));
            all.push(outcome);
        }
    }
    match &args.json {
        Some(path) => write_file(path, &to_json(&all)?),
        None => Ok(()),
    }
}

/// Returns the requested cases.
fn cases(args: &DirectingArgs) -> Result<Vec<Case>, Failure> {
    if args.cases.is_empty() {
        return Ok(Case::OF_THE_PAPER.to_vec());
    }
    let named = |name: &String| {
        let all_cases = Case::OF_THE_PAPER.into_iter().chain([Case::Cdn, Case::Trace]);
        all_cases
            .into_iter()
            .find(|case| case.name() == name)
            .ok_or_else(|| Failure::refused(format!("no case {name:?}")))
    };
    args.cases.iter().map(named).collect()
}

/// Returns the loads of a case.
fn loads_of(args: &DirectingArgs, case: Case, plan: &Plan, family: &[Load]) -> Result<Vec<Load>, Failure> {
    // Placements of the loads that need no search.
    let placements = || seeds(args).into_iter().take(args.placements);
    let fail = |error: String| Failure::failed(error);
    match case {
        Case::Charged | Case::Free | Case::Slow | Case::Load => Ok(family.to_vec()),
        Case::Skews => Ok(loads::other_skews(plan, placements())),
        Case::Cdn => {
            let (Some(sizes), Some(popularity)) = (&args.cdn_sizes, &args.cdn_popularity) else {
                return Err(Failure::refused("--case cdn needs --cdn-sizes and --cdn-popularity"));
            };
            let histograms = Histograms { sizes: read(sizes)?, popularity: read(popularity)? };
            let own = placements().map(|seed| histograms.of_a_cdn(plan.table, plan.length_s, seed));
            let with_sizes = family.iter().map(|load| histograms.in_the_place_of_sizes(load));
            own.chain(with_sizes).collect::<Result<_, _>>().map_err(fail)
        }
        Case::Trace => {
            let Some(trace) = &args.trace else { return Err(Failure::refused("--case trace needs --trace")) };
            placements()
                .map(|seed| loads::of_a_trace(trace, plan.table, seed))
                .collect::<Result<_, _>>()
                .map_err(fail)
        }
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| Failure::failed(format!("{}: {error}", path.display())))
}

/// Renders a case as Markdown: the median over the loads for every policy, and the verdicts.
fn render(number: u32, table: Table, case: Case, outcome: &contest::Outcome) -> String {
    let mut text = format!("## Table {number}, {}: {}\n\n", table.code(), case.name());
    push_policies(&mut text, outcome);
    text.push_str("\n| | | median over the loads (range) | bar | |\n|--|--|--|--|--|\n");
    for verdict in &outcome.verdicts {
        let bar = verdict.bar.map_or_else(
            || " | ".to_owned(),
            |bar| {
                let sign = if bar.is_least { "≥" } else { "≤" };
                format!(
                    "{sign} {} | {}",
                    bar.value,
                    if bar.holds(verdict.median) { "holds" } else { "**missed**" }
                )
            },
        );
        let _ = writeln!(
            text,
            "| {} | {} | {:.3} ({:.3}–{:.3}), {} loads | {bar} |",
            verdict.policy, verdict.what, verdict.median, verdict.least, verdict.greatest, verdict.loads
        );
    }
    text
}

/// Appends the table of the policies: medians over the loads.
fn push_policies(text: &mut String, outcome: &contest::Outcome) {
    let mut policies: Vec<&str> = Vec::new();
    for shown in &outcome.shown {
        if !policies.contains(&shown.policy.as_str()) {
            policies.push(&shown.policy);
        }
    }
    text.push_str(
        "| policy | mean, ms | median | 95th | 99th | λ, % | tasks a request | probes/s | pushes/s |\n\
         |--|--|--|--|--|--|--|--|--|\n",
    );
    for policy in policies {
        let median_of = |value: &dyn Fn(&contest::PolicyOutcome) -> f64| {
            median(outcome.shown.iter().filter(|shown| shown.policy == policy).map(value).collect())
        };
        let _ = writeln!(
            text,
            "| {policy} | {:.1} | {:.1} | {:.1} | {:.1} | {:.0} | {:.2} | {:.0} | {:.0} |",
            1e3 * median_of(&|shown| shown.seen.requests.mean),
            1e3 * median_of(&|shown| shown.seen.requests.median),
            1e3 * median_of(&|shown| shown.seen.requests.p95),
            1e3 * median_of(&|shown| shown.seen.p99),
            median_of(&|shown| shown.seen.imbalance),
            median_of(&|shown| shown.seen.tasks_per_request),
            median_of(&|shown| shown.seen.requests.probes_per_s),
            median_of(&|shown| shown.seen.pushes_per_s),
        );
    }
}

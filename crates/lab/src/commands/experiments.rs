//! `striate-lab run`, `figure` and `results`: experiments in virtual time, from files to pages.

use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use striate_runtime::Runtime;

use super::write_file;
use crate::args::{FigureArgs, HowArgs, ResultsArgs, RunArgs};
use crate::experiment::results::SeedResult;
use crate::experiment::{self, BUILT_IN, Cells, Experiment, Progress, Results, RunOptions, pages, report};
use crate::failure::{Failure, Outcome};
use crate::{program, resources};

/// The experiment of each calibration that also runs once unscaled, and the policy of that run: on P one that takes a
/// quarter of an hour instead of an hour.
const UNSCALED: [(&str, &str); 3] =
    [("ec-store-ycsb-p", "R"), ("ec-store-ycsb-d", "EC"), ("ec-store-ycsb-a", "EC")];

/// `striate-lab list`.
///
/// # Errors
/// None that a user can cause: built-in experiments are tested.
pub fn list() -> Outcome {
    for (name, text) in BUILT_IN {
        let experiment = Experiment::parse(name, text).map_err(Failure::failed)?;
        println!("{name:<22} {}", experiment.title);
    }
    Ok(())
}

/// `striate-lab run`.
///
/// # Errors
/// If the experiment cannot be loaded or fails, or its results cannot be written.
pub fn run(clock: &Runtime, args: &RunArgs) -> Outcome {
    let mut experiment = Experiment::load(&args.experiment).map_err(Failure::refused)?;
    experiment.seeds = args.seeds.unwrap_or(experiment.seeds);
    if !args.policy.is_empty() {
        experiment.keep_policies(&args.policy).map_err(Failure::refused)?;
    }
    if args.trace.is_some() {
        experiment.trace = args.trace.clone();
    }
    let results = results_of(clock, experiment, args.seed, &args.how)?;
    print_comparisons(&results);
    write_report(&results, &args.out)
}

/// `striate-lab figure`.
///
/// # Errors
/// As [`run`].
pub fn figure(clock: &Runtime, args: &FigureArgs) -> Outcome {
    if args.figure == "table-3" {
        return table_3(clock, &args.out);
    }
    let found = Experiment::of_figure(&args.figure, &args.calibration).map_err(Failure::refused)?;
    let (mut experiment, plot) = found;
    experiment.seeds = args.seeds.unwrap_or(experiment.seeds);
    let results = results_of(clock, experiment, 1, &args.how)?;
    print_comparisons(&results);
    let svg = args.out.join(format!("{}-{}.svg", args.figure, args.calibration));
    write_file(&svg, &report::svg(&results, plot))?;
    write_report(&results, &args.out)
}

/// Measures Table III, which compares no policies: the cost of the parts beside the reads.
fn table_3(clock: &Runtime, out: &Path) -> Outcome {
    let found = resources::measure(resources::Setting::PAPER, clock).map_err(Failure::failed)?;
    print!("{}", found.text());
    let file = serde_json::json!({ "found": found, "table": found.rows() });
    let json = serde_json::to_string_pretty(&file).map_err(Failure::failed)?;
    write_file(&out.join("ec-store-table-3.json"), &(json + "\n"))?;
    write_file(&out.join("ec-store-table-3.html"), &found.html())
}

/// `striate-lab results`.
///
/// # Errors
/// As [`run`]; finished runs are kept.
pub fn results(clock: &Runtime, args: &ResultsArgs) -> Outcome {
    let mut all = Vec::new();
    for (name, text) in BUILT_IN {
        if !args.experiment.is_empty() && !args.experiment.iter().any(|only| only == name) {
            continue;
        }
        let mut experiment = Experiment::parse(name, text).map_err(Failure::failed)?;
        experiment.seeds = args.seeds.unwrap_or(experiment.seeds);
        let results = results_of(clock, experiment, 1, &args.how)?;
        write_report(&results, &args.out)?;
        for figure in &results.figures {
            let svg = args.out.join(format!("{name}-{}.svg", figure.name));
            write_file(&svg, &report::svg(&results, figure.plot))?;
        }
        all.push(results);
        write_file(&args.out.join("index.md"), &pages::index(&all, &[]))?;
    }
    if all.is_empty() {
        return Err(Failure::refused("there is no such experiment; `striate-lab list` shows them"));
    }
    let mut unscaled = Vec::new();
    let unscaled_runs = UNSCALED.iter().filter(|_| !args.no_unscaled && args.experiment.is_empty());
    for (name, policy) in unscaled_runs {
        unscaled.push(run_unscaled(clock, name, policy, args)?);
        write_file(&args.out.join("index.md"), &pages::index(&all, &unscaled))?;
    }
    Ok(())
}

fn run_unscaled(clock: &Runtime, name: &str, policy: &str, args: &ResultsArgs) -> Outcome<Results> {
    let mut experiment = Experiment::load(name).map_err(Failure::failed)?;
    experiment.keep_policies(&[policy.to_owned()]).map_err(Failure::failed)?;
    experiment.seeds = 1;
    let how = HowArgs { scale: Some(1.0), ..args.how.clone() };
    let mut results = results_of(clock, experiment, 1, &how)?;
    results.experiment = format!("{name}-unscaled");
    write_report(&results, &args.out)?;
    Ok(results)
}

/// Runs an experiment with a progress bar, reusing finished runs of this program from the cells.
fn results_of(
    clock: &Runtime,
    mut experiment: Experiment,
    first_seed: u64,
    how: &HowArgs,
) -> Outcome<Results> {
    experiment.scale = how.scale.unwrap_or(experiment.scale);
    experiment.check().map_err(Failure::refused)?;
    let program =
        program::hash().map_err(|error| Failure::failed(format!("cannot read this program: {error}")))?;
    let cells = Some(Cells::new(&how.cells, &program));
    let options = RunOptions { first_seed, jobs: how.jobs, cells };
    let runs = experiment.policies.len() * experiment.seeds as usize;
    let [warm_up, measured, _] = experiment.scaled_times();
    let run_ms = (warm_up + measured).as_millis() as u64;
    let bar = bar(&experiment.name, runs as u64 * run_ms);
    let (mut at_ms, mut done) = (vec![0; runs], 0);
    let results = experiment::run(&experiment, &options, clock, |progress| match progress {
        Progress::At { cell, name, virtual_s } => {
            at_ms[cell] = ((virtual_s * 1e3) as u64).min(run_ms);
            bar.set_position(at_ms.iter().sum());
            bar.set_message(format!(
                "{done}/{runs} runs; {name}: {virtual_s:.1} of {:.1} s of virtual time",
                run_ms as f64 / 1e3
            ));
        }
        Progress::Done { cell, policy, result, kept } => {
            done += 1;
            at_ms[cell] = run_ms;
            bar.set_position(at_ms.iter().sum());
            let text = format!("[{done}/{runs}] {}", summary_of_run(policy, result, kept));
            // A hidden bar prints nothing.
            if bar.is_hidden() { eprintln!("{text}") } else { bar.println(text) }
        }
    });
    bar.finish_and_clear();
    results.map_err(Failure::failed)
}

/// Formats the results of a run in one line.
fn summary_of_run(policy: &str, result: &SeedResult, kept: bool) -> String {
    format!(
        "{policy}, seed {}: mean {:.2} ms, p99 {:.1} ms of virtual time; {}",
        result.seed,
        result.response.mean_ms,
        result.response.percentile(99.0),
        if kept { "kept from before".to_owned() } else { format!("{:.1} s of real time", result.real_s) },
    )
}

fn bar(name: &str, total_ms: u64) -> ProgressBar {
    let template =
        format!("{name} {{bar:20}} {{percent}}%, {{elapsed}} gone, {{eta}} to go (real time); {{wide_msg}}");
    let style = ProgressStyle::with_template(&template).expect("the template is valid");
    ProgressBar::new(total_ms).with_style(style)
}

fn print_comparisons(results: &Results) {
    println!("{}; virtual time, scale 1/{}, commit {}", results.title, results.scale, results.commit);
    for row in &results.comparisons {
        println!("{}: paper {}, lab {}", row.what, row.paper, row.ours);
    }
}

fn write_report(results: &Results, directory: &Path) -> Outcome {
    let json = serde_json::to_string_pretty(results).map_err(Failure::failed)?;
    write_file(&directory.join(format!("{}.json", results.experiment)), &(json + "\n"))?;
    write_file(&directory.join(format!("{}.html", results.experiment)), &report::html(results))
}

//! `striate-lab caching`.

use std::fmt::Write;

use serde::Serialize;

use crate::args::CachingArgs;
use crate::caching::figures::{self, Extent, Point};
use crate::caching::simulation::ReadResults;
use crate::caching::theorems::{self, FormulaCheck};
use crate::directing::outcome::median;
use crate::failure::{Failure, Outcome};

/// All results.
#[derive(Serialize)]
struct Figures {
    points: Vec<Point>,
    writes: Vec<figures::Write>,
    theorems: Vec<FormulaCheck>,
}

/// Runs the figures of EC-Cache and prints the results.
pub(super) fn run(args: &CachingArgs) -> Outcome {
    if args.reads < 100 || args.placements == 0 || args.placements_of_balance == 0 {
        return Err(Failure::refused(
            "--reads must be 100 at least, --placements and --placements-of-balance 1",
        ));
    }
    let extent = Extent {
        seed: args.seed,
        placements: args.placements,
        placements_of_balance: args.placements_of_balance,
        reads: args.reads,
    };
    if !args.json {
        println!(
            "| figure | set | scheme | mean | median | 95th | 99th | 99.9th, ms | λ, % |\n|--|--|--|--|--|--|--|--|--|"
        );
    }
    let points = figures::run(extent, |point| {
        if !args.json {
            println!("{}", row(point));
        }
    });
    let all = Figures { points, writes: figures::writes(), theorems: theorems::all() };
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&all).expect("figures are numbers and texts")),
        false => println!("\n{}\n{}", writes(&all.writes), drawn(&all.theorems)),
    }
    Ok(())
}

/// Formats the medians over the placements.
fn row(point: &Point) -> String {
    let columns: [fn(&ReadResults) -> f64; 6] = [
        |results| results.mean_ms,
        |results| results.median_ms,
        |results| results.p95_ms,
        |results| results.p99_ms,
        |results| results.p999_ms,
        |results| results.imbalance,
    ];
    let mut text = format!("| {} | {} | {} |", point.figure, point.set, point.scheme);
    for figure in columns {
        let median = median(point.seen.iter().map(figure).collect());
        write!(text, " {median:.1} |").expect("a text takes any length");
    }
    text
}

fn writes(writes: &[figures::Write]) -> String {
    let mut text =
        "| write | encoder | one copy, ms | coded, ms | of that encoding |\n|--|--|--|--|--|\n".to_owned();
    for write in writes {
        let share = 100.0 * write.encode_s / write.coded_s;
        let ms = |seconds: f64| 1e3 * seconds;
        writeln!(
            text,
            "| {} MB | {} | {:.0} | {:.0} | {share:.1}% |",
            write.bytes / 1e6,
            write.encoder,
            ms(write.copy_s),
            ms(write.coded_s)
        )
        .expect("a text takes any length");
    }
    text
}

fn drawn(theorems: &[FormulaCheck]) -> String {
    let rows = theorems
        .iter()
        .map(|check| format!("| {} | {:.3} | {:.3} |\n", check.what, check.drawn, check.formula));
    format!("| what | drawn | formula |\n|--|--|--|\n{}", rows.collect::<String>())
}

//! `striate-lab wide`.

use crate::args::WideArgs;
use crate::failure::{Failure, Outcome};
use crate::wide::figures;
use crate::wide::rows::{Extent, Row};

/// Runs the figures of ECWide and prints the results.
pub(super) fn run(args: &WideArgs) -> Outcome {
    if args.rounds == 0 || args.chunks == 0 || args.operations < 100 {
        return Err(Failure::refused("--rounds and --chunks must be 1 at least, --operations 100"));
    }
    let extent =
        Extent { seed: args.seed, rounds: args.rounds, chunks: args.chunks, operations: args.operations };
    if !args.json {
        println!(
            "| figure | set | what | lab | least to most | paper | within 20% |\n|--|--|--|--|--|--|--|"
        );
    }
    let print = |row: &Row| {
        if !args.json {
            println!("{}", line(row));
        }
    };
    let rows = figures::run(extent, print).map_err(|error| Failure::failed(error.to_string()))?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows).expect("rows are numbers and texts"));
    }
    Ok(())
}

fn line(row: &Row) -> String {
    let spread = match row.least == row.most {
        true => "–".to_owned(),
        false => format!("{:.3} to {:.3}", row.least, row.most),
    };
    let paper = row.paper.map_or("–".to_owned(), |paper| paper.to_string());
    let verdict = match (row.is_fitted, row.is_within_bar()) {
        (true, _) => "fitted",
        (_, Some(true)) => "yes",
        (_, Some(false)) => "**no**",
        (_, None) => "–",
    };
    let Row { figure, set, what, unit, value, .. } = row;
    format!("| {figure} | {set} | {what} | {value:.3} {unit} | {spread} | {paper} | {verdict} |")
}

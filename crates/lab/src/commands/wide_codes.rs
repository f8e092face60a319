//! `striate-lab wide-codes`.

use crate::args::WideCodesArgs;
use crate::failure::{Failure, Outcome};
use crate::wide::codes::{self, Figure};

/// Prints ECWide's computations about codes beside the paper's values.
pub(super) fn run(args: &WideCodesArgs) -> Outcome {
    let figures = codes::figures().map_err(|error| Failure::failed(error.to_string()))?;
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&figures).map_err(Failure::failed)?),
        false => {
            println!("| | code | what | value | paper | as it should be |\n|--|--|--|--|--|--|");
            figures.iter().for_each(|figure| println!("{}", line(figure)));
        }
    }
    Ok(())
}

fn line(figure: &Figure) -> String {
    let Figure { name, code, what, value, paper, .. } = figure;
    let number = |value: f64| if value >= 1e5 { format!("{value:.2e}") } else { format!("{value:.3}") };
    let verdict = if figure.holds() { "yes" } else { "**no**" };
    format!("| {name} | {code} | {what} | {} | {} | {verdict} |", number(*value), number(*paper))
}

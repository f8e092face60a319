//! `striate-lab packed-batches`.

use std::fmt::Write;

use serde::Serialize;
use striate_codec::Code;

use crate::args::PackedBatchesArgs;
use crate::failure::{Failure, Outcome};
use crate::packed_batches::comparison::{Comparison, Figures, figures};
use crate::packed_batches::simulation::SiteKnowledge;

/// The codes, and the gateways' knowledge of the sites.
const CODES: [&str; 2] = ["lrc(6,2,2)", "rs(6,3)"];
const KNOWLEDGE: [(SiteKnowledge, &str); 2] =
    [(SiteKnowledge::Exact, "exact"), (SiteKnowledge::Pushed, "pushed")];

/// One comparison and its figures.
#[derive(Serialize)]
struct Table {
    code: String,
    state: &'static str,
    load: f64,
    load_weight: f64,
    policies: Vec<Figures>,
}

/// Compares the policies and prints the results.
pub(super) fn run(args: &PackedBatchesArgs) -> Outcome {
    if args.placements == 0 || args.queries < 10 || args.load <= 0.0 || args.load_weight < 0.0 {
        return Err(Failure::refused(
            "--placements and --load must be above 0, --queries 10 at least, --load-weight not below 0",
        ));
    }
    let mut tables = Vec::new();
    for code in CODES {
        for (knowledge, state) in KNOWLEDGE {
            let code: Code = code.parse().expect("a code");
            let (text, Some(last)) = (code.to_string(), args.seed.checked_add(args.placements)) else {
                return Err(Failure::refused("--seed is too large"));
            };
            let comparison = Comparison {
                code,
                knowledge,
                load: args.load,
                load_weight: args.load_weight,
                copies: args.copies,
                queries: args.queries,
            };
            let placements: Vec<_> = (args.seed..last).map(|seed| comparison.run(seed)).collect();
            let (load, load_weight) = (args.load, args.load_weight);
            let table = Table { code: text, state, load, load_weight, policies: figures(&placements) };
            if !args.json {
                println!("{}", render(&table));
            }
            tables.push(table);
        }
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&tables).expect("figures are numbers and texts"));
    }
    Ok(())
}

/// Renders a table as Markdown.
fn render(table: &Table) -> String {
    let mut text = format!(
        "## {}, state {}, load {}, w = {}\n\n| policy | mean, ms | p99, ms | mean / LMLF | p99 / LMLF | work / normal | read around | pushes/s |\n\
         |--|--|--|--|--|--|--|--|\n",
        table.code, table.state, table.load, table.load_weight
    );
    for figures in &table.policies {
        writeln!(
            text,
            "| {} | {:.2} | {:.1} | {} | {} | {:.2} | {:.1}% | {:.0} |",
            figures.policy,
            figures.mean_ms,
            figures.p99_ms,
            ratio(&figures.mean_over_lmlf),
            ratio(&figures.p99_over_lmlf),
            figures.work,
            100.0 * figures.read_around,
            figures.pushes_per_s,
        )
        .expect("a text takes any length");
    }
    text
}

/// Formats the mean over the placements, and the range.
fn ratio(ratios: &[f64]) -> String {
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    let (least, most) =
        ratios.iter().fold((f64::INFINITY, 0.0f64), |(least, most), &one| (least.min(one), most.max(one)));
    format!("{mean:.2} ({least:.2}–{most:.2})")
}

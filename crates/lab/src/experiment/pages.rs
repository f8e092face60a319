//! The index of `docs/src/results`: the results of the last full run, as one page of Markdown.

use std::fmt::Write;

use super::results::{PolicyResult, Results, SeedResult};

type Column = (&'static str, fn(&SeedResult) -> f64);

const COLUMNS: [Column; 7] = [
    ("mean, ms", |run| run.response.mean_ms),
    ("p95, ms", |run| run.response.percentile(95.0)),
    ("p99, ms", |run| run.response.percentile(99.0)),
    ("retrieve, ms", |run| run.retrieve_ms),
    ("λ over the mean, %", |run| run.imbalance_over_mean),
    ("λ over the oracle's, %", |run| run.imbalance_over_oracle),
    ("bytes read / asked", |run| run.read_amplification),
];

/// Renders the page: every experiment's table, the paper's figures beside the lab's, and the runs that validate the
/// scale.
pub fn index(results: &[Results], unscaled: &[Results]) -> String {
    let mut page =
        "All times are virtual; ± is the 95% confidence interval over the seeds (Student's t).\n".to_owned();
    for results in results {
        let _ = write!(page, "\n### {}\n\n{}\n", results.title, setting(results));
        page.push_str(&table(results.policies.iter().map(|policy| (policy.name.clone(), policy))));
        if !results.comparisons.is_empty() {
            page.push_str("\n| | paper | lab | source |\n|--|--|--|--|\n");
        }
        for row in &results.comparisons {
            let _ = writeln!(page, "| {} | {} | {} | {} |", row.what, row.paper, row.ours, row.source);
        }
    }
    if !unscaled.is_empty() {
        page.push_str(&validation(results, unscaled));
    }
    page
}

fn setting(results: &Results) -> String {
    let of_seed = |policy: &PolicyResult| policy.seeds.len();
    let seeds = results.policies.first().map_or(0, of_seed);
    let requests =
        results.policies.iter().flat_map(|policy| policy.seeds.iter().map(|run| run.response.count));
    format!(
        "`striate-lab run --experiment {}`: calibration {}, scale 1/{}, {} blocks, {:.1} s measured in each of {seeds} \
         seeds, at least {} requests in each run, commit {}.\n",
        results.experiment,
        results.calibration,
        results.scale,
        results.blocks,
        results.measured_s,
        requests.min().unwrap_or(0),
        results.commit,
    )
}

fn table<'a>(rows: impl Iterator<Item = (String, &'a PolicyResult)>) -> String {
    let mut table = "| policy |".to_owned();
    COLUMNS.iter().for_each(|(name, _)| table.push_str(&format!(" {name} |")));
    table.push_str(&format!("\n|--|{}\n", "--|".repeat(COLUMNS.len())));
    for (name, policy) in rows {
        let cells = COLUMNS.iter().map(|(_, value)| policy.statistic(value).to_string());
        let _ = writeln!(table, "| {name} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    table
}

/// Compares the same policy scaled and unscaled.
fn validation(scaled: &[Results], unscaled: &[Results]) -> String {
    let mut page =
        "\n### The scale, validated\n\nOne run of each calibration with nothing scaled, beside the scaled \
                    ones.\n\n"
            .to_owned();
    let mut rows = Vec::new();
    for whole in unscaled {
        let name = whole.experiment.trim_end_matches("-unscaled");
        let small = scaled.iter().find(|results| results.experiment == name);
        for policy in &whole.policies {
            let row = |scale: f64| format!("{} on {}, scale 1/{scale}", policy.name, whole.calibration);
            let same = small.and_then(|small| {
                let found = small.policies.iter().find(|other| other.name == policy.name);
                found.map(|found| (row(small.scale), found))
            });
            rows.extend(same);
            rows.push((row(whole.scale), policy));
        }
    }
    page.push_str(&table(rows.into_iter()));
    page
}

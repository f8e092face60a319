//! Formats measurements as a table and as JSON.

use std::fmt::Write;

use serde::Serialize;
use striate_workload::latency::Latencies;

use super::choice;
use super::measured::{Measurements, Tally};
use crate::args::BenchArgs;

/// The results, with everything needed to repeat them.
#[derive(Debug, Serialize)]
pub struct Report {
    version: &'static str,
    endpoint: String,
    bucket: String,
    workload: String,
    seed: u64,
    /// Kind of the run: `closed`, `open` or `trace`.
    #[serde(rename = "loop")]
    mode: &'static str,
    clients: Option<u32>,
    rate_per_s: Option<f64>,
    time_scale: Option<f64>,
    /// Number of objects before the run.
    objects: u64,
    /// Size of each object, if all have the same chosen size.
    object_bytes: Option<u64>,
    /// Bytes that each read asked for, unless it read whole objects.
    range_bytes: Option<u64>,
    verified: bool,
    warm_up_s: f64,
    /// Time from the start to the last answer.
    elapsed_s: f64,
    /// Open loop: operations that waited because too many were in flight.
    waited: u64,
    operations: Vec<Row>,
}

/// Operations of one kind, or all.
#[derive(Debug, Serialize)]
struct Row {
    operation: &'static str,
    /// Number of operations that succeeded.
    count: u64,
    objects: u64,
    bytes: u64,
    operations_per_s: f64,
    mb_per_s: f64,
    /// Response times; absent if no operation succeeded.
    response_ms: Option<Response>,
    errors: Vec<ErrorRow>,
}

/// Response times, in milliseconds.
#[derive(Debug, Serialize)]
struct Response {
    mean: f64,
    p50: f64,
    p95: f64,
    p99: f64,
    p99_9: f64,
    max: f64,
}

/// Failures of one kind.
#[derive(Debug, Serialize)]
struct ErrorRow {
    kind: String,
    count: u64,
    /// Message of the first failure.
    first: String,
}

impl Report {
    /// Creates the report of this run.
    pub fn new(args: &BenchArgs, endpoint: &str, objects: u64, measured: &Measurements) -> Self {
        let elapsed_s = measured.elapsed.as_secs_f64();
        let rows = measured.tallies.iter().map(|(kind, tally)| Row::new(kind.name(), tally, elapsed_s));
        let mut operations: Vec<Row> = rows.collect();
        if operations.len() > 1 {
            operations.push(Row::new("all", &all(measured), elapsed_s));
        }
        let is_closed = args.rate.is_none() && args.trace.is_none();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            endpoint: endpoint.to_owned(),
            bucket: args.bucket.clone(),
            workload: choice::name(args.workload),
            seed: args.seed,
            mode: match (is_closed, &args.trace) {
                (true, _) => "closed",
                (false, None) => "open",
                (false, Some(_)) => "trace",
            },
            clients: is_closed.then_some(args.clients),
            rate_per_s: args.rate,
            time_scale: args.trace.is_some().then(|| args.time_scale.unwrap_or(1.0)),
            objects,
            object_bytes: args.size,
            range_bytes: args.range,
            verified: args.verify,
            warm_up_s: args.warm_up,
            elapsed_s,
            waited: measured.waited,
            operations,
        }
    }

    /// Returns the report as text: a table, and the failures.
    pub fn text(&self) -> String {
        let how = match (self.clients, self.rate_per_s, self.time_scale) {
            (Some(clients), ..) => format!("closed loop, {clients} clients"),
            (_, Some(rate), _) => format!("open loop, {rate} operations/s"),
            (.., factor) => format!("a trace at {} × its speed", factor.unwrap_or(1.0)),
        };
        let mut text = format!("{} on {}, {how}, {:.1} s\n", self.workload, self.endpoint, self.elapsed_s);
        let mut rows = vec![HEADINGS.map(str::to_owned).to_vec()];
        rows.extend(self.operations.iter().map(Row::cells));
        text.push_str(&table(&rows));
        if self.waited > 0 {
            writeln!(
                text,
                "{} operations waited because as many were under way as --max-in-flight allows",
                self.waited
            )
            .expect("writing to a string");
        }
        for row in self.operations.iter().filter(|row| row.operation != "all") {
            for ErrorRow { kind, count, first } in &row.errors {
                writeln!(text, "{}: {count} × {kind}, the first: {first}", row.operation)
                    .expect("writing to a string");
            }
        }
        text
    }
}

const HEADINGS: [&str; 12] = [
    "",
    "operations",
    "ops/s",
    "objects/op",
    "MB/s",
    "mean ms",
    "p50",
    "p95",
    "p99",
    "p99.9",
    "max",
    "errors",
];

impl Row {
    fn new(operation: &'static str, tally: &Tally, elapsed_s: f64) -> Self {
        let per_s = |amount: u64| if elapsed_s > 0.0 { amount as f64 / elapsed_s } else { 0.0 };
        let errors = tally.errors.iter();
        Self {
            operation,
            count: tally.operations,
            objects: tally.moved.objects,
            bytes: tally.moved.bytes,
            operations_per_s: per_s(tally.operations),
            mb_per_s: per_s(tally.moved.bytes) / 1e6,
            response_ms: (tally.operations > 0).then(|| Response::new(&tally.latencies)),
            errors: errors
                .map(|(kind, (count, first))| ErrorRow {
                    kind: kind.clone(),
                    count: *count,
                    first: first.clone(),
                })
                .collect(),
        }
    }

    fn cells(&self) -> Vec<String> {
        let times = self.response_ms.as_ref().map_or([f64::NAN; 6], Response::all);
        let errors: u64 = self.errors.iter().map(|error| error.count).sum();
        let mut cells = vec![
            self.operation.to_owned(),
            self.count.to_string(),
            format!("{:.1}", self.operations_per_s),
            format!("{:.1}", self.objects as f64 / self.count.max(1) as f64),
            format!("{:.2}", self.mb_per_s),
        ];
        cells.extend(times.map(|ms| if ms.is_nan() { "-".to_owned() } else { format!("{ms:.2}") }));
        cells.push(errors.to_string());
        cells
    }
}

impl Response {
    fn new(latencies: &Latencies) -> Self {
        let at = |percentile| latencies.at_percentile_ms(percentile);
        Self {
            mean: latencies.summary().mean_ms,
            p50: at(50.0),
            p95: at(95.0),
            p99: at(99.0),
            p99_9: at(99.9),
            max: at(100.0),
        }
    }

    fn all(&self) -> [f64; 6] {
        [self.mean, self.p50, self.p95, self.p99, self.p99_9, self.max]
    }
}

fn all(measured: &Measurements) -> Tally {
    let mut all = Tally::default();
    for tally in measured.tallies.values() {
        all.latencies.merge(&tally.latencies);
        all.operations += tally.operations;
        all.moved.objects += tally.moved.objects;
        all.moved.bytes += tally.moved.bytes;
        for (kind, (count, first)) in &tally.errors {
            all.errors.entry(kind.clone()).or_insert_with(|| (0, first.clone())).0 += count;
        }
    }
    all
}

/// Formats columns of numbers, each as wide as its widest entry; the first column holds names.
fn table(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ")).expect("writing to a string");
    }
    text
}

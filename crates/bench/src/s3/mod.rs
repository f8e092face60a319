//! A closed-loop load generator for any S3 endpoint.
//!
//! It shares the machine with the server it measures, so it is built to be cheap: one thread, one keep-alive HTTP/1.1
//! connection per client, presigned requests (no hashing of bodies), and bodies that are slices of one random pool.
//! GETs are compared with that pool byte for byte as they arrive. Every client sends its next request as soon as the
//! last one is answered; latency is from the first byte sent to the last byte received.
//!
//! It does not retry: errors are counted, the text of the first is reported, and the client continues.

mod connection;
mod load;
mod objects;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bytesize::ByteSize;
use connection::Endpoint;
use load::{Limit, Load, Outcome};
use objects::Objects;

/// Options of `striate-bench s3`.
#[derive(clap::Args)]
pub struct Options {
    /// The endpoint, such as http://127.0.0.1:9000 (no TLS: that would measure the load generator).
    #[arg(long)]
    endpoint: String,
    /// Access key.
    #[arg(long, env = "AWS_ACCESS_KEY_ID")]
    access_key: String,
    /// Secret key.
    #[arg(long, env = "AWS_SECRET_ACCESS_KEY", hide_env_values = true)]
    secret_key: String,
    /// Region that requests are signed for.
    #[arg(long, default_value = "us-east-1")]
    region: String,
    /// An existing bucket.
    #[arg(long)]
    bucket: String,
    /// What to send.
    #[arg(long, value_enum)]
    op: Operation,
    /// Bytes per object, such as 10KiB, 1MiB or 0.
    #[arg(long, value_parser = parse_size)]
    size: usize,
    /// GET: ask for this many bytes of an object only, at a place that the turn decides.
    #[arg(long, value_parser = parse_size)]
    range: Option<usize>,
    /// Clients, each with a connection of its own and one request at a time.
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// Stop after this many seconds.
    #[arg(long, required_unless_present = "ops")]
    seconds: Option<f64>,
    /// Stop after this many operations (with --seconds: whichever comes first).
    #[arg(long)]
    ops: Option<u64>,
    /// GET: how many objects there are. PUT: indices wrap around at this number.
    #[arg(long)]
    objects: Option<u64>,
    /// PUT: the first index, so that runs can follow one another.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// PUT the objects first, outside the measurement.
    #[arg(long)]
    prefill: bool,
    /// What keys begin with.
    #[arg(long, default_value = "object-")]
    prefix: String,
    /// Put this many keys in a row under a common prefix that ends in '/'.
    #[arg(long)]
    keys_per_directory: Option<u64>,
    /// Requests that take longer than this count as errors.
    #[arg(long, default_value_t = 60.0)]
    timeout_seconds: f64,
    /// Write the result here as well.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// The measured operation.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Operation {
    /// Whole-object PUT.
    Put,
    /// Whole-object GET, every byte compared.
    Get,
}

/// Runs the load and prints one JSON object; fails if any operation failed.
pub fn run(options: &Options) -> ExitCode {
    match measure(options) {
        Ok(outcome) => report(options, &outcome),
        Err(error) => {
            eprintln!("striate-bench s3: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<Outcome, String> {
    let endpoint = Endpoint::new(
        &options.endpoint,
        &options.region,
        &options.bucket,
        &options.access_key,
        &options.secret_key,
    )?;
    let objects = Objects::new(options.size, &options.prefix, options.keys_per_directory);
    let limit = Limit { operations: options.ops, duration: options.seconds.map(Duration::from_secs_f64) };
    let count = match (options.objects, options.ops, options.op) {
        (Some(count), _, _) | (None, Some(count), _) => count.max(1),
        (None, None, Operation::Put) => u64::MAX,
        (None, None, Operation::Get) => return Err("a timed GET run needs --objects".into()),
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    let timeout = Duration::from_secs_f64(options.timeout_seconds);
    let load = |operation, limit| Load {
        endpoint: endpoint.clone(),
        objects: objects.clone(),
        operation,
        range: options.range,
        clients: options.clients,
        count,
        first: options.first,
        limit,
        timeout,
    };
    if options.prefill {
        let fill = Limit { operations: Some(count), duration: None };
        let filled = runtime.block_on(load(Operation::Put, fill).run())?;
        if let Some(error) = filled.first_error {
            return Err(format!(
                "prefill: {} of {count} PUTs failed, the first with: {error}",
                filled.errors
            ));
        }
    }
    runtime.block_on(load(options.op, limit).run())
}

fn report(options: &Options, outcome: &Outcome) -> ExitCode {
    let seconds = outcome.elapsed.as_secs_f64();
    let rate = outcome.latency_us.len() as f64 / seconds;
    let quantile_ms = |q| outcome.latency_us.value_at_quantile(q) as f64 / 1000.0;
    let result = serde_json::json!({
        "op": if options.op == Operation::Put { "put" } else { "get" },
        "size": options.size,
        "range": options.range,
        "clients": options.clients,
        "seconds": seconds,
        "operations": outcome.latency_us.len(),
        "operations_per_s": rate,
        "mb_per_s": rate * options.range.unwrap_or(options.size) as f64 / 1e6,
        "p50_ms": quantile_ms(0.50),
        "p99_ms": quantile_ms(0.99),
        "max_ms": outcome.latency_us.max() as f64 / 1000.0,
        "errors": outcome.errors,
        "first_error": outcome.first_error,
    });
    println!("{result}");
    if let Some(path) = &options.out
        && let Err(error) = std::fs::write(path, format!("{result}\n"))
    {
        eprintln!("striate-bench s3: cannot write {}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    if outcome.errors > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Parses a size: `10KiB`, `2MB` or a plain number of bytes.
fn parse_size(text: &str) -> Result<usize, String> {
    let ByteSize(size) = text.parse()?;
    size.try_into().map_err(|_| format!("{text} is too large"))
}

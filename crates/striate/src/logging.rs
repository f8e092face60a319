//! Structured logs on the standard error, and spans for those who collect them.

use std::io::IsTerminal;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use crate::args::LogFormat;
use crate::spans::Spans;

/// Starts logging. RUST_LOG chooses what; `default` is used when it is not set.
pub fn start(format: LogFormat, default: &str, spans: Option<&Spans>) {
    // s3s logs every request that S3 refuses, a 404 too, as an error; the audit log has them.
    let filter = || EnvFilter::new(format!("{default},s3s=off"));
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| filter());
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Json => lines.json().boxed(),
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).with_target(false).boxed(),
    };
    let spans = spans.map(Spans::layer);
    tracing_subscriber::registry().with(lines.with_filter(filter)).with(spans).init();
}

//! Structured logs on the standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::args::LogFormat;

/// Starts logging. RUST_LOG chooses what; `default` is used when it is not set.
pub fn start(format: LogFormat, default: &str) {
    // s3s logs every request that S3 refuses, a 404 too, as an error; the audit log has them.
    let filter = || EnvFilter::new(format!("{default},s3s=off"));
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| filter());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Json => builder.json().init(),
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).with_target(false).init(),
    }
}

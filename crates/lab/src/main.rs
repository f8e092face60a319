//! `striate-lab`.

use std::process::ExitCode;

use clap::Parser;
use striate_lab::args::Cli;
use striate_lab::commands;
use striate_lab::failure::Failure;
use striate_runtime::Runtime;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// The allocator of `striate`, because the lab is compared with its processes.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_logging();
    let result = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(tokio) => tokio.block_on(async { Box::pin(commands::run(Runtime::real(), cli.command)).await }),
        Err(error) => Err(Failure::failed(format!("the runtime cannot start: {error}"))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Logs to standard error, as RUST_LOG selects. Off by default: faults are expected here, and the output already
/// reports their effects.
fn start_logging() {
    let filter = std::env::var("RUST_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(lines.with_filter(filter.unwrap_or_default())).init();
}

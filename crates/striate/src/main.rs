//! `striate`.

use std::process::ExitCode;
use std::time::Duration;

use striate::logging;
use striate::run::run;
use striate::spans::Spans;
use striate_commands::args::Command;
use striate_commands::config::{ConfigError, command_line};
use striate_commands::failure::{Failure, Outcome};
use striate_runtime::Runtime;

/// Returns freed memory to the system sooner, and is faster on many small allocations than the C library's. Without
/// transparent huge pages: they doubled the resident memory and saved no time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match command_line(std::env::args_os().collect()) {
        Ok(cli) => cli,
        Err(ConfigError::Arguments(error)) => error.exit(),
        Err(ConfigError::File(reason)) => return Failure::refused(reason).report(),
    };
    let is_service = matches!(
        cli.command,
        Command::Server(_) | Command::Site(_) | Command::Gateway(_) | Command::Control(_)
    );
    let default = match &cli.command {
        _ if is_service => "info,s3s=off",
        _ => "warn",
    };
    // One worker for each core; `new_multi_thread` counts them. Threads that wait for disks come in bursts and keep
    // memory of their own: they end soon when there is nothing to wait for.
    let built = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_keep_alive(Duration::from_secs(1))
        .build();
    let result = match built {
        Ok(tokio) => {
            let spans = match tokio.block_on(async { spans_of(&cli.command) }) {
                Ok(spans) => spans,
                Err(failure) => return failure.report(),
            };
            logging::start(cli.log_format, default, spans.as_ref());
            let result = tokio.block_on(async { run(Runtime::real(), cli.command).await });
            if let Some(spans) = spans {
                spans.stop();
            }
            // A read of the standard input that nobody waits for any more must not hold up the end.
            tokio.shutdown_background();
            result
        }
        Err(error) => Err(Failure::failed(format!("the runtime cannot start: {error}"))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// What sends spans, if the command is told where to.
fn spans_of(command: &Command) -> Outcome<Option<Spans>> {
    let listen = match command {
        Command::Server(args) => &args.listen,
        Command::Gateway(args) => &args.listen,
        _ => return Ok(None),
    };
    let endpoint = listen.otlp_endpoint.as_ref();
    endpoint.map(|endpoint| Spans::start(endpoint, listen.otlp_sampling)).transpose()
}

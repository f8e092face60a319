//! The program `striate`.

use std::process::ExitCode;
use std::time::Duration;

use striate::logging;
use striate::run::run;
use striate::spans::Spans;
use striate_commands::args::Command;
use striate_commands::config::{ConfigError, command_line};
use striate_commands::failure::{Failure, Outcome};
use striate_listen::descriptors::raise_limit;
use striate_runtime::Runtime;

/// mimalloc returns freed memory to the system sooner, and is faster on many small allocations than the C library's
/// allocator. Transparent huge pages are off: they doubled the resident memory and saved no time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Time for a service to close its connections after its end.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let cli = match command_line(std::env::args_os().collect()) {
        Ok(cli) => cli,
        Err(ConfigError::Arguments(error)) => error.exit(),
        Err(ConfigError::File(reason)) => return Failure::refused(reason).report(),
    };
    // The soft limit is often 1,024, and every connection and open file takes one of it.
    raise_limit();
    let is_service = matches!(
        cli.command,
        Command::Server(_) | Command::Site(_) | Command::Gateway(_) | Command::Control(_)
    );
    if is_service || matches!(cli.command, Command::Admin(_)) {
        // Data, metadata and secrets are this user's alone.
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    }
    let default = match &cli.command {
        _ if is_service => "info,s3s=off",
        _ => "warn",
    };
    // One worker per core, the default of `new_multi_thread`. Threads that wait for disks come in bursts and hold
    // memory of their own, so they end soon after they become idle.
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
            let thinning = logging::start(cli.log_format, default, spans.as_ref());
            let runtime = Runtime::real();
            let result = tokio.block_on(async {
                if is_service {
                    runtime.spawn(thinning.run(runtime.clone()));
                }
                run(runtime, cli.command).await
            });
            if let Some(spans) = spans {
                spans.stop();
            }
            // Do not let a pending read of the standard input delay the exit, or a call that waits for a disk. A service
            // closes its connections first: where the kernel keeps a thread that waits, it keeps open files with it.
            tokio.shutdown_timeout(if is_service { CLOSE_TIMEOUT } else { Duration::ZERO });
            result
        }
        Err(error) => Err(Failure::failed(format!("the runtime cannot start: {error}"))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Starts the sender of spans, if the command names a collector.
fn spans_of(command: &Command) -> Outcome<Option<Spans>> {
    let listen = match command {
        Command::Server(args) => &args.listen,
        Command::Gateway(args) => &args.listen,
        _ => return Ok(None),
    };
    let endpoint = listen.otlp_endpoint.as_ref();
    endpoint.map(|endpoint| Spans::start(endpoint, listen.otlp_sampling)).transpose()
}

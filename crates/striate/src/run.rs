//! Runs one command, from its arguments to its end.

use futures::future::LocalBoxFuture;
use striate_commands::args::Command;
use striate_commands::failure::{Failure, Outcome};
use striate_runtime::Runtime;

use crate::{administer, control_process, gateway_process, server, site_process};

/// Runs `command` to its end.
// Boxed, so that all commands are compiled once here, and not again in the binary that awaits them.
pub fn run(runtime: Runtime, command: Command) -> LocalBoxFuture<'static, Outcome> {
    Box::pin(dispatch(runtime, command))
}

async fn dispatch(runtime: Runtime, command: Command) -> Outcome {
    match command {
        Command::Server(args) => server::run(runtime, args).await,
        Command::Site(args) => site_process::run(runtime, args).await,
        Command::Gateway(args) => gateway_process::run(runtime, args).await,
        Command::Control(args) => control_process::run(runtime, args).await,
        Command::Client(command) => striate_commands::run(runtime, command).await,
        Command::Admin(command) => administer::run(runtime, command).await,
        Command::Lab { arguments } => Err(Failure::refused(format!(
            "the laboratory is a program of its own since 0.2.0: run `{}`",
            ["striate-lab".to_owned()].into_iter().chain(arguments).collect::<Vec<_>>().join(" ")
        ))),
        Command::Version => {
            println!("striate {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
    }
}

//! One command, from its arguments to its end.

use futures::future::LocalBoxFuture;
use striate_runtime::Runtime;

use crate::args::Command;
use crate::failure::{Failure, Outcome};
use crate::{bench, control_process, gateway_process, operate, server, site_process, transfer};

/// Runs `command` to its end.
// Boxed, so that all commands are compiled here, once, and not again with the binary that awaits them.
pub fn run(runtime: Runtime, command: Command) -> LocalBoxFuture<'static, Outcome> {
    Box::pin(dispatch(runtime, command))
}

async fn dispatch(runtime: Runtime, command: Command) -> Outcome {
    match command {
        Command::Server(args) => server::run(runtime, args).await,
        Command::Site(args) => site_process::run(runtime, args).await,
        Command::Gateway(args) => gateway_process::run(runtime, args).await,
        Command::Control(args) => control_process::run(runtime, args).await,
        Command::Bucket(command) => operate::bucket(runtime, command).await,
        Command::Cp(args) => transfer::cp(runtime, args).await,
        Command::Ls(args) => transfer::ls(runtime, args).await,
        Command::Rm(args) => transfer::rm(runtime, args).await,
        Command::Cat(args) => transfer::cat(runtime, args).await,
        Command::Status(args) => operate::status(runtime, args).await,
        Command::Verify(args) => operate::verify(runtime, args).await,
        Command::Explain(args) => operate::explain(runtime, args).await,
        Command::Heal(args) => operate::heal(runtime, args).await,
        Command::Pack(command) => operate::pack(runtime, command).await,
        Command::Disk(command) => operate::disk(runtime, command).await,
        Command::Admin(command) => operate::admin(runtime, command).await,
        Command::Bench(args) => bench::run(runtime, *args).await,
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

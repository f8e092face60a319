//! Runs one command, from its arguments to its end.

use futures::future::LocalBoxFuture;
use striate_runtime::Runtime;

use crate::args::ClientCommand;
use crate::failure::Outcome;
use crate::{bench, operate, planning, transfer};

/// Runs `command` to its end.
// Boxed, so that the crate that awaits it does not compile all commands again.
pub fn run(runtime: Runtime, command: ClientCommand) -> LocalBoxFuture<'static, Outcome> {
    Box::pin(dispatch(runtime, command))
}

async fn dispatch(runtime: Runtime, command: ClientCommand) -> Outcome {
    match command {
        ClientCommand::Bucket(command) => operate::bucket(runtime, *command).await,
        ClientCommand::Cp(args) => transfer::cp(runtime, args).await,
        ClientCommand::Ls(args) => transfer::ls(runtime, args).await,
        ClientCommand::Rm(args) => transfer::rm(runtime, args).await,
        ClientCommand::Cat(args) => transfer::cat(runtime, args).await,
        ClientCommand::Status(args) => operate::status(runtime, args).await,
        ClientCommand::Verify(args) => operate::verify(runtime, args).await,
        ClientCommand::Explain(args) => operate::explain(runtime, args).await,
        ClientCommand::Heal(args) => operate::heal(runtime, args).await,
        ClientCommand::Pack(command) => operate::pack(runtime, command).await,
        ClientCommand::Disk(command) => operate::disk(runtime, command).await,
        ClientCommand::Plan(command) => planning::run(command),
        ClientCommand::Bench(args) => bench::run(runtime, *args).await,
    }
}

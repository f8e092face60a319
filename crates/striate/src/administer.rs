//! `striate admin …`: commands that need more than the admin socket of a running server: a cluster's authority, its
//! control processes, or the files of a stopped server.

mod access;
mod migrate;
mod site;
mod trust;

use striate_commands::args::AdminCommand;
use striate_commands::failure::Outcome;
use striate_commands::operate;
use striate_runtime::Runtime;

/// Runs the command.
///
/// # Errors
/// If no process answers, or the request is refused.
pub async fn run(runtime: Runtime, command: AdminCommand) -> Outcome {
    match command {
        AdminCommand::Init(args) => trust::init(&runtime, &args),
        AdminCommand::Certificate(args) => trust::certificate(&runtime, &args),
        AdminCommand::Site(command) => site::run(runtime, command).await,
        AdminCommand::Access(args) => access::run(runtime, args).await,
        AdminCommand::Server(command) => operate::administer(runtime, command).await,
        AdminCommand::Migrate(args) => migrate::run(runtime, *args).await,
    }
}

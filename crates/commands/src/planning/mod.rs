//! The commands that ask no store: what codes would cost on a cluster. `plan wide`.

mod plot;
mod wide;

use crate::args::PlanCommand;
use crate::failure::Outcome;

/// Runs one of the commands.
///
/// # Errors
/// When the numbers are not those of a code; status 1 when it does not fit the cluster.
pub fn run(command: PlanCommand) -> Outcome {
    match command {
        PlanCommand::Wide(args) => wide::run(&args),
    }
}

//! Commands that need no store: the cost of codes on a cluster. `plan wide`.

mod plot;
mod wide;

use crate::args::PlanCommand;
use crate::failure::Outcome;

/// Runs one of the commands.
///
/// # Errors
/// If the numbers do not describe a code; status 1 if the code does not fit the cluster.
pub fn run(command: PlanCommand) -> Outcome {
    match command {
        PlanCommand::Wide(args) => wide::run(&args),
    }
}

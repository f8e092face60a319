//! Failures of commands.

use std::fmt;
use std::process::ExitCode;

/// A failed command: a message that names the cause and the remedy, and an exit status, as for `striate`.
///
/// | status | meaning |
/// |--|--|
/// | 1 | the command ran and failed, or found something that needs attention |
/// | 2 | the arguments or the initial conditions are wrong; nothing was changed |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    message: String,
    status: u8,
}

/// Result of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// The command ran and failed.
    pub fn failed(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), status: 1 }
    }

    /// The arguments or the initial conditions are wrong; nothing was changed.
    pub fn refused(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), status: 2 }
    }

    /// Prints the message and returns the exit status.
    pub fn report(&self) -> ExitCode {
        eprintln!("striate-lab: {}", self.message);
        ExitCode::from(self.status)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

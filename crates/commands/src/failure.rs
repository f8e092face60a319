//! The failures of commands.

use std::fmt;
use std::process::ExitCode;

/// The failure of a command: a message that names the cause and the remedy, and an exit status.
///
/// | status | meaning |
/// |--|--|
/// | 1 | the command ran and failed, or found something that needs attention |
/// | 2 | the arguments or the circumstances at the start are wrong; nothing was changed |
/// | 130 | the user interrupted it |
/// | 141 | no process reads its output any more ([`striate_runtime::output`]) |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    message: String,
    status: u8,
}

/// What commands return.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// Creates the failure of a command that ran and failed.
    pub fn failed(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), status: 1 }
    }

    /// Creates the failure of a command whose arguments or circumstances are wrong; nothing was changed.
    pub fn refused(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), status: 2 }
    }

    /// Creates the failure of a command that the user interrupted.
    pub fn interrupted(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), status: 130 }
    }

    /// Creates the failure of a command that has already reported something that needs attention.
    pub fn attention() -> Self {
        Self { message: String::new(), status: 1 }
    }

    /// Appends a hint to the message.
    pub fn with_hint(self, hint: &str) -> Self {
        Self { message: format!("{}; {hint}", self.message), ..self }
    }

    /// Prints the message, if there is one, and returns the exit status.
    pub fn report(&self) -> ExitCode {
        if !self.message.is_empty() {
            eprintln!("striate: {}", self.message);
        }
        ExitCode::from(self.status)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

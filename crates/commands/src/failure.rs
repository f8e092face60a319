//! How a command ends when it does not succeed.

use std::fmt;
use std::process::ExitCode;

/// Why a command failed: a text that names the cause and the way out, and an exit status.
///
/// | status | meaning |
/// |--|--|
/// | 1 | the command ran and failed, or found something that needs attention |
/// | 2 | the arguments or the circumstances at the start are wrong; nothing was changed |
/// | 130 | the user interrupted it |
/// | 141 | nobody reads its output any more ([`striate_runtime::output`]) |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    message: String,
    status: u8,
}

/// What commands return.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// The command ran and failed.
    pub fn failed(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), status: 1 }
    }

    /// The arguments or the circumstances are wrong; nothing was changed.
    pub fn refused(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), status: 2 }
    }

    /// The user interrupted the command.
    pub fn interrupted(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), status: 130 }
    }

    /// Something was found that needs attention, and was already said.
    pub fn attention() -> Self {
        Self { message: String::new(), status: 1 }
    }

    /// The same with more to know about it.
    pub fn with_hint(self, hint: &str) -> Self {
        Self { message: format!("{}; {hint}", self.message), ..self }
    }

    /// Prints the message, if there is one, and answers the exit status.
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

//! The identity of a process in a cluster: `--identity DIR`.

use std::path::Path;

use striate_commands::failure::{Failure, Outcome};
use striate_runtime::Runtime;
use striate_trust::{Role, Trust};

use crate::start::sealing::{self, SealingBytes};

/// Loads a process's certificate, and keeps it current.
///
/// # Errors
/// If it cannot be used, or is that of another kind of process.
pub fn identify(runtime: &Runtime, directory: &Path, role: Role) -> Outcome<Trust> {
    let fail = |reason: String| Failure::refused(format!("--identity {}: {reason}", directory.display()));
    let trust = Trust::load(runtime, directory).map_err(|error| fail(error.to_string()))?;
    let own = trust.own_name();
    if own.role != role {
        return Err(fail(format!(
            "the certificate is a {}'s; make one with `striate admin certificate {role} NAME`",
            own.role
        )));
    }
    runtime.spawn(trust.clone().watch());
    Ok(trust)
}

/// Reads the key with which the secrets of access keys are sealed.
///
/// # Errors
/// If it is missing.
pub fn sealing_key(directory: &Path) -> Outcome<SealingBytes> {
    sealing::read_from(directory).ok_or_else(|| {
        Failure::refused(format!(
            "--identity {}: {} is missing or damaged, without which access keys cannot be opened; copy it from the \
             authority's directory",
            directory.display(),
            sealing::SEALING_FILE
        ))
    })
}

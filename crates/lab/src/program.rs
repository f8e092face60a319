//! Identity of this program: for reports, for replaying failures, and for stored results.

use std::io;
use std::process::Command;
use std::sync::OnceLock;

use sha2::{Digest, Sha256};

/// Returns the commit of the source tree in which this program was built, with `+changes` if that tree is not clean,
/// or `unknown` if there is no such tree.
///
/// The commit is read once, at run time: a build script would recompile this crate and relink the program for every
/// commit. So it describes the tree as it is now: build before you run, as `make` does.
pub fn commit() -> &'static str {
    static COMMIT: OnceLock<String> = OnceLock::new();
    COMMIT.get_or_init(|| describe().unwrap_or_else(|| "unknown".to_owned()))
}

fn describe() -> Option<String> {
    let git = Command::new("git")
        .args(["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--abbrev=12", "--exclude=*"])
        .arg("--dirty=+changes")
        .output()
        .ok()?;
    let text = String::from_utf8(git.stdout).ok()?.trim().to_owned();
    (git.status.success() && !text.is_empty()).then_some(text)
}

/// Returns a hash of the running program's file: another program may produce other results.
///
/// # Errors
/// If the file cannot be read.
pub fn hash() -> io::Result<String> {
    Ok(hex::encode(Sha256::digest(std::fs::read(std::env::current_exe()?)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_is_a_commit_or_unknown() {
        let commit = commit();
        let bare = commit.strip_suffix("+changes").unwrap_or(commit);
        let is_hash = bare.len() >= 12 && bare.bytes().all(|digit| digit.is_ascii_hexdigit());
        assert!(is_hash || commit == "unknown", "{commit}");
        assert_eq!(hash().unwrap().len(), 64);
    }
}

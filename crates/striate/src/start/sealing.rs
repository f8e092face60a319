//! The cluster's sealing key: 32 random bytes that seal the secrets of access keys (design.md §10.14). Every directory
//! has it in a file, so it survives the loss of all directories but one.
//!
//! ```text
//! .striate/sealing.key (mode 0600):  | key: 64 hexadecimal digits | newline |
//! ```
//!
//! The key protects exports of the metadata and stolen metadata files, not stolen disks: those carry it too.

use std::fs;
use std::io;
use std::path::Path;

use striate_commands::admin::find::STATE_FOLDER;
use striate_runtime::Runtime;
use zeroize::Zeroizing;

use super::roster::replace_file;

/// Name of the file.
pub const SEALING_FILE: &str = "sealing.key";

/// Bytes of a sealing key, wiped on drop.
pub type SealingBytes = Zeroizing<[u8; 32]>;

/// Creates a new random key.
pub fn make(runtime: &Runtime) -> SealingBytes {
    let mut key = SealingBytes::default();
    runtime.fill_secret(&mut key[..]);
    key
}

/// Writes the key into a directory, durably, readable only by the server's user.
///
/// # Errors
/// If the directory cannot be written.
pub fn write(directory: &Path, key: &SealingBytes) -> io::Result<()> {
    write_to(&directory.join(STATE_FOLDER), key)
}

/// Writes the key as [`write()`] does, but into the folder itself: that of a cluster's authority, or of a process's
/// identity.
///
/// # Errors
/// As for [`write()`].
pub fn write_to(folder: &Path, key: &SealingBytes) -> io::Result<()> {
    let text = Zeroizing::new(format!("{}\n", Zeroizing::new(hex::encode(key.as_slice())).as_str()));
    replace_file(folder, SEALING_FILE, text.as_bytes(), 0o600)
}

/// Reads the key in a directory; `None` if it is missing or damaged.
pub fn read(directory: &Path) -> Option<SealingBytes> {
    read_from(&directory.join(STATE_FOLDER))
}

/// Reads the key in the folder that [`write_to`] wrote it to; `None` if it is missing or damaged.
pub fn read_from(folder: &Path) -> Option<SealingBytes> {
    let text = Zeroizing::new(fs::read_to_string(folder.join(SEALING_FILE)).ok()?);
    let mut key = SealingBytes::default();
    hex::decode_to_slice(text.trim_end(), &mut key[..]).ok()?;
    Some(key)
}

/// Reads the key that the directories hold, and writes it again where it was lost. `None` if no directory has it.
///
/// # Errors
/// If two directories hold different keys. The message names them; neither is overwritten.
pub fn recover(directories: &[&Path]) -> Result<Option<SealingBytes>, String> {
    let mut found: Option<(&Path, SealingBytes)> = None;
    for directory in directories {
        match (read(directory), &found) {
            (Some(key), Some((first, other))) if key != *other => {
                return Err(format!(
                    "{} and {} hold different sealing keys; restore {STATE_FOLDER}/{SEALING_FILE} in one of them \
                     from the other",
                    first.display(),
                    directory.display()
                ));
            }
            (Some(key), None) => found = Some((directory, key)),
            _ => {}
        }
    }
    let Some((_, key)) = found else { return Ok(None) };
    for directory in directories.iter().filter(|directory| read(directory).is_none()) {
        // The key is safe in another directory; a disk that cannot be written is reported by its site.
        if let Err(error) = write(directory, &key) {
            tracing::warn!(directory = %directory.display(), %error, "the sealing key was not copied");
        }
    }
    Ok(Some(key))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_lost_key_comes_back_from_another_directory_and_others_are_never_overwritten() {
        let runtime = Runtime::deterministic(1, Duration::ZERO);
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let both = [one.path(), two.path()];
        both.iter().for_each(|directory| fs::create_dir(directory.join(STATE_FOLDER)).unwrap());
        assert_eq!(recover(&both), Ok(None));
        let key = make(&runtime);
        write(one.path(), &key).unwrap();
        assert_eq!(recover(&both), Ok(Some(key.clone())));
        assert_eq!(read(two.path()), Some(key));
        let mode =
            fs::metadata(two.path().join(STATE_FOLDER).join(SEALING_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        write(two.path(), &make(&runtime)).unwrap();
        assert!(recover(&both).unwrap_err().contains("different sealing keys"));
    }
}

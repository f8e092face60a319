//! One server per directory: a lock that the operating system releases with the process.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use striate_commands::admin::find::STATE_FOLDER;

/// Name of the lock file in [`STATE_FOLDER`].
pub const LOCK_FILE: &str = "lock";

/// Lock of a directory, held until it is dropped.
#[derive(Debug)]
pub struct DirectoryLock {
    _file: File,
    /// State folder; while it is open, nothing else can get its inode.
    _folder: File,
    locked: LockedFolder,
}

/// Which state folder is locked, whatever happens to its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockedFolder {
    device: u64,
    inode: u64,
}

impl From<&Metadata> for LockedFolder {
    fn from(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

impl LockedFolder {
    /// Returns true if the locked state folder is the one in this directory, whatever has happened to its files. Blocks
    /// while the disk hangs.
    pub fn is_in(self, directory: &Path) -> bool {
        let found = fs::symlink_metadata(directory.join(STATE_FOLDER));
        found.is_ok_and(|found| LockedFolder::from(&found) == self)
    }
}

/// Why a directory cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds it.
    #[error(
        "{0} is in use by another server; stop that one first (`fuser {0}/{STATE_FOLDER}/{LOCK_FILE}` tells its process)"
    )]
    Held(PathBuf),
    /// The lock file cannot be created.
    #[error("{path}: {error}; check the disk and its permissions")]
    Io {
        /// Path of the directory.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
}

impl DirectoryLock {
    /// Locks the directory, which must exist. Creates its state folder durably if it does not exist.
    ///
    /// # Errors
    /// If another process holds the lock, or the directory cannot be written.
    pub fn take(directory: &Path) -> Result<Self, LockError> {
        let fail = |error: io::Error| LockError::Io { path: directory.to_owned(), error };
        let folder = directory.join(STATE_FOLDER);
        match fs::create_dir(&folder) {
            Ok(()) => File::open(directory).and_then(|parent| parent.sync_all()).map_err(fail)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(fail(error)),
        }
        let held = File::open(&folder).map_err(fail)?;
        let locked = LockedFolder::from(&held.metadata().map_err(fail)?);
        let path = folder.join(LOCK_FILE);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path)
            .map_err(fail)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _file: file, _folder: held, locked }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(LockError::Held(directory.to_owned())),
            Err(error) => Err(fail(error.into())),
        }
    }

    /// Locks the directory unless its state folder is the one that is `locked` already: the one that is there may be
    /// another one of the same disk.
    ///
    /// # Errors
    /// As for [`DirectoryLock::take`].
    pub fn take_again(directory: &Path, locked: Option<LockedFolder>) -> Result<Option<Self>, LockError> {
        match locked.is_some_and(|locked| locked.is_in(directory)) {
            true => Ok(None),
            false => Self::take(directory).map(Some),
        }
    }

    /// Returns which state folder is locked.
    pub fn locked(&self) -> LockedFolder {
        self.locked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_holder_and_is_free_again_afterwards() {
        let directory = tempfile::tempdir().unwrap();
        let held = DirectoryLock::take(directory.path()).unwrap();
        let error = DirectoryLock::take(directory.path()).unwrap_err();
        assert!(matches!(error, LockError::Held(_)) && error.to_string().contains("another server"));
        assert!(held.locked().is_in(directory.path()));
        fs::rename(directory.path().join(STATE_FOLDER), directory.path().join("aside")).unwrap();
        fs::create_dir(directory.path().join(STATE_FOLDER)).unwrap();
        assert!(!held.locked().is_in(directory.path()));
        drop(held);
        DirectoryLock::take(directory.path()).unwrap();
    }
}

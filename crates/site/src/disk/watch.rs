//! Checks that the directory is still the one that was opened (design.md §10.10).
//!
//! After `rm -rf` under a running server, its open descriptors still accept writes durably, but into deleted files.
//! After an unmount, its paths lead to an empty directory. So before a group is acknowledged, the identity file, the
//! lock and the active segment are looked up by name and must still be the same files: three `stat` calls. A call that
//! fails because the process is short of memory says nothing about the disk, and condemns nothing.

use std::io;
use std::path::{Path, PathBuf};

use super::Shared;
use super::writer::ActiveSegment;
use crate::filesystem::{self, FileId, FileSystem};

/// Files that must stay the same.
#[derive(Debug)]
pub(super) struct Watch {
    files: Vec<(PathBuf, FileId)>,
}

impl Watch {
    /// Remembers which files exist under `paths`.
    pub fn new(fs: &dyn FileSystem, paths: &[PathBuf]) -> io::Result<Self> {
        let mut files = Vec::new();
        for path in paths {
            match fs.identify(path) {
                Ok(id) => files.push((path.clone(), id)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { files })
    }

    /// Checks that the files are still the same.
    pub fn check(&self, fs: &dyn FileSystem) -> Result<(), WatchError> {
        self.files.iter().try_for_each(|(path, id)| check_file(fs, path, *id))
    }
}

/// Why it is not certain that the directory is the one that was opened.
#[derive(Debug)]
pub(super) enum WatchError {
    /// A name is gone or leads to another file, or the disk cannot say: the store must take no more writes. The reason.
    Lost(String),
    /// The process is too short of memory to find out.
    Unknown(io::Error),
}

/// Checks that `path` is the file `id`.
fn check_file(fs: &dyn FileSystem, path: &Path, id: FileId) -> Result<(), WatchError> {
    match fs.identify(path) {
        Ok(now) if now == id => Ok(()),
        Ok(_) => Err(WatchError::Lost(format!("{} was replaced under the running server", path.display()))),
        Err(error) => Err(WatchError::of(path, error)),
    }
}

impl WatchError {
    fn of(path: &Path, error: io::Error) -> Self {
        use io::ErrorKind::{NotADirectory, NotFound};
        let path = path.display();
        match error.kind() {
            _ if filesystem::is_of_process(&error) => Self::Unknown(error),
            NotFound | NotADirectory => {
                Self::Lost(format!("{path} has vanished under the running server: {error}"))
            }
            _ => Self::Lost(format!("{path} cannot be examined: {error}")),
        }
    }
}

impl Shared {
    /// Checks the watched files and the active segment.
    pub(super) fn check_watched(&self, active: Option<&ActiveSegment>) -> Result<(), WatchError> {
        self.watch.check(&*self.fs)?;
        let Some(active) = active else { return Ok(()) };
        let path = &active.segment.path;
        let id = active.file.id().map_err(|error| WatchError::of(path, error))?;
        check_file(&*self.fs, path, id)
    }
}

//! Checks that the directory is still the one that was opened (design.md §10.10).
//!
//! After `rm -rf` under a running server, its open descriptors still accept writes durably, but into deleted files.
//! After an unmount, its paths lead to an empty directory. So before a group is acknowledged, the identity file, the
//! lock and the active segment are looked up by name and must still be the same files: three `stat` calls.

use std::io;
use std::path::{Path, PathBuf};

use super::Shared;
use super::writer::ActiveSegment;
use crate::filesystem::{FileId, FileSystem};

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

    /// Returns the reason if one of the files has vanished or was replaced.
    pub fn check(&self, fs: &dyn FileSystem) -> Result<(), String> {
        self.files.iter().try_for_each(|(path, id)| check_file(fs, path, *id))
    }
}

/// Returns the reason if `path` is not the file `id`.
fn check_file(fs: &dyn FileSystem, path: &Path, id: FileId) -> Result<(), String> {
    match fs.identify(path) {
        Ok(now) if now == id => Ok(()),
        Ok(_) => Err(format!("{} was replaced under the running server", path.display())),
        Err(error) => Err(format!("{} has vanished under the running server: {error}", path.display())),
    }
}

impl Shared {
    /// Checks the watched files and the active segment.
    pub(super) fn check_watched(&self, active: Option<&ActiveSegment>) -> Result<(), String> {
        self.watch.check(&*self.fs)?;
        let Some(active) = active else { return Ok(()) };
        let id = active.file.id().map_err(|error| error.to_string())?;
        check_file(&*self.fs, &active.segment.path, id)
    }
}

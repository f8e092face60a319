//! Inspection of the directories on the command line.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use striate_commands::admin::find::STATE_FOLDER;
use striate_meta::embedded::{DiskId, EpochRecord, MetaDirectory};

use super::lock::LOCK_FILE;
use super::remains::{ASIDE_PREFIX, FolderRemains};
use super::roster::Roster;
use super::sealing::SEALING_FILE;
use super::site::meta_folder;

/// Entries that file systems and operators put into a new disk's root; a directory with nothing else is blank.
const IGNORED_ENTRIES: [&str; 2] = ["lost+found", ".snapshots"];

/// The contents of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryContents {
    /// Nothing exists at the path.
    Absent,
    /// An empty directory.
    Blank,
    /// A member of a cluster.
    Member {
        /// Identity of the directory.
        disk: DiskId,
        /// Roster in the directory.
        roster: Roster,
        /// Whether metadata was ever served from this cluster, so that its first start is complete.
        served: bool,
    },
    /// Files of a store, but nothing that identifies the directory as a member of a cluster.
    Remains(FolderRemains),
}

/// A directory and its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedDirectory {
    /// Absolute path, with links resolved if it exists.
    pub path: PathBuf,
    /// Contents of the directory.
    pub found: DirectoryContents,
}

/// Why a directory cannot be used. The message names the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryError {
    /// The path does not lead to a directory.
    #[error("{0} is not a directory; give the directory where a disk is mounted")]
    NotADirectory(PathBuf),
    /// Two arguments lead to one directory.
    #[error("{first} and {second} are the same directory; give each disk once")]
    Duplicate {
        /// Path of the first argument.
        first: PathBuf,
        /// Path of the second argument.
        second: PathBuf,
    },
    /// The directory is neither empty nor Striate's.
    #[error(
        "{path} is not empty and holds no cluster of Striate (for example {example:?}); give an empty directory, e.g. {path}/striate"
    )]
    Occupied {
        /// Path of the directory.
        path: PathBuf,
        /// One of its entries.
        example: String,
    },
    /// The operating system refuses.
    #[error("{path}: {reason}; {way_out}")]
    Refused {
        /// Path of the directory.
        path: PathBuf,
        /// Reason given by the operating system.
        reason: String,
        /// Remedy.
        way_out: &'static str,
    },
    /// The roster cannot be used.
    #[error("{path}/{STATE_FOLDER}/{}: {reason}", super::roster::ROSTER_FILE)]
    Roster {
        /// Path of the directory.
        path: PathBuf,
        /// Reason why it cannot be used.
        reason: String,
    },
}

/// Inspects every directory; writes nothing.
///
/// # Errors
/// For the first directory that cannot be used.
pub fn inspect_all(arguments: &[String]) -> Result<Vec<InspectedDirectory>, DirectoryError> {
    let mut inodes: BTreeMap<(u64, u64), PathBuf> = BTreeMap::new();
    let mut paths: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    let mut all = Vec::new();
    for argument in arguments {
        let path = PathBuf::from(argument);
        let inspected = inspect(&path)?;
        let twin = paths.insert(inspected.path.clone(), path.clone());
        let inode = fs::metadata(&inspected.path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
        let twin = twin.or_else(|| inodes.insert(inode?, path.clone()));
        if let Some(first) = twin {
            return Err(DirectoryError::Duplicate { first, second: path });
        }
        all.push(inspected);
    }
    Ok(all)
}

/// Inspects one directory; writes nothing.
///
/// # Errors
/// If it cannot be used.
pub fn inspect(path: &Path) -> Result<InspectedDirectory, DirectoryError> {
    let refused = |error: &io::Error| DirectoryError::Refused {
        path: path.to_owned(),
        reason: error.to_string(),
        way_out: match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "let the server's user read and write it (chown), or start as another user"
            }
            _ => "check the disk and its mount",
        },
    };
    let absolute = std::path::absolute(path).map_err(|error| refused(&error))?;
    let resolved = match fs::canonicalize(&absolute) {
        Ok(resolved) => resolved,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(InspectedDirectory { path: absolute, found: DirectoryContents::Absent });
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(DirectoryError::NotADirectory(absolute));
        }
        Err(error) => return Err(refused(&error)),
    };
    if !fs::metadata(&resolved).map_err(|error| refused(&error))?.is_dir() {
        return Err(DirectoryError::NotADirectory(resolved));
    }
    let access = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::access(&resolved, access).map_err(|error| refused(&error.into()))?;
    let found = contents(&resolved).map_err(|error| match error {
        ContentsError::Io(error) => refused(&error),
        ContentsError::Directory(error) => error,
    })?;
    Ok(InspectedDirectory { path: resolved, found })
}

enum ContentsError {
    Io(io::Error),
    Directory(DirectoryError),
}

fn contents(path: &Path) -> Result<DirectoryContents, ContentsError> {
    let fail =
        |reason: String| ContentsError::Directory(DirectoryError::Roster { path: path.to_owned(), reason });
    if let Some((roster, disk)) = Roster::read(path).map_err(|error| fail(error.to_string()))? {
        let epoch = match MetaDirectory::open(disk, meta_folder(path)) {
            Ok(directory) => EpochRecord::read(&directory).map_err(|error| fail(error.to_string()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(ContentsError::Io(error)),
        };
        // The first epoch is written before the metadata is served, and every start writes a later one.
        let served = epoch.is_some_and(|record| record.epoch > 1);
        return Ok(DirectoryContents::Member { disk, roster, served });
    }
    for entry in fs::read_dir(path).map_err(ContentsError::Io)? {
        let entry = entry.map_err(ContentsError::Io)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_known = IGNORED_ENTRIES.contains(&name.as_str()) || name.starts_with(ASIDE_PREFIX);
        if name != STATE_FOLDER && !is_known {
            return Err(ContentsError::Directory(DirectoryError::Occupied {
                path: path.to_owned(),
                example: name,
            }));
        }
    }
    match left_over(&path.join(STATE_FOLDER)).map_err(ContentsError::Io)? {
        Some(example) => Ok(DirectoryContents::Remains(
            FolderRemains::in_directory(path, example).map_err(ContentsError::Io)?,
        )),
        None => Ok(DirectoryContents::Blank),
    }
}

/// Returns an entry of a state folder without a roster, other than the few files that a crash during the very first
/// writes leaves.
fn left_over(folder: &Path) -> io::Result<Option<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != LOCK_FILE && name != SEALING_FILE && !name.ends_with(".tmp") {
            return Ok(Some(format!("{STATE_FOLDER}/{name}")));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(paths: &[&Path]) -> Vec<String> {
        paths.iter().map(|path| path.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn directories_are_told_apart() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir(at("blank")).unwrap();
        fs::create_dir(at("blank/lost+found")).unwrap();
        assert_eq!(inspect(&at("blank")).unwrap().found, DirectoryContents::Blank);
        assert_eq!(inspect(&at("absent")).unwrap().found, DirectoryContents::Absent);

        fs::create_dir(at("mine")).unwrap();
        fs::write(at("mine/holiday.jpg"), b"x").unwrap();
        let error = inspect(&at("mine")).unwrap_err().to_string();
        assert!(error.contains("holiday.jpg") && error.contains("empty directory"), "{error}");

        fs::create_dir_all(at("lost/.striate/chunks")).unwrap();
        let DirectoryContents::Remains(remains) = inspect(&at("lost")).unwrap().found else {
            panic!("no remains")
        };
        assert_eq!(remains.example, ".striate/chunks");
        fs::write(at("lost/holiday.jpg"), b"x").unwrap();
        assert!(matches!(inspect(&at("lost")), Err(DirectoryError::Occupied { .. })));

        fs::write(at("file"), b"x").unwrap();
        assert!(matches!(inspect(&at("file")), Err(DirectoryError::NotADirectory(_))));
        assert!(matches!(inspect(&at("file/below")), Err(DirectoryError::NotADirectory(_))));
    }

    #[test]
    fn one_directory_under_two_names_is_a_duplicate() {
        let root = tempfile::tempdir().unwrap();
        let (real, link) = (root.path().join("real"), root.path().join("link"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        for pair in [[&real, &link], [&real, &real]] {
            let result = inspect_all(&arguments(&[pair[0], pair[1]]));
            assert!(matches!(result, Err(DirectoryError::Duplicate { .. })), "{result:?}");
        }
        let absent = root.path().join("absent");
        assert!(inspect_all(&arguments(&[&absent, &absent])).is_err());
    }

    #[test]
    fn a_newer_format_is_refused_by_name() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join(STATE_FOLDER)).unwrap();
        let file = root.path().join(STATE_FOLDER).join(super::super::roster::ROSTER_FILE);
        fs::write(file, "{\"version\":9}\ncrc32c:00000000\n").unwrap();
        let error = inspect(root.path()).unwrap_err().to_string();
        assert!(error.contains("newer version") && error.contains("format 9"), "{error}");
    }
}

//! Inspection of the directories on the command line.
//!
//! What a disk shows at a start is one of three things: contents that [`super::plan`] decides about; a reason why the
//! directory cannot be used now ([`Unusable`]), with which it is left out like a missing one; or a mistake of the
//! operator ([`DirectoryError`]), such as another cluster's directory, which always refuses the start. A directory that
//! cannot be used may hold good data, so it is never taken for blank.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::join_all;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use striate_commands::admin::find::STATE_FOLDER;
use striate_core::ClusterId;
use striate_meta::embedded::{DiskId, EPOCH_FILE, EpochError, EpochRecord, MetaDirectory};
use striate_runtime::Runtime;

use super::lock::{DirectoryLock, LOCK_FILE, LockError};
use super::remains::{ASIDE_PREFIX, FolderRemains};
use super::roster::{ROSTER_FILE, Roster, RosterError};
use super::sealing::SEALING_FILE;
use super::site::meta_folder;

/// Time within which every directory must have answered; one that has not is left out.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(8);

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
    /// Cannot be used now, whatever it holds.
    Unusable(Unusable),
}

/// A directory that cannot be used now, and may hold good data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// Why, without the path.
    pub reason: String,
    /// What the operator can do about it.
    pub way_out: &'static str,
    /// Identity of the directory and its roster, if they could be read.
    pub member: Option<(DiskId, Roster)>,
}

impl Unusable {
    fn new(reason: impl Into<String>, way_out: &'static str) -> Self {
        Self { reason: reason.into(), way_out, member: None }
    }

    /// Describes an error of the operating system.
    fn refused(error: &io::Error) -> Self {
        let way_out = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "let the server's user read and write it (chown), or start as another user"
            }
            _ => "check the disk and its mount",
        };
        Self::new(error.to_string(), way_out)
    }

    fn damaged(file: &str, reason: &str) -> Self {
        Self::new(
            format!("{STATE_FOLDER}/{file}: {reason}"),
            "check the disk; to give up what is on it, empty it and run `striate disk replace`",
        )
    }
}

impl DirectoryContents {
    /// Returns the identity and the roster of a member, also of one that cannot be used now.
    pub fn identity(&self) -> Option<(DiskId, &Roster)> {
        match self {
            Self::Member { disk, roster, .. } => Some((*disk, roster)),
            Self::Unusable(Unusable { member: Some((disk, roster)), .. }) => Some((*disk, roster)),
            _ => None,
        }
    }
}

/// A directory and its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedDirectory {
    /// Absolute path, with links resolved if it exists.
    pub path: PathBuf,
    /// Contents of the directory.
    pub found: DirectoryContents,
}

/// Why a start is refused because of one directory. The message names the remedy.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Two arguments lead to one directory.
    #[error("{first} and {second} are the same directory; give each disk once")]
    Duplicate {
        /// Path of the first argument.
        first: PathBuf,
        /// Path of the second argument.
        second: PathBuf,
    },
    /// A newer program wrote it, or formats are in force that this program does not read.
    #[error("{path}/{STATE_FOLDER}/{file}: {reason}")]
    Newer {
        /// Path of the directory.
        path: PathBuf,
        /// Name of the file that says so.
        file: String,
        /// Which program is needed.
        reason: String,
    },
    /// Its metadata was copied from another disk.
    #[error(
        "{path}/{STATE_FOLDER}/meta/{EPOCH_FILE} was written for directory {written_for}, not {disk}: it was copied from \
         another disk; leave {path} out, or put back what belongs there"
    )]
    Swapped {
        /// Path of the directory.
        path: PathBuf,
        /// Identity by its roster.
        disk: DiskId,
        /// Identity by its metadata.
        written_for: DiskId,
    },
    /// Its metadata is another cluster's.
    #[error("{path} belongs to cluster {cluster}, but its metadata to cluster {other}; leave it out")]
    ForeignMetadata {
        /// Path of the directory.
        path: PathBuf,
        /// Cluster by its roster.
        cluster: ClusterId,
        /// Cluster by its metadata.
        other: ClusterId,
    },
    /// Another server uses it.
    #[error(transparent)]
    Held(LockError),
}

/// What all directories hold, and the locks of the members among them.
#[derive(Debug)]
pub struct Inspection {
    /// The directories, in the order of the command line.
    pub directories: Vec<InspectedDirectory>,
    /// Locks of the members that can be used, by their paths.
    pub locks: BTreeMap<PathBuf, DirectoryLock>,
}

/// One directory, its lock if it is a member, and what the path leads to.
type Observation = (InspectedDirectory, Option<DirectoryLock>, Option<(u64, u64)>);

/// Inspects every directory, each on a thread of its own, and locks the members. A directory that does not answer in time
/// is left out. Writes nothing but the lock file of a member that has none.
///
/// # Errors
/// If one of them refuses the start.
pub async fn inspect_all(runtime: &Runtime, arguments: &[String]) -> Result<Inspection, DirectoryError> {
    let deadline = runtime.now() + ANSWER_WITHIN;
    let observe_one = |argument: &String| {
        let (runtime, path) = (runtime.clone(), PathBuf::from(argument));
        async move {
            let own = path.clone();
            let observing = runtime.run_blocking(move || observe(&own));
            let left = deadline.saturating_duration_since(runtime.now());
            runtime.timeout(left, observing).await.unwrap_or_else(|_| Ok(silent(&path)))
        }
    };
    let observed = join_all(arguments.iter().map(observe_one)).await;
    let (mut inodes, mut paths) = (BTreeMap::new(), BTreeMap::new());
    let mut all = Inspection { directories: Vec::new(), locks: BTreeMap::new() };
    let mut refusals = Vec::new();
    for (argument, observation) in arguments.iter().zip(observed) {
        let (inspected, lock, inode) = match observation {
            Ok(observation) => observation,
            Err(error) => {
                refusals.push((argument, error));
                continue;
            }
        };
        let twin = paths.insert(inspected.path.clone(), argument.clone());
        let twin = twin.or_else(|| inodes.insert(inode?, argument.clone()));
        if let Some(first) = twin {
            return Err(DirectoryError::Duplicate { first: first.into(), second: argument.into() });
        }
        all.locks.extend(lock.map(|lock| (inspected.path.clone(), lock)));
        all.directories.push(inspected);
    }
    match refusals.into_iter().next() {
        None => Ok(all),
        // Named twice, it holds its own lock: there is no other server.
        Some((argument, DirectoryError::Held(LockError::Held(path)))) if paths.contains_key(&path) => {
            let first = paths[&path].clone();
            Err(DirectoryError::Duplicate { first: first.into(), second: argument.into() })
        }
        Some((_, error)) => Err(error),
    }
}

/// Returns what is known of a directory whose disk does not answer.
fn silent(path: &Path) -> Observation {
    let reason = format!("its disk does not answer within {} s", ANSWER_WITHIN.as_secs());
    let unusable = Unusable::new(reason, "check the disk, its cable and its mount");
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    (InspectedDirectory { path, found: DirectoryContents::Unusable(unusable) }, None, None)
}

/// Inspects one directory, and locks it if it is a member.
fn observe(path: &Path) -> Result<Observation, DirectoryError> {
    let mut inspected = inspect(path)?;
    let mut lock = None;
    if let DirectoryContents::Member { disk, roster, .. } = &inspected.found {
        let locked = DirectoryLock::take(&inspected.path).and_then(|lock| {
            let fail = |error| LockError::Io { path: inspected.path.clone(), error };
            reach_disk(&inspected.path.join(STATE_FOLDER)).map(|()| lock).map_err(fail)
        });
        match locked {
            // What was read before the lock may be another server's last change.
            Ok(taken) => (inspected, lock) = (inspect(&inspected.path)?, Some(taken)),
            Err(held @ LockError::Held(_)) => return Err(DirectoryError::Held(held)),
            Err(LockError::Io { error, .. }) => {
                let member = Some((*disk, roster.clone()));
                let unusable = Unusable { member, ..Unusable::refused(&error) };
                inspected.found = DirectoryContents::Unusable(unusable);
            }
        }
    }
    if !matches!(inspected.found, DirectoryContents::Member { .. }) {
        lock = None;
    }
    let inode = fs::metadata(&inspected.path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    Ok((inspected, lock, inode))
}

/// Makes the disk itself read and flush: what was read so far may have come from the system's memory, which knows nothing of
/// a disk that hangs or fails.
fn reach_disk(folder: &Path) -> io::Result<()> {
    const BLOCK: usize = 4096;
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let mut memory = vec![0; 2 * BLOCK];
    let start = memory.as_ptr().align_offset(BLOCK);
    let block = &mut memory[start..start + BLOCK];
    let read = rustix::fs::open(folder.join(ROSTER_FILE), flags, Mode::empty())
        .and_then(|file| rustix::io::pread(file, block, 0));
    match read {
        // Some file systems have no direct reads.
        Ok(_) | Err(Errno::INVAL | Errno::OPNOTSUPP) => fs::File::open(folder)?.sync_all(),
        Err(error) => Err(error.into()),
    }
}

/// Inspects one directory; writes nothing.
///
/// # Errors
/// If it refuses a start.
pub fn inspect(path: &Path) -> Result<InspectedDirectory, DirectoryError> {
    let unusable = |path: PathBuf, why: Unusable| {
        Ok(InspectedDirectory { path, found: DirectoryContents::Unusable(why) })
    };
    let absolute = match std::path::absolute(path) {
        Ok(absolute) => absolute,
        Err(error) => return unusable(path.to_owned(), Unusable::refused(&error)),
    };
    let not_a_directory =
        || Unusable::new("it is not a directory", "give the directory where a disk is mounted");
    let resolved = match fs::canonicalize(&absolute) {
        Ok(resolved) => resolved,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(InspectedDirectory { path: absolute, found: DirectoryContents::Absent });
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return unusable(absolute, not_a_directory());
        }
        Err(error) => return unusable(absolute, Unusable::refused(&error)),
    };
    match fs::metadata(&resolved) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return unusable(resolved, not_a_directory()),
        Err(error) => return unusable(resolved, Unusable::refused(&error)),
    }
    let access = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    if let Err(error) = rustix::fs::access(&resolved, access) {
        let why = Unusable { member: readable_identity(&resolved)?, ..Unusable::refused(&error.into()) };
        return unusable(resolved, why);
    }
    let found = match contents(&resolved) {
        Ok(found) => found,
        Err(ContentsError::Unusable(why)) => DirectoryContents::Unusable(*why),
        Err(ContentsError::Refused(error)) => return Err(error),
    };
    Ok(InspectedDirectory { path: resolved, found })
}

enum ContentsError {
    Unusable(Box<Unusable>),
    Refused(DirectoryError),
}

impl From<io::Error> for ContentsError {
    fn from(error: io::Error) -> Self {
        Unusable::refused(&error).into()
    }
}

impl From<Unusable> for ContentsError {
    fn from(why: Unusable) -> Self {
        Self::Unusable(Box::new(why))
    }
}

/// Returns the identity in a directory that cannot be written, if it can be read.
fn readable_identity(path: &Path) -> Result<Option<(DiskId, Roster)>, DirectoryError> {
    match contents(path) {
        Ok(DirectoryContents::Member { disk, roster, .. }) => Ok(Some((disk, roster))),
        Ok(_) | Err(ContentsError::Unusable(_)) => Ok(None),
        Err(ContentsError::Refused(error)) => Err(error),
    }
}

fn contents(path: &Path) -> Result<DirectoryContents, ContentsError> {
    match Roster::read(path) {
        Ok(Some((roster, disk))) => return member(path, roster, disk),
        Ok(None) => {}
        Err(error @ (RosterError::Newer(_) | RosterError::NeedsNewer(_))) => {
            let (path, file) = (path.to_owned(), ROSTER_FILE.to_owned());
            return Err(ContentsError::Refused(DirectoryError::Newer {
                path,
                file,
                reason: error.to_string(),
            }));
        }
        Err(error) => {
            return Err(Unusable::damaged(ROSTER_FILE, &error.to_string()).into());
        }
    }
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let is_known = IGNORED_ENTRIES.contains(&name.as_str()) || name.starts_with(ASIDE_PREFIX);
        if name != STATE_FOLDER && !is_known {
            let reason = format!("it is not empty and holds no cluster of Striate (for example {name:?})");
            return Err(Unusable::new(reason, "give an empty directory, or a new one below it").into());
        }
    }
    match left_over(&path.join(STATE_FOLDER))? {
        Some(example) => Ok(DirectoryContents::Remains(FolderRemains::in_directory(path, example)?)),
        None => Ok(DirectoryContents::Blank),
    }
}

/// Returns the contents of a directory with a roster.
fn member(path: &Path, roster: Roster, disk: DiskId) -> Result<DirectoryContents, ContentsError> {
    let unusable = |why: Unusable, roster: Roster| {
        Err(ContentsError::from(Unusable { member: Some((disk, roster)), ..why }))
    };
    let epoch = match MetaDirectory::open(disk, meta_folder(path)) {
        Ok(directory) => EpochRecord::read(&directory),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => return unusable(Unusable::refused(&error), roster),
    };
    let epoch = match epoch {
        Ok(epoch) => epoch,
        Err(EpochError::OtherDirectory { written_for, .. }) => {
            let path = path.to_owned();
            return Err(ContentsError::Refused(DirectoryError::Swapped { path, disk, written_for }));
        }
        Err(error @ EpochError::Newer { .. }) => {
            let (path, file) = (path.to_owned(), format!("meta/{EPOCH_FILE}"));
            let reason = error.reason();
            return Err(ContentsError::Refused(DirectoryError::Newer { path, file, reason }));
        }
        Err(error) => {
            let why = Unusable::damaged(&format!("meta/{EPOCH_FILE}"), &error.reason());
            return unusable(why, roster);
        }
    };
    if let Some(other) = epoch.as_ref().map(|epoch| epoch.cluster).filter(|other| *other != roster.cluster) {
        let (path, cluster) = (path.to_owned(), roster.cluster);
        return Err(ContentsError::Refused(DirectoryError::ForeignMetadata { path, cluster, other }));
    }
    // The first epoch is written before the metadata is served, and every start writes a later one.
    let served = epoch.is_some_and(|record| record.epoch > 1);
    Ok(DirectoryContents::Member { disk, roster, served })
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

    fn unusable(path: &Path) -> Unusable {
        match inspect(path).unwrap().found {
            DirectoryContents::Unusable(unusable) => unusable,
            found => panic!("{found:?}"),
        }
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
        let Unusable { reason, way_out, .. } = unusable(&at("mine"));
        assert!(reason.contains("holiday.jpg") && way_out.contains("empty directory"), "{reason}");

        fs::create_dir_all(at("lost/.striate/chunks")).unwrap();
        let DirectoryContents::Remains(remains) = inspect(&at("lost")).unwrap().found else {
            panic!("no remains")
        };
        assert_eq!(remains.example, ".striate/chunks");
        fs::write(at("lost/holiday.jpg"), b"x").unwrap();
        assert!(unusable(&at("lost")).reason.contains("not empty"));

        fs::write(at("file"), b"x").unwrap();
        assert!(unusable(&at("file")).reason.contains("not a directory"));
        assert!(unusable(&at("file/below")).reason.contains("not a directory"));
    }

    /// A pipe without a writer blocks whoever opens it, like a file of a disk that hangs. In real time: a paused clock
    /// waits for blocked threads.
    #[tokio::test]
    async fn a_directory_that_does_not_answer_is_unusable_and_the_others_are_inspected() {
        let root = tempfile::tempdir().unwrap();
        let (hangs, blank) = (root.path().join("hangs"), root.path().join("blank"));
        fs::create_dir_all(hangs.join(STATE_FOLDER)).unwrap();
        fs::create_dir(&blank).unwrap();
        let pipe = hangs.join(STATE_FOLDER).join(ROSTER_FILE);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let inspected = inspect_all(&Runtime::real(), &arguments(&[&hangs, &blank])).await.unwrap();
        let found: Vec<_> = inspected.directories.into_iter().map(|directory| directory.found).collect();
        let [DirectoryContents::Unusable(Unusable { reason, .. }), DirectoryContents::Blank] = &found[..]
        else {
            panic!("{found:?}")
        };
        assert!(reason.contains("does not answer"), "{reason}");
        // Lets the thread end.
        drop(fs::OpenOptions::new().write(true).open(pipe).unwrap());
    }

    #[tokio::test]
    async fn one_directory_under_two_names_is_a_duplicate() {
        let root = tempfile::tempdir().unwrap();
        let (real, link) = (root.path().join("real"), root.path().join("link"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        for pair in [[&real, &link], [&real, &real]] {
            let result = inspect_all(&Runtime::real(), &arguments(&[pair[0], pair[1]])).await;
            assert!(matches!(result, Err(DirectoryError::Duplicate { .. })), "{result:?}");
        }
        let absent = root.path().join("absent");
        assert!(inspect_all(&Runtime::real(), &arguments(&[&absent, &absent])).await.is_err());
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

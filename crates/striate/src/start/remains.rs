//! Remains: files of a store in a directory that is no longer a member of a cluster.
//!
//! A wipe that ran beside a writing server, or was interrupted, leaves files in `.striate` without the roster and the
//! identity that say whose they are. A new disk may use the directory if the files are certainly not needed. Only empty
//! things are ever deleted (empty folders, an empty lock, sockets). Files with contents are moved aside within the
//! directory, and only if they are known to belong to this very cluster:
//!
//! - an identity file: refused, because it may be a good disk that has lost its roster;
//! - a metadata record of another cluster: refused;
//! - a metadata record of this cluster, or the very folder that this server has locked: moved aside;
//! - no file whose contents could be data: moved aside;
//! - anything else, such as chunks of an unknown store: refused.

use std::fs::{self, File, FileType};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use striate_commands::admin::find::STATE_FOLDER;
use striate_core::ClusterId;
use striate_meta::embedded::{DiskId, EPOCH_FILE, EpochRecord, LAST_EPOCH_FILE, MetaDirectory};
use striate_site::identity::identity_path;

use super::lock::LOCK_FILE;
use super::sealing::SEALING_FILE;
use super::site::meta_folder;

/// Prefix of the names of folders that were moved aside.
pub const ASIDE_PREFIX: &str = ".striate.aside-";

/// The information in a state folder without a roster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FolderRemains {
    /// One of its entries, for display.
    pub example: String,
    /// Whether it has an identity file.
    pub has_identity: bool,
    /// Cluster that its metadata record names.
    pub cluster: Option<ClusterId>,
    /// A file that may be data, for display.
    pub data: Option<String>,
}

impl FolderRemains {
    /// Inspects the state folder of `directory`; writes nothing.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn in_directory(directory: &Path, example: String) -> io::Result<Self> {
        let folder = directory.join(STATE_FOLDER);
        // The disk's identity is not known here; it is in the record.
        let meta = MetaDirectory::open(DiskId([0; 16]), meta_folder(directory));
        let owner = meta.ok().and_then(|meta| EpochRecord::owner(&*meta.volume));
        let data = find_data(&folder)?
            .map(|path| path.strip_prefix(directory).unwrap_or(&path).display().to_string());
        Ok(Self {
            example,
            has_identity: identity_path(directory).exists(),
            cluster: owner.map(|(cluster, _)| cluster),
            data,
        })
    }

    /// Returns why a new member of `cluster` may not use the directory; `None` if it may. `is_held`: this server has
    /// locked the state folder as a member's.
    pub fn refusal(&self, cluster: ClusterId, is_held: bool) -> Option<String> {
        if self.has_identity {
            return Some("it has an identity: it may be a good disk that only lost its roster".to_owned());
        }
        match (self.cluster, &self.data) {
            (Some(other), _) if other != cluster => Some(format!("it belongs to cluster {other}")),
            (None, Some(data)) if !is_held => {
                Some(format!("it holds {data}, and nothing says of which store"))
            }
            _ => None,
        }
    }
}

/// Returns a file that may be data: any file with contents, except those that every state folder has.
fn find_data(folder: &Path) -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (kind, name) = (entry.file_type()?, entry.file_name());
        let usual = [LOCK_FILE, SEALING_FILE, EPOCH_FILE, LAST_EPOCH_FILE];
        let is_usual = usual.iter().any(|usual| name == *usual);
        let found = match kind.is_dir() {
            true => find_data(&entry.path())?,
            false if is_usual => None,
            false if is_empty(kind, &entry.path())? => None,
            false => Some(entry.path()),
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Returns true for sockets and for files without contents.
fn is_empty(kind: FileType, path: &Path) -> io::Result<bool> {
    Ok(kind.is_socket() || (kind.is_file() && fs::symlink_metadata(path)?.len() == 0))
}

/// Moves the state folder of `directory`, if it exists, out of a new member's way. Returns its new path, unless nothing
/// in it had contents.
///
/// # Errors
/// If the directory cannot be written. Nothing is lost then.
pub fn set_aside(directory: &Path) -> io::Result<Option<PathBuf>> {
    let folder = directory.join(STATE_FOLDER);
    match remove_empty(&folder) {
        Ok(true) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Ok(false) => {}
        Err(error) => return Err(error),
    }
    let free = |number: &u32| !directory.join(format!("{ASIDE_PREFIX}{number}")).exists();
    let number = (1..).find(free).expect("there are fewer folders than numbers");
    let aside = directory.join(format!("{ASIDE_PREFIX}{number}"));
    fs::rename(&folder, &aside)?;
    File::open(directory)?.sync_all()?;
    Ok(Some(aside))
}

/// Removes a tree if nothing in it has contents; otherwise leaves it alone and returns false.
fn remove_empty(folder: &Path) -> io::Result<bool> {
    if !holds_nothing(folder)? {
        return Ok(false);
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => drop(remove_empty(&entry.path())?),
            false => fs::remove_file(entry.path())?,
        }
    }
    fs::remove_dir(folder).map(|()| true)
}

fn holds_nothing(folder: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(folder)? {
        let (entry, path) = entry.map(|entry| (entry.file_type(), entry.path()))?;
        let kind = entry?;
        let nothing = if kind.is_dir() { holds_nothing(&path)? } else { is_empty(kind, &path)? };
        if !nothing {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINE: ClusterId = ClusterId(1);

    #[test]
    fn only_what_is_known_to_be_this_clusters_or_nobodys_may_make_room() {
        let remains = FolderRemains { example: ".striate/meta".to_owned(), ..FolderRemains::default() };
        assert_eq!(remains.refusal(MINE, false), None, "nothing in it");
        let data = FolderRemains { data: Some(".striate/chunks/1.seg".to_owned()), ..remains.clone() };
        assert!(data.refusal(MINE, false).unwrap().contains("1.seg"));
        assert_eq!(data.refusal(MINE, true), None, "the running server's own");
        let mine = FolderRemains { cluster: Some(MINE), ..data.clone() };
        assert_eq!(mine.refusal(MINE, false), None);
        let theirs = FolderRemains { cluster: Some(ClusterId(2)), ..data };
        assert!(theirs.refusal(MINE, false).unwrap().contains("cluster"));
        assert!(theirs.refusal(MINE, true).is_some());
        let named = FolderRemains { has_identity: true, cluster: Some(MINE), ..remains };
        assert!(named.refusal(MINE, true).unwrap().contains("identity"));
    }

    #[test]
    fn what_holds_something_is_moved_and_what_holds_nothing_goes() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        assert_eq!(set_aside(root).unwrap(), None, "no state folder");
        let folder = root.join(STATE_FOLDER);
        fs::create_dir_all(folder.join("meta/deeper")).unwrap();
        fs::write(folder.join(LOCK_FILE), b"").unwrap();
        let socket = std::os::unix::net::UnixListener::bind(folder.join("admin.sock")).unwrap();
        assert_eq!(set_aside(root).unwrap(), None);
        assert!(!folder.exists());
        drop(socket);
        for number in 1..3 {
            fs::create_dir_all(folder.join("meta")).unwrap();
            fs::write(folder.join("meta/meta.redb"), [number]).unwrap();
            let aside = set_aside(root).unwrap().unwrap();
            assert_eq!(aside, root.join(format!("{ASIDE_PREFIX}{number}")));
            assert_eq!(fs::read(aside.join("meta/meta.redb")).unwrap(), [number]);
        }
    }
}

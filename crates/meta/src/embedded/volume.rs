//! The engine's files: a directory of the cluster, real or simulated.
//!
//! All disk operations of the engine go through [`Volume`] and [`Storage`], so the same engine runs on real directories
//! ([`Directory`]) and on the simulated ones of [`super::simulated`], which lose power at any operation. A volume
//! detects that its path no longer leads to it: `rm -rf` under a running server leaves descriptors that "durably" write
//! to nothing, and an unmounted disk leaves an empty directory (design.md §10.10).

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

/// Identity of a directory of the cluster, whatever its path: 16 random bytes from its identity file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskId(pub [u8; 16]);

impl fmt::Display for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A directory of the cluster that may hold a mirror and always holds the metadata part of its identity.
#[derive(Clone, Debug)]
pub struct MetaDirectory {
    /// Identity of the directory.
    pub disk_id: DiskId,
    /// Files of the directory.
    pub volume: Arc<dyn Volume>,
}

impl MetaDirectory {
    /// Opens the directory at `path`, which must exist.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(disk_id: DiskId, path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self { disk_id, volume: Arc::new(Directory::open(path.as_ref())?) })
    }

    /// Opens a directory as [`MetaDirectory::open`] does, with a `witness`: a file of the same disk, outside the
    /// directory, that the server keeps open. The directory counts as the disk's only as long as the witness is the
    /// same file as now. Once the witness has gone, metadata files that a wipe has missed are no mirror any more.
    ///
    /// # Errors
    /// If one of them cannot be opened.
    pub fn open_with_witness(
        disk_id: DiskId,
        path: impl AsRef<Path>,
        witness: impl AsRef<Path>,
    ) -> io::Result<Self> {
        let mut directory = Directory::open(path.as_ref())?;
        let inode = inode(&std::fs::metadata(&witness)?);
        directory.witness = Some((witness.as_ref().to_owned(), inode));
        Ok(Self { disk_id, volume: Arc::new(directory) })
    }
}

/// The files of a directory.
pub trait Volume: Send + Sync + fmt::Debug {
    /// Returns the name to display: its path.
    fn name(&self) -> String;

    /// Reads a small file; returns `None` if it does not exist.
    fn read_file(&self, name: &str) -> io::Result<Option<Vec<u8>>>;

    /// Replaces a small file's bytes, durably and atomically. Fails where [`Volume::verify`] does. From the second time on it
    /// needs no further space, if the bytes do not grow.
    fn replace_file(&self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// Removes a file if it exists.
    fn remove_file(&self, name: &str) -> io::Result<()>;

    /// Opens a database file. With `create`, creates it durably and fails if it exists; otherwise fails with
    /// [`io::ErrorKind::NotFound`] if it does not exist.
    fn open_storage(&self, name: &str, create: bool) -> io::Result<Arc<dyn Storage>>;

    /// Fails if the volume is no longer what it was when it was opened: its path leads to another directory or to
    /// nothing, or its witness or a file written by [`Volume::replace_file`] has gone.
    fn verify(&self) -> io::Result<()>;

    /// Returns a file's length in bytes.
    fn file_len(&self, name: &str) -> io::Result<u64>;

    /// Returns the bytes that can still be written.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Reserves `len` bytes under `name`; [`Volume::remove_file`] frees them.
    fn reserve(&self, name: &str, len: u64) -> io::Result<()>;
}

/// A database file.
pub trait Storage: Send + Sync + fmt::Debug {
    /// Returns the length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Returns true if the length is zero.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Fills `out` from `offset` on; fails beyond the end.
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
    /// Writes `data` at `offset`; durable only after [`Storage::sync`].
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Truncates the file or extends it with zeros; durable only after [`Storage::sync`].
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Makes everything written before the call durable.
    fn sync(&self) -> io::Result<()>;
    /// Fails if the volume's path leads to another file.
    fn verify(&self) -> io::Result<()>;
    /// Returns the bytes allocated on the disk.
    fn allocated_bytes(&self) -> io::Result<u64>;
    /// Ends the exclusive use of the file.
    fn release(&self) -> io::Result<()>;
}

/// Returns whether a call that opens, creates or examines a file failed because the process or the machine is short of
/// descriptors, memory or threads, and not because of the disk. It must never be asked of a failed write or sync.
pub(super) fn is_of_process(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::NOMEM | Errno::AGAIN)) || is_out_of_descriptors(error)
}

/// Returns whether a file could not be opened for want of a descriptor. No other call fails so.
pub(super) fn is_out_of_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE))
}

/// Device and inode that a path leads to.
type Inode = (u64, u64);

fn inode(metadata: &Metadata) -> Inode {
    (metadata.dev(), metadata.ino())
}

/// A real directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    handle: File,
    /// A file that must remain the same inode.
    witness: Option<(PathBuf, Inode)>,
    /// Files that this process wrote, with their inodes.
    written: Mutex<BTreeMap<String, Inode>>,
}

impl Directory {
    /// Opens the directory at `path`.
    ///
    /// # Errors
    /// If it does not exist or is not a directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let handle = File::open(path)?;
        if !handle.metadata()?.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, "it is not a directory"));
        }
        Ok(Self { path: path.to_owned(), handle, witness: None, written: Mutex::default() })
    }

    fn verify_path(&self) -> io::Result<()> {
        leads_to(&self.path, inode(&self.handle.metadata()?))?;
        self.witness.as_ref().map_or(Ok(()), |(path, inode)| leads_to(path, *inode))
    }
}

/// Fails if `path` does not lead to `expected`.
fn leads_to(path: &Path, expected: Inode) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(metadata) if inode(&metadata) == expected => Ok(()),
        Ok(_) => Err(io::Error::other(format!("{} was replaced by something else", path.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(io::Error::new(error.kind(), format!("{} has vanished", path.display())))
        }
        Err(error) => Err(error),
    }
}

/// Gives the file `fresh` the name `path`, and the file there, if there is one, its old name.
fn exchange(fresh: &Path, path: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;
    match renameat_with(CWD, fresh, CWD, path, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        // Nothing is there yet, or the file system cannot exchange names.
        Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => std::fs::rename(fresh, path),
        Err(error) => Err(error.into()),
    }
}

impl Volume for Directory {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn read_file(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match std::fs::read(self.path.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn replace_file(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        // Write nothing into a directory that is being wiped.
        self.verify()?;
        let (path, temporary) = (self.path.join(name), self.path.join(format!("{name}.tmp")));
        // The replaced file keeps its space under the temporary name, for the next one: the disk may be full by then.
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&temporary)?;
        file.write_all_at(bytes, 0)?;
        file.set_len(bytes.len() as u64)?;
        file.sync_all()?;
        exchange(&temporary, &path)?;
        self.handle.sync_all()?;
        self.written.lock().insert(name.to_owned(), inode(&file.metadata()?));
        self.verify_path()
    }

    fn remove_file(&self, name: &str) -> io::Result<()> {
        match std::fs::remove_file(self.path.join(name)) {
            Ok(()) => self.handle.sync_all(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn open_storage(&self, name: &str, create: bool) -> io::Result<Arc<dyn Storage>> {
        self.verify_path()?;
        let path = self.path.join(name);
        let file = OpenOptions::new().read(true).write(true).create_new(create).open(&path)?;
        file.try_lock().map_err(|_| {
            io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!("{} is in use by another server", path.display()),
            )
        })?;
        if create {
            self.handle.sync_all()?;
        }
        let metadata = file.metadata()?;
        let database = DatabaseFile { path, file, inode: inode(&metadata) };
        database.take_space_ahead(metadata.len());
        Ok(Arc::new(database))
    }

    fn verify(&self) -> io::Result<()> {
        self.verify_path()?;
        let written = self.written.lock();
        written.iter().try_for_each(|(name, inode)| leads_to(&self.path.join(name), *inode))
    }

    fn file_len(&self, name: &str) -> io::Result<u64> {
        Ok(std::fs::metadata(self.path.join(name))?.len())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let space = rustix::fs::fstatvfs(&self.handle)?;
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }

    fn reserve(&self, name: &str, len: u64) -> io::Result<()> {
        self.verify_path()?;
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(self.path.join(name))?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len)?;
        Ok(())
    }
}

/// A database file in a real directory, locked against other processes.
#[derive(Debug)]
struct DatabaseFile {
    path: PathBuf,
    file: File,
    inode: Inode,
}

/// Space beyond the end that a database file holds. On a disk that others have filled, a start and deletes are written
/// there: a commit writes new pages before it frees old ones.
const AHEAD_BYTES: u64 = 1 << 20;
/// Length of a database file above which its pages are no longer given space in advance; so many free ones are among them.
const AHEAD_UP_TO_BYTES: u64 = 32 << 20;

impl DatabaseFile {
    /// Gives the file of this length space for all of its pages, and for some beyond its end.
    fn take_space_ahead(&self, len: u64) {
        if len <= AHEAD_UP_TO_BYTES {
            let keep_len = rustix::fs::FallocateFlags::KEEP_SIZE;
            // A full disk has none, and some file systems cannot.
            let _ = rustix::fs::fallocate(&self.file, keep_len, 0, len + AHEAD_BYTES);
        }
    }
}

impl Storage for DatabaseFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)?;
        self.take_space_ahead(len);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn verify(&self) -> io::Result<()> {
        leads_to(&self.path, self.inode)
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.blocks() * 512)
    }

    fn release(&self) -> io::Result<()> {
        self.file.unlock()
    }
}

/// Adapts a [`Storage`] to redb.
#[derive(Debug)]
pub(super) struct RedbBackend(pub(super) Arc<dyn Storage>);

impl redb::StorageBackend for RedbBackend {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.release()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_replaced_again_and_again_takes_no_new_place_on_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let directory = Directory::open(folder.path()).unwrap();
        let places = || -> std::collections::BTreeSet<u64> {
            let entries = std::fs::read_dir(folder.path()).unwrap();
            entries.map(|entry| entry.unwrap().metadata().unwrap().ino()).collect()
        };
        for text in ["one", "three"] {
            directory.replace_file("record", text.as_bytes()).unwrap();
        }
        directory.replace_file("record", b"two").unwrap();
        let before = places();
        assert_eq!(before.len(), 2, "the record and the one before it");
        for text in ["1", "22", "333"] {
            directory.replace_file("record", text.as_bytes()).unwrap();
            assert_eq!(directory.read_file("record").unwrap().unwrap(), text.as_bytes());
            directory.verify().unwrap();
        }
        assert_eq!(places(), before);
    }
}

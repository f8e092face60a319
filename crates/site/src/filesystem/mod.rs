//! The file-system interface: the few calls that a chunk store makes, so that tests can put a crash between any two.
//!
//! [`RealFileSystem`] passes them on to Linux. [`SimulatedFileSystem`] keeps files in memory, remembers what is not yet
//! synced, and can lose any part of it, fail any call, or stop at the n-th (reliability.md, after Pebble's crash-clone
//! file system). Calls block; callers that must not block run them on a thread of their own.
//!
//! The contract is POSIX as Linux implements it, and no more. A write is durable only after a [`File::sync`] that began
//! after it, a name only after [`FileSystem::sync_directory`]. After a failed sync, the fate of everything written
//! since the last good one is unknown.

mod real;
mod simulated;

use std::fmt::Debug;
use std::io;
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

pub use real::RealFileSystem;
pub use simulated::{Call, Fault, HeldSync, Reads, SimulatedFileSystem};

/// Alignment in bytes of offset, length and address of direct reads and writes: at least the logical block of any
/// device, and the page of the page cache.
pub(crate) const DIRECT_ALIGNMENT: usize = 4096;

/// Identifies a file whatever its name: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    /// Device that the file is on.
    pub device: u64,
    /// Inode of the file on the device.
    pub inode: u64,
}

/// Space of a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Size, without what is kept for other users.
    pub capacity: u64,
    /// Bytes that this user can still write.
    pub available: u64,
    /// Identifies the file system.
    pub medium: u64,
}

/// A directory tree.
pub trait FileSystem: Send + Sync + Debug {
    /// Creates a directory and its missing parents; each new name is durable on return.
    fn create_directories(&self, path: &Path) -> io::Result<()>;

    /// Creates a new file for reading and writing; fails with [`io::ErrorKind::AlreadyExists`] if the name is taken.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>>;

    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>>;

    /// Renames a file, replacing any file of the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a name. Open files stay readable.
    fn unlink(&self, path: &Path) -> io::Result<()>;

    /// Returns the names in a directory, in no particular order.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;

    /// Opens a directory, so that its names can be made durable without another descriptor.
    fn open_directory(&self, directory: &Path) -> io::Result<Box<dyn Directory>>;

    /// Makes the names of a directory durable.
    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        self.open_directory(directory)?.sync()
    }

    /// Returns the identity of the file that has this name now.
    fn identify(&self, path: &Path) -> io::Result<FileId>;

    /// Returns the space of the file system that holds `path`.
    fn space(&self, path: &Path) -> io::Result<Space>;

    /// Takes an exclusive lock on a file, which is created if missing, until the result is dropped or the process ends;
    /// fails with [`io::ErrorKind::WouldBlock`] if the lock is held.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>>;
}

/// An open file. Reads and writes name their offset; there is no cursor.
pub trait File: Send + Sync + Debug {
    /// Writes all `parts` one after the other, starting at `offset`. On an error any part may have been written.
    fn write_all_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;

    /// As [`File::write_all_at`], past the page cache if the file system supports it. `offset` and the parts' lengths
    /// and addresses are multiples of [`DIRECT_ALIGNMENT`].
    fn write_direct_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;

    /// Reads `len` bytes at `offset`; fewer only at the end of the file.
    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>>;

    /// Reads into `buffer` at `offset`; returns the number of bytes, fewer only at the end of the file.
    fn read_into(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Fills `buffer` from `offset` if that needs no wait for the medium; otherwise returns false, with arbitrary
    /// content in the buffer.
    fn read_cached_into(&self, offset: u64, buffer: &mut [u8]) -> io::Result<bool>;

    /// As [`File::read_at`], from the medium and not from the page cache.
    fn read_medium_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>>;

    /// Makes everything written before the call durable, including the file's length, but not its name.
    fn sync(&self) -> io::Result<()>;

    /// Truncates or extends the file to `len` bytes.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Returns the length of the file in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Returns whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Returns the identity of the file.
    fn id(&self) -> io::Result<FileId>;
}

/// An open directory.
pub trait Directory: Send + Sync + Debug {
    /// Makes the names in the directory durable.
    fn sync(&self) -> io::Result<()>;
}

/// Returns whether a call failed because the process or the machine is short of descriptors, memory or threads.
///
/// Of a call that opens, creates, examines or renames a file this says that the disk has nothing to do with it. It must
/// never be asked of a failed write or sync: what these wrote is in doubt whatever the reason (design.md §10.1).
pub(crate) fn is_of_process(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    use rustix::io::Errno;
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN))
}

/// A held lock; dropping it releases the lock.
pub trait Lock: Send + Sync + Debug {}

/// Writes a small file so that its name always refers to the whole old or the whole new content: a temporary file,
/// sync, rename, sync of the directory.
pub fn write_atomically(fs: &dyn FileSystem, path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension(TEMPORARY_EXTENSION);
    match fs.unlink(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = fs.create(&temporary)?;
    let written = file.write_all_at(&mut [IoSlice::new(content)], 0).and_then(|()| file.sync());
    if let Err(error) = written {
        // On a full disk it would keep the space that it got.
        let _ = fs.unlink(&temporary);
        return Err(error);
    }
    fs.rename(&temporary, path)?;
    fs.sync_directory(path.parent().unwrap_or(Path::new(".")))
}

/// Extension of files that the next start may sweep.
pub(crate) const TEMPORARY_EXTENSION: &str = "tmp";

/// Reads a whole small file.
pub(crate) fn read_whole(fs: &dyn FileSystem, path: &Path) -> io::Result<Vec<u8>> {
    let file = fs.open(path)?;
    let len = file.len()?;
    file.read_at(0, len as usize)
}

//! The file-system seam: the few calls a chunk store makes, so that tests can stand a crash in between any two.
//!
//! [`RealFileSystem`] passes them on to Linux. [`SimulatedFileSystem`] keeps files in memory, remembers what is
//! not yet synced, and can lose any part of it, fail any call, or stop at the n-th (reliability.md, after Pebble's
//! crash-clone file system). Calls block; whoever needs otherwise runs them on a thread of its own.
//!
//! The contract is POSIX as Linux keeps it, no more: a write is durable only after a [`File::sync`] that began
//! after it, a name only after [`FileSystem::sync_directory`], and after a failed sync nothing is known of what was
//! written since the last good one.

mod real;
mod simulated;

use std::fmt::Debug;
use std::io;
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

pub use real::RealFileSystem;
pub use simulated::{Call, Fault, HeldSync, Reads, SimulatedFileSystem};

/// Offset, length and address of direct reads and writes are multiples of this; it is at least any device's logical
/// block and the page of the page cache.
pub(crate) const DIRECT_ALIGNMENT: usize = 4096;

/// What tells one file from another, whatever its name: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    /// The device it lies on.
    pub device: u64,
    /// Its inode there.
    pub inode: u64,
}

/// The room on a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// The whole.
    pub capacity: u64,
    /// What can still be written by this user.
    pub available: u64,
    /// Identifies the file system.
    pub medium: u64,
}

/// A directory tree.
pub trait FileSystem: Send + Sync + Debug {
    /// Creates a directory and its parents where they are missing; each new name is durable on return.
    fn create_directories(&self, path: &Path) -> io::Result<()>;

    /// Creates a new file for reading and writing; [`io::ErrorKind::AlreadyExists`] if the name is taken.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>>;

    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>>;

    /// Gives a file another name, replacing a file that has it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a name. Open files stay readable.
    fn unlink(&self, path: &Path) -> io::Result<()>;

    /// The names of a directory, in no order.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;

    /// Makes the names of a directory durable.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;

    /// The identity of the file that has this name now.
    fn identify(&self, path: &Path) -> io::Result<FileId>;

    /// The room on the file system that holds `path`.
    fn space(&self, path: &Path) -> io::Result<Space>;

    /// Takes an exclusive lock on a file, which is created if missing, until the result is dropped or the process
    /// ends; [`io::ErrorKind::WouldBlock`] if another holder has it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>>;
}

/// An open file. Reads and writes name their offset; there is no cursor.
pub trait File: Send + Sync + Debug {
    /// Writes all of `parts`, one after the other, from `offset` on. On an error any part may have been written.
    fn write_all_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;

    /// As [`File::write_all_at`], past the page cache if the file system can do that. `offset` and the parts' lengths
    /// and addresses are multiples of [`DIRECT_ALIGNMENT`].
    fn write_direct_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;

    /// Reads `len` bytes from `offset` on; fewer only at the end of the file.
    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>>;

    /// Reads from `offset` on into `buffer`; answers how many bytes, fewer only at the end of the file.
    fn read_into(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Fills `buffer` from `offset` on if that needs no wait for the medium; otherwise answers false, and the buffer's
    /// content is arbitrary.
    fn read_cached_into(&self, offset: u64, buffer: &mut [u8]) -> io::Result<bool>;

    /// As [`File::read_at`], from the medium and not from the page cache.
    fn read_medium_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>>;

    /// Makes everything written before the call durable, the file's length included, but not its name.
    fn sync(&self) -> io::Result<()>;

    /// Cuts or extends the file.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// The file's length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// True when the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Its identity.
    fn id(&self) -> io::Result<FileId>;
}

/// A held lock; dropping it lets go.
pub trait Lock: Send + Sync + Debug {}

/// Writes a small file so that its name always stands for the whole old or the whole new content: a temporary
/// neighbour, sync, rename, sync of the directory.
pub fn write_atomically(fs: &dyn FileSystem, path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension(TEMPORARY_EXTENSION);
    match fs.unlink(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = fs.create(&temporary)?;
    file.write_all_at(&mut [IoSlice::new(content)], 0)?;
    file.sync()?;
    fs.rename(&temporary, path)?;
    fs.sync_directory(path.parent().unwrap_or(Path::new(".")))
}

/// The extension of files that may be swept at the next start.
pub(crate) const TEMPORARY_EXTENSION: &str = "tmp";

/// Reads a whole small file.
pub(crate) fn read_whole(fs: &dyn FileSystem, path: &Path) -> io::Result<Vec<u8>> {
    let file = fs.open(path)?;
    let len = file.len()?;
    file.read_at(0, len as usize)
}

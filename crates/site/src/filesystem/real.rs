//! The real file system of the machine.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::fs::{Advice, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::{DIRECT_ALIGNMENT, Directory, File, FileId, FileSystem, Lock, Space, is_of_process};

/// Linux, through its system calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealFileSystem;

impl FileSystem for RealFileSystem {
    fn create_directories(&self, path: &Path) -> io::Result<()> {
        let create = |path: &Path| match fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        };
        create_durably(path, &Path::is_dir, &create, &|parent| self.sync_directory(parent))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        Ok(Arc::new(RealFile::new(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = fs::OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Arc::new(RealFile::new(file)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(directory)? {
            // Striate's own names are ASCII; other names are ignored.
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn open_directory(&self, directory: &Path) -> io::Result<Box<dyn Directory>> {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        Ok(Box::new(RealDirectory(fs::File::open(directory)?)))
    }

    fn identify(&self, path: &Path) -> io::Result<FileId> {
        Ok(file_id(&fs::metadata(path)?))
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let stat = rustix::fs::statvfs(path)?;
        // `f_fsid` is zero on some file systems; the device number is always distinct on one machine.
        let medium = fs::metadata(path)?.dev();
        Ok(Space {
            // Not what the system keeps for others: a disk is full when nothing is available.
            capacity: (stat.f_blocks.saturating_sub(stat.f_bfree) + stat.f_bavail) * stat.f_frsize,
            available: stat.f_bavail * stat.f_frsize,
            medium,
        })
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(RealLock { _file: file }))
    }
}

/// Creates `path` and its missing parents, and makes each new name durable before the next one. A name that already
/// exists may come from a start that was killed before it had synced it; those above it are durable.
fn create_durably(
    path: &Path,
    exists: &dyn Fn(&Path) -> bool,
    create: &dyn Fn(&Path) -> io::Result<()>,
    sync: &dyn Fn(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let Some(parent) = path.parent() else { return Ok(()) };
    if exists(path) {
        return match sync(parent) {
            // A directory that may not be read cannot be synced: a mount point that another user made.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            result => result,
        };
    }
    create_durably(parent, exists, create, sync)?;
    create(path)?;
    sync(parent)
}

fn file_id(metadata: &fs::Metadata) -> FileId {
    FileId { device: metadata.dev(), inode: metadata.ino() }
}

#[derive(Debug)]
struct RealDirectory(fs::File);

impl Directory for RealDirectory {
    fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}

/// A lock that lives as long as its descriptor.
#[derive(Debug)]
struct RealLock {
    _file: fs::File,
}

impl Lock for RealLock {}

#[derive(Debug)]
struct RealFile {
    file: fs::File,
    /// False once the file system has refused `RWF_NOWAIT`.
    nowait: AtomicBool,
    /// A second descriptor with `O_DIRECT`, opened at the first use; the inner `None` means that it was refused.
    direct: Mutex<Option<Option<Arc<fs::File>>>>,
    /// A third descriptor, without read-ahead by the kernel, opened at the first large read; the inner `None` means that
    /// it was refused.
    exact: OnceLock<Option<fs::File>>,
}

/// Number of bytes above which a read uses the descriptor without read-ahead: the kernel reads all of it at once, and
/// nothing beyond. It would otherwise take neighbouring chunks for a sequential read and read ahead into parities,
/// which are not needed: an eighth more than was asked for. Smaller reads keep the kernel's read-ahead.
const EXACT_FROM: usize = 128 << 10;

impl RealFile {
    fn new(file: fs::File) -> Self {
        Self { file, nowait: AtomicBool::new(true), direct: Mutex::new(None), exact: OnceLock::new() }
    }

    /// Returns the descriptor for a read of `len` bytes through the page cache.
    fn for_read(&self, len: usize) -> &fs::File {
        if len <= EXACT_FROM {
            return &self.file;
        }
        if self.exact.get().is_none() {
            let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            let opened = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
            let advised =
                opened.and_then(|file| rustix::fs::fadvise(&file, 0, None, Advice::Random).map(|()| file));
            if let Some(known) = lasting(advised) {
                // Another reader may have set it meanwhile.
                let _ = self.exact.set(known.map(fs::File::from));
            }
        }
        self.exact.get().and_then(Option::as_ref).unwrap_or(&self.file)
    }

    fn direct(&self) -> Option<Arc<fs::File>> {
        let mut direct = self.direct.lock();
        if direct.is_none() {
            // Through /proc, so that it is the same file even if its name is gone.
            let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
            let opened = rustix::fs::open(path, flags, Mode::empty());
            *direct = lasting(opened).map(|known| known.map(|file| Arc::new(fs::File::from(file))));
        }
        direct.clone().flatten()
    }
}

/// Returns a further descriptor of a file, or that there can be none. `None` if that is not known, because the process
/// was short of descriptors: the next call tries again.
fn lasting<F>(opened: Result<F, Errno>) -> Option<Option<F>> {
    match opened {
        Ok(file) => Some(Some(file)),
        Err(error) if is_of_process(&error.into()) => None,
        Err(_) => Some(None),
    }
}

fn read_direct(file: &fs::File, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let skip = (offset % DIRECT_ALIGNMENT as u64) as usize;
    let span = (skip + len).next_multiple_of(DIRECT_ALIGNMENT);
    let mut buffer = vec![0; span + DIRECT_ALIGNMENT];
    let start = buffer.as_ptr().align_offset(DIRECT_ALIGNMENT);
    let aligned = &mut buffer[start..start + span];
    let mut filled = 0;
    while filled < span {
        match rustix::io::pread(file, &mut aligned[filled..], offset - skip as u64 + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // A direct read is short only at the end of the file, at an offset where another direct read could not begin.
        if filled % DIRECT_ALIGNMENT != 0 {
            break;
        }
    }
    let end = filled.min(skip + len);
    // Moved within the buffer: a copy would need as much memory again.
    buffer.copy_within(start + skip.min(end)..start + end, 0);
    buffer.truncate(end - skip.min(end));
    Ok(buffer)
}

/// Writes parts from `offset` on until an error; `parts` and `offset` advance past what was written.
fn write_parts(file: &fs::File, parts: &mut &mut [IoSlice<'_>], offset: &mut u64) -> Result<(), Errno> {
    // Linux takes at most 1,024 parts per call.
    const MAX_PARTS: usize = 1024;
    IoSlice::advance_slices(parts, 0);
    while !parts.is_empty() {
        let count = parts.len().min(MAX_PARTS);
        match rustix::io::pwritev(file, &parts[..count], *offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => {
                *offset += written as u64;
                IoSlice::advance_slices(parts, written);
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl File for RealFile {
    fn write_all_at(&self, mut parts: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        Ok(write_parts(&self.file, &mut parts, &mut offset)?)
    }

    fn write_direct_at(&self, mut parts: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        if let Some(direct) = self.direct() {
            match write_parts(&direct, &mut parts, &mut offset) {
                // Refused, or cut short where a direct write cannot continue: the rest goes through the cache.
                Err(Errno::INVAL) => {}
                result => return Ok(result?),
            }
        }
        self.write_all_at(parts, offset)
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut buffer = Vec::with_capacity(len);
        while buffer.len() < len {
            let at = offset + buffer.len() as u64;
            match rustix::io::pread(&self.file, rustix::buffer::spare_capacity(&mut buffer), at) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        buffer.truncate(len);
        Ok(buffer)
    }

    fn read_into(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let file = self.for_read(buffer.len());
        let mut filled = 0;
        while filled < buffer.len() {
            match rustix::io::pread(file, &mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(filled)
    }

    fn read_cached_into(&self, offset: u64, buffer: &mut [u8]) -> io::Result<bool> {
        if !self.nowait.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let len = buffer.len();
        let file = self.for_read(len);
        let mut parts = [IoSliceMut::new(buffer)];
        match rustix::io::preadv2(file.as_fd(), &mut parts, offset, ReadWriteFlags::NOWAIT) {
            // Fewer bytes mean a partly cached range or the end of the file; the blocking read finds out which.
            Ok(count) => Ok(count == len),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                self.nowait.store(false, Ordering::Relaxed);
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn read_medium_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        if let Some(direct) = self.direct() {
            match read_direct(&direct, offset, len) {
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {}
                result => return result,
            }
        }
        // Without O_DIRECT, clean pages are dropped first, so that the read comes from the medium. Pages that are dirty
        // or held by others stay, which makes this fallback a weaker check.
        let length = std::num::NonZeroU64::new(len as u64);
        rustix::fs::fadvise(&self.file, offset, length, Advice::DontNeed)?;
        self.read_at(offset, len)
    }

    fn sync(&self) -> io::Result<()> {
        loop {
            match rustix::fs::fdatasync(&self.file) {
                Err(Errno::INTR) => {}
                result => return Ok(result?),
            }
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn id(&self) -> io::Result<FileId> {
        Ok(file_id(&self.file.metadata()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_cached_and_plain_reads_agree_at_any_offset() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = RealFileSystem.create(&directory.path().join("file")).expect("a file");
        let bytes = crate::conformance::payload(1, 20_001);
        file.write_all_at(&mut [IoSlice::new(&bytes[..7]), IoSlice::new(&bytes[7..])], 0).expect("a write");
        for (offset, len) in [(0, 20_001), (1, 4096), (4095, 2), (8192, 8192), (19_999, 100), (30_000, 5)] {
            let expected = &bytes[offset.min(20_001)..(offset + len).min(20_001)];
            assert_eq!(file.read_at(offset as u64, len).expect("a read"), expected);
            assert_eq!(file.read_medium_at(offset as u64, len).expect("a read"), expected);
            let mut buffer = vec![0; len];
            assert_eq!(file.read_into(offset as u64, &mut buffer).expect("a read"), expected.len());
            assert_eq!(&buffer[..expected.len()], expected);
            if file.read_cached_into(offset as u64, &mut buffer).expect("a read") {
                assert_eq!(buffer, expected);
            }
        }
    }

    /// A start may be killed between making a directory and syncing the parent that holds its name.
    #[test]
    fn directories_that_are_there_already_are_durable_on_return_too() {
        let root = tempfile::tempdir().expect("a directory");
        let (made, synced) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let create = |path: &Path| {
            made.lock().push(path.to_owned());
            fs::create_dir(path)
        };
        let sync = |path: &Path| {
            synced.lock().push(path.to_owned());
            RealFileSystem.sync_directory(path)
        };
        let (above, path) = (root.path().join(".striate"), root.path().join(".striate/chunks"));
        let ensure = || create_durably(&path, &Path::is_dir, &create, &sync).expect("created");
        let taken = |list: &Mutex<Vec<_>>| std::mem::take(&mut *list.lock());
        ensure();
        assert_eq!(taken(&made), [above.clone(), path.clone()]);
        assert!(taken(&synced).ends_with(&[root.path().to_owned(), above.clone()]), "each before the next");
        ensure();
        assert_eq!(taken(&made), Vec::<std::path::PathBuf>::new());
        assert_eq!(taken(&synced), std::slice::from_ref(&above));
        fs::remove_dir(&path).expect("removed");
        ensure();
        assert_eq!(taken(&made), std::slice::from_ref(&path));
        assert_eq!(taken(&synced), [root.path().to_owned(), above.clone()]);
    }

    #[test]
    fn a_lock_is_exclusive_until_dropped() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("lock");
        let held = RealFileSystem.lock(&path).expect("a lock");
        assert_eq!(RealFileSystem.lock(&path).expect_err("taken").kind(), io::ErrorKind::WouldBlock);
        drop(held);
        RealFileSystem.lock(&path).expect("free again");
    }
}

//! Segments: append-only files of records.
//!
//! ```text
//! SEGMENT-NONCE.seg          both in hexadecimal, 8 and 16 digits
//!   0   8  magic "StriaSeg"
//!   8   1  format version: the newest of a record in it
//!   9   3  zeros
//!  12   4  segment number
//!  16   8  nonce
//!  24   8  highest fencing epoch when the segment was made
//!  32   4  zeros
//!  36   4  CRC-32C of bytes 0..36
//!  40      records
//! SEGMENT-NONCE.condemned    after a failed sync
//!   0   8  length in bytes of the segment's part that is known to be durable
//!   8   4  CRC-32C of bytes 0..8
//! ```
//!
//! Number and nonce are also in the file's name, so that a damaged header costs only its copy of the epoch, which
//! newer segments and every tombstone repeat. Records of a newer format go into a segment of their version, so that
//! a program that does not support it refuses the whole segment, and never takes such a record for damage. A
//! segment is created and synced, and its directory synced, before anything in it is acknowledged. After a failed
//! sync, the `condemned` file is durable before any decision: the page cache still shows what the medium lost, and
//! a restart must not believe it.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use striate_codec::crc32c;
use striate_core::FencingEpoch;

use super::record::{FORMAT_VERSION, Place, read_u32, read_u64};
use crate::filesystem::{self, File, FileSystem};

/// Length in bytes of a segment's header.
pub(super) const SEGMENT_HEADER_LEN: u64 = 40;

const MAGIC: [u8; 8] = *b"StriaSeg";
const SEGMENT_EXTENSION: &str = "seg";
const CONDEMNED_EXTENSION: &str = "condemned";

/// A segment's name: its number and its nonce, which also name its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SegmentName {
    pub number: u32,
    pub nonce: u64,
}

impl SegmentName {
    /// Parses the file name of a segment.
    pub fn parse(file_name: &str) -> Option<Self> {
        Self::parse_with(file_name, SEGMENT_EXTENSION)
    }

    /// Parses the name of a file that condemns a segment.
    pub fn parse_condemned(file_name: &str) -> Option<Self> {
        Self::parse_with(file_name, CONDEMNED_EXTENSION)
    }

    fn parse_with(file_name: &str, extension: &str) -> Option<Self> {
        let stem = file_name.strip_suffix(extension)?.strip_suffix('.')?;
        let (number, nonce) = stem.split_once('-')?;
        if number.len() != 8 || nonce.len() != 16 {
            return None;
        }
        let number = u32::from_str_radix(number, 16).ok()?;
        Some(Self { number, nonce: u64::from_str_radix(nonce, 16).ok()? })
    }

    /// Returns the path of the segment's file.
    pub fn path(&self, directory: &Path) -> PathBuf {
        directory.join(format!("{:08x}-{:016x}.{SEGMENT_EXTENSION}", self.number, self.nonce))
    }

    /// Returns the path of the file that a compaction fills before it renames it.
    pub fn temporary_path(&self, directory: &Path) -> PathBuf {
        self.path(directory).with_extension(filesystem::TEMPORARY_EXTENSION)
    }

    /// Returns the path of the file that condemns the segment.
    pub fn condemned_path(&self, directory: &Path) -> PathBuf {
        self.path(directory).with_extension(CONDEMNED_EXTENSION)
    }

    pub fn place(&self, offset: u64) -> Place {
        Place { nonce: self.nonce, segment: self.number, offset }
    }

    /// Encodes the header of a new segment.
    pub fn encode_header(&self, content: SegmentHeader) -> [u8; SEGMENT_HEADER_LEN as usize] {
        let mut header = [0; SEGMENT_HEADER_LEN as usize];
        header[..8].copy_from_slice(&MAGIC);
        header[8] = content.version;
        header[12..16].copy_from_slice(&self.number.to_le_bytes());
        header[16..24].copy_from_slice(&self.nonce.to_le_bytes());
        header[24..32].copy_from_slice(&content.epoch.0.to_le_bytes());
        let crc = crc32c(&header[..36]);
        header[36..].copy_from_slice(&crc.to_le_bytes());
        header
    }

    /// Decodes a header; `None` for a damaged one, and the version of a newer format as an error.
    pub fn decode_header(&self, header: &[u8]) -> Result<Option<SegmentHeader>, u8> {
        let intact = header.len() == SEGMENT_HEADER_LEN as usize
            && header[..8] == MAGIC
            && read_u32(header, 36) == crc32c(&header[..36]);
        if intact && header[8] > FORMAT_VERSION {
            return Err(header[8]);
        }
        let own = intact && read_u32(header, 12) == self.number && read_u64(header, 16) == self.nonce;
        Ok(own.then(|| SegmentHeader { version: header[8], epoch: FencingEpoch(read_u64(header, 24)) }))
    }

    /// Condemns everything behind `durable_len`.
    pub fn condemn(&self, fs: &dyn FileSystem, directory: &Path, durable_len: u64) -> io::Result<()> {
        let mut content = durable_len.to_le_bytes().to_vec();
        content.extend_from_slice(&crc32c(&content).to_le_bytes());
        filesystem::write_atomically(fs, &self.condemned_path(directory), &content)
    }

    /// Reads the durable length from a condemned segment's file; zero if the file is damaged.
    pub fn read_condemned(&self, fs: &dyn FileSystem, directory: &Path) -> io::Result<u64> {
        let content = filesystem::read_whole(fs, &self.condemned_path(directory))?;
        let intact = content.len() == 12 && read_u32(&content, 8) == crc32c(&content[..8]);
        Ok(if intact { read_u64(&content, 0) } else { 0 })
    }
}

/// Content of a segment's header besides its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    /// The newest format of a record that the segment may hold.
    pub version: u8,
    /// The highest fencing epoch when the segment was made.
    pub epoch: FencingEpoch,
}

/// A readable segment. Readers hold it, and its open file, as long as they need.
#[derive(Debug)]
pub(super) struct Segment {
    pub name: SegmentName,
    pub path: PathBuf,
    file: RwLock<Option<Arc<dyn File>>>,
}

impl Segment {
    pub fn new(name: SegmentName, directory: &Path) -> Arc<Self> {
        Arc::new(Self { name, path: name.path(directory), file: RwLock::new(None) })
    }

    /// Closes the file until the next read.
    #[cfg(test)]
    pub fn close(&self) {
        self.file.write().take();
    }
}

/// Bounds the number of open segment files: beyond the limit the segment that was opened first is closed, and reopened
/// when it is read.
#[derive(Debug)]
pub(super) struct OpenFiles {
    limit: usize,
    order: Mutex<VecDeque<Weak<Segment>>>,
}

impl OpenFiles {
    pub fn new(limit: usize) -> Self {
        Self { limit, order: Mutex::new(VecDeque::new()) }
    }

    /// Returns the open file of a segment, and opens it if it is not open.
    pub fn get(&self, fs: &dyn FileSystem, segment: &Arc<Segment>) -> io::Result<Arc<dyn File>> {
        if let Some(file) = &*segment.file.read() {
            return Ok(file.clone());
        }
        let file = fs.open(&segment.path)?;
        self.put(segment, file.clone());
        Ok(file)
    }

    /// Keeps the file of a segment that is already open.
    pub fn put(&self, segment: &Arc<Segment>, file: Arc<dyn File>) {
        if segment.file.write().replace(file).is_some() {
            return;
        }
        let mut order = self.order.lock();
        order.push_back(Arc::downgrade(segment));
        while order.len() > self.limit {
            if let Some(oldest) = order.pop_front().and_then(|oldest| oldest.upgrade()) {
                oldest.file.write().take();
            }
        }
    }
}

/// Creates a segment's file with its header under `path`, and syncs it. The caller syncs the directory.
pub(super) fn create_segment(
    fs: &dyn FileSystem,
    name: SegmentName,
    path: &Path,
    header: SegmentHeader,
) -> io::Result<Arc<dyn File>> {
    let file = fs.create(path)?;
    write_header(&*file, name, header)?;
    Ok(file)
}

/// Writes and syncs the header of a new segment.
pub(super) fn write_header(file: &dyn File, name: SegmentName, header: SegmentHeader) -> io::Result<()> {
    file.write_all_at(&mut [IoSlice::new(&name.encode_header(header))], 0)?;
    file.sync()
}

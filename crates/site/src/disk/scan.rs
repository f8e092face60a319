//! Scans a segment from end to end when the index does not cover it.
//!
//! The scan hops from header to header. Where there is no valid header (a hole left by a torn write, a flipped bit in a
//! length or elsewhere in a header), it searches at every multiple of 8 for the next header that passes its checksum:
//! one bad header costs one chunk (design.md §10.11). Records behind the last mark may be torn. Their payloads are read
//! and verified, and a record that fails is ignored, as if it had never been written.

use std::io;
use std::sync::Arc;

use super::record::{ALIGNMENT, ChunkRecord, FIXED_LEN, MAGIC, Record, RecordError};
use super::segment::SegmentName;
use crate::filesystem::{self, File};

/// Number of bytes read at a time while hopping.
const WINDOW_LEN: usize = 64 * 1024;

/// Contents of a segment or of its end.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Offsets and records, in order.
    pub records: Vec<(u32, Record)>,
    /// End of the last record.
    pub end: u64,
    /// Length of the file in bytes.
    pub file_len: u64,
    /// Bytes that belong to no record.
    pub damaged_bytes: u64,
    /// Number of chunks behind the last mark with an intact header and a damaged payload.
    pub torn: usize,
    /// Version of a record whose format is newer than this program supports.
    pub newer_version: Option<u8>,
}

impl Scan {
    /// Returns whether the file ends where its last record does, and nothing in it is torn or damaged.
    pub fn is_clean(&self) -> bool {
        self.end == self.file_len && self.torn == 0 && self.damaged_bytes == 0
    }
}

/// Scans from `from`, which is the start of a record, to `limit` or the end of the file.
pub(super) fn scan(
    file: &Arc<dyn File>,
    name: SegmentName,
    from: u64,
    limit: Option<u64>,
) -> io::Result<Scan> {
    let file_len = file.len()?;
    let mut scanner = Scanner::new(file.clone(), name, from, limit.unwrap_or(file_len).min(file_len));
    let mut scan = Scan { end: from, file_len, ..Scan::default() };
    let mut unmarked = 0;
    loop {
        match scanner.next_record() {
            Ok(Some((offset, record))) => {
                if record == Record::Mark {
                    unmarked = scan.records.len();
                }
                scan.end = u64::from(offset) + record.len();
                scan.records.push((offset, record));
            }
            Ok(None) => break,
            Err(version) => {
                scan.newer_version = Some(version);
                return Ok(scan);
            }
        }
    }
    scan.damaged_bytes = scanner.damaged_bytes;
    drop_torn(file, &mut scan, unmarked);
    Ok(scan)
}

/// Iterates over the records of a segment.
#[derive(Debug)]
pub(super) struct Scanner {
    window: Window,
    name: SegmentName,
    position: u64,
    /// Bytes skipped that belong to no record.
    pub damaged_bytes: u64,
}

impl Scanner {
    /// Creates a scanner from `from` to `end`, which is at most the file's length.
    pub fn new(file: Arc<dyn File>, name: SegmentName, from: u64, end: u64) -> Self {
        let window = Window { file, start: 0, bytes: Vec::new(), end };
        Self { window, name, position: from, damaged_bytes: 0 }
    }

    /// Returns the offset from which the next record is searched.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the next record and its offset; `None` at the end; the version of a record that is too new as an error.
    pub fn next_record(&mut self) -> Result<Option<(u32, Record)>, u8> {
        while self.position + (FIXED_LEN as u64) <= self.window.end && self.position <= u64::from(u32::MAX) {
            let position = self.position;
            match self.decode(position) {
                Ok(record) => {
                    self.position = position + record.len();
                    return Ok(Some((position as u32, record)));
                }
                Err(RecordError::NewerVersion(version)) => return Err(version),
                Err(_) => {
                    self.position = self.window.next_candidate(position + ALIGNMENT);
                    self.damaged_bytes += self.position - position;
                }
            }
        }
        Ok(None)
    }

    /// Decodes the record at `position`, if it is one and ends within the file.
    fn decode(&mut self, position: u64) -> Result<Record, RecordError> {
        let place = self.name.place(position);
        let mut decoded = Record::decode(self.window.at(position, FIXED_LEN), place);
        if let Err(RecordError::Needs(len)) = decoded {
            decoded = Record::decode(self.window.at(position, len), place);
        }
        let end = match &decoded {
            Ok(Record::Chunk(chunk)) => position + (chunk.header_len() + chunk.stored_len()) as u64,
            Ok(record) => position + record.len(),
            Err(_) => return decoded,
        };
        if end > self.window.end { Err(RecordError::Damaged) } else { decoded }
    }
}

/// Reads the payloads of the records behind the last mark and drops those that fail.
fn drop_torn(file: &Arc<dyn File>, scan: &mut Scan, unmarked: usize) {
    let tail = scan.records.split_off(unmarked);
    for (offset, record) in tail {
        let intact = match &record {
            Record::Chunk(chunk) => matches!(read_stored(file, chunk, offset), Ok(Some(_))),
            _ => true,
        };
        if intact {
            scan.records.push((offset, record));
        } else {
            scan.torn += 1;
        }
    }
}

/// Reads what follows the header of the record at `offset`: the payload, or the pages of a paged chunk. `None` if a
/// granule does not match or cannot be read.
///
/// # Errors
/// If the process is too short of memory to read.
pub(super) fn read_stored(
    file: &Arc<dyn File>,
    chunk: &ChunkRecord,
    offset: u32,
) -> io::Result<Option<Vec<u8>>> {
    let start = u64::from(offset) + chunk.header_len() as u64;
    let stored = match file.read_at(start, chunk.stored_len()) {
        Ok(stored) => stored,
        Err(error) if filesystem::is_of_process(&error) => return Err(error),
        // An unreadable sector costs its chunk, not the store.
        Err(_) => return Ok(None),
    };
    let is_intact = stored.len() == chunk.stored_len() && chunk.check_stored(0, &stored).is_ok();
    Ok(is_intact.then_some(stored))
}

/// A part of the file in memory.
#[derive(Debug)]
struct Window {
    file: Arc<dyn File>,
    start: u64,
    bytes: Vec<u8>,
    end: u64,
}

impl Window {
    /// Returns `len` bytes from `position`; fewer at the end, or where the medium cannot be read.
    fn at(&mut self, position: u64, len: usize) -> &[u8] {
        let len = len.min((self.end - position) as usize);
        let held = position >= self.start && position + len as u64 <= self.start + self.bytes.len() as u64;
        if !held {
            let wanted = len.max(WINDOW_LEN.min((self.end - position) as usize));
            self.bytes = match self.file.read_at(position, wanted) {
                Ok(bytes) => bytes,
                // An unreadable place is treated like other damage: as zeros, which are no record.
                Err(_) => vec![0; len],
            };
            self.start = position;
        }
        let skip = (position - self.start) as usize;
        &self.bytes[skip..self.bytes.len().min(skip + len)]
    }

    /// Returns the next multiple of 8 from `position` on where a record may begin; the end if there is none.
    fn next_candidate(&mut self, mut position: u64) -> u64 {
        while position + (FIXED_LEN as u64) <= self.end {
            let bytes = self.at(position, WINDOW_LEN);
            let found = bytes.chunks(ALIGNMENT as usize).position(|word| word.starts_with(&MAGIC));
            match found {
                Some(word) => return position + word as u64 * ALIGNMENT,
                None => position += (bytes.len() as u64).next_multiple_of(ALIGNMENT).max(ALIGNMENT),
            }
        }
        position.max(self.end)
    }
}

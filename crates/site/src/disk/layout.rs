//! Layout of a group of records in its segment, and the calls that write it.
//!
//! Small records follow one another and go through the page cache, where they are soon read again. A group with a large
//! payload is written past it, because copying megabytes into fresh pages of the cache costs more than all other work
//! of a put together. Direct writes begin and end at page boundaries, in the file and in memory:
//!
//! ```text
//! | … earlier group | gap || gap, header | payload, whole pages | payload's rest, gap, header | payload … | gap ||
//!                 buffered  \_ made here _/ \_ not copied ______/ \_ made here ______________/
//! ```
//!
//! A *gap* is a record without content. It moves a payload to the start of a page, so that the payload is
//! written straight from where it lies. A payload that does not begin at a page boundary in memory is copied
//! together with its header. A payload here is what follows a record's header: for a paged chunk its pages,
//! which then are pages of the file, too.

use std::io::{self, IoSlice};
use std::ops::Range;

use bytes::Bytes;

use super::form::Form;
use super::index::Location;
use super::record::{ALIGNMENT, FIXED_LEN, Record};
use super::segment::SegmentName;
use crate::filesystem::{DIRECT_ALIGNMENT, File};

const PAGE: usize = DIRECT_ALIGNMENT;

/// Maximum length in bytes of a buffer that is kept for the next group.
const KEPT_BUFFER: usize = 4 << 20;

/// Where and how a group is appended.
#[derive(Clone, Copy, Debug)]
pub(super) struct AppendPosition {
    pub name: SegmentName,
    pub start: u64,
    /// Whether a mark goes before the first record.
    pub mark_due: bool,
    /// Groups with a payload of at least this many bytes are written past the page cache.
    pub direct_bytes: usize,
}

/// A group laid out.
#[derive(Debug)]
pub(super) struct Layout<'g> {
    /// Location of each record, without gaps.
    pub locations: Vec<Location>,
    /// Length of the segment including the group.
    pub end: u64,
    records: &'g [(Record, Bytes)],
    start: u64,
    /// Headers, padding and copied payloads; `made[aligned..]` begins at a page boundary in memory.
    encoded: Vec<u8>,
    pieces: Vec<Piece>,
    /// The offset from which the group is written directly, and the number of pieces before it.
    direct_from: Option<(u64, usize)>,
}

/// A piece of a group, in file order.
#[derive(Clone, Debug)]
enum Piece {
    Encoded(Range<usize>),
    Payload { record: usize, range: Range<usize> },
}

impl<'g> Layout<'g> {
    /// Lays `records` out. `buffer` is the memory of an earlier group.
    pub fn new(at: AppendPosition, records: &'g [(Record, Bytes)], buffer: Vec<u8>) -> Self {
        let is_direct = records.iter().any(|(_, payload)| at.is_large(payload));
        let mut builder = Builder::new(at, buffer, room(at, records, is_direct));
        if at.mark_due {
            builder.record(&Record::Mark);
        }
        let direct_from = is_direct.then(|| builder.begin_direct());
        let mut locations = Vec::with_capacity(records.len());
        for (number, (record, payload)) in records.iter().enumerate() {
            let uncopied = at.uncopied(payload, is_direct);
            if let Record::Chunk(chunk) = record
                && is_direct
                && uncopied > 0
            {
                builder.gap_to(PAGE - chunk.header_len() % PAGE);
            }
            locations.push(builder.location(record));
            builder.record(record);
            builder.refer(number, uncopied);
            builder.copy(&payload[uncopied..]);
            builder.pad();
        }
        if is_direct {
            builder.gap_to(0);
        }
        builder.close_encoded();
        let Builder { position: end, encoded, pieces, capacity, .. } = builder;
        debug_assert_eq!(encoded.capacity(), capacity, "a buffer that moved is aligned no more");
        Self { locations, end, records, start: at.start, encoded, pieces, direct_from }
    }

    /// Writes the group; the caller syncs.
    pub fn write(&self, file: &dyn File) -> io::Result<()> {
        let (direct_offset, direct_piece) = self.direct_from.unwrap_or((self.end, self.pieces.len()));
        let (buffered, direct) = self.pieces.split_at(direct_piece);
        if !buffered.is_empty() {
            file.write_all_at(&mut self.slices(buffered), self.start)?;
        }
        if !direct.is_empty() {
            file.write_direct_at(&mut self.slices(direct), direct_offset)?;
        }
        Ok(())
    }

    fn slices(&self, pieces: &[Piece]) -> Vec<IoSlice<'_>> {
        let bytes = |piece: &Piece| match piece {
            Piece::Encoded(range) => IoSlice::new(&self.encoded[range.clone()]),
            Piece::Payload { record, range } => IoSlice::new(&self.records[*record].1[range.clone()]),
        };
        pieces.iter().map(bytes).collect()
    }

    /// Returns the buffer for the next group, or an empty one if it grew unusually large.
    pub fn into_buffer(self) -> Vec<u8> {
        if self.encoded.capacity() > KEPT_BUFFER { Vec::new() } else { self.encoded }
    }
}

impl AppendPosition {
    fn is_large(&self, payload: &[u8]) -> bool {
        payload.len() >= self.direct_bytes
    }

    /// Returns how many bytes of a payload are written without a copy.
    fn uncopied(&self, payload: &[u8], is_direct: bool) -> usize {
        let is_aligned = payload.as_ptr().align_offset(PAGE) == 0;
        match is_direct {
            true if self.is_large(payload) && is_aligned => payload.len() / PAGE * PAGE,
            true => 0,
            false => payload.len(),
        }
    }
}

/// Returns an upper bound on the memory used, so that the buffer never moves and stays aligned: a mark and two gaps
/// around the group, and a gap before each record.
fn room(at: AppendPosition, records: &[(Record, Bytes)], is_direct: bool) -> usize {
    let gap = if is_direct { 2 * PAGE } else { 0 };
    let of_record =
        |(record, payload): &(Record, Bytes)| gap + record.len() as usize - at.uncopied(payload, is_direct);
    PAGE + 2 * gap + records.iter().map(of_record).sum::<usize>()
}

/// Returns the gap from `position` to the next offset that is `residue` within its page;
/// `None` if `position` already is.
pub(super) fn gap(position: u64, residue: usize) -> Option<Record> {
    let missing = (residue + PAGE - position as usize % PAGE) % PAGE;
    let missing = if missing < FIXED_LEN { missing + PAGE } else { missing };
    let is_there = missing % PAGE == 0;
    (!is_there).then(|| Record::Gap { len: (missing - FIXED_LEN) as u32 })
}

struct Builder {
    name: SegmentName,
    position: u64,
    encoded: Vec<u8>,
    /// Start of the current piece in `encoded`.
    piece_start: usize,
    pieces: Vec<Piece>,
    capacity: usize,
}

impl Builder {
    fn new(at: AppendPosition, mut encoded: Vec<u8>, room: usize) -> Self {
        encoded.clear();
        encoded.reserve(room + PAGE);
        let capacity = encoded.capacity();
        Self { name: at.name, position: at.start, encoded, piece_start: 0, pieces: Vec::new(), capacity }
    }

    /// Fills the current page through the cache, and begins the direct part at the next page, aligned in memory too.
    fn begin_direct(&mut self) -> (u64, usize) {
        self.gap_to(0);
        self.close_encoded();
        let skip = self.encoded[..].as_ptr_range().end.align_offset(PAGE);
        self.encoded.resize(self.encoded.len() + skip, 0);
        self.piece_start = self.encoded.len();
        (self.position, self.pieces.len())
    }

    fn location(&self, record: &Record) -> Location {
        let (len, crc32c, form) = match record {
            Record::Chunk(chunk) => (chunk.len, chunk.crc32c, chunk.form),
            _ => (0, 0, Form::default()),
        };
        Location { segment: self.name.number, offset: self.position as u32, len, crc32c, form }
    }

    /// Encodes a record's header.
    fn record(&mut self, record: &Record) {
        let before = self.encoded.len();
        record.encode(self.name.place(self.position), &mut self.encoded);
        self.position += (self.encoded.len() - before) as u64;
    }

    fn copy(&mut self, bytes: &[u8]) {
        self.encoded.extend_from_slice(bytes);
        self.position += bytes.len() as u64;
    }

    /// Refers to the first `len` bytes of a payload, which are written without a copy.
    fn refer(&mut self, record: usize, len: usize) {
        if len > 0 {
            self.close_encoded();
            self.pieces.push(Piece::Payload { record, range: 0..len });
            self.position += len as u64;
        }
    }

    fn pad(&mut self) {
        let padding = self.position.next_multiple_of(ALIGNMENT) - self.position;
        self.copy(&[0; ALIGNMENT as usize][..padding as usize]);
    }

    /// Adds a gap to the next offset that is `residue` within its page, unless the position already is.
    fn gap_to(&mut self, residue: usize) {
        let Some(gap) = gap(self.position, residue) else { return };
        self.record(&gap);
        self.copy(&[0; 2 * PAGE][..gap.len() as usize - FIXED_LEN]);
    }

    fn close_encoded(&mut self) {
        if self.encoded.len() > self.piece_start {
            self.pieces.push(Piece::Encoded(self.piece_start..self.encoded.len()));
            self.piece_start = self.encoded.len();
        }
    }
}

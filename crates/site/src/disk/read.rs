//! The read path: one lookup in the index, one read of the disk, every granule verified.
//!
//! | form of the chunk | range | reads |
//! |--|--|--|
//! | paged | any | the pages that hold it |
//! | coarse, fine | begins in the first 64 KiB | header and granules together, sliced without a copy |
//! | coarse, fine | further on | the granules; before them the header, unless it is in memory (module `tables`) |
//!
//! Bytes that do not match their checksums are never returned.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use striate_core::{ChunkId, ChunkRange};
use striate_runtime::{Buffer, BufferPool};

use super::Shared;
use super::form::{Form, PAGE, join_pages};
use super::index::Location;
use super::record::{ChunkRecord, Record};
use super::segment::Segment;
use crate::api::SiteError;
use crate::filesystem::{self, File};
use crate::granule::{check_range, covering};
use crate::store::{ChunkInfo, VERIFY_BYTES};

/// Offset below which a range is read from the header on, if its first granule begins there.
const NEAR: usize = 64 << 10;

/// Where bytes may be read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The page cache or the medium.
    Any,
    /// The page cache only, without waiting.
    Cache,
}

/// Number of bytes of a chunk that are read at a time to verify it.
const VERIFIED_AT_ONCE: usize = VERIFY_BYTES as usize;

impl Source {
    /// Reads fewer bytes than asked for at the end of the file. Returns `None` if they cannot be read without waiting.
    fn read(
        self,
        file: &Arc<dyn File>,
        buffers: &BufferPool,
        offset: u64,
        len: usize,
    ) -> io::Result<Option<Buffer>> {
        let mut buffer = buffers.take(len);
        match self {
            Source::Any => {
                let filled = file.read_into(offset, &mut buffer)?;
                buffer.truncate(filled);
            }
            Source::Cache if !file.read_cached_into(offset, &mut buffer)? => return Ok(None),
            Source::Cache => {}
        }
        Ok(Some(buffer))
    }
}

/// Number of lookups of a chunk before a read gives up, when segments are compacted away under it.
const MAX_LOOKUPS: usize = 8;

impl Shared {
    /// Reads and verifies the bytes of `range`; `None` if `source` would have to wait.
    pub(super) fn read_range(&self, range: ChunkRange, source: Source) -> Option<Result<Bytes, SiteError>> {
        self.at_its_place(range.chunk, |stored| {
            check_range(&range, stored.location.len)?;
            match stored.location.form {
                Form::Coarse | Form::Fine => stored.read_by_table(&range, source),
                Form::Paged => stored.read_pages(&range, source),
            }
        })
    }

    /// Reads the whole chunk from the medium and verifies it.
    pub(super) fn verify_chunk(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        let verified = self.at_its_place(chunk, |stored| stored.verify().map(Some));
        verified.unwrap_or_else(|| Err(SiteError::Unavailable("the medium does not answer".into())))
    }

    /// Reads a chunk at its location, and again if a compaction has moved it meanwhile.
    fn at_its_place<T>(
        &self,
        chunk: ChunkId,
        read: impl Fn(&StoredChunk<'_>) -> TryReadResult<T>,
    ) -> Option<Result<T, SiteError>> {
        for _ in 0..MAX_LOOKUPS {
            let Some((location, segment)) = self.locate(chunk) else {
                return Some(Err(SiteError::Missing(chunk)));
            };
            let file = match self.open_files.get(&*self.fs, &segment) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound && self.has_moved(chunk, location) => {
                    continue;
                }
                Err(error) => return Some(Err(unreadable(chunk, &error))),
            };
            let outcome = read(&StoredChunk { shared: self, chunk, location, segment: &segment, file });
            // A compaction may have cut the segment off where the chunk was.
            if outcome.is_err() && self.has_moved(chunk, location) {
                continue;
            }
            return outcome.transpose();
        }
        Some(Err(SiteError::Unavailable(format!("the segment of chunk {chunk} cannot be opened"))))
    }

    fn locate(&self, chunk: ChunkId) -> Option<(Location, Arc<Segment>)> {
        let state = self.state.read();
        let location = state.index.get(chunk)?;
        Some((location, state.segments.get(&location.segment)?.segment.clone()))
    }

    fn has_moved(&self, chunk: ChunkId, from: Location) -> bool {
        self.state.read().index.get(chunk) != Some(from)
    }
}

/// A chunk at its location.
struct StoredChunk<'s> {
    shared: &'s Shared,
    chunk: ChunkId,
    location: Location,
    segment: &'s Segment,
    file: Arc<dyn File>,
}

/// `None` if the source would have to wait.
type TryReadResult<T> = Result<Option<T>, SiteError>;

impl StoredChunk<'_> {
    /// Reads a range of a chunk that has a table of checksums in its header.
    fn read_by_table(&self, range: &ChunkRange, source: Source) -> TryReadResult<Bytes> {
        let location = &self.location;
        let full = location.form.granule_len();
        let header_len = location.form.header_len(location.len);
        let granules = covering(range, full);
        let first = granules.start * full;
        let end = (granules.end * full).min(location.len as usize).max(first);
        let (record, bytes) = match self.kept_record(first) {
            None if first < NEAR => {
                let Some(bytes) = self.read(source, 0, header_len + end)? else { return Ok(None) };
                let bytes = bytes.freeze();
                (Arc::new(self.check_header(&bytes[..header_len])?), bytes.slice(header_len + first..))
            }
            kept => {
                let Some(record) = kept.map_or_else(|| self.read_header(source), |kept| Ok(Some(kept)))?
                else {
                    return Ok(None);
                };
                let Some(bytes) = self.read(source, header_len + first, end - first)? else {
                    return Ok(None);
                };
                (record, bytes.freeze())
            }
        };
        record.check_granules(granules.start, &bytes).map_err(|granule| self.mismatch(granule))?;
        let skip = range.offset as usize - first;
        Ok(Some(bytes.slice(skip..skip + range.len as usize)))
    }

    /// Returns the record kept from an earlier read, if that spares a read or most of one.
    fn kept_record(&self, first: usize) -> Option<Arc<ChunkRecord>> {
        let may_be_kept = first > 0 && self.location.len as usize > NEAR;
        may_be_kept.then(|| self.shared.tables.get(&self.location)).flatten()
    }

    /// Reads the header and its table, and keeps them.
    fn read_header(&self, source: Source) -> TryReadResult<Arc<ChunkRecord>> {
        let header_len = self.location.form.header_len(self.location.len);
        let Some(header) = self.read(source, 0, header_len)? else { return Ok(None) };
        let record = Arc::new(self.check_header(&header)?);
        self.shared.tables.keep(&self.location, record.clone());
        Ok(Some(record))
    }

    /// Reads a range of a chunk with a checksum behind each granule. It needs no header
    /// while the index knows the chunk.
    fn read_pages(&self, range: &ChunkRange, source: Source) -> TryReadResult<Bytes> {
        let (form, len) = (self.location.form, self.location.len);
        let pages = covering(range, form.granule_len());
        let first = pages.start * PAGE;
        let end = (pages.end * PAGE).min(form.stored_len(len)).max(first);
        let Some(mut bytes) = self.read(source, form.header_len(len) + first, end - first)? else {
            return Ok(None);
        };
        let joined = join_pages(&form.seal(self.chunk), pages.start, &mut bytes);
        joined.map_err(|page| self.mismatch(page))?;
        let skip = range.offset as usize - pages.start * form.granule_len();
        Ok(Some(bytes.freeze().slice(skip..skip + range.len as usize)))
    }

    /// Reads all of it from the medium, past the page cache, piece by piece.
    fn verify(&self) -> Result<ChunkInfo, SiteError> {
        let (form, len) = (self.location.form, self.location.len);
        let (header_len, stored_len) = (form.header_len(len), form.stored_len(len));
        let piece = |from: usize| VERIFIED_AT_ONCE.min(stored_len - from);
        let first = self.read_medium(0, header_len + piece(0))?;
        let record = self.check_header(&first[..header_len])?;
        record.check_stored(0, &first[header_len..]).map_err(|granule| self.mismatch(granule))?;
        drop(first);
        for from in (0..stored_len).step_by(VERIFIED_AT_ONCE).skip(1) {
            let bytes = self.read_medium(header_len + from, piece(from))?;
            record.check_stored(from, &bytes).map_err(|granule| self.mismatch(granule))?;
        }
        Ok(self.location.info(self.chunk))
    }

    /// Reads `len` bytes of the record from the medium, starting at byte `from`.
    fn read_medium(&self, from: usize, len: usize) -> Result<Vec<u8>, SiteError> {
        let bytes = self.file.read_medium_at(u64::from(self.location.offset) + from as u64, len);
        let bytes = bytes.map_err(|error| unreadable(self.chunk, &error))?;
        if bytes.len() < len { Err(cut_off(self.chunk)) } else { Ok(bytes) }
    }

    /// Reads `len` bytes of the record, starting at byte `from`.
    fn read(&self, source: Source, from: usize, len: usize) -> TryReadResult<Buffer> {
        let offset = u64::from(self.location.offset) + from as u64;
        let bytes = source.read(&self.file, self.shared.runtime.buffers(), offset, len);
        match bytes.map_err(|error| unreadable(self.chunk, &error))? {
            Some(bytes) if bytes.len() < len => Err(cut_off(self.chunk)),
            bytes => Ok(bytes),
        }
    }

    fn check_header(&self, header: &[u8]) -> Result<ChunkRecord, SiteError> {
        let Location { segment: number, offset, .. } = self.location;
        match Record::decode(header, self.segment.name.place(u64::from(offset))) {
            Ok(Record::Chunk(record))
                if record.chunk == self.chunk && record.location(number, offset) == self.location =>
            {
                Ok(record)
            }
            Ok(_) => Err(corrupt(self.chunk, "another record stands in its place")),
            Err(_) => Err(corrupt(self.chunk, "its header does not match its checksum")),
        }
    }

    fn mismatch(&self, granule: usize) -> SiteError {
        corrupt(self.chunk, &format!("granule {granule} does not match its checksum"))
    }
}

fn corrupt(chunk: ChunkId, reason: &str) -> SiteError {
    SiteError::Corrupt { chunk, reason: reason.to_owned() }
}

fn cut_off(chunk: ChunkId) -> SiteError {
    corrupt(chunk, "its record is cut off")
}

/// An unreadable sector counts as a damaged chunk: it is decoded around, and repaired elsewhere. A process that is short
/// of descriptors or memory damages nothing.
fn unreadable(chunk: ChunkId, error: &io::Error) -> SiteError {
    if filesystem::is_of_process(error) {
        return SiteError::Busy;
    }
    corrupt(chunk, &format!("it cannot be read: {error}"))
}

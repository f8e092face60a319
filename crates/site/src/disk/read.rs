//! The read path: one look into the index, one or two reads, every granule verified.
//!
//! A range in the first granules is read together with the record's header in one call and sliced without a copy;
//! a range further on takes its header in a second call. What does not match is never returned.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use striate_core::{ChunkId, ChunkRange, GRANULE_LEN};
use striate_runtime::BufferPool;

use super::Shared;
use super::index::Location;
use super::record::{ChunkRecord, Record, chunk_header_len};
use super::segment::Segment;
use crate::api::SiteError;
use crate::filesystem::File;
use crate::granule::{check_range, covering, granule_len};
use crate::store::ChunkInfo;

/// Where bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The page cache or the medium.
    Any,
    /// The page cache, without waiting.
    Cache,
    /// The medium, past the page cache.
    Medium,
}

impl Source {
    /// Fewer bytes than asked for at the end of the file; `None` if they are not to be had without waiting.
    fn read(
        self,
        file: &Arc<dyn File>,
        buffers: &BufferPool,
        offset: u64,
        len: usize,
    ) -> io::Result<Option<Bytes>> {
        let mut buffer = buffers.take(len);
        match self {
            Source::Any => {
                let filled = file.read_into(offset, &mut buffer)?;
                buffer.truncate(filled);
            }
            Source::Cache if !file.read_cached_into(offset, &mut buffer)? => return Ok(None),
            Source::Cache => {}
            Source::Medium => return Ok(Some(file.read_medium_at(offset, len)?.into())),
        }
        Ok(Some(buffer.freeze()))
    }
}

/// How often a read looks again after the segment was compacted away under it.
const MAX_LOOKUPS: usize = 8;

impl Shared {
    /// The bytes of `range`, verified; `None` if `source` would have to wait.
    pub(super) fn read_range(&self, range: ChunkRange, source: Source) -> Option<Result<Bytes, SiteError>> {
        for _ in 0..MAX_LOOKUPS {
            let Some((location, segment)) = self.locate(range.chunk) else {
                return Some(Err(SiteError::Missing(range.chunk)));
            };
            if let Err(error) = check_range(&range, location.len) {
                return Some(Err(error));
            }
            match self.read_located(range, location, &segment, source) {
                Ok(bytes) => return bytes.map(Ok),
                Err(ReadError::Moved) => {}
                Err(ReadError::Site(error)) => return Some(Err(error)),
            }
        }
        Some(Err(SiteError::Unavailable(format!("the segment of chunk {} cannot be opened", range.chunk))))
    }

    /// Reads the whole chunk from the medium.
    pub(super) fn verify_chunk(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        let (location, _) = self.locate(chunk).ok_or(SiteError::Missing(chunk))?;
        let range = ChunkRange { chunk, offset: 0, len: location.len };
        match self.read_range(range, Source::Medium) {
            Some(Ok(_)) => Ok(location.info(chunk)),
            Some(Err(error)) => Err(error),
            None => Err(SiteError::Unavailable("the medium does not answer".into())),
        }
    }

    fn locate(&self, chunk: ChunkId) -> Option<(Location, Arc<Segment>)> {
        let state = self.state.read();
        let location = state.index.get(chunk)?;
        Some((location, state.segments.get(&location.segment)?.segment.clone()))
    }

    fn read_located(
        &self,
        range: ChunkRange,
        location: Location,
        segment: &Arc<Segment>,
        source: Source,
    ) -> Result<Option<Bytes>, ReadError> {
        let file = match self.open_files.get(&*self.fs, segment) {
            Ok(file) => file,
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && self.has_moved(range.chunk, location) =>
            {
                return Err(ReadError::Moved);
            }
            Err(error) => return Err(unreadable(range.chunk, &error)),
        };
        let read = |offset: u64, len: usize| {
            let bytes = source.read(&file, self.runtime.buffers(), offset, len);
            match bytes.map_err(|error| unreadable(range.chunk, &error))? {
                Some(bytes) if bytes.len() < len => Err(corrupt(range.chunk, "its record is cut off")),
                bytes => Ok(bytes),
            }
        };
        let start = u64::from(location.offset);
        let header_len = chunk_header_len(location.len);
        let granules = covering(&range);
        let first = granules.start * GRANULE_LEN;
        let last = (granules.end * GRANULE_LEN).min(location.len as usize).max(first);
        let (header, granule_bytes) = if first == 0 {
            let Some(bytes) = read(start, header_len + last)? else { return Ok(None) };
            (bytes.slice(..header_len), bytes.slice(header_len..))
        } else {
            let Some(header) = read(start, header_len)? else { return Ok(None) };
            let data_start = start + (header_len + first) as u64;
            let Some(granule_bytes) = read(data_start, last - first)? else { return Ok(None) };
            (header, granule_bytes)
        };
        let record = check_header(range.chunk, location, segment, &header)?;
        for granule in granules {
            let at = granule * GRANULE_LEN - first;
            let bytes = &granule_bytes[at..at + granule_len(location.len, granule)];
            if !record.granule_matches(granule, bytes) {
                return Err(corrupt(range.chunk, &format!("granule {granule} does not match its checksum")));
            }
        }
        let skip = range.offset as usize - first;
        Ok(Some(granule_bytes.slice(skip..skip + range.len as usize)))
    }

    fn has_moved(&self, chunk: ChunkId, from: Location) -> bool {
        self.state.read().index.get(chunk) != Some(from)
    }
}

fn check_header(
    chunk: ChunkId,
    location: Location,
    segment: &Segment,
    header: &[u8],
) -> Result<ChunkRecord, ReadError> {
    match Record::decode(header, segment.name.place(u64::from(location.offset))) {
        Ok(Record::Chunk(record)) if record.chunk == chunk && record.len == location.len => Ok(record),
        Ok(_) => Err(corrupt(chunk, "another record stands in its place")),
        Err(_) => Err(corrupt(chunk, "its header does not match its checksum")),
    }
}

enum ReadError {
    /// A compaction moved the chunk after the lookup.
    Moved,
    Site(SiteError),
}

fn corrupt(chunk: ChunkId, reason: &str) -> ReadError {
    ReadError::Site(SiteError::Corrupt { chunk, reason: reason.to_owned() })
}

/// A sector that cannot be read is a damaged chunk: it is decoded around, and repaired elsewhere.
fn unreadable(chunk: ChunkId, error: &io::Error) -> ReadError {
    corrupt(chunk, &format!("it cannot be read: {error}"))
}

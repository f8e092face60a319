//! The snapshot of the index: it makes the start fast, and holds nothing that could not be rebuilt.
//!
//! ```text
//! index.snapshot; numbers are little-endian
//!   8  magic "StriaIdx"
//!   8  format version: 2 if a chunk of format 2 is in it, else 1
//!   8  next sequence: the snapshot knows the effect of everything below
//!   8  highest fencing epoch
//!   8  number of the segment that is appended to; 0 for none
//!   8  number of the next segment
//!   8  number of segments, then for each
//!        4 number, 8 nonce, 8 length of its file, 8 its highest epoch, 4 number of tombstone targets,
//!        then for each target 4 its number, 4 tombstones
//!   8  number of chunks with further copies, then for each
//!        21 name, 4 number of segments, then 4 for each
//!   8  number of chunks, then for each in order
//!        21 name, 4 segment, 4 offset, 4 payload length and in its highest two bits the form (0 coarse, 1 fine,
//!        2 paged), 4 payload CRC-32C
//!   4  CRC-32C of everything before
//! ```
//!
//! Crash argument: the snapshot is written under a temporary name, synced and renamed, and carries its checksum. A
//! missing or damaged snapshot, or one of another version, is ignored; an old one is completed from the segments
//! (module `recovery`).

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use striate_codec::crc32c;
use striate_core::{ChunkId, FencingEpoch};

use super::index::{Index, Location};
use super::segment::SegmentName;
use super::state::State;
use crate::filesystem::{self, FileSystem};

const MAGIC: u64 = u64::from_le_bytes(*b"StriaIdx");
/// The newest version that this program reads.
const VERSION: u64 = 2;

/// Length of a chunk's entry in bytes.
pub(super) const ENTRY_LEN: u64 = 37;

/// A decoded snapshot. The default is that of an empty store, which makes recovery scan everything.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub next_sequence: u64,
    pub epoch: FencingEpoch,
    pub active: Option<u32>,
    pub next_segment: u32,
    pub segments: Vec<ListedSegment>,
    pub extra_copies: BTreeMap<ChunkId, Vec<u32>>,
    pub index: Index,
}

/// A segment as the snapshot lists it.
#[derive(Debug)]
pub(super) struct ListedSegment {
    pub name: SegmentName,
    pub len: u64,
    pub epoch: FencingEpoch,
    pub tombstones: BTreeMap<u32, u32>,
}

/// Returns the path of the snapshot.
pub(super) fn path(directory: &Path) -> PathBuf {
    directory.join("index.snapshot")
}

/// Encodes the content of the file for a state.
pub(super) fn encode(state: &State, active: Option<u32>, next_segment: u32, next_sequence: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024 + state.index.len() * ENTRY_LEN as usize);
    let numbers = [u64::from(active.unwrap_or(0)), u64::from(next_segment)];
    let version = state.index.iter().map(|(_, at)| u64::from(at.form.version())).max().unwrap_or(1);
    [MAGIC, version, next_sequence, state.epoch.0]
        .into_iter()
        .chain(numbers)
        .for_each(|word| put_u64(&mut out, word));
    put_u64(&mut out, state.segments.len() as u64);
    for segment in state.segments.values() {
        put_u32(&mut out, segment.segment.name.number);
        put_u64(&mut out, segment.segment.name.nonce);
        put_u64(&mut out, segment.len);
        put_u64(&mut out, segment.epoch.0);
        put_u32(&mut out, segment.tombstones.len() as u32);
        for (target, count) in &segment.tombstones {
            put_u32(&mut out, *target);
            put_u32(&mut out, *count);
        }
    }
    put_u64(&mut out, state.extra_copies.len() as u64);
    for (chunk, segments) in &state.extra_copies {
        out.extend_from_slice(&chunk.to_bytes());
        put_u32(&mut out, segments.len() as u32);
        segments.iter().for_each(|segment| put_u32(&mut out, *segment));
    }
    put_u64(&mut out, state.index.len() as u64);
    for (chunk, location) in state.index.iter() {
        out.extend_from_slice(&chunk.to_bytes());
        location.pack().into_iter().for_each(|word| put_u32(&mut out, word));
    }
    let crc = crc32c(&out);
    put_u32(&mut out, crc);
    out
}

/// Removes the snapshot, if there is one: the next start scans everything. The caller syncs the directory.
pub(super) fn remove(fs: &dyn FileSystem, directory: &Path) -> io::Result<()> {
    match fs.unlink(&path(directory)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Reads the snapshot of a directory, if there is an intact one.
pub(super) fn read(fs: &dyn FileSystem, directory: &Path) -> Option<Snapshot> {
    let content = filesystem::read_whole(fs, &path(directory)).ok()?;
    let snapshot = decode(&content);
    if snapshot.is_none() {
        tracing::warn!(directory = %directory.display(), "the index snapshot is damaged; the segments are scanned");
    }
    snapshot
}

fn decode(content: &[u8]) -> Option<Snapshot> {
    let (body, crc) = content.split_last_chunk::<4>()?;
    if crc32c(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    let mut cursor = Cursor(body);
    if cursor.u64()? != MAGIC || !(1..=VERSION).contains(&cursor.u64()?) {
        return None;
    }
    let (next_sequence, epoch) = (cursor.u64()?, FencingEpoch(cursor.u64()?));
    let active = Some(cursor.u64()? as u32).filter(|number| *number != 0);
    let next_segment = cursor.u64()? as u32;
    let mut snapshot = Snapshot { next_sequence, epoch, active, next_segment, ..Snapshot::default() };
    for _ in 0..cursor.u64()? {
        let name = SegmentName { number: cursor.u32()?, nonce: cursor.u64()? };
        let (len, epoch) = (cursor.u64()?, FencingEpoch(cursor.u64()?));
        let mut tombstones = BTreeMap::new();
        for _ in 0..cursor.u32()? {
            tombstones.insert(cursor.u32()?, cursor.u32()?);
        }
        snapshot.segments.push(ListedSegment { name, len, epoch, tombstones });
    }
    for _ in 0..cursor.u64()? {
        let chunk = cursor.chunk()?;
        let count = cursor.u32()?;
        let segments = (0..count).map(|_| cursor.u32()).collect::<Option<Vec<_>>>()?;
        snapshot.extra_copies.insert(chunk, segments);
    }
    for _ in 0..cursor.u64()? {
        let chunk = cursor.chunk()?;
        let location = [cursor.u32()?, cursor.u32()?, cursor.u32()?, cursor.u32()?];
        snapshot.index.insert(chunk, Location::unpack(location)?);
    }
    cursor.0.is_empty().then_some(snapshot)
}

fn put_u32(out: &mut Vec<u8>, word: u32) {
    out.extend_from_slice(&word.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, word: u64) {
    out.extend_from_slice(&word.to_le_bytes());
}

/// Reads numbers from the front of a byte slice.
struct Cursor<'b>(&'b [u8]);

impl Cursor<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn chunk(&mut self) -> Option<ChunkId> {
        ChunkId::from_bytes(&self.take::<{ ChunkId::ENCODED_LEN }>()?)
    }
}

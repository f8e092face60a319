//! Opens a store: rebuilds the index from its snapshot and the records behind it, or from all records.
//!
//! Writes and deletes are ordered by their sequence numbers, not by their places, because compaction moves records. Of
//! the copies of a chunk that no tombstone covers, the one with the highest sequence counts.
//!
//! With a snapshot, only what lies behind it is scanned: the ends of the segments it lists, and segments it does not
//! list. There, records with a sequence below the snapshot's were written by a compaction. Such a chunk record says
//! where the chunk lies now, unless the compaction buried that copy; such a tombstone adds nothing, as its effect is
//! already in the snapshot. A chunk whose segment is gone and that has no other copy was deleted, and its tombstone
//! dropped with the segment.
//!
//! Scanned records are synced before the store acknowledges anything. After a kill without a power cut, the page cache
//! shows records and names that are not durable yet, and a repeated write must not be acknowledged because of them.

use std::collections::BTreeMap;
use std::io;

use striate_core::{ChunkId, FencingEpoch};

use super::index::Location;
use super::record::{FORMAT_VERSION, Record};
use super::scan::{Scan, scan};
use super::segment::{OpenFiles, SEGMENT_HEADER_LEN, Segment, SegmentName};
use super::snapshot::{self, Snapshot};
use super::state::{DeadCopy, SegmentState, State};
use super::writer::{ActiveSegment, Writer};
use super::{DiskStoreError, Shared};
use crate::filesystem::{FileSystem, TEMPORARY_EXTENSION};

use std::path::Path;

/// The result of opening a store.
#[derive(Debug)]
pub(super) struct RecoveredStore {
    pub state: State,
    pub writer: Writer,
    pub next_segment: u32,
    /// Number of bytes that were scanned.
    pub scanned_bytes: u64,
}

/// A record found by a scan, without its table.
#[derive(Clone, Copy, Debug)]
struct ScannedRecord {
    chunk: ChunkId,
    sequence: u64,
    kind: RecordKind,
}

#[derive(Clone, Copy, Debug)]
enum RecordKind {
    Copy(Location),
    /// A tombstone for a copy in the segment of this number, if there is one.
    Tombstone(u32),
}

impl ScannedRecord {
    fn copy(&self) -> Option<Location> {
        match self.kind {
            RecordKind::Copy(location) => Some(location),
            RecordKind::Tombstone(_) => None,
        }
    }
}

/// Recovers the store in `directory`.
pub(super) fn recover(
    fs: &dyn FileSystem,
    directory: &Path,
    open_files: &OpenFiles,
    segment_len: u64,
) -> Result<RecoveredStore, DiskStoreError> {
    let listing = Listing::read(fs, directory)?;
    let snapshot = snapshot::read(fs, directory).filter(|snapshot| listing.continues(snapshot));
    let snapshot = snapshot.unwrap_or_default();
    let highest = listing.segments.keys().next_back().map_or(0, |name| name.number);
    let next_segment = snapshot.next_segment.max(highest + 1);
    let mut recovery = Recovery::new(snapshot);
    let mut last = None;
    for (name, condemned) in &listing.segments {
        last = recovery.add_segment(fs, directory, open_files, *name, *condemned)?;
    }
    recovery.resolve();
    let active = last.filter(|active| active.len < segment_len);
    let writer = Writer { active, next_sequence: recovery.next_sequence, buffer: Vec::new() };
    Ok(RecoveredStore { state: recovery.state, writer, next_segment, scanned_bytes: recovery.scanned_bytes })
}

/// The segments of a directory, with the durable length of condemned ones.
struct Listing {
    segments: BTreeMap<SegmentName, Option<u64>>,
    lens: BTreeMap<SegmentName, u64>,
}

impl Listing {
    /// Lists the directory and sweeps what a crash left behind.
    fn read(fs: &dyn FileSystem, directory: &Path) -> Result<Self, DiskStoreError> {
        let io = |action| move |error| DiskStoreError::io(action, directory, error);
        // After a kill without a power cut, names may have been added or removed without being durable yet.
        fs.sync_directory(directory).map_err(io("sync"))?;
        let names = fs.list(directory).map_err(io("list"))?;
        let mut listing = Self { segments: BTreeMap::new(), lens: BTreeMap::new() };
        for name in names.iter().filter_map(|name| SegmentName::parse(name)) {
            let file = fs.open(&name.path(directory)).map_err(io("open a segment of"))?;
            listing.lens.insert(name, file.len().map_err(io("measure a segment of"))?);
            listing.segments.insert(name, None);
        }
        for file_name in &names {
            if Path::new(file_name).extension().is_some_and(|extension| extension == TEMPORARY_EXTENSION) {
                fs.unlink(&directory.join(file_name)).map_err(io("sweep"))?;
            }
            let Some(name) = SegmentName::parse_condemned(file_name) else { continue };
            match listing.segments.get_mut(&name) {
                Some(durable) => {
                    let len = name.read_condemned(fs, directory).map_err(io("read a condemnation in"))?;
                    *durable = Some(len);
                }
                None => fs.unlink(&name.condemned_path(directory)).map_err(io("sweep"))?,
            }
        }
        Ok(listing)
    }

    /// Returns whether every segment of the snapshot that still exists is at least as long as it was then. A shorter
    /// one has lost records that the snapshot names.
    fn continues(&self, snapshot: &Snapshot) -> bool {
        snapshot
            .segments
            .iter()
            .all(|listed| self.lens.get(&listed.name).is_none_or(|len| *len >= listed.len))
    }
}

struct Recovery {
    state: State,
    listed_segments: BTreeMap<SegmentName, snapshot::ListedSegment>,
    /// The segment that was being appended to when the snapshot was made; the snapshot's other segments do not change.
    active: Option<u32>,
    /// The first sequence that the snapshot does not cover.
    horizon: u64,
    next_sequence: u64,
    found: Vec<ScannedRecord>,
    scanned_bytes: u64,
}

impl Recovery {
    fn new(snapshot: Snapshot) -> Self {
        let listed_segments = snapshot.segments.into_iter().map(|segment| (segment.name, segment)).collect();
        let mut state =
            State { epoch: snapshot.epoch, extra_copies: snapshot.extra_copies, ..State::default() };
        state.index = snapshot.index;
        let horizon = snapshot.next_sequence;
        let active = snapshot.active;
        Self {
            state,
            listed_segments,
            active,
            horizon,
            next_sequence: horizon,
            found: Vec::new(),
            scanned_bytes: 0,
        }
    }

    /// Scans the new part of a segment. Returns the segment as the active one if it ends cleanly.
    fn add_segment(
        &mut self,
        fs: &dyn FileSystem,
        directory: &Path,
        open_files: &OpenFiles,
        name: SegmentName,
        condemned: Option<u64>,
    ) -> Result<Option<ActiveSegment>, DiskStoreError> {
        let path = name.path(directory);
        let io = |action| {
            let path = path.clone();
            move |error: io::Error| DiskStoreError::io(action, &path, error)
        };
        let file = fs.open(&path).map_err(io("open"))?;
        let listed = self.listed_segments.remove(&name);
        let from = listed.as_ref().map_or(SEGMENT_HEADER_LEN, |listed| listed.len);
        let newer = |found| DiskStoreError::NewerFormat { path: path.clone(), found };
        let header = file.read_at(0, SEGMENT_HEADER_LEN as usize).unwrap_or_default();
        let header = name.decode_header(&header).map_err(newer)?;
        let (epoch, version) =
            header.map_or((FencingEpoch(0), FORMAT_VERSION), |header| (header.epoch, header.version));
        self.state.epoch = self.state.epoch.max(epoch);
        let scan = scan(&file, name, from, condemned).map_err(io("read"))?;
        if let Some(version) = scan.newer_version {
            return Err(newer(version));
        }
        self.scanned_bytes += scan.file_len.saturating_sub(from);
        let is_new = listed.is_none() || scan.file_len > from;
        if is_new {
            report(&path, &scan);
        }
        // See the module's documentation. Syncing a condemned segment would prove nothing.
        if is_new && condemned.is_none() {
            file.sync().map_err(io("sync"))?;
        }
        let segment = Segment::new(name, directory);
        open_files.put(&segment, file.clone());
        let may_grow = listed.is_none() || self.active == Some(name.number);
        let state = SegmentState::new(segment.clone(), version, scan.file_len, epoch);
        self.insert_segment(name, SegmentState { condemned, ..state }, listed);
        let is_clean = may_grow && scan.is_clean() && condemned.is_none() && header.is_some();
        let (len, mark_due) = (scan.file_len, !scan.records.is_empty());
        self.take_records(name, scan);
        Ok(is_clean.then_some(ActiveSegment { segment, version, file, len, mark_due }))
    }

    /// Inserts the state of a segment, with what the snapshot lists of it.
    fn insert_segment(
        &mut self,
        name: SegmentName,
        mut state: SegmentState,
        listed: Option<snapshot::ListedSegment>,
    ) {
        if let Some(listed) = listed {
            state.epoch = state.epoch.max(listed.epoch);
            state.tombstones = listed.tombstones;
        }
        self.state.segments.insert(name.number, state);
    }

    fn take_records(&mut self, name: SegmentName, scan: Scan) {
        for (offset, record) in scan.records {
            match record {
                Record::Chunk(chunk) => {
                    let location = chunk.location(name.number, offset);
                    let kind = RecordKind::Copy(location);
                    self.found.push(ScannedRecord { chunk: chunk.chunk, sequence: chunk.sequence, kind });
                }
                Record::Tombstone { chunk, sequence, target, epoch } => {
                    self.found.push(ScannedRecord { chunk, sequence, kind: RecordKind::Tombstone(target) });
                    self.state.add_tombstone(name.number, target);
                    self.state.see_epoch(name.number, epoch);
                }
                Record::Fence { epoch } => self.state.see_epoch(name.number, epoch),
                Record::Mark | Record::Gap { .. } => {}
            }
        }
    }

    /// Decides for every chunk with a found record whether it lives, and where.
    fn resolve(&mut self) {
        let mut found = std::mem::take(&mut self.found);
        let segment = |found: &ScannedRecord| found.copy().map(|location| location.segment);
        found.sort_unstable_by_key(|record| (record.chunk, record.sequence, segment(record)));
        for records in found.chunk_by(|a, b| a.chunk == b.chunk) {
            self.resolve_chunk(records);
        }
        let highest = found.iter().map(|record| record.sequence + 1).max().unwrap_or(0);
        self.next_sequence = self.next_sequence.max(highest);
        self.drop_unlocated();
        self.count();
    }

    /// Resolves one chunk from its `records`, in ascending order of their sequence.
    fn resolve_chunk(&mut self, records: &[ScannedRecord]) {
        let chunk = records[0].chunk;
        let (old, new) = records.split_at(records.partition_point(|record| record.sequence < self.horizon));
        let base = self.state.index.get(chunk);
        let cover = highest_tombstone(new);
        let old_cover = highest_tombstone(old);
        let is_above =
            |record: &&ScannedRecord, cover: Option<u64>| cover.is_none_or(|cover| record.sequence > cover);
        let mut copies: Vec<Location> = Vec::new();
        if let (Some(base), None) = (base, cover) {
            let moved =
                old.iter().filter(|record| is_above(record, old_cover)).filter_map(ScannedRecord::copy);
            copies.extend(moved.filter(|copy| (copy.len, copy.crc32c) == (base.len, base.crc32c)));
            copies.extend(Some(base).filter(|base| self.state.segments.contains_key(&base.segment)));
        }
        copies.extend(new.iter().filter(|record| is_above(record, cover)).filter_map(ScannedRecord::copy));
        self.find_uncovered(records, &copies);
        self.state.index.remove(chunk);
        let known_extra = self.state.extra_copies.remove(&chunk).filter(|_| cover.is_none());
        let Some(live) = copies.pop() else { return };
        self.state.index.insert(chunk, live);
        let mut extra: Vec<u32> =
            copies.iter().map(|copy| copy.segment).chain(known_extra.into_iter().flatten()).collect();
        extra.retain(|segment| *segment != live.segment && self.state.segments.contains_key(segment));
        extra.sort_unstable();
        extra.dedup();
        if !extra.is_empty() {
            self.state.extra_copies.insert(chunk, extra);
        }
    }

    /// Records the dead copies among `records` that no tombstone names: a crash interrupted a compaction after it
    /// placed them and before it buried them.
    fn find_uncovered(&mut self, records: &[ScannedRecord], live: &[Location]) {
        for record in records {
            let Some(copy) = record.copy().filter(|copy| !live.contains(copy)) else { continue };
            let names_it = |other: &ScannedRecord| {
                matches!(other.kind, RecordKind::Tombstone(target) if target == copy.segment)
                    && other.sequence >= record.sequence
            };
            if !records.iter().any(names_it) {
                let ScannedRecord { chunk, sequence, .. } = *record;
                self.state.uncovered.push(DeadCopy { chunk, sequence, segment: copy.segment });
            }
        }
    }

    /// Removes chunks that the snapshot locates in segments that are gone.
    fn drop_unlocated(&mut self) {
        let missing_segments: Vec<_> =
            self.listed_segments.values().map(|segment| segment.name.number).collect();
        if missing_segments.is_empty() {
            return;
        }
        let lost_chunks: Vec<_> = self
            .state
            .index
            .iter()
            .filter(|(_, at)| missing_segments.contains(&at.segment))
            .map(|(chunk, _)| chunk)
            .collect();
        for chunk in lost_chunks {
            self.state.index.remove(chunk);
        }
        for number in missing_segments {
            if !self.state.segments.contains_key(&number) {
                self.state.forget_segment(number);
            }
        }
    }

    /// Sums up the live bytes.
    fn count(&mut self) {
        let State { index, segments, payload_bytes, .. } = &mut self.state;
        for (_, location) in index.iter() {
            *payload_bytes += u64::from(location.len);
            if let Some(segment) = segments.get_mut(&location.segment) {
                segment.live_bytes += location.record_len();
            }
        }
    }
}

/// Returns the highest sequence that a tombstone among `records` covers.
fn highest_tombstone(records: &[ScannedRecord]) -> Option<u64> {
    records.iter().filter(|record| record.copy().is_none()).map(|record| record.sequence).max()
}

fn report(path: &Path, scan: &Scan) {
    if !scan.is_clean() {
        tracing::warn!(
            segment = %path.display(),
            damaged_bytes = scan.damaged_bytes,
            torn_chunks = scan.torn,
            behind_last_record = scan.file_len.saturating_sub(scan.end),
            "a segment has damaged or unfinished records; they are left out"
        );
    }
}

impl Shared {
    /// Encodes a snapshot of the current state. The caller holds the writer, so that no change is in progress.
    pub(super) fn snapshot(&self, writer: &Writer) -> Vec<u8> {
        let active = writer.active.as_ref().map(|active| active.segment.name.number);
        let next_segment = self.next_segment.load(std::sync::atomic::Ordering::Relaxed);
        snapshot::encode(&self.state.read(), active, next_segment, writer.next_sequence)
    }
}

//! The write path: one writer per store, which commits in groups.
//!
//! Waiting writes and deletes form a group. The group is appended to the active segment with one vectored write, and
//! one sync that begins after the write has ended. Then the store checks that its directory is still the one it opened
//! (design.md §10.10), updates the index, and acknowledges every request of the group. While one group syncs, the next
//! one gathers. Requests whose callers have gone, as happens when the disk hangs, are dropped.
//!
//! After a failed write or sync, the segment is *condemned*: a file beside it records durably how much of it counts,
//! and the group is written again to a new segment. A second failure makes the store suspect: from then on it refuses
//! writes and still tries to read. A sync is never just repeated, because Linux forgets the pages that it failed to
//! write (design.md §10.1).
//!
//! The call decides what a failure means, not its reason. A failed write or sync always condemns its segment. A file
//! that cannot be created, opened or examined because the process is short of descriptors or memory condemns nothing:
//! the group is refused, and what was written of it is cut off durably.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::Bytes;
use striate_core::{ChunkId, FencingEpoch};
use tokio::sync::oneshot;

use super::Shared;
use super::index::Location;
use super::layout::{AppendPosition, Layout};
use super::record::{ChunkRecord, Record};
use super::segment::{SEGMENT_HEADER_LEN, Segment, SegmentHeader, SegmentName, write_header};
use super::state::{DeadCopy, SegmentState};
use super::watch::WatchError;
use crate::api::SiteError;
use crate::filesystem::{self, File};
use crate::granule;
use crate::store::HeldResources;

/// Number of bytes from which a group takes no further record.
const MAX_GROUP_BYTES: u64 = 16 * 1024 * 1024;

/// A request that waits for the writer.
#[derive(Debug)]
pub(super) struct Request {
    pub change: Change,
    pub reply: Reply,
}

/// Where a result goes, and what is held until then.
#[derive(Debug)]
pub(super) struct Reply {
    pub sender: oneshot::Sender<Result<(), SiteError>>,
    pub held: HeldResources,
}

impl Reply {
    /// Releases what is held before it sends the result, so that it is free when the result arrives.
    fn send(self, result: Result<(), SiteError>) {
        drop(self.held);
        // The send fails if the caller has gone.
        let _ = self.sender.send(result);
    }

    /// Returns whether the caller has gone. Nothing was acknowledged to it, so the change need not be made.
    fn is_unwanted(&self) -> bool {
        self.sender.is_closed()
    }
}

/// A change of the store.
#[derive(Debug)]
pub(super) enum Change {
    /// A record without its sequence, and what follows its header.
    Write {
        record: ChunkRecord,
        stored: Bytes,
    },
    Delete {
        chunks: Vec<ChunkId>,
        epoch: FencingEpoch,
    },
}

/// State of the writing thread.
#[derive(Debug)]
pub(super) struct Writer {
    pub active: Option<ActiveSegment>,
    pub next_sequence: u64,
    /// Buffer for the next group's layout.
    pub buffer: Vec<u8>,
}

/// The segment that is being appended to.
#[derive(Debug)]
pub(super) struct ActiveSegment {
    pub segment: Arc<Segment>,
    /// The newest format of a record that the segment may hold.
    pub version: u8,
    pub file: Arc<dyn File>,
    /// Bytes written and synced.
    pub len: u64,
    /// Whether a mark must be written before the next record.
    pub mark_due: bool,
}

/// A group being committed.
#[derive(Debug, Default)]
struct Group {
    records: Vec<(Record, Bytes)>,
    bytes: u64,
    /// Length and checksum of the chunks written in this group.
    written: HashMap<ChunkId, (u32, u32)>,
    deleted: HashSet<ChunkId>,
    epoch: FencingEpoch,
    /// Replies to send when the group is durable.
    waiting: Vec<Reply>,
}

/// Why a group could not be appended.
#[derive(Debug)]
enum AppendError {
    Full,
    /// A write or a sync failed, or the disk refused a file.
    Failed(io::Error),
    /// The process is short of descriptors or memory; nothing of the group is stored.
    Refused(io::Error),
    Lost(String),
}

impl AppendError {
    /// Returns what a failure to create or open a file means.
    fn of_opening(error: io::Error) -> Self {
        match filesystem::is_of_process(&error) {
            true => Self::Refused(error),
            false => Self::of_writing(error),
        }
    }

    /// Returns what a failure to write or sync means.
    fn of_writing(error: io::Error) -> Self {
        match is_full(&error) {
            true => Self::Full,
            false => Self::Failed(error),
        }
    }
}

impl From<WatchError> for AppendError {
    fn from(error: WatchError) -> Self {
        match error {
            WatchError::Lost(reason) => Self::Lost(reason),
            WatchError::Unknown(error) => Self::Refused(error),
        }
    }
}

impl Writer {
    /// Serves `requests` in order, in as few groups as possible.
    pub fn serve(&mut self, shared: &Shared, mut requests: VecDeque<Request>) {
        while !requests.is_empty() {
            shared.begin_group();
            let group = self.gather(shared, &mut requests);
            if !group.records.is_empty() || !group.waiting.is_empty() {
                self.commit(shared, group);
            }
        }
        shared.end_groups();
    }

    /// Takes requests from the front until one must wait for the previous group.
    fn gather(&mut self, shared: &Shared, requests: &mut VecDeque<Request>) -> Group {
        let mut group = Group { epoch: shared.state.read().epoch, ..Group::default() };
        let room = shared.free_bytes();
        let suspect = shared.suspect_error();
        while group.bytes < MAX_GROUP_BYTES {
            let Some(request) = requests.pop_front() else { break };
            if request.reply.is_unwanted() {
                continue;
            }
            if let Some(error) = &suspect {
                request.reply.send(Err(error.clone()));
                continue;
            }
            if group.conflicts(&request.change) {
                requests.push_front(request);
                break;
            }
            let outcome = match request.change {
                Change::Write { record, stored } => self.take_write(shared, &mut group, record, stored, room),
                Change::Delete { chunks, epoch } => self.take_delete(shared, &mut group, chunks, epoch),
            };
            match outcome {
                TakeOutcome::Waits => group.waiting.push(request.reply),
                TakeOutcome::Answered(result) => request.reply.send(result),
            }
        }
        group
    }

    fn take_write(
        &mut self,
        shared: &Shared,
        group: &mut Group,
        mut record: ChunkRecord,
        stored: Bytes,
        room: u64,
    ) -> TakeOutcome {
        let ChunkRecord { chunk, form, len, crc32c, .. } = record;
        let indexed = shared.state.read().index.get(chunk).map(|existing| (existing.len, existing.crc32c));
        if let Some(existing) = indexed.or_else(|| group.written.get(&chunk).copied()) {
            return match granule::check_rewrite(chunk, existing, (len, crc32c)) {
                Ok(()) => TakeOutcome::Waits,
                refused => TakeOutcome::Answered(refused),
            };
        }
        if group.bytes + form.record_len(len) > room {
            return TakeOutcome::Answered(Err(SiteError::NoSpace));
        }
        record.sequence = self.take_sequence();
        group.push(Record::Chunk(record), stored);
        group.written.insert(chunk, (len, crc32c));
        TakeOutcome::Waits
    }

    fn take_delete(
        &mut self,
        shared: &Shared,
        group: &mut Group,
        chunks: Vec<ChunkId>,
        epoch: FencingEpoch,
    ) -> TakeOutcome {
        let epoch = if epoch == FencingEpoch::NONE { group.epoch } else { epoch };
        if epoch < group.epoch {
            return TakeOutcome::Answered(Err(SiteError::Fenced { given: epoch, seen: group.epoch }));
        }
        let state = shared.state.read();
        for chunk in chunks {
            if !group.deleted.insert(chunk) {
                continue;
            }
            let sequence = self.take_sequence();
            for target in state.copies(chunk) {
                group.push(Record::Tombstone { chunk, sequence, target, epoch }, Bytes::new());
            }
        }
        if epoch > group.epoch {
            group.push(Record::Fence { epoch }, Bytes::new());
            group.epoch = epoch;
        }
        TakeOutcome::Waits
    }

    fn take_sequence(&mut self) -> u64 {
        self.next_sequence += 1;
        self.next_sequence - 1
    }

    /// Makes a group durable, updates the index and replies.
    fn commit(&mut self, shared: &Shared, mut group: Group) {
        let result = self.append_or_retry(shared, &mut group.records);
        let result = match result {
            Ok(offsets) => {
                shared.apply(&group.records, &offsets);
                Ok(())
            }
            Err(AppendError::Full) => Err(SiteError::NoSpace),
            Err(AppendError::Failed(error)) => {
                shared.become_suspect(format!("two writes in a row failed: {error}"));
                Err(shared.suspect_error().expect("just set"))
            }
            Err(AppendError::Refused(error)) => {
                let directory = shared.directory.display();
                tracing::warn!(%directory, %error, "a write was refused: the process is short of descriptors or memory");
                Err(SiteError::Busy)
            }
            Err(AppendError::Lost(reason)) => {
                shared.become_suspect(reason);
                Err(shared.suspect_error().expect("just set"))
            }
        };
        for reply in group.waiting.drain(..) {
            reply.send(result.clone());
        }
        let deleted_in: BTreeSet<u32> = group
            .records
            .iter()
            .filter_map(|(record, _)| match record {
                Record::Tombstone { target, .. } => Some(*target),
                _ => None,
            })
            .collect();
        if result.is_ok() && !deleted_in.is_empty() {
            let active = self.active.as_ref().map(|active| active.segment.name.number);
            shared.unlink_dead_segments(deleted_in.into_iter().filter(|number| Some(*number) != active));
        }
    }

    /// Appends; after a failure, once more to another segment and under new sequence numbers, so that the new copies
    /// win over those in the condemned segment.
    fn append_or_retry(
        &mut self,
        shared: &Shared,
        records: &mut [(Record, Bytes)],
    ) -> Result<Vec<Location>, AppendError> {
        if records.is_empty() {
            return shared.check_watched(None).map(|()| Vec::new()).map_err(AppendError::from);
        }
        let error = match self.append(shared, records) {
            Err(AppendError::Failed(error)) => error,
            result => return result,
        };
        tracing::warn!(directory = %shared.directory.display(), %error, "a write failed; its segment is condemned");
        self.condemn_active(shared).map_err(AppendError::Failed)?;
        if shared.suspect_error().is_some() {
            return Err(AppendError::Failed(error));
        }
        for (record, _) in records.iter_mut() {
            match record {
                Record::Chunk(ChunkRecord { sequence, .. }) | Record::Tombstone { sequence, .. } => {
                    *sequence = self.take_sequence();
                }
                Record::Fence { .. } | Record::Mark | Record::Gap { .. } => {}
            }
        }
        let result = self.append(shared, records);
        if matches!(result, Err(AppendError::Failed(_))) {
            self.condemn_active(shared).map_err(AppendError::Failed)?;
        }
        result
    }

    /// Appends records outside a group, without a second try.
    pub fn append_as_they_are(
        &mut self,
        shared: &Shared,
        records: &[(Record, Bytes)],
    ) -> io::Result<Vec<Location>> {
        self.append(shared, records).map_err(|error| match error {
            AppendError::Full => io::ErrorKind::StorageFull.into(),
            AppendError::Refused(error) => error,
            AppendError::Lost(reason) => {
                shared.become_suspect(reason.clone());
                io::Error::other(reason)
            }
            // It is not known whether the next group may use the segment.
            AppendError::Failed(error) => self.condemn_active(shared).err().unwrap_or(error),
        })
    }

    /// Writes `records` to the active segment, syncs it and checks that the directory is still the same.
    fn append(&mut self, shared: &Shared, records: &[(Record, Bytes)]) -> Result<Vec<Location>, AppendError> {
        let buffer = std::mem::take(&mut self.buffer);
        let version = records.iter().map(|(record, _)| record.version()).max().unwrap_or(1);
        let active = self.activate(shared, version)?;
        let at = AppendPosition {
            name: active.segment.name,
            start: active.len,
            mark_due: active.mark_due,
            direct_bytes: shared.options.direct_bytes,
        };
        let mut layout = Layout::new(at, records, buffer);
        let written = layout.write(&*active.file).and_then(|()| active.file.sync());
        let outcome = match written {
            Ok(()) => shared.check_watched(Some(active)).map_err(AppendError::from),
            Err(error) => Err(AppendError::of_writing(error)),
        };
        match outcome {
            Ok(()) => {}
            Err(error @ (AppendError::Full | AppendError::Refused(_))) => {
                return Err(self.undo(shared, error));
            }
            Err(error) => return Err(error),
        }
        active.len = layout.end;
        active.mark_due = false;
        let locations = std::mem::take(&mut layout.locations);
        self.buffer = layout.into_buffer();
        Ok(locations)
    }

    /// Durably cuts off a group during which the disk became full, or that cannot be acknowledged; returns why. A cut
    /// that a power cut undoes would bring back records that were never acknowledged, and that later deletes did not
    /// know of.
    fn undo(&mut self, shared: &Shared, reason: AppendError) -> AppendError {
        let cut = |active: &ActiveSegment| active.file.set_len(active.len).and_then(|()| active.file.sync());
        if let Some(Err(error)) = self.active.as_ref().map(cut)
            && self.condemn_active(shared).is_err()
        {
            return AppendError::Failed(error);
        }
        reason
    }

    /// Returns the segment to append records of up to `version` to. Creates one if there is none, or if the current one
    /// is long enough or of an older format.
    fn activate(&mut self, shared: &Shared, version: u8) -> Result<&mut ActiveSegment, AppendError> {
        let is_over = |active: &ActiveSegment| active.len >= shared.segment_len || active.version < version;
        if self.active.as_ref().is_some_and(is_over) {
            self.seal();
        }
        if self.active.is_none() {
            // No file is added to a directory that is being wiped.
            shared.check_watched(None)?;
            let version = version.max(shared.version_in_force());
            self.active = Some(shared.new_segment(version)?);
        }
        Ok(self.active.as_mut().expect("made if it was missing"))
    }

    /// Seals the active segment with a mark. The mark need not be durable: without it a scan just reads more.
    pub fn seal(&mut self) {
        let Some(active) = self.active.take() else { return };
        let mut mark = Vec::new();
        Record::Mark.encode(active.segment.name.place(active.len), &mut mark);
        if let Err(error) = active.file.write_all_at(&mut [IoSlice::new(&mark)], active.len) {
            tracing::debug!(%error, "a segment ends without a mark");
        }
    }

    /// Condemns the active segment. If even that cannot be made durable, the store must not acknowledge anything any
    /// more: after a restart the segment's end might count.
    fn condemn_active(&mut self, shared: &Shared) -> io::Result<()> {
        let Some(active) = self.active.take() else { return Ok(()) };
        let name = active.segment.name;
        if let Some(segment) = shared.state.write().segments.get_mut(&name.number) {
            segment.condemned = Some(active.len);
        }
        name.condemn(&*shared.fs, &shared.directory, active.len).inspect_err(|error| {
            shared.become_suspect(format!(
                "a write failed, and so did recording that its segment is damaged: {error}"
            ));
        })
    }
}

enum TakeOutcome {
    Waits,
    Answered(Result<(), SiteError>),
}

impl Group {
    fn push(&mut self, record: Record, payload: Bytes) {
        self.bytes += record.len();
        self.records.push((record, payload));
    }

    /// Returns whether `change` must see the effect of this group first.
    fn conflicts(&self, change: &Change) -> bool {
        match change {
            Change::Write { record, .. } => self.deleted.contains(&record.chunk),
            Change::Delete { chunks, .. } => chunks.iter().any(|chunk| self.written.contains_key(chunk)),
        }
    }
}

/// Returns chunk and segment of the copies that tombstones among `records` name.
fn named_copies(records: &[(Record, Bytes)]) -> HashSet<(ChunkId, u32)> {
    let named = records.iter().filter_map(|(record, _)| match record {
        Record::Tombstone { chunk, target, .. } => Some((*chunk, *target)),
        _ => None,
    });
    named.collect()
}

pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl Shared {
    /// Creates the next segment, whose name is durable on return.
    fn new_segment(&self, version: u8) -> Result<ActiveSegment, AppendError> {
        let name = self.next_segment_name();
        let epoch = self.state.read().epoch;
        let file = self.fs.create(&name.path(&self.directory)).map_err(AppendError::of_opening)?;
        let written = write_header(&*file, name, SegmentHeader { version, epoch });
        written.and_then(|()| self.names.sync()).map_err(AppendError::of_writing)?;
        let segment = Segment::new(name, &self.directory);
        self.open_files.put(&segment, file.clone());
        let state = SegmentState::new(segment.clone(), version, SEGMENT_HEADER_LEN, epoch);
        self.state.write().segments.insert(name.number, state);
        Ok(ActiveSegment { segment, version, file, len: SEGMENT_HEADER_LEN, mark_due: false })
    }

    pub(super) fn next_segment_name(&self) -> SegmentName {
        let number = self.next_segment.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        SegmentName { number, nonce: self.runtime.random_u64() }
    }

    /// Updates the index with records that have become durable.
    pub(super) fn apply(&self, records: &[(Record, Bytes)], locations: &[Location]) {
        let mut state = self.state.write();
        let named = named_copies(records);
        for ((record, _), location) in records.iter().zip(locations) {
            state.grow(location.segment, u64::from(location.offset) + record.len());
            match record {
                Record::Chunk(chunk) => state.put(chunk.chunk, *location),
                Record::Tombstone { chunk, sequence, target, epoch } => {
                    // A compaction may have moved the chunk since its tombstones were made.
                    let mut copies = state.copies(*chunk);
                    copies.retain(|segment| !named.contains(&(*chunk, *segment)));
                    let dead = |segment| DeadCopy { chunk: *chunk, sequence: *sequence, segment };
                    state.uncovered.extend(copies.into_iter().map(dead));
                    state.remove(*chunk);
                    state.add_tombstone(location.segment, *target);
                    state.see_epoch(location.segment, *epoch);
                }
                Record::Fence { epoch } => state.see_epoch(location.segment, *epoch),
                Record::Mark | Record::Gap { .. } => {}
            }
        }
    }
}

//! Compaction: reclaims the space of deleted chunks.
//!
//! A segment without live records is unlinked at once. Otherwise, once enough of a segment is dead, its live records
//! are verified and copied into a new segment, in bounded steps, and then the old file is removed. Readers never stall:
//! they hold the old file open until they are done with it, and look the chunk up again if the file vanished between
//! their lookup and their read.
//!
//! The steps of a job, and why a crash between any two is harmless:
//! 1. Copy into `*.tmp`, syncing along the way. A crash leaves a file that the next start sweeps.
//! 2. Rename, sync the directory. Every copied chunk is now stored twice, under the same sequence; either copy will do.
//! 3. Point the index at the copies. A chunk that was deleted meanwhile has a dead copy in the new segment that its
//!    tombstone does not name; a further tombstone for it becomes durable. (After a crash before that, the next start
//!    first buries dead copies that no tombstone names.) The same holds for a chunk that is moved while the tombstone
//!    for its old place is being written: the code that applies the tombstone sees the new place.
//! 4. Unlink the old segments, sync the directory. Only then are tombstones for copies in them superfluous.
//!
//! A tombstone is copied along until the segment it names is durably gone (design.md §10.11). A damaged live record is
//! never copied: its segment is set aside until the chunk has been repaired elsewhere and deleted here.
//!
//! Where there is no room to copy all that lives in a segment, its end is copied and cut off (module `victims`). Step 4
//! is then:
//! 4. Remove the snapshot, sync the directory. A snapshot may locate chunks in the part that goes; a later start would
//!    believe it if the segment had grown again meanwhile. Then truncate the segment and sync it. A crash in between
//!    leaves chunks stored twice.
//!
//! The segment still exists, and so may older copies before the cut. So tombstones for copies in the segment itself are
//! copied along, too, unlike those of a segment that goes as a whole.

use std::collections::BTreeMap;
use std::io;
use std::sync::Weak;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use striate_core::ChunkId;
use striate_runtime::Runtime;

use super::index::Location;
use super::job::{Job, MovedRecord, Victim};
use super::record::{ChunkRecord, Record};
use super::scan::{Scanner, read_stored};
use super::segment::{SEGMENT_HEADER_LEN, Segment, SegmentHeader, SegmentName, create_segment};
use super::state::{DeadCopy, SegmentState};
use super::victims::{Choice, Part};
use super::watch::WatchError;
use super::writer::{Writer, is_full};
use super::{Shared, sizes, snapshot};
use crate::filesystem::{self, File};

/// Result of [`super::DiskStore::compact_step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactionStep {
    /// There is nothing to compact.
    Idle,
    /// A part is done; there is more to do.
    Progress,
    /// A job was abandoned because the disk is full or failing; try again later.
    Failed,
}

/// The state of compaction between two steps.
#[derive(Debug)]
pub(super) struct Compaction {
    job: Option<Job>,
    /// Number of jobs in a row that ended because the disk was full.
    pub refusals: u32,
    /// Bytes in segments when the last snapshot was written.
    pub bytes_at_snapshot: u64,
}

/// Number of moved records that the index takes under one lock.
const MOVES_PER_LOCK: usize = 1024;
/// Number of jobs in a row that end on a full disk before compaction pauses; each has half the room of the one before.
const MAX_REFUSALS: u32 = 8;

impl Compaction {
    /// Creates the state for a last snapshot that covers `bytes_at_snapshot` of the segments.
    pub fn new(bytes_at_snapshot: u64) -> Self {
        Self { job: None, refusals: 0, bytes_at_snapshot }
    }

    /// Abandons the current job.
    pub fn stop(&mut self, shared: &Shared) {
        let Some(job) = self.job.take() else { return };
        let mut state = shared.state.write();
        state.segments.values_mut().for_each(|segment| segment.compacting = false);
        drop(state);
        if let Err(error) = shared.fs.unlink(&job.temporary_path) {
            tracing::debug!(%error, "an unfinished compaction is swept at the next start");
        }
    }
}

/// Runs steps in the background as long as the store lives.
pub(super) fn start_in_background(runtime: &Runtime, shared: Weak<Shared>) {
    let clock = runtime.clone();
    runtime.spawn(async move {
        let mut pause = IDLE_PAUSE;
        loop {
            clock.sleep(pause).await;
            let Some(shared) = shared.upgrade().filter(|shared| !shared.queue.lock().closed) else { return };
            let busy_pause = shared.options.compact_pause;
            let step = clock.run_blocking(move || shared.compact_step()).await;
            pause = match step {
                CompactionStep::Idle => IDLE_PAUSE,
                CompactionStep::Progress => busy_pause,
                CompactionStep::Failed => FAILED_PAUSE,
            };
        }
    });
}

const IDLE_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);
const FAILED_PAUSE: std::time::Duration = std::time::Duration::from_secs(30);

impl Shared {
    /// Runs one bounded step.
    pub(super) fn compact_step(&self) -> CompactionStep {
        let mut compaction = self.compaction.lock();
        if self.suspect.lock().is_some() || self.lock.lock().is_none() {
            return CompactionStep::Idle;
        }
        // Checked about every second even when there are no writes; and no file is added to a
        // directory that is being wiped.
        match self.check_watched(None) {
            Ok(()) => {}
            Err(WatchError::Lost(reason)) => {
                self.become_suspect(reason);
                return CompactionStep::Idle;
            }
            Err(WatchError::Unknown(_)) => return CompactionStep::Failed,
        }
        let result = match compaction.job.take() {
            Some(job) => self.continue_job(&mut compaction, job),
            None => self.begin_job(&mut compaction),
        };
        result.unwrap_or_else(|error| {
            compaction.stop(self);
            compaction.refusals += u32::from(is_full(&error));
            if is_full(&error) && compaction.refusals < MAX_REFUSALS {
                return CompactionStep::Progress;
            }
            tracing::warn!(directory = %self.directory.display(), %error, "a compaction was given up");
            compaction.refusals = 0;
            CompactionStep::Failed
        })
    }

    fn begin_job(&self, compaction: &mut Compaction) -> io::Result<CompactionStep> {
        // Also what others write to the disk, or remove from it, is seen without a write.
        self.free_bytes();
        self.bury_uncovered()?;
        self.seal_dead_active();
        let sealed: Vec<u32> = self.sealed_segments();
        for number in &sealed {
            self.unlink_dead_segments(std::iter::once(*number));
        }
        let victims = match self.choose_victims(&sealed, compaction) {
            Choice::Nothing => return self.checkpoint_if_due(compaction),
            Choice::Cut(part) => {
                self.cut_dead_end(compaction, &part)?;
                return Ok(CompactionStep::Progress);
            }
            Choice::Copy(parts) => parts,
        };
        let name = self.next_segment_name();
        let temporary_path = name.temporary_path(&self.directory);
        let header = self.header_for(&victims);
        let file = create_segment(&*self.fs, name, &temporary_path, header)?;
        let mut state = self.state.write();
        for part in &victims {
            if let Some(segment) = state.segments.get_mut(&part.segment) {
                segment.compacting = true;
            }
        }
        drop(state);
        compaction.job = Some(Job {
            name,
            temporary_path,
            file,
            len: SEGMENT_HEADER_LEN,
            header,
            waiting: victims,
            current: None,
            done: Vec::new(),
            moved: Vec::new(),
            tombstones: Vec::new(),
        });
        Ok(CompactionStep::Progress)
    }

    /// Returns the header of a segment into which the records of `victims` are copied unchanged.
    fn header_for(&self, victims: &[Part]) -> SegmentHeader {
        let state = self.state.read();
        let segments = victims.iter().filter_map(|part| state.segments.get(&part.segment));
        let versions = segments.map(|segment| segment.version);
        SegmentHeader { version: versions.max().unwrap_or(1), epoch: state.epoch }
    }

    /// Writes a snapshot if a crash would by now cost a long scan.
    fn checkpoint_if_due(&self, compaction: &mut Compaction) -> io::Result<CompactionStep> {
        let (disk_bytes, chunks) = {
            let state = self.state.read();
            (state.disk_bytes(), state.index.len() as u64)
        };
        let due = self.options.snapshot_after_bytes.max(8 * snapshot::ENTRY_LEN * chunks);
        if disk_bytes.abs_diff(compaction.bytes_at_snapshot) >= due {
            self.checkpoint(compaction)?;
        }
        Ok(CompactionStep::Idle)
    }

    fn sealed_segments(&self) -> Vec<u32> {
        let writer = self.writer.lock();
        let active = writer.active.as_ref().map(|active| active.segment.name.number);
        self.state.read().segments.keys().copied().filter(|number| Some(*number) != active).collect()
    }

    /// Seals the active segment early when it has many dead bytes, absolutely and relatively.
    fn seal_dead_active(&self) {
        let mut writer = self.writer.lock();
        let Some(active) = &writer.active else { return };
        let dead = active.len - self.state.read().needed_bytes(active.segment.name.number).min(active.len);
        if dead >= self.segment_len / 16 && self.is_worth_compacting(dead, active.len) {
            writer.seal();
        }
    }

    /// Returns whether enough is dead, absolutely (so that a compacted segment is not compacted for
    /// its own header) and relatively: the fuller the disk, the less is enough.
    pub(super) fn is_worth_compacting(&self, dead: u64, len: u64) -> bool {
        let capacity = self.capacity_bytes.load(Ordering::Relaxed);
        let free = self.available_bytes.load(Ordering::Relaxed).saturating_sub(self.reserve_bytes);
        let permille = sizes::dead_permille(self.options.compact_dead_permille, free, capacity);
        dead >= self.segment_len / 64 && dead * 1000 >= len * u64::from(permille)
    }

    fn continue_job(&self, compaction: &mut Compaction, mut job: Job) -> io::Result<CompactionStep> {
        let mut budget = self.options.compact_step_bytes as i64;
        let copied = self.copy(&mut job, &mut budget).and_then(|()| job.file.sync());
        let is_finished = job.current.is_none() && job.waiting.is_empty();
        // Kept where `stop` finds it, in case of an error.
        let job = compaction.job.insert(job);
        copied?;
        if is_finished {
            job.append(Record::Mark, &[])?;
            job.file.sync()?;
            self.publish(job)?;
            self.move_index(job);
            self.bury_uncovered()?;
            let ends = self.retire(job)?;
            compaction.job = None;
            compaction.refusals = 0;
            for victim in ends {
                self.cut_off(compaction, &victim)?;
            }
        }
        Ok(CompactionStep::Progress)
    }

    /// Copies records until the byte budget is used up.
    fn copy(&self, job: &mut Job, budget: &mut i64) -> io::Result<()> {
        while *budget > 0 {
            let Some(mut victim) =
                job.current.take().map_or_else(|| self.next_victim(job), |v| Ok(Some(v)))?
            else {
                return Ok(());
            };
            let before = victim.scanner.position();
            let record = victim.scanner.next_record();
            *budget -= (victim.scanner.position() - before) as i64;
            match record {
                Ok(Some((offset, Record::Chunk(chunk)))) => {
                    self.copy_chunk(job, &victim, offset, chunk)?;
                    job.current = Some(victim);
                }
                Ok(Some((_, record @ Record::Tombstone { target, .. }))) => {
                    let number = victim.segment.name.number;
                    *victim.tombstones.entry(target).or_default() += 1;
                    let is_needed = {
                        let state = self.state.read();
                        // Of a segment that stays, a copy that the tombstone covers may lie before the cut.
                        let is_own = !victim.part.is_whole() && target == number;
                        is_own || state.is_needed(number, target)
                    };
                    if is_needed {
                        job.append(record, &[])?;
                        job.tombstones.push(target);
                    }
                    job.current = Some(victim);
                }
                Ok(Some((_, Record::Fence { .. } | Record::Mark | Record::Gap { .. }))) => {
                    job.current = Some(victim)
                }
                Ok(None) | Err(_) => job.done.push(victim),
            }
        }
        Ok(())
    }

    fn next_victim(&self, job: &mut Job) -> io::Result<Option<Victim>> {
        let Some(part) = job.waiting.pop() else { return Ok(None) };
        let number = part.segment;
        let found = self.state.read().segments.get(&number).map(|s| (s.segment.clone(), s.condemned));
        let Some((segment, condemned)) = found else { return Ok(None) };
        let file = self.open_files.get(&*self.fs, &segment)?;
        // Bytes behind a condemned segment's durable part were never acknowledged: a tombstone there must not be
        // carried into a segment where it would count.
        let end = file.len()?.min(condemned.unwrap_or(u64::MAX));
        let scanner = Scanner::new(file.clone(), segment.name, part.from, end);
        Ok(Some(Victim { part, tombstones: BTreeMap::new(), segment, file, scanner }))
    }

    /// Copies a record that the index points at, if it is intact.
    fn copy_chunk(&self, job: &mut Job, victim: &Victim, offset: u32, chunk: ChunkRecord) -> io::Result<()> {
        let from = chunk.location(victim.segment.name.number, offset);
        if self.state.read().index.get(chunk.chunk) != Some(from) {
            return Ok(());
        }
        let Some(stored) = read_stored(&victim.file, &chunk, offset)? else { return Ok(()) };
        let (name, sequence) = (chunk.chunk, chunk.sequence);
        let offset = job.append_chunk(chunk, &stored)?;
        let to = Location { segment: job.name.number, offset, ..from };
        job.moved.push(MovedRecord { chunk: name, sequence, from, to });
        Ok(())
    }

    /// Gives the new segment its name.
    fn publish(&self, job: &Job) -> io::Result<()> {
        let renamed = self.fs.rename(&job.temporary_path, &job.name.path(&self.directory));
        if let Err(error) = &renamed
            && filesystem::is_of_process(error)
        {
            return renamed;
        }
        renamed.and_then(|()| self.names.sync()).inspect_err(|error| {
            // The copies may or may not have their name, and the index does not know them: only a new start finds out.
            self.become_suspect(format!("a compaction could not name its segment: {error}"));
        })?;
        let segment = Segment::new(job.name, &self.directory);
        self.open_files.put(&segment, job.file.clone());
        let mut state = self.state.write();
        state.segments.insert(
            job.name.number,
            SegmentState::new(segment, job.header.version, job.len, job.header.epoch),
        );
        for target in &job.tombstones {
            state.add_tombstone(job.name.number, *target);
        }
        Ok(())
    }

    /// Points the index at the copies. Until the old segments are gone, every chunk is stored twice.
    fn move_index(&self, job: &Job) {
        for moves in job.moved.chunks(MOVES_PER_LOCK) {
            let mut state = self.state.write();
            for moved in moves {
                let (chunk, sequence) = (moved.chunk, moved.sequence);
                if state.index.get(chunk) == Some(moved.from) {
                    state.put(chunk, moved.to);
                    state.extra_copies.entry(chunk).or_default().push(moved.from.segment);
                } else {
                    state.uncovered.push(DeadCopy { chunk, sequence, segment: job.name.number });
                }
            }
        }
    }

    /// Makes tombstones durable for dead copies that no tombstone names.
    pub(super) fn bury_uncovered(&self) -> io::Result<()> {
        if self.state.read().uncovered.is_empty() {
            return Ok(());
        }
        self.bury(&mut self.writer.lock())
    }

    /// As [`Shared::bury_uncovered`]. Afterwards there are none until `writer` serves again or a compaction moves records.
    pub(super) fn bury(&self, writer: &mut Writer) -> io::Result<()> {
        let (uncovered, epoch) = {
            let state = self.state.read();
            (state.uncovered.clone(), state.epoch)
        };
        if uncovered.is_empty() {
            return Ok(());
        }
        let tombstone = |copy: &DeadCopy| {
            let DeadCopy { chunk, sequence, segment } = *copy;
            (Record::Tombstone { chunk, sequence, target: segment, epoch }, Bytes::new())
        };
        let records: Vec<_> = uncovered.iter().map(tombstone).collect();
        let locations = writer.append_as_they_are(self, &records)?;
        let mut state = self.state.write();
        for ((record, _), location) in records.iter().zip(locations) {
            state.grow(location.segment, u64::from(location.offset) + record.len());
            if let Record::Tombstone { target, .. } = record {
                state.add_tombstone(location.segment, *target);
            }
        }
        state.uncovered.drain(..uncovered.len());
        Ok(())
    }

    /// Removes the old segments, or sets them aside if a live record could not be copied. Returns those of which only
    /// the end was copied.
    fn retire(&self, job: &mut Job) -> io::Result<Vec<Victim>> {
        let (mut ends, mut gone) = (Vec::new(), Vec::new());
        let mut state = self.state.write();
        for victim in job.done.drain(..) {
            let number = victim.segment.name.number;
            let is_left = |chunk: &ChunkId| state.index.get(*chunk).is_some_and(|at| at.segment == number);
            let is_damaged = match victim.part.is_whole() {
                true => state.segments.get(&number).is_some_and(|segment| segment.live_bytes > 0),
                false => victim.part.live.iter().any(is_left),
            };
            let Some(segment) = state.segments.get_mut(&number) else { continue };
            segment.compacting = false;
            if is_damaged {
                segment.set_aside = true;
                tracing::error!(segment = %victim.segment.path.display(), "a segment with damaged chunks is set aside");
            } else if victim.part.is_whole() {
                gone.push(number);
            } else {
                ends.push(victim);
            }
        }
        drop(state);
        self.unlink(&gone)?;
        Ok(ends)
    }

    /// Cuts off the end of a segment in which nothing is needed.
    fn cut_dead_end(&self, compaction: &mut Compaction, part: &Part) -> io::Result<()> {
        let found = self.state.read().segments.get(&part.segment).map(|found| found.segment.clone());
        let Some(segment) = found else { return Ok(()) };
        let file = self.open_files.get(&*self.fs, &segment)?;
        self.truncate(compaction, part, &*file, &BTreeMap::new())
    }

    /// Cuts off the end of a segment that was copied.
    fn cut_off(&self, compaction: &mut Compaction, victim: &Victim) -> io::Result<()> {
        self.truncate(compaction, &victim.part, &*victim.file, &victim.tombstones)
    }

    /// Truncates a segment durably to where `part` begins; `tombstones` lie behind.
    fn truncate(
        &self,
        compaction: &mut Compaction,
        part: &Part,
        file: &dyn File,
        tombstones: &BTreeMap<u32, u32>,
    ) -> io::Result<()> {
        snapshot::remove(&*self.fs, &self.directory)?;
        self.names.sync()?;
        compaction.bytes_at_snapshot = 0;
        let truncated = file.set_len(part.from).and_then(|()| file.sync());
        let mut state = self.state.write();
        state.cut_segment(part.segment, part.from, tombstones);
        // What the file holds behind the cut after a failure is unknown, and not needed. What lies before is read as ever.
        if truncated.is_err()
            && let Some(segment) = state.segments.get_mut(&part.segment)
        {
            segment.set_aside = true;
        }
        drop(state);
        self.free_bytes();
        truncated
    }

    /// Unlinks a segment among `numbers`, none of which is being appended to, that holds nothing that is needed.
    pub(super) fn unlink_dead_segments(&self, numbers: impl Iterator<Item = u32>) {
        let dead: Vec<u32> = {
            let state = self.state.read();
            let is_dead = |number: &u32| {
                let segment = state.segments.get(number);
                segment.is_some_and(|segment| !segment.compacting)
                    && state.needed_bytes(*number) == 0
                    && state.epoch_is_elsewhere(*number)
                    && state.uncovered.is_empty()
            };
            // One at a time, so that no two rely on each other to keep the epoch; the next step finds more.
            numbers.filter(is_dead).take(1).collect()
        };
        if let Err(error) = self.unlink(&dead) {
            tracing::warn!(directory = %self.directory.display(), %error, "a dead segment could not be removed");
        }
    }

    /// Removes the files of segments durably, then forgets the segments.
    fn unlink(&self, numbers: &[u32]) -> io::Result<()> {
        let mut names: Vec<SegmentName> = Vec::new();
        {
            let mut state = self.state.write();
            for number in numbers {
                let Some(segment) = state.segments.get_mut(number) else { continue };
                segment.given_up = true;
                names.push(segment.segment.name);
            }
        }
        if names.is_empty() {
            return Ok(());
        }
        for name in &names {
            match self.fs.unlink(&name.path(&self.directory)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.names.sync()?;
        let mut state = self.state.write();
        names.iter().for_each(|name| state.forget_segment(name.number));
        drop(state);
        for name in &names {
            // Most were never condemned. The next start sweeps what remains.
            let _ = self.fs.unlink(&name.condemned_path(&self.directory));
        }
        self.free_bytes();
        Ok(())
    }
}

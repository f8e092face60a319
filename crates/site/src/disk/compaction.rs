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

use std::io;
use std::sync::Weak;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use striate_runtime::Runtime;

use super::index::Location;
use super::job::{Job, MovedRecord, Victim};
use super::record::{ChunkRecord, Record};
use super::scan::{Scanner, read_stored};
use super::segment::{SEGMENT_HEADER_LEN, Segment, SegmentHeader, SegmentName, create_segment};
use super::state::{DeadCopy, SegmentState};
use super::watch::WatchError;
use super::writer::Writer;
use super::{Shared, snapshot};
use crate::filesystem;

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
    /// Bytes in segments when the last snapshot was written.
    pub bytes_at_snapshot: u64,
}

/// Number of moved records that the index takes under one lock.
const MOVES_PER_LOCK: usize = 1024;

impl Compaction {
    /// Creates the state for a last snapshot that covers `bytes_at_snapshot` of the segments.
    pub fn new(bytes_at_snapshot: u64) -> Self {
        Self { job: None, bytes_at_snapshot }
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
            tracing::warn!(directory = %self.directory.display(), %error, "a compaction was given up");
            compaction.stop(self);
            CompactionStep::Failed
        })
    }

    fn begin_job(&self, compaction: &mut Compaction) -> io::Result<CompactionStep> {
        self.bury_uncovered()?;
        self.seal_dead_active();
        let sealed: Vec<u32> = self.sealed_segments();
        for number in &sealed {
            self.unlink_dead_segments(std::iter::once(*number));
        }
        let victims = self.choose_victims(&sealed);
        if victims.is_empty() {
            return self.checkpoint_if_due(compaction);
        }
        let name = self.next_segment_name();
        let temporary_path = name.temporary_path(&self.directory);
        let header = self.header_for(&victims);
        let file = create_segment(&*self.fs, name, &temporary_path, header)?;
        let mut state = self.state.write();
        for number in &victims {
            if let Some(segment) = state.segments.get_mut(number) {
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
    fn header_for(&self, victims: &[u32]) -> SegmentHeader {
        let state = self.state.read();
        let versions =
            victims.iter().filter_map(|number| state.segments.get(number)).map(|segment| segment.version);
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
        if dead >= self.options.segment_len / 16 && self.is_worth_compacting(dead, active.len) {
            writer.seal();
        }
    }

    /// Returns whether enough is dead, absolutely (so that a compacted segment is not compacted for
    /// its own header) and relatively.
    fn is_worth_compacting(&self, dead: u64, len: u64) -> bool {
        dead >= self.options.segment_len / 64
            && dead * 1000 >= len * u64::from(self.options.compact_dead_permille)
    }

    /// Chooses the deadest segments, and short ones once there are several: as many as fit into
    /// one segment and onto the disk.
    fn choose_victims(&self, sealed: &[u32]) -> Vec<u32> {
        const MANY: usize = 8;
        /// Candidates sort in ascending order of their live share.
        #[derive(PartialEq, Eq, PartialOrd, Ord)]
        struct Candidate {
            needed_permille: u64,
            needed: u64,
            number: u32,
            is_worth_it: bool,
        }
        let mut candidates = Vec::new();
        let state = self.state.read();
        for number in sealed {
            let Some(segment) = state.segments.get(number).filter(|segment| !segment.set_aside) else {
                continue;
            };
            let needed = state.needed_bytes(*number).min(segment.len);
            let is_worth_it = self.is_worth_compacting(segment.len - needed, segment.len);
            if is_worth_it || segment.len < self.options.segment_len / 8 {
                let needed_permille = needed * 1000 / segment.len.max(1);
                candidates.push(Candidate { needed_permille, needed, number: *number, is_worth_it });
            }
        }
        drop(state);
        candidates.sort_unstable();
        // Copies may use the reserve: that is what it is for.
        let room = self.fs.space(&self.directory).map_or(0, |space| space.available);
        let mut remaining_room = self.options.segment_len.min(room);
        candidates.retain(|candidate| {
            let fits = candidate.needed <= remaining_room;
            remaining_room -= if fits { candidate.needed } else { 0 };
            fits
        });
        // Short segments that are mostly alive are worth compacting only when many become one.
        if candidates.len() < MANY {
            candidates.retain(|candidate| candidate.is_worth_it);
        }
        candidates.into_iter().map(|candidate| candidate.number).collect()
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
            self.retire(job)?;
            compaction.job = None;
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
                    if self.state.read().is_needed(number, target) {
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
        let Some(number) = job.waiting.pop() else { return Ok(None) };
        let found = self.state.read().segments.get(&number).map(|s| (s.segment.clone(), s.condemned));
        let Some((segment, condemned)) = found else { return Ok(None) };
        let file = self.open_files.get(&*self.fs, &segment)?;
        // Bytes behind a condemned segment's durable part were never acknowledged: a tombstone there must not be
        // carried into a segment where it would count.
        let end = file.len()?.min(condemned.unwrap_or(u64::MAX));
        let scanner = Scanner::new(file.clone(), segment.name, SEGMENT_HEADER_LEN, end);
        Ok(Some(Victim { segment, file, scanner }))
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

    /// Releases the old segments, or sets them aside if a live record could not be copied.
    fn retire(&self, job: &Job) -> io::Result<()> {
        let mut state = self.state.write();
        let mut aside = Vec::new();
        for victim in &job.done {
            let number = victim.segment.name.number;
            let Some(segment) = state.segments.get_mut(&number) else { continue };
            segment.compacting = false;
            if segment.live_bytes > 0 {
                segment.set_aside = true;
                aside.push(number);
                tracing::error!(segment = %victim.segment.path.display(), "a segment with damaged chunks is set aside");
            }
        }
        drop(state);
        let done = job.done.iter().map(|victim| victim.segment.name.number);
        self.unlink(&done.filter(|number| !aside.contains(number)).collect::<Vec<_>>())
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
        let names: Vec<SegmentName> = {
            let state = self.state.read();
            numbers.iter().filter_map(|number| state.segments.get(number)).map(|s| s.segment.name).collect()
        };
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
        self.available_bytes
            .store(self.fs.space(&self.directory).map_or(0, |space| space.available), Ordering::Relaxed);
        Ok(())
    }
}

//! What a store knows in memory: the index, the segments, and how much of each is alive.

use std::collections::BTreeMap;
use std::sync::Arc;

use striate_core::{ChunkId, FencingEpoch};

use super::index::{Index, Location};
use super::record::TOMBSTONE_LEN;
use super::segment::Segment;

/// Behind one lock; readers hold it for a lookup only.
#[derive(Debug, Default)]
pub(super) struct State {
    pub index: Index,
    pub segments: BTreeMap<u32, SegmentState>,
    /// Segments that hold further copies of a live chunk: from a write that was repeated after a failed sync, or a
    /// compaction that a crash cut short. A delete must cover them all.
    pub extra_copies: BTreeMap<ChunkId, Vec<u32>>,
    /// The highest fencing epoch seen.
    pub epoch: FencingEpoch,
    pub payload_bytes: u64,
    /// Dead copies that no tombstone names: a compaction moved a chunk while its deletion was written, or was cut short
    /// by a crash. Until tombstones for them are durable no segment may go, and no snapshot may be taken.
    pub uncovered: Vec<DeadCopy>,
}

/// A copy of a deleted chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeadCopy {
    pub chunk: ChunkId,
    pub sequence: u64,
    /// The segment it lies in.
    pub segment: u32,
}

/// The accounting of one segment.
#[derive(Debug)]
pub(super) struct SegmentState {
    pub segment: Arc<Segment>,
    /// The newest format of a record that it may hold.
    pub version: u8,
    /// Bytes of the file.
    pub len: u64,
    /// How much of the file counts, if a write or sync of it has failed.
    pub condemned: Option<u64>,
    /// Bytes of records that the index points at.
    pub live_bytes: u64,
    /// Its tombstones, counted by the segment whose copy they cover. Those whose target still exists are needed.
    pub tombstones: BTreeMap<u32, u32>,
    /// The highest fencing epoch that it records.
    pub epoch: FencingEpoch,
    /// A compaction is copying it; it must not go before that has ended.
    pub compacting: bool,
    /// Holds a live chunk that is damaged, which a compaction leaves where it is.
    pub set_aside: bool,
}

impl SegmentState {
    pub fn new(segment: Arc<Segment>, version: u8, len: u64, epoch: FencingEpoch) -> Self {
        let tombstones = BTreeMap::new();
        Self {
            segment,
            version,
            len,
            condemned: None,
            live_bytes: 0,
            tombstones,
            epoch,
            compacting: false,
            set_aside: false,
        }
    }
}

impl State {
    /// The segments' bytes.
    pub fn disk_bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.len).sum()
    }

    /// Bytes of a segment that a compaction would have to copy.
    pub fn needed_bytes(&self, number: u32) -> u64 {
        let Some(segment) = self.segments.get(&number) else { return 0 };
        let needed = |(target, count): (&u32, &u32)| match self.is_needed(number, *target) {
            true => u64::from(*count),
            false => 0,
        };
        segment.live_bytes + segment.tombstones.iter().map(needed).sum::<u64>() * TOMBSTONE_LEN
    }

    /// True if a tombstone in segment `within` for a copy in segment `target` must be kept: the copy may still be
    /// on the medium, elsewhere than in the segment that goes with the tombstone.
    pub fn is_needed(&self, within: u32, target: u32) -> bool {
        target != within && self.segments.contains_key(&target)
    }

    /// A segment's file now reaches to `end`.
    pub fn grow(&mut self, number: u32, end: u64) {
        if let Some(segment) = self.segments.get_mut(&number) {
            segment.len = segment.len.max(end);
        }
    }

    /// A chunk now lies at `location`.
    pub fn put(&mut self, chunk: ChunkId, location: Location) {
        if let Some(old) = self.index.insert(chunk, location) {
            self.payload_bytes -= u64::from(old.len);
            self.release(old.segment, old.record_len());
        }
        self.payload_bytes += u64::from(location.len);
        if let Some(segment) = self.segments.get_mut(&location.segment) {
            segment.live_bytes += location.record_len();
        }
    }

    /// A chunk is gone; returns where it lay.
    pub fn remove(&mut self, chunk: ChunkId) -> Option<Location> {
        self.extra_copies.remove(&chunk);
        let old = self.index.remove(chunk)?;
        self.payload_bytes -= u64::from(old.len);
        self.release(old.segment, old.record_len());
        Some(old)
    }

    fn release(&mut self, segment: u32, bytes: u64) {
        if let Some(segment) = self.segments.get_mut(&segment) {
            segment.live_bytes -= bytes;
        }
    }

    /// A tombstone for a copy in `target` was written to segment `within`.
    pub fn add_tombstone(&mut self, within: u32, target: u32) {
        if let Some(segment) = self.segments.get_mut(&within) {
            *segment.tombstones.entry(target).or_default() += 1;
        }
    }

    /// The segments that hold a copy of a live chunk: the index's first.
    pub fn copies(&self, chunk: ChunkId) -> Vec<u32> {
        let located = self.index.get(chunk).map(|location| location.segment);
        located.into_iter().chain(self.extra_copies.get(&chunk).into_iter().flatten().copied()).collect()
    }

    /// Segment `within` records `epoch`.
    pub fn see_epoch(&mut self, within: u32, epoch: FencingEpoch) {
        self.epoch = self.epoch.max(epoch);
        if let Some(segment) = self.segments.get_mut(&within) {
            segment.epoch = segment.epoch.max(epoch);
        }
    }

    /// True if the epoch stays on the medium when the segment goes.
    pub fn epoch_is_elsewhere(&self, number: u32) -> bool {
        self.segments.iter().any(|(other, segment)| *other != number && segment.epoch >= self.epoch)
    }

    /// A segment is durably gone, and with it every reason to keep tombstones for its copies.
    pub fn forget_segment(&mut self, number: u32) {
        self.segments.remove(&number);
        for segment in self.segments.values_mut() {
            segment.tombstones.remove(&number);
        }
        self.extra_copies.retain(|_, copies| {
            copies.retain(|copy| *copy != number);
            !copies.is_empty()
        });
    }
}

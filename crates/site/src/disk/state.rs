//! A store's state in memory: the index, the segments, and how much of each is live.

use std::collections::BTreeMap;
use std::sync::Arc;

use striate_core::{ChunkId, FencingEpoch, Generation, StripeId};

use super::index::{Index, Location};
use super::record::TOMBSTONE_LEN;
use super::segment::Segment;

/// The state behind the lock, which readers hold for a lookup only.
#[derive(Debug, Default)]
pub(super) struct State {
    pub index: Index,
    pub segments: BTreeMap<u32, SegmentState>,
    /// Segments that hold further copies of a live chunk, from a write that was repeated after a failed sync or a
    /// compaction that a crash interrupted. A delete must cover them all.
    pub extra_copies: BTreeMap<ChunkId, Vec<u32>>,
    /// The highest fencing epoch seen.
    pub epoch: FencingEpoch,
    pub payload_bytes: u64,
    /// Dead copies that no tombstone names: a compaction moved a chunk while its deletion was being written, or a crash
    /// interrupted one. Until tombstones for them are durable, no segment may be removed and no snapshot taken.
    pub uncovered: Vec<DeadCopy>,
}

/// A copy of a deleted chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeadCopy {
    pub chunk: ChunkId,
    pub sequence: u64,
    /// Number of the segment that holds it.
    pub segment: u32,
}

/// The accounting of one segment.
#[derive(Debug)]
pub(super) struct SegmentState {
    pub segment: Arc<Segment>,
    /// The newest format of a record that the segment may hold.
    pub version: u8,
    /// Length of the file in bytes.
    pub len: u64,
    /// Number of bytes of the file that count, if a write or sync of it has failed.
    pub condemned: Option<u64>,
    /// Bytes of records that the index points at.
    pub live_bytes: u64,
    /// Number of tombstones in the segment, by the segment whose copy they cover. Those whose
    /// target still exists are needed.
    pub tombstones: BTreeMap<u32, u32>,
    /// The highest fencing epoch recorded in the segment.
    pub epoch: FencingEpoch,
    /// Whether a compaction is copying the segment, which must then not be removed.
    pub compacting: bool,
    /// Whether the segment holds a damaged live chunk, which compaction does not move.
    pub set_aside: bool,
    /// Whether all that is needed of it is durable elsewhere, so that its file may be gone.
    pub given_up: bool,
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
            given_up: false,
        }
    }
}

impl State {
    /// The lowest name of a chunk.
    pub const FIRST_CHUNK: ChunkId = ChunkId { stripe: StripeId(0), index: 0, generation: Generation(0) };

    /// Returns the total bytes of all segments.
    pub fn disk_bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.len).sum()
    }

    /// Returns the number of bytes of a segment that a compaction would have to copy.
    pub fn needed_bytes(&self, number: u32) -> u64 {
        let Some(segment) = self.segments.get(&number) else { return 0 };
        let needed = |(target, count): (&u32, &u32)| match self.is_needed(number, *target) {
            true => u64::from(*count),
            false => 0,
        };
        segment.live_bytes + segment.tombstones.iter().map(needed).sum::<u64>() * TOMBSTONE_LEN
    }

    /// Returns the number of bytes of the tombstones in a segment that a compaction of its end may have to copy: also
    /// those for copies in the segment itself, of which some may lie before that end.
    pub fn needed_tombstone_bytes(&self, number: u32) -> u64 {
        let Some(segment) = self.segments.get(&number) else { return 0 };
        let needed = segment.tombstones.iter().filter(|(target, _)| self.segments.contains_key(target));
        needed.map(|(_, count)| u64::from(*count)).sum::<u64>() * TOMBSTONE_LEN
    }

    /// Returns whether a tombstone in segment `within` for a copy in segment `target` must be kept: the copy may still
    /// be on the medium, and not in the segment that is removed together with the tombstone.
    pub fn is_needed(&self, within: u32, target: u32) -> bool {
        target != within && self.segments.contains_key(&target)
    }

    /// Records that a segment's file now extends to `end`.
    pub fn grow(&mut self, number: u32, end: u64) {
        if let Some(segment) = self.segments.get_mut(&number) {
            segment.len = segment.len.max(end);
        }
    }

    /// Records that a chunk now lies at `location`.
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

    /// Removes a chunk; returns its last location.
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

    /// Records that a tombstone for a copy in `target` was written to segment `within`.
    pub fn add_tombstone(&mut self, within: u32, target: u32) {
        if let Some(segment) = self.segments.get_mut(&within) {
            *segment.tombstones.entry(target).or_default() += 1;
        }
    }

    /// Returns the segments that hold a copy of a live chunk, the indexed one first.
    pub fn copies(&self, chunk: ChunkId) -> Vec<u32> {
        let located = self.index.get(chunk).map(|location| location.segment);
        located.into_iter().chain(self.extra_copies.get(&chunk).into_iter().flatten().copied()).collect()
    }

    /// Records that segment `within` contains `epoch`.
    pub fn see_epoch(&mut self, within: u32, epoch: FencingEpoch) {
        self.epoch = self.epoch.max(epoch);
        if let Some(segment) = self.segments.get_mut(&within) {
            segment.epoch = segment.epoch.max(epoch);
        }
    }

    /// Returns whether the epoch stays on the medium if the segment is removed.
    pub fn epoch_is_elsewhere(&self, number: u32) -> bool {
        self.segments.iter().any(|(other, segment)| *other != number && segment.epoch >= self.epoch)
    }

    /// Records that a segment was durably cut off at `len`, and with it `tombstones`, by the segments whose copies they
    /// cover. The cut part may have held the segment's highest epoch.
    pub fn cut_segment(&mut self, number: u32, len: u64, tombstones: &BTreeMap<u32, u32>) {
        let Some(segment) = self.segments.get_mut(&number) else { return };
        segment.len = len;
        segment.epoch = FencingEpoch::NONE;
        for (target, cut) in tombstones {
            if let Some(count) = segment.tombstones.get_mut(target) {
                *count = count.saturating_sub(*cut);
            }
        }
        segment.tombstones.retain(|_, count| *count > 0);
    }

    /// Forgets a segment that is durably gone, and with it every reason to keep tombstones for its copies.
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

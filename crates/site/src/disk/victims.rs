//! Which segments a compaction copies, and how much of them.
//!
//! The deadest segments go first, as many as fit into one segment and into the room on the disk. A segment whose live
//! records do not fit is compacted from its end: the live records behind some place are copied, then the file is cut off
//! there, which frees their old bytes together with the dead ones between them. Each part needs room for no more than
//! it copies, so a full disk recovers within its reserve, however long its segments are.

use striate_core::ChunkId;

use super::compaction::Compaction;
use super::form::{Form, PAGE};
use super::segment::SEGMENT_HEADER_LEN;
use super::state::State;
use super::{Shared, sizes};

/// What a compaction does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Nothing,
    /// The live records of these parts go into a new segment.
    Copy(Vec<Part>),
    /// A segment's end, behind which nothing is needed, is cut off.
    Cut(Part),
}

/// The end of a segment, or the whole of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Number of the segment.
    pub segment: u32,
    /// Offset of the first record.
    pub from: u64,
    /// The live chunks in a part that is not the whole segment.
    pub live: Vec<ChunkId>,
}

impl Part {
    fn whole(segment: u32) -> Self {
        Self { segment, from: SEGMENT_HEADER_LEN, live: Vec::new() }
    }

    /// Returns whether it is the whole segment, whose file is removed once it is copied.
    pub fn is_whole(&self) -> bool {
        self.from <= SEGMENT_HEADER_LEN
    }
}

/// Candidates sort in ascending order of their live share.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    needed_permille: u64,
    needed: u64,
    number: u32,
    is_worth_it: bool,
}

/// A live record of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LiveRecord {
    offset: u64,
    /// Length in bytes where it lies.
    len: u64,
    /// Most bytes that a copy of it takes.
    copy_len: u64,
    chunk: ChunkId,
}

/// Number of short segments that are worth becoming one.
const MANY: usize = 8;
/// Number of segments that are looked through for a part to copy.
const CANDIDATES_FOR_CUTS: usize = 4;
/// Number of entries of the index that are looked at under one lock.
const ENTRIES_PER_LOCK: usize = 16 * 1024;

impl Shared {
    /// Chooses among the `sealed` segments.
    pub(super) fn choose_victims(&self, sealed: &[u32], compaction: &Compaction) -> Choice {
        let Ok(space) = self.fs.space(&self.directory) else { return Choice::Nothing };
        let candidates = self.candidates(sealed);
        let room = sizes::compaction_room(space.available, compaction.refusals);
        let whole = self.whole_segments(&candidates, room);
        if !whole.is_empty() {
            return Choice::Copy(whole.into_iter().map(Part::whole).collect());
        }
        let worth_it = candidates.iter().filter(|candidate| candidate.is_worth_it).take(CANDIDATES_FOR_CUTS);
        worth_it
            .filter_map(|candidate| self.choose_end(candidate.number, room))
            .next()
            .unwrap_or(Choice::Nothing)
    }

    /// Returns the segments worth compacting, and short ones, the deadest first.
    fn candidates(&self, sealed: &[u32]) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        let state = self.state.read();
        for number in sealed {
            let Some(segment) = state.segments.get(number).filter(|segment| !segment.set_aside) else {
                continue;
            };
            let needed = state.needed_bytes(*number).min(segment.len);
            let is_worth_it = self.is_worth_compacting(segment.len - needed, segment.len);
            if is_worth_it || segment.len < self.segment_len / 8 {
                let needed_permille = needed * 1000 / segment.len.max(1);
                candidates.push(Candidate { needed_permille, needed, number: *number, is_worth_it });
            }
        }
        candidates.sort_unstable();
        candidates
    }

    /// Returns the segments to copy as a whole: of the deadest that fit into `room`, one of any length, or as many as
    /// become one segment.
    fn whole_segments(&self, candidates: &[Candidate], room: u64) -> Vec<u32> {
        let mut chosen: Vec<&Candidate> = Vec::new();
        let mut copied = 0;
        for candidate in candidates {
            let limit = if chosen.is_empty() { room } else { room.min(self.segment_len) };
            if copied + candidate.needed <= limit {
                copied += candidate.needed;
                chosen.push(candidate);
            }
        }
        // Short segments that are mostly alive are worth compacting only when many become one.
        if chosen.len() < MANY {
            chosen.retain(|candidate| candidate.is_worth_it);
        }
        chosen.into_iter().map(|candidate| candidate.number).collect()
    }

    /// Chooses as much of a segment's end as fits into `room`; `None` if that would free nothing.
    fn choose_end(&self, number: u32, room: u64) -> Option<Choice> {
        let live = self.live_records(number);
        let state = self.state.read();
        let segment = state.segments.get(&number)?;
        let tombstones = state.needed_tombstone_bytes(number);
        let (first, from) = choose_cut(&live, room.checked_sub(tombstones)?);
        if from >= segment.len {
            return None;
        }
        let part =
            Part { segment: number, from, live: live[first..].iter().map(|record| record.chunk).collect() };
        let is_dead = part.live.is_empty() && tombstones == 0 && !part.is_whole();
        // A segment that alone holds the newest epoch gives it to a new one first.
        Some(match is_dead && state.epoch_is_elsewhere(number) {
            true => Choice::Cut(part),
            false => Choice::Copy(vec![part]),
        })
    }

    /// Returns the live records of a sealed segment in the order of their offsets. Those deleted meanwhile may be among
    /// them.
    fn live_records(&self, number: u32) -> Vec<LiveRecord> {
        let (mut live, mut next) = (Vec::new(), Some(State::FIRST_CHUNK));
        while let Some(from) = next {
            let state = self.state.read();
            let mut entries = state.index.range(from);
            for (chunk, location) in entries.by_ref().take(ENTRIES_PER_LOCK) {
                if location.segment == number {
                    let len = location.record_len();
                    let gap = if location.form == Form::Paged { 2 * PAGE as u64 } else { 0 };
                    live.push(LiveRecord { offset: location.offset.into(), len, copy_len: len + gap, chunk });
                }
            }
            next = entries.next().map(|(chunk, _)| chunk);
        }
        live.sort_unstable();
        live
    }
}

/// Returns how many of the `live` records, which are in ascending order, stay before the part whose copies fit into
/// `room`, and the offset of that part.
fn choose_cut(live: &[LiveRecord], room: u64) -> (usize, u64) {
    let mut left = room;
    let fits = |record: &&LiveRecord| {
        let fits = record.copy_len <= left;
        left -= if fits { record.copy_len } else { 0 };
        fits
    };
    let first = live.len() - live.iter().rev().take_while(fits).count();
    let from = first.checked_sub(1).map_or(SEGMENT_HEADER_LEN, |last| live[last].offset + live[last].len);
    (first, from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::chunk_id;

    #[test]
    fn the_part_that_fits_begins_behind_the_last_record_that_stays() {
        let record = |number: u64| LiveRecord {
            offset: 100 * number,
            len: 40,
            copy_len: 50,
            chunk: chunk_id(number, 0, 1),
        };
        let live: Vec<_> = (1..=5).map(record).collect();
        assert_eq!(choose_cut(&live, 0), (5, 540), "only what is dead behind the last one");
        assert_eq!(choose_cut(&live, 49), (5, 540));
        assert_eq!(choose_cut(&live, 149), (3, 340));
        assert_eq!(choose_cut(&live, 249), (1, 140));
        assert_eq!(choose_cut(&live, 250), (0, SEGMENT_HEADER_LEN), "the whole segment");
        assert_eq!(choose_cut(&[], 0), (0, SEGMENT_HEADER_LEN));
    }
}

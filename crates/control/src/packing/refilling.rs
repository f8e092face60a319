//! Refilling: cold objects take the places of dead ones in a sealed group, whose partitions change in place (P6).
//!
//! Rewriting a worn group would take its partitions out of their wide stripes, and the living data, three quarters of
//! the group, would be written and sealed again. Instead, the living objects of *another* worn group are written into
//! the dead ranges of this one: the other group is released, and this one is full again.
//!
//! A range is overwritten only if no object has used it for the grace, which is longer than any read. The mark tells
//! when something last died, because each death puts it. As long as the mark is unchanged ([`QuietPeriods`]), nothing
//! has died, and closing a change requires that it is still unchanged. Nothing can have come to life either: rows are
//! switched to a range only together with the mark, and by the content version in which the range was given to them
//! ([`crate::packing::switching`]).
//!
//! The directory changes with the objects. Dead entries stay in it as long as their bytes do, so that they count.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use striate_core::StripeId;
use striate_meta::records::{Extent, Stripe};
use striate_meta::{Revision, Transaction};
use striate_runtime::Instant;
use striate_stripe::partition::{FOOTER_LEN, PartitionEntry, entry_room, object_start, partition_tail};
use striate_stripe::{ExchangeOutcome, MemberUpdate, NewBytes, StoredBytes, StripeError, Stripes};

use crate::packing::pace::Pacer;
use crate::packing::repacking::Inspection;
use crate::packing::switching::{PackedObject, TargetGroup, switch};
use crate::packing::{Candidate, READ_BYTES, read, together};

/// Divisor: a change must fill at least one in this many of a partition's bytes to be worth new generations.
const LEAST_SHARE: u32 = 8;
/// Maximum number of holes of a partition filled in one change.
const MOST_HOLES: usize = 512;
/// Graces after which a group in which something keeps dying is rewritten.
const PATIENCE: u32 = 10;

/// Since when nothing has died in marked groups, as observed by this process.
#[derive(Debug, Default)]
pub(crate) struct QuietPeriods(HashMap<StripeId, QuietPeriod>);

#[derive(Debug)]
struct QuietPeriod {
    mark: Revision,
    /// When this mark was first seen, and when any mark was.
    since: Instant,
    first: Instant,
}

/// Treatment of a worn group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WornGroupAction {
    /// Cold objects may take the places of dead ones.
    Refilled,
    /// Its living objects are written elsewhere.
    Rewritten,
    /// It is looked at again later: something may have died just now.
    Waits,
}

impl QuietPeriods {
    /// Decides how to treat a worn group.
    pub(crate) fn judge(
        &mut self,
        stripes: &Stripes,
        id: StripeId,
        inspection: &Inspection,
    ) -> WornGroupAction {
        if !is_refillable(&inspection.record) {
            self.0.remove(&id);
            return WornGroupAction::Rewritten;
        }
        let (now, grace, mark) =
            (stripes.runtime().now(), stripes.options().garbage_grace, inspection.mark.version);
        let period = self.0.entry(id).or_insert(QuietPeriod { mark, since: now, first: now });
        if period.mark != mark {
            (period.mark, period.since) = (mark, now);
        }
        match (now - period.since >= grace, now - period.first >= grace * PATIENCE) {
            (true, _) => WornGroupAction::Refilled,
            (false, true) => WornGroupAction::Rewritten,
            (false, false) => WornGroupAction::Waits,
        }
    }

    /// Forgets all groups but those that `is_marked`.
    pub(crate) fn retain(&mut self, is_marked: impl Fn(StripeId) -> bool) {
        self.0.retain(|&id, _| is_marked(id));
    }
}

/// Returns whether partitions of a group can change in place: only wide stripes protect it, and it is not hot.
fn is_refillable(record: &Stripe) -> bool {
    record.dropped && !record.dead && record.copies.is_empty()
}

/// Result of refilling a group.
pub(crate) struct RefillResult {
    /// Candidates that are not written yet.
    pub(crate) remaining: Vec<Candidate>,
    /// Number of partitions changed.
    pub(crate) partitions: usize,
}

/// Writes objects into the dead ranges of a group, one partition after the other, and switches their rows to it.
///
/// # Errors
/// When the metadata store fails. Bytes that were written but not named are then dead, and the mark leads to them.
pub(crate) async fn refill(
    stripes: &Stripes,
    id: StripeId,
    inspection: &Inspection,
    candidates: Vec<Candidate>,
    mut pace: Pacer<'_>,
) -> Result<RefillResult, StripeError> {
    let k = stripes.code_of(&inspection.record)?.k();
    let (mut refilled, mut packed) = (RefillResult { remaining: candidates, partitions: 0 }, Vec::new());
    for index in 0..k as u32 {
        // The changes of a partition are in memory, and once more while they are sent in one piece.
        let share = stripes.memory_for(2 * inspection.record.chunk_len as usize + READ_BYTES).await;
        let filling = PartitionRefill::plan(inspection, index, &mut refilled.remaining);
        if filling.len() < u64::from(inspection.record.chunk_len / LEAST_SHARE) {
            refilled.remaining.extend(filling.into_candidates());
            continue;
        }
        match filling.write(stripes, id, inspection, &mut pace).await? {
            WriteOutcome::Named(objects) => {
                refilled.partitions += 1;
                packed.extend(objects);
            }
            WriteOutcome::NotNow(candidates) => refilled.remaining.extend(candidates),
        }
        drop(share);
        pace.rest().await;
    }
    let mut rest = &packed[..];
    while !rest.is_empty() {
        let step = switch(stripes, &TargetGroup::Refilled(id), rest, &inspection.record.profile).await?;
        rest = &rest[step.finished..];
        pace.rest().await;
    }
    pace.end().await;
    Ok(refilled)
}

/// A range of a partition in which nothing lives.
struct Hole {
    start: u32,
    /// End of the last object in the hole.
    filled: u32,
    /// Start of the next object.
    next: u32,
    end: u32,
}

/// Objects for the dead ranges of one partition.
struct PartitionRefill<'a> {
    index: u32,
    len: u32,
    holes: Vec<Hole>,
    /// Living and dead entries of the partition.
    live: Vec<PartitionEntry>,
    dead: Vec<&'a PartitionEntry>,
    /// End of the last object, and the maximum length of the directory of all objects.
    objects_end: u32,
    directory_room: usize,
    /// Objects with their offsets.
    placed: Vec<(Candidate, u32)>,
}

/// Outcome of writing a filling.
enum WriteOutcome {
    /// It is stored; rows must be switched to it.
    Named(Vec<PackedObject>),
    /// Nothing has changed.
    NotNow(Vec<Candidate>),
}

impl<'a> PartitionRefill<'a> {
    /// Places some of the candidates, the largest first, and removes them from the list.
    fn plan(inspection: &'a Inspection, index: u32, candidates: &mut Vec<Candidate>) -> Self {
        let live = inspection.live.iter().filter_map(|candidate| match &candidate.stored {
            StoredBytes::Extent(at) if at.index == index => {
                let Extent { offset, len, crc32c, .. } = *at;
                Some(PartitionEntry { key: candidate.key.clone(), offset, len, crc32c })
            }
            _ => None,
        });
        let dead = inspection
            .dead
            .iter()
            .filter(|(partition, _)| *partition == index)
            .map(|(_, entry)| entry)
            .collect();
        let mut refill = Self {
            index,
            len: inspection.record.chunk_len,
            holes: Vec::new(),
            live: live.collect(),
            dead,
            objects_end: 0,
            directory_room: FOOTER_LEN as usize,
            placed: Vec::new(),
        };
        refill.find_holes();
        candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.stored.len()));
        for candidate in std::mem::take(candidates) {
            match refill.place(&candidate) {
                Some(offset) => refill.placed.push((candidate, offset)),
                None => candidates.push(candidate),
            }
        }
        refill
    }

    /// Finds the holes between living objects and behind them.
    fn find_holes(&mut self) {
        let mut live: Vec<(u32, u32)> =
            self.live.iter().map(|entry| (entry.offset, entry.offset + entry.len)).collect();
        live.sort_unstable();
        for (start, end) in live.into_iter().chain([(self.len, self.len)]) {
            let from = object_start(self.objects_end);
            if from < start {
                self.holes.push(Hole { start: from, filled: from, next: from, end: start });
            }
            self.objects_end = self.objects_end.max(if start < self.len { end } else { 0 });
        }
        // Keep the longest ones: many short ones would be many windows.
        self.holes.sort_by_key(|hole| std::cmp::Reverse(hole.end - hole.start));
        self.holes.truncate(MOST_HOLES);
        self.holes.sort_by_key(|hole| hole.start);
        self.directory_room += self.live.iter().map(|entry| entry_room(&entry.key)).sum::<usize>();
    }

    /// Places an object in the first hole that it fits, if the directory still fits too. Returns its offset.
    fn place(&mut self, candidate: &Candidate) -> Option<u32> {
        let (len, room) = (candidate.stored.len(), self.directory_room + entry_room(&candidate.key));
        let objects_end = self.objects_end;
        let fits = |hole: &&mut Hole| {
            let end = u64::from(hole.next) + u64::from(len);
            end <= u64::from(hole.end) && end.max(objects_end.into()) + room as u64 <= u64::from(self.len)
        };
        let hole = self.holes.iter_mut().find(fits)?;
        let offset = hole.next;
        hole.filled = offset + len;
        hole.next = object_start(hole.filled);
        self.objects_end = objects_end.max(offset + len);
        self.directory_room = room;
        Some(offset)
    }

    /// Returns the bytes of its objects.
    fn len(&self) -> u64 {
        self.placed.iter().map(|(candidate, _)| u64::from(candidate.stored.len())).sum()
    }

    fn into_candidates(self) -> Vec<Candidate> {
        self.placed.into_iter().map(|(candidate, _)| candidate).collect()
    }

    /// Reads the objects and changes the partition in place.
    async fn write(
        mut self,
        stripes: &Stripes,
        id: StripeId,
        inspection: &Inspection,
        pace: &mut Pacer<'_>,
    ) -> Result<WriteOutcome, StripeError> {
        let location = &inspection.record.locations[self.index as usize];
        let content_version = location.content_version;
        let (packed, mut new) = self.gather(stripes, (id, content_version + 1), pace).await;
        let not_now = |packed: Vec<PackedObject>| {
            WriteOutcome::NotNow(packed.into_iter().map(|object| object.candidate).collect())
        };
        if packed.is_empty() {
            return Ok(not_now(packed));
        }
        let entry = |PackedObject { candidate, extent }: &PackedObject| {
            let Extent { offset, len, crc32c, .. } = *extent;
            PartitionEntry { key: candidate.key.clone(), offset, len, crc32c }
        };
        self.live.extend(packed.iter().map(entry));
        let Some((tail, listed)) = self.tail(&new) else {
            return Ok(not_now(packed));
        };
        new.push(tail);
        let more = self.more_packed(&packed, listed);
        let update = MemberUpdate {
            stripe: id,
            index: self.index as usize,
            content_version,
            new,
            extra_changes: &|stripe: &mut Stripe, tx: &mut Transaction| {
                // Requires that nothing has died or come to life since the inspection.
                tx.require_unchanged(inspection.mark.key.clone(), Some(&inspection.mark));
                stripe.packed_objects = stripe.packed_objects.saturating_add_signed(more.0);
                stripe.packed_bytes = stripe.packed_bytes.saturating_add_signed(more.1);
            },
        };
        Ok(match stripes.update_in_wide(&update).await? {
            ExchangeOutcome::Done => WriteOutcome::Named(packed),
            ExchangeOutcome::NotNow | ExchangeOutcome::Unfit => not_now(packed),
        })
    }

    /// Reads the objects. Returns them with their new extents, of this stripe and content version, and the new bytes
    /// of the holes. An object that cannot be read stays where it is.
    async fn gather(
        &mut self,
        stripes: &Stripes,
        (id, content_version): (StripeId, u32),
        pace: &mut Pacer<'_>,
    ) -> (Vec<PackedObject>, Vec<NewBytes>) {
        let filled = self.holes.iter().filter(|hole| hole.filled > hole.start);
        // A buffer does not reach to where a next object would start: the directory may start before.
        let mut buffers: Vec<(u32, BytesMut)> =
            filled.map(|hole| (hole.start, BytesMut::zeroed((hole.filled - hole.start) as usize))).collect();
        let mut packed = Vec::with_capacity(self.placed.len());
        let offsets: HashMap<Bytes, u32> =
            self.placed.iter().map(|(candidate, offset)| (candidate.key.clone(), *offset)).collect();
        let candidates =
            std::mem::take(&mut self.placed).into_iter().map(|(candidate, _)| candidate).collect();
        for batch in together(candidates) {
            let pieces = read(stripes, &batch).await;
            for (candidate, pieces) in batch.into_iter().zip(pieces) {
                let (Some(pieces), Some(crc32c)) = (pieces, candidate.stored.crc32c()) else { continue };
                let (offset, len) = (offsets[&candidate.key], candidate.stored.len());
                let at = buffers.partition_point(|(start, _)| *start <= offset) - 1;
                let (start, buffer) = &mut buffers[at];
                let from = (offset - *start) as usize;
                buffer[from..from + len as usize].copy_from_slice(&pieces.concat());
                let stripe = id.to_bytes().to_vec().into();
                let extent = Extent { stripe, index: self.index, offset, len, crc32c, content_version };
                packed.push(PackedObject { candidate, extent });
            }
            pace.rest().await;
        }
        let new = buffers.into_iter().map(|(offset, bytes)| NewBytes { offset, bytes: bytes.freeze() });
        (packed, new.collect())
    }

    /// Returns the new directory with the footer, and the number and bytes of the dead objects in it. It lists what
    /// lives now and, if there is room, what is dead and not overwritten.
    fn tail(&self, new: &[NewBytes]) -> Option<(NewBytes, (u64, u64))> {
        let is_intact = |entry: &&&PartitionEntry| {
            let end = entry.offset + entry.len;
            !new.iter().any(|written| {
                written.offset < end && entry.offset < written.offset + written.bytes.len() as u32
            })
        };
        let dead: Vec<&PartitionEntry> = self.dead.iter().filter(is_intact).copied().collect();
        let with = |dead: &[&PartitionEntry]| {
            let mut entries: Vec<PartitionEntry> = self.live.clone();
            entries.extend(dead.iter().map(|&entry| entry.clone()));
            entries.sort_by(|a, b| a.key.cmp(&b.key));
            let (offset, bytes) = partition_tail(self.len, &entries)?;
            let of_dead = dead.iter().map(|entry| u64::from(entry.len)).sum();
            Some((NewBytes { offset, bytes }, (dead.len() as u64, of_dead)))
        };
        with(&dead).or_else(|| with(&[]))
    }

    /// Returns how the number of objects that a directory lists changes, and their bytes, if these dead ones are
    /// still `listed`.
    fn more_packed(&self, packed: &[PackedObject], listed: (u64, u64)) -> (i64, i64) {
        let added: u64 = packed.iter().map(|packed| u64::from(packed.extent.len)).sum();
        let dead: u64 = self.dead.iter().map(|entry| u64::from(entry.len)).sum();
        let more = |added: u64, listed: u64, dead: u64| added as i64 + listed as i64 - dead as i64;
        (more(packed.len() as u64, listed.0, self.dead.len() as u64), more(added, listed.1, dead))
    }
}

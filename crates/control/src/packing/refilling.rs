//! Cold objects take the places of dead ones in a sealed group, whose partitions change in place (P6).
//!
//! To rewrite a worn group would take its partitions out of their wide stripes, and the data that lives, three quarters of it, would be
//! written, and sealed, again. What lives in *another* worn group is written into its dead ranges instead: that group then goes, and this
//! one is full again.
//!
//! A range is overwritten only if no object has had it for the grace, which is longer than any read. A mark says when something died last:
//! each death puts it. As long as it stays the same ([`Quiet`]), nothing has died, and the close of a change requires that it still does. It
//! cannot have come to life either: rows are switched to a range only together with the mark, and by the content version in which it was
//! given to them ([`crate::packing::switching`]).
//!
//! The directory changes with the objects. Dead entries stay in it as long as their bytes do, so that they count.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use striate_core::StripeId;
use striate_meta::records::{Extent, Stripe};
use striate_meta::{Revision, Transaction};
use striate_runtime::Instant;
use striate_stripe::partition::{FOOTER_LEN, PartitionEntry, entry_room, object_start, partition_tail};
use striate_stripe::{Exchange, MemberUpdate, NewBytes, Stored, StripeError, Stripes};

use crate::packing::pace::Pace;
use crate::packing::repacking::Look;
use crate::packing::switching::{Home, Packed, switch};
use crate::packing::{Candidate, READ_BYTES, read, together};

/// A change is worth its new generations from this part of a partition on: one in so many.
const LEAST_SHARE: u32 = 8;
/// Most holes of a partition that are filled in one change.
const MOST_HOLES: usize = 512;
/// After so many graces a group is rewritten in which something dies all the time.
const PATIENCE: u32 = 10;

/// Since when nothing has died in marked groups, as this process has seen.
#[derive(Debug, Default)]
pub(crate) struct Quiet(HashMap<StripeId, Seen>);

#[derive(Debug)]
struct Seen {
    mark: Revision,
    /// When this mark was seen first, and when any was.
    since: Instant,
    first: Instant,
}

/// What is to become of a worn group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Worn {
    /// Cold objects may take the places of dead ones.
    Refilled,
    /// What lives in it is written elsewhere.
    Rewritten,
    /// It is looked at again: something may have died just now.
    Waits,
}

impl Quiet {
    /// What is to become of a worn group, by a look.
    pub(crate) fn judge(&mut self, stripes: &Stripes, id: StripeId, look: &Look) -> Worn {
        if !is_refillable(&look.record) {
            self.0.remove(&id);
            return Worn::Rewritten;
        }
        let (now, grace, mark) =
            (stripes.runtime().now(), stripes.options().garbage_grace, look.mark.version);
        let seen = self.0.entry(id).or_insert(Seen { mark, since: now, first: now });
        if seen.mark != mark {
            (seen.mark, seen.since) = (mark, now);
        }
        match (now - seen.since >= grace, now - seen.first >= grace * PATIENCE) {
            (true, _) => Worn::Refilled,
            (false, true) => Worn::Rewritten,
            (false, false) => Worn::Waits,
        }
    }

    /// Forgets all but these.
    pub(crate) fn retain(&mut self, is_marked: impl Fn(StripeId) -> bool) {
        self.0.retain(|&id, _| is_marked(id));
    }
}

/// Whether partitions of a group can change in place: wide stripes alone protect it, and nobody reads it often.
fn is_refillable(record: &Stripe) -> bool {
    record.dropped && !record.dead && record.copies.is_empty()
}

/// What became of candidates for a group's dead ranges.
pub(crate) struct Refilled {
    /// Those that are still to be written.
    pub(crate) left: Vec<Candidate>,
    /// So many partitions have changed.
    pub(crate) partitions: usize,
}

/// Writes objects into the dead ranges of a group, partition after partition, and switches their rows to it.
///
/// # Errors
/// When the metadata store fails. What was written then and not named is dead, and the mark leads there.
pub(crate) async fn refill(
    stripes: &Stripes,
    id: StripeId,
    look: &Look,
    candidates: Vec<Candidate>,
    mut pace: Pace<'_>,
) -> Result<Refilled, StripeError> {
    let k = stripes.code_of(&look.record)?.k();
    let (mut refilled, mut packed) = (Refilled { left: candidates, partitions: 0 }, Vec::new());
    for index in 0..k as u32 {
        // What a partition changes in is in memory, and once more when it is sent in one piece.
        let share = stripes.memory_for(2 * look.record.chunk_len as usize + READ_BYTES).await;
        let filling = Filling::plan(look, index, &mut refilled.left);
        if filling.len() < u64::from(look.record.chunk_len / LEAST_SHARE) {
            refilled.left.extend(filling.into_candidates());
            continue;
        }
        match filling.write(stripes, id, look, &mut pace).await? {
            Written::Named(of) => {
                refilled.partitions += 1;
                packed.extend(of);
            }
            Written::NotNow(candidates) => refilled.left.extend(candidates),
        }
        drop(share);
        pace.rest().await;
    }
    let mut rest = &packed[..];
    while !rest.is_empty() {
        let step = switch(stripes, &Home::Refilled(id), rest, &look.record.profile).await?;
        rest = &rest[step.taken..];
        pace.rest().await;
    }
    pace.end().await;
    Ok(refilled)
}

/// A range of a partition in which nothing lives.
struct Hole {
    start: u32,
    /// Where the last object in it ends,
    filled: u32,
    /// and where the next one begins.
    next: u32,
    end: u32,
}

/// Objects for the dead ranges of one partition.
struct Filling<'a> {
    index: u32,
    len: u32,
    holes: Vec<Hole>,
    /// What lives in it, and what is dead.
    live: Vec<PartitionEntry>,
    dead: Vec<&'a PartitionEntry>,
    /// Where the last object ends, and the most that the directory of all objects takes.
    objects_end: u32,
    directory_room: usize,
    /// Objects, each with its offset.
    placed: Vec<(Candidate, u32)>,
}

/// What became of a filling.
enum Written {
    /// It is there; rows are to be switched to it.
    Named(Vec<Packed>),
    /// Nothing has changed.
    NotNow(Vec<Candidate>),
}

impl<'a> Filling<'a> {
    /// Finds places for some of the candidates, which are taken out: the largest first.
    fn plan(look: &'a Look, index: u32, candidates: &mut Vec<Candidate>) -> Self {
        let live = look.live.iter().filter_map(|of| match &of.stored {
            Stored::Extent(at) if at.index == index => {
                let Extent { offset, len, crc32c, .. } = *at;
                Some(PartitionEntry { key: of.key.clone(), offset, len, crc32c })
            }
            _ => None,
        });
        let dead = look.dead.iter().filter(|(of, _)| *of == index).map(|(_, entry)| entry).collect();
        let mut this = Self {
            index,
            len: look.record.chunk_len,
            holes: Vec::new(),
            live: live.collect(),
            dead,
            objects_end: 0,
            directory_room: FOOTER_LEN as usize,
            placed: Vec::new(),
        };
        this.find_holes();
        candidates.sort_by_key(|of| std::cmp::Reverse(of.stored.len()));
        for candidate in std::mem::take(candidates) {
            match this.place(&candidate) {
                Some(offset) => this.placed.push((candidate, offset)),
                None => candidates.push(candidate),
            }
        }
        this
    }

    /// Between what lives, and behind it.
    fn find_holes(&mut self) {
        let mut live: Vec<(u32, u32)> = self.live.iter().map(|of| (of.offset, of.offset + of.len)).collect();
        live.sort_unstable();
        for (start, end) in live.into_iter().chain([(self.len, self.len)]) {
            let from = object_start(self.objects_end);
            if from < start {
                self.holes.push(Hole { start: from, filled: from, next: from, end: start });
            }
            self.objects_end = self.objects_end.max(if start < self.len { end } else { 0 });
        }
        // The longest ones: many short ones would be many windows.
        self.holes.sort_by_key(|hole| std::cmp::Reverse(hole.end - hole.start));
        self.holes.truncate(MOST_HOLES);
        self.holes.sort_by_key(|hole| hole.start);
        self.directory_room += self.live.iter().map(|of| entry_room(&of.key)).sum::<usize>();
    }

    /// Where an object goes: into the first hole that it fits, so that the directory still does.
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

    /// Bytes of its objects.
    fn len(&self) -> u64 {
        self.placed.iter().map(|(of, _)| u64::from(of.stored.len())).sum()
    }

    fn into_candidates(self) -> Vec<Candidate> {
        self.placed.into_iter().map(|(of, _)| of).collect()
    }

    /// Reads the objects and changes the partition in place.
    async fn write(
        mut self,
        stripes: &Stripes,
        id: StripeId,
        look: &Look,
        pace: &mut Pace<'_>,
    ) -> Result<Written, StripeError> {
        let location = &look.record.locations[self.index as usize];
        let content_version = location.content_version;
        let (packed, mut new) = self.gather(stripes, (id, content_version + 1), pace).await;
        let not_now = |packed: Vec<Packed>| Written::NotNow(packed.into_iter().map(|of| of.of).collect());
        if packed.is_empty() {
            return Ok(not_now(packed));
        }
        let entry = |Packed { of, extent }: &Packed| {
            let Extent { offset, len, crc32c, .. } = *extent;
            PartitionEntry { key: of.key.clone(), offset, len, crc32c }
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
            besides: &|stripe: &mut Stripe, tx: &mut Transaction| {
                // Nothing has died, or come to life, since the look.
                tx.require_unchanged(look.mark.key.clone(), Some(&look.mark));
                stripe.packed_objects = stripe.packed_objects.saturating_add_signed(more.0);
                stripe.packed_bytes = stripe.packed_bytes.saturating_add_signed(more.1);
            },
        };
        Ok(match stripes.update_in_wide(&update).await? {
            Exchange::Done => Written::Named(packed),
            Exchange::NotNow | Exchange::Unfit => not_now(packed),
        })
    }

    /// Reads the objects; answers them with their new extents, of this stripe and content version, and what holes are to have. One that
    /// cannot be read stays where it is.
    async fn gather(
        &mut self,
        stripes: &Stripes,
        (id, content_version): (StripeId, u32),
        pace: &mut Pace<'_>,
    ) -> (Vec<Packed>, Vec<NewBytes>) {
        let filled = self.holes.iter().filter(|hole| hole.filled > hole.start);
        // Not up to where a next object would start: the directory may.
        let mut buffers: Vec<(u32, BytesMut)> =
            filled.map(|hole| (hole.start, BytesMut::zeroed((hole.filled - hole.start) as usize))).collect();
        let mut packed = Vec::with_capacity(self.placed.len());
        let offsets: HashMap<Bytes, u32> =
            self.placed.iter().map(|(of, offset)| (of.key.clone(), *offset)).collect();
        let candidates = std::mem::take(&mut self.placed).into_iter().map(|(of, _)| of).collect();
        for batch in together(candidates) {
            let pieces = read(stripes, &batch).await;
            for (of, pieces) in batch.into_iter().zip(pieces) {
                let (Some(pieces), Some(crc32c)) = (pieces, of.stored.crc32c()) else { continue };
                let (offset, len) = (offsets[&of.key], of.stored.len());
                let at = buffers.partition_point(|(start, _)| *start <= offset) - 1;
                let (start, buffer) = &mut buffers[at];
                let from = (offset - *start) as usize;
                buffer[from..from + len as usize].copy_from_slice(&pieces.concat());
                let stripe = id.to_bytes().to_vec().into();
                let extent = Extent { stripe, index: self.index, offset, len, crc32c, content_version };
                packed.push(Packed { of, extent });
            }
            pace.rest().await;
        }
        let new = buffers.into_iter().map(|(offset, bytes)| NewBytes { offset, bytes: bytes.freeze() });
        (packed, new.collect())
    }

    /// The directory of what lives now, and of what is dead and still there if it has room, with the footer; and of how many dead objects
    /// with how many bytes.
    fn tail(&self, new: &[NewBytes]) -> Option<(NewBytes, (u64, u64))> {
        let is_there = |entry: &&&PartitionEntry| {
            let end = entry.offset + entry.len;
            !new.iter().any(|of| of.offset < end && entry.offset < of.offset + of.bytes.len() as u32)
        };
        let dead: Vec<&PartitionEntry> = self.dead.iter().filter(is_there).copied().collect();
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

    /// By how much the objects that a directory lists become more, and their bytes, when of the dead ones these are still `listed`.
    fn more_packed(&self, packed: &[Packed], listed: (u64, u64)) -> (i64, i64) {
        let added: u64 = packed.iter().map(|packed| u64::from(packed.extent.len)).sum();
        let dead: u64 = self.dead.iter().map(|entry| u64::from(entry.len)).sum();
        let more = |added: u64, listed: u64, dead: u64| added as i64 + listed as i64 - dead as i64;
        (more(packed.len() as u64, listed.0, self.dead.len() as u64), more(added, listed.1, dead))
    }
}

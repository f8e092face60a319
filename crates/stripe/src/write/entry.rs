//! Entries: changes of a stripe in progress, recorded before their files exist.
//!
//! The commit that takes a generation records in the stripe where files of that generation will go. One
//! compare-and-swap closes the entry: it names the files that are kept and makes the rest garbage. Any process may
//! cancel an entry at any time, which fences its owner: a close requires the entry. An owner that finds it gone has
//! nothing left to do, since whichever process removed it also wrote the garbage rows. So every file of a change is
//! known: it is named, in an entry, or garbage.
//!
//! Entries need record format 2. Before that format is in force, a change takes a generation only, and loses to any
//! other change.

use std::time::Duration;

use striate_core::{ChunkId, Generation, SiteId, StripeId};
use striate_meta::records::{Entry, GarbageChunk, Stripe, WideState};
use striate_meta::{Commit, LeaseId, Row, Transaction, keys, records};

use super::release::add_garbage;
use super::writes::Writes;
use crate::error::StripeError;
use crate::table::own_locations;

/// Attempts to cancel an entry while other changes of the record win.
const ATTEMPTS: usize = 16;
/// Initial pause after a failed cancellation in the background; it doubles up to `LONGEST_PAUSE`.
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Whether an open entry announces this chunk at `site`.
fn is_in_entry(stripe: &Stripe, site: SiteId, chunk: ChunkId) -> bool {
    let of_generation = stripe.entries.iter().filter(|entry| entry.generation == chunk.generation.0);
    let mut places = of_generation.flat_map(|entry| &entry.places);
    places.any(|place| (place.index, place.site) == (u32::from(chunk.index), site.0))
}

/// Returns the files that an entry announces and that the record does not name.
pub(super) fn unnamed_of(stripe: &Stripe, entry: &Entry) -> Vec<GarbageChunk> {
    let generation = entry.generation;
    let places =
        entry.places.iter().map(|place| GarbageChunk { index: place.index, site: place.site, generation });
    places.filter(|chunk| !names(stripe, chunk)).collect()
}

fn names(stripe: &Stripe, chunk: &GarbageChunk) -> bool {
    // The members of a wide stripe are files of other stripes.
    let location = own_locations(stripe).find(|&(index, _)| index == chunk.index as usize);
    location.is_some_and(|(_, at)| (at.site, at.generation) == (chunk.site, chunk.generation))
        || stripe.copies.iter().any(|copy| copy.to_garbage() == *chunk)
}

/// Whether the record names this chunk at `site`, as the chunk itself or as a copy, or a change in progress may name
/// it.
pub fn is_named(stripe: &Stripe, site: SiteId, chunk: ChunkId) -> bool {
    names(stripe, &GarbageChunk::of(chunk, site)) || is_in_entry(stripe, site, chunk)
}

/// Whether the entry of a generation exists, neither closed nor cancelled.
pub(super) fn has_entry(stripe: &Stripe, generation: Generation) -> bool {
    stripe.entries.iter().any(|entry| entry.generation == generation.0)
}

/// Removes the entry of a generation from a record. Returns `None` if it was already closed or cancelled.
pub(super) fn remove(stripe: &mut Stripe, generation: u32) -> Option<Entry> {
    let at = stripe.entries.iter().position(|entry| entry.generation == generation)?;
    Some(stripe.entries.remove(at))
}

/// Whether a stripe has unfinished work: a change is in progress, a wide stripe is incomplete or not yet the only
/// protection of its members, or a dead stripe is still a member of one.
pub(super) fn is_in_work(stripe: &Stripe) -> bool {
    !stripe.entries.is_empty()
        || stripe.dead
        || !matches!(stripe.wide_state(), WideState::Narrow | WideState::Complete)
}

/// Adds to `tx` the record, and the rows that index stripes with unfinished work and stripes with copies. `before` is
/// the record that it replaces.
pub(super) fn put_record(tx: &mut Transaction, id: StripeId, record: &Stripe, before: &Stripe) {
    tx.put(keys::stripe(id), records::encode(record));
    match (is_in_work(record), is_in_work(before)) {
        (true, false) => drop(tx.put(keys::change(id), bytes::Bytes::new())),
        (false, true) => drop(tx.delete(keys::change(id))),
        (true, true) | (false, false) => {}
    }
    // Written also if there were copies before: its revision notifies processes that remember the record.
    match record.copies.is_empty() {
        _ if record.copies == before.copies => {}
        true => drop(tx.delete(keys::copies(id))),
        false => drop(tx.put(keys::copies(id), bytes::Bytes::new())),
    }
}

/// Cancels an entry: its files become garbage in the transaction that removes it. Returns the record's new row if
/// this call did so; `None` if the entry was already gone.
///
/// # Errors
/// When the metadata store fails, and [`StripeError::Busy`] when others keep changing the record. The entry may then
/// still exist.
pub(super) async fn cancel(
    writes: &Writes,
    id: StripeId,
    generation: u32,
) -> Result<Option<Row>, StripeError> {
    let (key, meta) = (keys::stripe(id), writes.shared.table.meta());
    for _ in 0..ATTEMPTS {
        let Some(row) = meta.get(&key).await? else { return Ok(None) };
        let before: Stripe = row.record()?;
        let mut record = before.clone();
        let Some(entry) = remove(&mut record, generation) else { return Ok(None) };
        let mut tx = writes.shared.table.transaction();
        tx.require_unchanged(key.clone(), Some(&row));
        put_record(&mut tx, id, &record, &before);
        let garbage = unnamed_of(&record, &entry);
        if !garbage.is_empty() {
            add_garbage(&mut tx, id, garbage);
        }
        if let Commit::Done(version) = meta.commit(tx).await? {
            let value = records::encode(&record);
            return Ok(Some(Row { key, value, version }));
        }
    }
    Err(StripeError::Busy)
}

/// Cancels an entry of this process in the background, retrying while the metadata store fails. No other process does
/// so while this one lives.
pub(super) fn cancel_in_background(writes: &Writes, id: StripeId, generation: u32) {
    let writes = writes.clone();
    writes.shared.runtime.clone().spawn(async move {
        let mut pause = PAUSE;
        while let Err(error) = cancel(&writes, id, generation).await {
            tracing::debug!(stripe = %id, %error, "cancelling a change that was given up failed; the collector cancels it");
            writes.shared.runtime.sleep(pause).await;
            pause = LONGEST_PAUSE.min(2 * pause);
        }
    });
}

/// Cancels the entries of a stripe whose owners' leases have ended. Returns how many.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn cancel_dead(writes: &Writes, id: StripeId) -> Result<u64, StripeError> {
    let meta = writes.shared.table.meta();
    let Some(row) = meta.get(&keys::stripe(id)).await? else {
        // A release has removed this row with the stripe's own, unless it was by a program that did not know entries.
        let mut tx = writes.shared.table.transaction();
        tx.require_unchanged(keys::stripe(id), None).delete(keys::change(id));
        meta.commit(tx).await?;
        return Ok(0);
    };
    let record: Stripe = row.record()?;
    let mut cancelled = 0;
    for entry in &record.entries {
        if !meta.is_alive(LeaseId(entry.lease)).await? {
            let is_cancelled = cancel(writes, id, entry.generation).await?.is_some();
            tracing::info!(stripe = %id, generation = entry.generation, is_cancelled, "a dead owner's change was cancelled");
            cancelled += u64::from(is_cancelled);
        }
    }
    Ok(cancelled)
}

#[cfg(test)]
mod tests {
    use striate_meta::TxId;

    use super::*;

    #[test]
    fn a_stripe_in_work_is_found_by_a_row_that_is_written_once() {
        let with = |entries: u32| Stripe {
            entries: (0..entries).map(|generation| Entry { generation, ..Entry::default() }).collect(),
            ..Stripe::default()
        };
        let writes = |(before, now): (u32, u32)| {
            let mut tx = Transaction::new(TxId(1));
            put_record(&mut tx, StripeId::from_bytes([1; 16]), &with(now), &with(before));
            tx.writes.len()
        };
        assert_eq!([(0, 0), (0, 1), (1, 2), (2, 1), (1, 0)].map(writes), [1, 2, 1, 1, 2]);
    }
}

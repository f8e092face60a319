//! Changes ranges of a sealed member in place (ECWide §4.3).
//!
//! The chunk gets a new generation where it is, and so do the local parity of its group and the global ones
//! ([`super::parities`]): only the ranges are sent, not chunks. One transaction names all of them, in the record of
//! the chunk's own stripe and in that of its wide stripe, and increments the chunk's content version. Until then the
//! old files are named; afterwards they stay for the grace period, for reads in progress.
//!
//! Entries are opened in both records first, since files of both stripes are made, and the old bytes are read only
//! then: an update that closes in between cancels these entries. If the stripe still has its own parities, or the
//! wide stripe is not sealed, nothing is done: updating in place is not worth it for data that is read often, and a
//! wide stripe being sealed is soon ready.

use std::ops::Range;

use bytes::Bytes;
use striate_codec::{ChecksumChange, ChecksumMultiples, MultipleChecksums};
use striate_core::{Generation, SiteId, StripeId};
use striate_meta::records::Stripe;
use striate_meta::{Commit, Transaction, keys};
use striate_site::{Priority, Window};

use super::exchange::ExchangeOutcome;
use super::links::{copy_of, is_same_file};
use super::parities::{
    Difference, amend, make_parities, name_content, name_parities, parities_of, places_of,
};
use crate::error::StripeError;
use crate::table::{OpenedStripe, wide_of};
use crate::trees::SLICE_LEN;
use crate::write::change::StripeChange;
use crate::write::entry::{has_entry, put_record, unnamed_of};
use crate::write::release::add_garbage;
use crate::write::submit::submit;
use crate::write::writes::Writes;

/// Attempts of the closing transaction while other changes of the records win.
const ATTEMPTS: usize = 8;
/// Preconditions of the closing transaction itself: both records.
const OWN_REQUIREMENTS: usize = 2;

/// New bytes for a range of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBytes {
    /// Offset of the range in the chunk.
    pub offset: u32,
    /// New bytes, at least one.
    pub bytes: Bytes,
}

/// Further changes made together with a chunk: in its stripe's record, and in the same transaction.
pub type ExtraChanges<'a> = &'a (dyn Fn(&mut Stripe, &mut Transaction) + Sync);

/// An update of ranges of a sealed member.
pub struct MemberUpdate<'a> {
    /// Own stripe of the member.
    pub stripe: StripeId,
    /// Index of the chunk in its own stripe.
    pub index: usize,
    /// Content version for which the caller made the update; a chunk with another is left alone. The update gives it
    /// the next version.
    pub content_version: u32,
    /// New bytes, in order, in ranges that do not overlap.
    pub new: Vec<NewBytes>,
    /// Called once per attempted transaction. The first attempt whose preconditions from here fail is the last.
    pub extra_changes: ExtraChanges<'a>,
}

/// The changes of both records in progress.
struct Update<'a, 'w> {
    request: &'a MemberUpdate<'a>,
    writes: &'w Writes,
    position: usize,
    /// Parities that depend on the chunk.
    parities: Vec<usize>,
    own: StripeChange<'w>,
    wide: StripeChange<'w>,
    /// Records with the entries of this change.
    own_before: Stripe,
    wide_before: Stripe,
    /// New generations of the chunk and of the parities.
    chunk_generation: Generation,
    parity_generation: Generation,
}

/// Changes ranges of a member of a sealed wide stripe. [`ExchangeOutcome::NotNow`] means that nothing has changed.
///
/// # Errors
/// When the metadata store fails. The change may or may not have happened then; the stripe's record shows it.
pub(crate) async fn update(
    writes: &Writes,
    request: &MemberUpdate<'_>,
) -> Result<ExchangeOutcome, StripeError> {
    let Some(mut update) = Update::open(writes, request).await? else { return Ok(ExchangeOutcome::NotNow) };
    if let Err(error) = update.make().await {
        tracing::debug!(stripe = %request.stripe, index = request.index, %error, "a chunk cannot be changed in place now");
        update.give_up().await;
        writes.shared.table.report_damage(&error).await?;
        return Ok(ExchangeOutcome::NotNow);
    }
    let closed = update.close().await?;
    if closed == ExchangeOutcome::NotNow {
        update.give_up().await;
    }
    Ok(closed)
}

/// Whether the records allow the change: the chunk is as the caller knows it, only the code of the wide stripe
/// protects it, and that stripe is sealed.
fn is_changeable(request: &MemberUpdate<'_>, own: &Stripe, wide: &Stripe, position: usize) -> bool {
    let Some(location) = own.locations.get(request.index) else { return false };
    let is_ours = own.dropped && !own.dead && location.site != 0;
    is_ours
        && location.content_version == request.content_version
        && wide.is_sealed()
        && wide.has_member(position, request.stripe, request.index)
        && is_same_file(location, &wide.locations[position])
}

/// Finds the chunk's own stripe, its wide stripe, and its position there. Returns `None` if the chunk cannot be
/// changed.
async fn find(
    writes: &Writes,
    request: &MemberUpdate<'_>,
) -> Result<Option<(OpenedStripe, OpenedStripe, usize)>, StripeError> {
    let table = &writes.shared.table;
    let Some(own) = table.find(request.stripe).await? else { return Ok(None) };
    let Some((id, position)) = own.record.locations.get(request.index).and_then(wide_of) else {
        return Ok(None);
    };
    let Some(wide) = table.find(id).await? else { return Ok(None) };
    Ok(is_changeable(request, &own.record, &wide.record, position).then_some((own, wide, position)))
}

impl<'a, 'w> Update<'a, 'w> {
    /// Opens an entry in both records. Returns `None` if the chunk cannot be changed now.
    async fn open(writes: &'w Writes, request: &'a MemberUpdate<'a>) -> Result<Option<Self>, StripeError> {
        let Some((own, wide, position)) = find(writes, request).await? else { return Ok(None) };
        let Some(parities) = parities_of(&wide, &[position]) else { return Ok(None) };
        // Waiting for changes in progress is a courtesy: closing this change cancels them.
        if !own.record.entries.is_empty() || !wide.record.entries.is_empty() {
            return Ok(None);
        }
        let mut own = StripeChange::new(writes, own, Priority::Background).await?;
        let mut wide = StripeChange::new(writes, wide, Priority::Background).await?;
        let site = SiteId(own.record.locations[request.index].site);
        let Some(chunk_generation) = own.open(&[(request.index, site)]).await? else { return Ok(None) };
        let places = places_of(&wide.record, &parities);
        let Some(parity_generation) = wide.open(&places).await? else {
            own.give_up(&[], chunk_generation).await;
            return Ok(None);
        };
        let (own_before, wide_before) = (own.record.clone(), wide.record.clone());
        let update = Self {
            request,
            writes,
            position,
            parities,
            own,
            wide,
            own_before,
            wide_before,
            chunk_generation,
            parity_generation,
        };
        Ok(Some(update))
    }

    /// Makes all new generations, and reads them back from their media.
    async fn make(&mut self) -> Result<(), StripeError> {
        let (index, len) = (self.request.index, self.own_before.chunk_len);
        let change = self.checksums().await?;
        let old = self.own.file_at(index);
        for (index, factor) in self.summands() {
            let location = &mut self.own.record.locations[index];
            location.crc32c = change.apply(location.crc32c, factor);
        }
        let window = |new: &NewBytes| Window::Bytes { offset: new.offset, bytes: new.bytes.clone() };
        let windows = self.request.new.iter().map(window).collect();
        amend(self.writes, &self.own, index, self.chunk_generation, old, windows).await?;
        let mut new = old;
        new.chunk.generation = self.chunk_generation;
        let range = |new: &NewBytes| new.offset..new.offset + new.bytes.len() as u32;
        let difference = Difference {
            position: self.position,
            files: vec![old, new],
            checksums: change.followed_by_zeros(u64::from(self.wide_before.chunk_len - len)),
        };
        let ranges: Vec<Range<u32>> = self.request.new.iter().map(range).collect();
        let (before, parity_change) = (&self.wide_before, (&self.parities[..], &[difference][..]));
        make_parities(self.writes, &mut self.wide, before, parity_change, &ranges, self.parity_generation)
            .await
    }

    /// Returns the chunk, and the parities of its own stripe with its coefficients in them. Those parities do not
    /// exist now, but are made again when the stripe is read often, and must then match.
    fn summands(&self) -> impl Iterator<Item = (usize, u8)> + use<> {
        let (code, index) = (&self.own.code, self.request.index);
        let parities: Vec<(usize, u8)> = (code.k()..code.n()).map(|at| (at, code.row(at)[index])).collect();
        std::iter::once((index, 1)).chain(parities).filter(|&(_, factor)| factor != 0)
    }

    /// Computes the effect of the change on checksums. Reads the old bytes slice by slice.
    async fn checksums(&self) -> Result<ChecksumChange, StripeError> {
        let mut change = ChecksumChange::default();
        for NewBytes { offset, bytes } in &self.request.new {
            let end = offset + bytes.len() as u32;
            let mut old = ChecksumMultiples::default();
            for from in (*offset..end).step_by(SLICE_LEN as usize) {
                let len = SLICE_LEN.min(end - from);
                old.append(&self.own.read(self.request.index, from, len).await?);
            }
            let bytes = bytes.clone();
            let new = self.writes.shared.runtime.run_blocking(move || MultipleChecksums::of(&bytes)).await;
            change.replace(&old.finish(), &new, u64::from(self.own_before.chunk_len - end));
        }
        Ok(change)
    }

    /// Names the new files, in one transaction with the further changes.
    async fn close(&mut self) -> Result<ExchangeOutcome, StripeError> {
        let shared = &self.writes.shared;
        for _ in 0..ATTEMPTS {
            let (own, wide) = (shared.table.find(self.own.id).await?, shared.table.find(self.wide.id).await?);
            let (Some(own), Some(wide)) = (own, wide) else { return Ok(ExchangeOutcome::NotNow) };
            if !self.can_close(&own.record, &wide.record) {
                return Ok(ExchangeOutcome::NotNow);
            }
            let tx = self.closing(&own, &wide);
            let forget = || [own.id, wide.id].into_iter().for_each(|id| shared.table.forget(id));
            forget();
            let committed = submit(&shared.runtime, shared.table.meta().as_ref(), &tx).await;
            // Also forget what was read during the commit.
            forget();
            match committed? {
                Commit::Done(_) => {
                    self.own.note_closed();
                    self.wide.note_closed();
                    return Ok(ExchangeOutcome::Done);
                }
                Commit::Conflict { failed } if failed >= OWN_REQUIREMENTS => {
                    return Ok(ExchangeOutcome::NotNow);
                }
                Commit::Conflict { .. } => {}
            }
        }
        Ok(ExchangeOutcome::NotNow)
    }

    /// Whether, by the current records, this change was not cancelled and every file to be rewritten has been.
    fn can_close(&self, own: &Stripe, wide: &Stripe) -> bool {
        let is_open = has_entry(own, self.chunk_generation) && has_entry(wide, self.parity_generation);
        let is_as_before =
            |&index: &usize| is_same_file(&wide.locations[index], &self.wide_before.locations[index]);
        is_open
            && is_changeable(self.request, own, wide, self.position)
            && is_same_file(
                &own.locations[self.request.index],
                &self.own_before.locations[self.request.index],
            )
            && self.parities.iter().all(is_as_before)
    }

    /// Builds the transaction that closes both entries and cancels all others of both records: their files were made
    /// from the old content.
    fn closing(&self, own: &OpenedStripe, wide: &OpenedStripe) -> Transaction {
        let mut tx = self.writes.shared.table.transaction_on(own);
        tx.require_unchanged(keys::stripe(wide.id), Some(&wide.row));
        let (mut own_record, mut wide_record) = (own.record.clone(), wide.record.clone());
        let index = self.request.index;
        let crc32c = self.own.record.locations[index].crc32c;
        let mut garbage = vec![name_content(&mut own_record, index, self.chunk_generation, crc32c)];
        for (parity, _) in self.summands().filter(|&(parity, _)| parity != index) {
            let location = &mut own_record.locations[parity];
            location.crc32c = self.own.record.locations[parity].crc32c;
            location.content_version += 1;
        }
        // The copies have the old content.
        garbage.extend(own_record.drop_copies(|copy| copy.index as usize == index));
        wide_record.locations[self.position] = copy_of(&own_record.locations[index]);
        let replaced = name_parities(&self.wide, &mut wide_record, &self.parities, self.parity_generation);
        (self.request.extra_changes)(&mut own_record, &mut tx);
        for (stripe, mut record, mut garbage) in [(own, own_record, garbage), (wide, wide_record, replaced)] {
            let entries = std::mem::take(&mut record.entries);
            garbage.extend(entries.iter().flat_map(|entry| unnamed_of(&record, entry)));
            put_record(&mut tx, stripe.id, &record, &stripe.record);
            add_garbage(&mut tx, stripe.id, garbage);
        }
        tx
    }

    /// Cancels both entries.
    async fn give_up(mut self) {
        self.own.give_up(&[], self.chunk_generation).await;
        self.wide.give_up(&[], self.parity_generation).await;
    }
}

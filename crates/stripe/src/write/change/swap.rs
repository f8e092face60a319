//! The compare-and-swap that closes a change, and the rebase of a change on those of others.

use bytes::Bytes;
use striate_core::{SiteId, StripeId};
use striate_meta::records::{Copy, GarbageChunk, Stripe};
use striate_meta::{Commit, Precondition, Revision, Transaction, keys};

use super::rule::is_bound_by_rule;
use super::{ATTEMPTS, StripeChange};
use crate::error::StripeError;
use crate::table::holders;
use crate::write::entry::{put_record, remove, unnamed_of};
use crate::write::placements::require_placement;
use crate::write::release::add_garbage;
use crate::write::wide::is_same_file;

/// Effect of a swap on the stripe's debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebtEffect {
    /// No effect.
    AsItIs,
    /// The stripe is whole, as examined when its debt had this revision, or when it had none. Debt added since stays.
    Paid(Option<Revision>),
    /// The stripe is in debt.
    Owed,
}

/// Adds to `tx` the removal of a stripe's debt, if the debt is unchanged since the examination of the stripe began.
pub fn pay_debt(tx: &mut Transaction, id: StripeId, owed: Option<Revision>) {
    let key = keys::debt(id);
    match owed {
        None => drop(tx.require(Precondition::Absent(key))),
        Some(version) => drop(tx.require(Precondition::Version(key.clone(), version)).delete(key)),
    }
}

impl StripeChange<'_> {
    /// Compares and swaps the record, with the reverse index, the debt, and garbage rows for the `replaced` chunks
    /// and those that sites may have stored without confirming. This closes the entry. Returns `false` if the record
    /// was changed meanwhile; with an entry, only if the entry was removed, the replaced chunks were changed, or the
    /// new places became illegal.
    ///
    /// # Errors
    /// When the metadata store fails: the record may or may not have been swapped. [`StripeError::Busy`] when the
    /// records of its wide stripes keep changing.
    pub async fn swap(
        &mut self,
        replaced: Vec<GarbageChunk>,
        mut debt: DebtEffect,
    ) -> Result<bool, StripeError> {
        for _ in 0..ATTEMPTS {
            if self.try_swap(&replaced, debt).await? {
                self.entry = None;
                return Ok(true);
            }
            if self.entry.is_none() || !self.rebase().await? {
                return Ok(false);
            }
            // Other changes may have added debt: the next examination of the stripe decides.
            debt = if let DebtEffect::Paid(_) = debt { DebtEffect::AsItIs } else { debt };
        }
        Ok(false)
    }

    /// Adds to `tx` what closes this change: the record, the reverse index, and garbage rows for the `replaced`
    /// chunks. `tx` then requires the record as last read. The debt and the links are left to the caller.
    pub(in crate::write) async fn add_swap(
        &self,
        tx: &mut Transaction,
        replaced: &[GarbageChunk],
    ) -> Result<(), StripeError> {
        let before: Stripe = self.row.record()?;
        let mut record = self.record.clone();
        let mut replaced = replaced.to_vec();
        match self.entry.and_then(|generation| remove(&mut record, generation)) {
            Some(entry) => replaced.extend(unnamed_of(&record, &entry)),
            None => replaced.extend_from_slice(&self.strays),
        }
        let old = keys::placement_of(holders(&before));
        let new = self.writes.ensure_placement(&holders(&record)).await?;
        require_placement(tx, new);
        for copy in record.copies.iter().filter(|copy| !before.copies.contains(copy)) {
            self.writes.require_open(tx, SiteId(copy.site)).await?;
        }
        tx.require_unchanged(keys::stripe(self.id), Some(&self.row));
        put_record(tx, self.id, &record, &before);
        if old != new {
            tx.delete(keys::reverse(old, self.id));
            tx.put(keys::reverse(new, self.id), Bytes::new());
        }
        if !replaced.is_empty() {
            add_garbage(tx, self.id, replaced);
        }
        Ok(())
    }

    /// Swaps once. Returns `false` if the record, or that of a wide stripe of a moved chunk, has changed since it was
    /// last read.
    async fn try_swap(&self, replaced: &[GarbageChunk], debt: DebtEffect) -> Result<bool, StripeError> {
        let moved = changed_since(&self.row.record()?, &self.record);
        let mut tx = self.writes.shared.table.transaction();
        self.add_swap(&mut tx, replaced).await?;
        // Their wide stripes must be unchanged since the new places were found legal: the rules hold for the rows
        // that are swapped.
        self.links.carry(&mut tx, &self.record, &moved);
        match debt {
            DebtEffect::AsItIs => {}
            DebtEffect::Paid(owed) => pay_debt(&mut tx, self.id, owed),
            DebtEffect::Owed => drop(tx.put(keys::debt(self.id), Bytes::new())),
        }
        let changed: Vec<StripeId> = std::iter::once(self.id).chain(self.links.ids_of(&moved)).collect();
        let forget = || changed.iter().for_each(|&id| self.writes.shared.table.forget(id));
        forget();
        let is_committed = matches!(self.writes.shared.table.meta().commit(tx).await?, Commit::Done(_));
        // Also forget what was read during the commit.
        forget();
        if !is_committed {
            self.forget_places();
        }
        Ok(is_committed)
    }

    /// Forgets the sites' rows after a commit with [`StripeChange::add_swap`] failed: they may be out of date.
    pub(in crate::write) fn forget_places(&self) {
        self.writes.forget_placement(keys::placement_of(holders(&self.record)));
        self.writes.forget_closed();
    }

    /// Rebases this change on the current record. Returns `false` if that is impossible: its entry is gone, the
    /// chunks that it replaces are not where they were, or their new places would break the rule. The entry is then
    /// cancelled.
    pub(in crate::write) async fn rebase(&mut self) -> Result<bool, StripeError> {
        let row = self.writes.shared.table.meta().get(&keys::stripe(self.id)).await?;
        let Some(row) = row else {
            self.entry = None;
            return Ok(false);
        };
        let before: Stripe = self.row.record()?;
        let target = std::mem::replace(&mut self.record, row.record()?);
        self.row = row;
        // These may read the record again.
        self.learn_links().await?;
        self.learn_racks().await?;
        if !self.record.entries.iter().any(|entry| Some(entry.generation) == self.entry) {
            // Closed by a commit whose reply was lost, or cancelled: the written files are then garbage already.
            self.entry = None;
            return Ok(false);
        }
        if let Some(record) = on_top_of(&self.record, &before, &target)
            && self.is_legal_by(&record, is_bound_by_rule(&record))?
        {
            self.record = record;
            return Ok(true);
        }
        self.cancel_entry().await;
        Ok(false)
    }
}

/// Returns the chunks whose files differ from those before, or no longer exist.
pub(super) fn changed_since(before: &Stripe, current: &Stripe) -> Vec<usize> {
    let has_changed = |index: &usize| !is_same_file(&current.locations[*index], &before.locations[*index]);
    (0..current.locations.len()).filter(has_changed).collect()
}

/// Applies to the record `current` what a change made of `before` to get `target`: other files of chunks, and copies.
/// Returns `None` if other changes have touched the same chunks.
fn on_top_of(current: &Stripe, before: &Stripe, target: &Stripe) -> Option<Stripe> {
    let changed = changed_since(before, target);
    let is_as_before = |&index: &usize| is_same_file(&current.locations[index], &before.locations[index]);
    let added: Vec<Copy> =
        target.copies.iter().filter(|copy| !before.copies.contains(copy)).copied().collect();
    // A copy must have the chunk's present content.
    let is_true =
        |copy: &Copy| current.locations[copy.index as usize].content_version == copy.content_version;
    let is_same_state = (current.wide_state, current.dropped) == (before.wide_state, before.dropped);
    if !changed.iter().all(is_as_before) || !added.iter().all(is_true) || !is_same_state {
        return None;
    }
    let mut record = current.clone();
    for index in changed {
        let (current, target) = (&mut record.locations[index], &target.locations[index]);
        (current.site, current.generation) = (target.site, target.generation);
        (current.crc32c, current.content_version) = (target.crc32c, target.content_version);
    }
    (record.wide_state, record.dropped) = (target.wide_state, target.dropped);
    record.copies.extend(added);
    Some(record)
}

//! Parities of the members' own stripes: dropped when wide stripes protect all their data, and restored when a stripe
//! is read often.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use striate_core::{SiteId, StripeId};
use striate_meta::records::{GarbageChunk, Location, Stripe};
use striate_meta::store::limits;
use striate_meta::{Precondition, ScanRange, keys};

use super::claim::check_places;
use super::seal::commit;
use crate::error::StripeError;
use crate::table::{OpenedStripe, holders, is_hole, wide_of};
use crate::write::entry::{put_record, unnamed_of};
use crate::write::placements::require_placement;
use crate::write::release::add_garbage;
use crate::write::writes::Writes;

/// Attempts to drop parities while other changes win.
const ATTEMPTS: usize = 16;
/// Number of debt rows up to which all of them are scanned.
const FEW_DEBTS: usize = 256;
/// Maximum number of wide stripes of a stripe that drops its parities: the transaction requires that each is without
/// debt, and has room for ten other operations.
const MOST_WIDE: usize = limits::MAX_OPERATIONS - 10;

/// S6: drops the parities of every own stripe that can spare them. Returns `false` if some must keep them for now;
/// these are found again with another wide stripe, or when their debt is paid.
pub(super) async fn drop_narrow_parities(writes: &Writes, wide: &OpenedStripe) -> Result<bool, StripeError> {
    let mut ids: Vec<StripeId> = wide.record.member_chunks().map(|(_, stripe, _)| stripe).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut are_all = true;
    for id in ids {
        are_all &= drop_parities(writes, id).await? != DropOutcome::NotNow;
    }
    Ok(are_all)
}

/// Outcome of dropping the parities of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropOutcome {
    /// The stripe has none now, or is gone.
    Done,
    /// A data chunk is in no wide stripe, or in an unsealed one: the stripe is examined again when that one is
    /// sealed. Or the stripe has copies because it is read often: it is examined again when it has cooled.
    Later,
    /// Its data chunks are in more wide stripes than one transaction can name.
    TooManyWide,
    /// The stripe, or a wide stripe of its chunks, is in debt or lacks a site, or the stripe keeps being changed.
    NotNow,
}

/// S6 for one stripe.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn drop_parities(writes: &Writes, id: StripeId) -> Result<DropOutcome, StripeError> {
    for _ in 0..ATTEMPTS {
        let Some(stripe) = writes.shared.table.find(id).await? else { return Ok(DropOutcome::Done) };
        if stripe.record.dropped {
            return Ok(DropOutcome::Done);
        }
        let Some(wides) = sealed_wides_of(writes, &stripe).await? else { return Ok(DropOutcome::Later) };
        let mut debts = Vec::new();
        // Parities that were never made protect nothing: they go although they are in debt. No site may ever take them.
        if stripe.record.locations[stripe.code.k()..].iter().any(|at| at.site != 0) {
            if wides.len() > MOST_WIDE {
                return Ok(DropOutcome::TooManyWide);
            }
            debts.extend(wides.keys().copied().chain([id]).map(keys::debt));
            if !are_in_reserve(writes, &wides, &debts).await? {
                return Ok(DropOutcome::NotNow);
            }
        }
        if drop_once(writes, &stripe, debts).await? {
            return Ok(DropOutcome::Done);
        }
    }
    Ok(DropOutcome::NotNow)
}

/// Returns the wide stripes of a stripe's data chunks. `None` if one of the chunks is in no sealed wide stripe, or the
/// stripe has copies.
async fn sealed_wides_of(
    writes: &Writes,
    stripe: &OpenedStripe,
) -> Result<Option<BTreeMap<StripeId, Stripe>>, StripeError> {
    let data = &stripe.record.locations[..stripe.code.k()];
    let ids: BTreeSet<StripeId> = data.iter().filter_map(wide_of).map(|(wide, _)| wide).collect();
    if data.iter().any(|at| wide_of(at).is_none()) || !stripe.record.copies.is_empty() {
        return Ok(None);
    }
    let keys: Vec<Bytes> = ids.iter().copied().map(keys::stripe).collect();
    let mut wides = BTreeMap::new();
    for (id, row) in ids.into_iter().zip(writes.shared.table.meta().get_many(&keys).await?) {
        let record = row.map(|row| row.record::<Stripe>()).transpose()?;
        let Some(record) = record.filter(Stripe::is_sealed) else { return Ok(None) };
        wides.insert(id, record);
    }
    Ok(Some(wides))
}

/// Whether the redundancy of these wide stripes is in reserve for future losses: their sites answer, and neither their
/// members nor any of `debts` are in debt.
async fn are_in_reserve(
    writes: &Writes,
    wides: &BTreeMap<StripeId, Stripe>,
    debts: &[Bytes],
) -> Result<bool, StripeError> {
    let sites = writes.shared.sites.snapshot();
    let mut members = BTreeSet::new();
    for record in wides.values() {
        let is_there =
            |(index, at): (usize, &Location)| is_hole(record, index) || sites.is_readable(SiteId(at.site));
        if !record.locations.iter().enumerate().all(is_there) {
            return Ok(false);
        }
        members.extend(record.member_chunks().map(|(_, stripe, _)| stripe));
    }
    let is_any = any_in_debt(writes, &members).await?
        || writes.shared.table.meta().get_many(debts).await?.iter().any(Option::is_some);
    Ok(!is_any)
}

/// Whether one of these stripes is in debt.
async fn any_in_debt(writes: &Writes, ids: &BTreeSet<StripeId>) -> Result<bool, StripeError> {
    let meta = writes.shared.table.meta();
    // Usually there are few debts: one scan of all of them suffices.
    let debts = meta.scan(ScanRange::prefix(keys::DEBTS), FEW_DEBTS).await?;
    if debts.len() < FEW_DEBTS {
        return Ok(debts.iter().filter_map(|row| keys::stripe_of(&row.key)).any(|id| ids.contains(&id)));
    }
    let keys: Vec<Bytes> = ids.iter().copied().map(keys::debt).collect();
    Ok(meta.get_many(&keys).await?.iter().any(Option::is_some))
}

/// Drops the parities from a record. Returns their files.
pub(in crate::write) fn do_without_parities(record: &mut Stripe, k: usize) -> Vec<GarbageChunk> {
    let named = record.locations.iter().enumerate().skip(k).filter(|(_, at)| at.site != 0);
    let garbage = named.map(|(index, at)| at.to_garbage(index)).collect();
    record.locations[k..].iter_mut().for_each(|at| at.site = 0);
    record.dropped = true;
    garbage
}

async fn drop_once(writes: &Writes, stripe: &OpenedStripe, debts: Vec<Bytes>) -> Result<bool, StripeError> {
    let (id, before, k) = (stripe.id, &stripe.record, stripe.code.k());
    let mut record = before.clone();
    let mut garbage = do_without_parities(&mut record, k);
    // A repair of a parity that closed later would name a file that is no longer kept.
    let entries = std::mem::take(&mut record.entries);
    garbage.extend(entries.iter().flat_map(|entry| unnamed_of(before, entry)));
    let old = keys::placement_of(holders(before));
    let new = writes.ensure_placement(&holders(&record)).await?;
    let mut tx = writes.shared.table.transaction_on(stripe);
    require_placement(&mut tx, new);
    for debt in debts {
        tx.require(Precondition::Absent(debt));
    }
    put_record(&mut tx, id, &record, before);
    if old != new {
        tx.delete(keys::reverse(old, id)).put(keys::reverse(new, id), Bytes::new());
    }
    if !garbage.is_empty() {
        add_garbage(&mut tx, id, garbage);
    }
    let is_done = commit(writes, tx, &[id]).await?;
    if !is_done {
        writes.forget_placement(new);
    }
    Ok(is_done)
}

/// N: restores a stripe's own parities because it is read often. They are debt until repair makes them; its wide
/// stripes keep protecting it. Returns `false` if the stripe has not dropped them, or has changed meanwhile.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn narrow_again(writes: &Writes, id: StripeId) -> Result<bool, StripeError> {
    let Some(stripe) = writes.shared.table.find(id).await? else { return Ok(false) };
    // Without own parities, only the rules of its wide stripes decided the places of its data chunks.
    let keeps_rule = || check_places(writes, &stripe.profile, &stripe.code, &stripe.record).is_ok();
    if !stripe.record.dropped || stripe.record.dead || !keeps_rule() {
        return Ok(false);
    }
    let record = Stripe { dropped: false, ..stripe.record.clone() };
    let mut tx = writes.shared.table.transaction_on(&stripe);
    put_record(&mut tx, id, &record, &stripe.record);
    tx.put(keys::debt(id), Bytes::new());
    commit(writes, tx, &[id]).await
}

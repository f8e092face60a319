//! Removes dead members from their wide stripes, which frees their space.
//!
//! The dead members of one wide stripe leave in one step, which rewrites its parities once. A wide stripe without
//! live members protects nothing: it is given up without rewriting them. A dead stripe is deleted once it has left
//! its last wide stripe.

use std::collections::BTreeSet;
use std::future::ready;

use futures::stream::{self, StreamExt, TryStreamExt};
use striate_core::StripeId;
use striate_meta::records::{GarbageChunk, Stripe, WideState};
use striate_meta::{Transaction, keys};

use super::claim::{CLAIMED_AT_ONCE, MemberStripes};
use super::exchange::{Change, ExchangeOutcome, change_members, is_changeable, leaving_chunk};
use super::links::is_same_file;
use super::seal::{READ_AT_ONCE, WideStep, advance, commit};
use crate::error::StripeError;
use crate::table::{OpenedStripe, holders, own_locations};
use crate::write::entry::{put_record, unnamed_of};
use crate::write::release::{add_garbage, is_claimed, release_stripe};
use crate::write::writes::Writes;

/// Attempts of a step while other changes win.
const ATTEMPTS: usize = 16;

/// A data chunk of a wide stripe: its position, its own stripe, and its index there.
type MemberChunk = (usize, StripeId, usize);

/// Removes the dead members of a sealed wide stripe. A member whose bytes are missing stays until it is repaired.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn leave(writes: &Writes, id: StripeId) -> Result<ExchangeOutcome, StripeError> {
    for _ in 0..ATTEMPTS {
        if dissolve(writes, id).await? {
            return Ok(ExchangeOutcome::Done);
        }
        let Some(wide) = writes.shared.table.find(id).await? else { return Ok(ExchangeOutcome::Done) };
        if !wide.record.is_sealed() {
            return Ok(ExchangeOutcome::NotNow);
        }
        let dead = dead_of(writes, &wide).await?;
        if dead.is_empty() {
            return Ok(ExchangeOutcome::Done);
        }
        match take_out(writes, wide, &dead).await? {
            ExchangeOutcome::Done => {}
            not_yet => return Ok(not_yet),
        }
    }
    Ok(ExchangeOutcome::NotNow)
}

/// Gives up a sealed wide stripe without live members, or resumes giving it up. Returns `false` if a member lives,
/// the stripe is not sealed, or another process is changing it.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn dissolve(writes: &Writes, id: StripeId) -> Result<bool, StripeError> {
    for _ in 0..ATTEMPTS {
        let Some(wide) = writes.shared.table.find(id).await? else { return Ok(true) };
        if wide.record.wide_state() == WideState::Aborting {
            return Ok(advance(writes, id).await? == WideStep::Aborted);
        }
        let members = wide.record.member_chunks().count();
        if !wide.record.is_sealed() || dead_of(writes, &wide).await?.len() < members {
            return Ok(false);
        }
        begin_to_dissolve(writes, &wide).await?;
    }
    Ok(false)
}

/// Returns the members whose own stripes are dead.
async fn dead_of(writes: &Writes, wide: &OpenedStripe) -> Result<Vec<MemberChunk>, StripeError> {
    let ids: Vec<StripeId> = wide.record.member_chunks().map(|(_, stripe, _)| stripe).collect();
    let own = MemberStripes::read(writes, &ids).await?;
    Ok(wide.record.member_chunks().filter(|&(_, stripe, _)| own.is_dead(stripe)).collect())
}

/// Replaces dead members by holes, for as many stripes as one transaction can change.
async fn take_out(
    writes: &Writes,
    wide: OpenedStripe,
    dead: &[MemberChunk],
) -> Result<ExchangeOutcome, StripeError> {
    if !is_changeable(writes, &wide, &[]).await? {
        return Ok(ExchangeOutcome::NotNow);
    }
    let mut owners = BTreeSet::new();
    let mut batch = dead.to_vec();
    batch.retain(|&(_, stripe, _)| {
        let fits = owners.len() < CLAIMED_AT_ONCE || owners.contains(&stripe);
        if fits {
            owners.insert(stripe);
        }
        fits
    });
    let of_member = |(position, stripe, index): MemberChunk| {
        let wide = &wide;
        async move {
            let old = leaving_chunk(writes, wide, position, (stripe, index)).await?;
            Ok::<_, StripeError>(old.map(|old| Change {
                position,
                old: Some(old),
                new: None,
                comes_from: None,
            }))
        }
    };
    let read = stream::iter(batch).map(of_member).buffered(READ_AT_ONCE);
    let changes: Vec<Change> = read.try_filter_map(|change| ready(Ok(change))).try_collect().await?;
    // Other members may have moved meanwhile.
    let Some(current) = writes.shared.table.find(wide.id).await? else { return Ok(ExchangeOutcome::NotNow) };
    let is_as_before = |change: &Change| {
        let (before, current) = (&wide.record, &current.record);
        before.members[change.position] == current.members[change.position]
            && is_same_file(&before.locations[change.position], &current.locations[change.position])
    };
    match current.record.is_sealed() && !changes.is_empty() && changes.iter().all(is_as_before) {
        true => change_members(writes, current, changes).await,
        false => Ok(ExchangeOutcome::NotNow),
    }
}

/// Begins to dissolve: dead stripes stay dead, so the parities are no longer needed.
async fn begin_to_dissolve(writes: &Writes, wide: &OpenedStripe) -> Result<(), StripeError> {
    let mut tx = writes.shared.table.transaction();
    add_giving_up(&mut tx, wide, wide.record.clone());
    commit(writes, tx, &[wide.id]).await.map(drop)
}

/// Adds to `tx` that a sealed wide stripe is given up, with the members that `record` has: its parities become garbage,
/// and so do the files of all changes of it in progress. `tx` then requires the record as it was read.
pub(super) fn add_giving_up(tx: &mut Transaction, wide: &OpenedStripe, mut record: Stripe) {
    let before = &wide.record;
    let named = own_locations(before).filter(|(_, at)| at.site != 0);
    let mut garbage: Vec<GarbageChunk> = named.map(|(index, at)| at.to_garbage(index)).collect();
    let entries = std::mem::take(&mut record.entries);
    garbage.extend(entries.iter().flat_map(|entry| unnamed_of(before, entry)));
    record.locations[wide.code.k()..].iter_mut().for_each(|at| at.site = 0);
    record.set_wide_state(WideState::Aborting);
    tx.require_unchanged(keys::stripe(wide.id), Some(&wide.row));
    tx.delete(keys::reverse(keys::placement_of(holders(before)), wide.id));
    put_record(tx, wide.id, &record, before);
    add_garbage(tx, wide.id, garbage);
}

/// Removes a dead stripe that has left its wide stripes. Returns `false` while it is a member of one.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn release_dead(writes: &Writes, id: StripeId) -> Result<bool, StripeError> {
    for _ in 0..ATTEMPTS {
        let Some(stripe) = writes.shared.table.find(id).await? else { return Ok(true) };
        if !stripe.record.dead || is_claimed(&stripe.record) {
            return Ok(false);
        }
        let mut tx = writes.shared.table.transaction_on(&stripe);
        release_stripe(&mut tx, id, &stripe.record);
        if commit(writes, tx, &[id]).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

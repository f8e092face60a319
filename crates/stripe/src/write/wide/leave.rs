//! Dead members leave their wide stripes, and their space comes back.
//!
//! Those of one wide stripe leave together, so that its parities are made anew once. A wide stripe of which nothing lives protects nothing:
//! it is given up, and no parity is made. What has left its last wide stripe goes.

use std::collections::BTreeSet;

use striate_core::StripeId;
use striate_meta::keys;
use striate_meta::records::{Stripe, WideState};

use super::claim::{CLAIMED_AT_ONCE, Own};
use super::exchange::{Change, Exchange, change_members, is_changeable, leaving};
use super::seal::{advance, commit};
use crate::error::StripeError;
use crate::table::{OpenedStripe, holders, own_locations};
use crate::write::entry::{cancel, put_record};
use crate::write::release::{add_garbage, is_claimed, release_stripe};
use crate::write::writes::Writes;

/// So often a step is tried again that loses against other changes.
const ATTEMPTS: usize = 16;

/// Has the dead members of a sealed wide stripe leave it. One whose bytes are not there stays until it is repaired.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn leave(writes: &Writes, id: StripeId) -> Result<Exchange, StripeError> {
    for _ in 0..ATTEMPTS {
        let Some(wide) = writes.shared.table.find(id).await? else { return Ok(Exchange::Done) };
        if wide.record.wide_state() == WideState::Aborting {
            advance(writes, id).await?;
            return Ok(Exchange::Done);
        }
        if !wide.record.is_sealed() {
            return Ok(Exchange::NotNow);
        }
        let members: Vec<(usize, StripeId, usize)> = wide.record.member_chunks().collect();
        let dead = dead_of(writes, &members).await?;
        if dead.len() == members.len() {
            dissolve(writes, &wide).await?;
            continue;
        }
        if dead.is_empty() {
            return Ok(Exchange::Done);
        }
        match take_out(writes, wide, &dead).await? {
            Exchange::Done => {}
            not_yet => return Ok(not_yet),
        }
    }
    Ok(Exchange::NotNow)
}

/// The members whose own stripes are dead.
async fn dead_of(
    writes: &Writes,
    members: &[(usize, StripeId, usize)],
) -> Result<Vec<(usize, StripeId, usize)>, StripeError> {
    let own = Own::read(writes, &members.iter().map(|&(_, stripe, _)| stripe).collect::<Vec<_>>()).await?;
    let is_dead = |&&(_, stripe, _): &&(usize, StripeId, usize)| own.is_dead(stripe);
    Ok(members.iter().filter(is_dead).copied().collect())
}

/// Leaves holes where dead members are: of as many stripes as one transaction changes.
async fn take_out(
    writes: &Writes,
    wide: OpenedStripe,
    dead: &[(usize, StripeId, usize)],
) -> Result<Exchange, StripeError> {
    if !is_changeable(writes, &wide, &[]).await? {
        return Ok(Exchange::NotNow);
    }
    let (mut changes, mut owners) = (Vec::new(), BTreeSet::new());
    for &(position, stripe, index) in dead {
        if owners.len() == CLAIMED_AT_ONCE && !owners.contains(&stripe) {
            continue;
        }
        if let Some(old) = leaving(writes, &wide, position, (stripe, index)).await? {
            owners.insert(stripe);
            changes.push(Change { position, old: Some(old), new: None });
        }
    }
    match changes.is_empty() {
        true => Ok(Exchange::NotNow),
        false => change_members(writes, wide, changes).await,
    }
}

/// Gives up a sealed wide stripe of which nothing lives. What is dead stays dead, so that nobody needs its parities from now on.
async fn dissolve(writes: &Writes, wide: &OpenedStripe) -> Result<(), StripeError> {
    for entry in &wide.record.entries {
        cancel(writes, wide.id, entry.generation).await?;
    }
    let before = &wide.record;
    let mut record = Stripe { entries: Vec::new(), ..before.clone() };
    let named = own_locations(before).filter(|(_, at)| at.site != 0);
    let garbage = named.map(|(index, at)| at.to_garbage(index)).collect();
    record.locations[wide.code.k()..].iter_mut().for_each(|at| at.site = 0);
    record.set_wide_state(WideState::Aborting);
    let mut tx = writes.shared.table.transaction();
    // Where an entry was cancelled the row is another: it is looked at again.
    tx.require_unchanged(keys::stripe(wide.id), Some(&wide.row));
    tx.delete(keys::reverse(keys::placement_of(holders(before)), wide.id));
    put_record(&mut tx, wide.id, &record, before);
    add_garbage(&mut tx, wide.id, garbage);
    commit(writes, tx, &[wide.id]).await.map(drop)
}

/// Takes a dead stripe down that has left its wide stripes. `false` while it is in one.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn release_dead(writes: &Writes, id: StripeId) -> Result<bool, StripeError> {
    for _ in 0..ATTEMPTS {
        let Some(stripe) = writes.shared.table.find(id).await? else { return Ok(true) };
        if !stripe.record.dead || is_claimed(&stripe.record) {
            return Ok(false);
        }
        let mut tx = writes.shared.table.transaction();
        tx.require_unchanged(keys::stripe(id), Some(&stripe.row));
        release_stripe(&mut tx, id, &stripe.record);
        if commit(writes, tx, &[id]).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

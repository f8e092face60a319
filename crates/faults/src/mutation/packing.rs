//! Planted defects of packing: transactions of its protocol with one rule left out (design.md §10.15).
//!
//! A transaction's preconditions and writes show which step it is. A removed precondition keeps its position, since
//! users of the store identify conflicts by position.
//!
//! Some rules matter only to commits that arrive after their packer has given up, or between two consecutive steps:
//! P2 and P3 without the reservation, P5 without its condition, R2 without the mark's version, R4 without the
//! record's. Others matter only to running reads: no grace period, or a collector that does not wait for the
//! deleter's. Runs of a few hundred operations do not reach these cases; the protocol's model does. A release that
//! forgets copies leaves orphans, as crashes do, which the orphan scan collects.

use bytes::Bytes;
use striate_core::StripeId;
use striate_meta::records::Stripe;
use striate_meta::{MetaStore, Precondition, Transaction, Write, keys, records};
use striate_stripe::release_stripe;

use super::Mutation;
use crate::operation::BUCKET;

const OBJECTS: &[u8] = b"o/";

/// A step of the protocol that ends in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// P2: commits the group's record, with its mark.
    Record,
    /// P3: switches rows to the group's extents.
    Switch,
    /// P4: ends the reservation and removes the mark.
    Settle,
    /// R2: removes the mark of a group that is dense enough.
    Unmark,
    /// R4: releases a group in which nothing lives.
    Release,
    /// F1: a client overwrites or deletes a packed object.
    Death,
    /// A repair or a move swaps a stripe's locations.
    Swap,
}

impl Step {
    fn of(tx: &Transaction) -> Option<Self> {
        let puts = |prefix: &[u8]| {
            tx.writes.iter().any(|write| matches!(write, Write::Put(key, _) if key.starts_with(prefix)))
        };
        let deletes = |prefix: &[u8]| {
            tx.writes.iter().any(|write| matches!(write, Write::Delete(key) if key.starts_with(prefix)))
        };
        let requires = |holds: fn(&Precondition) -> bool| tx.preconditions.iter().any(holds);
        let is_reserved =
            requires(|rule| matches!(rule, Precondition::Exists(key) if key.starts_with(keys::INTENTS)));
        let is_compared =
            requires(|rule| matches!(rule, Precondition::Version(key, _) if key.starts_with(keys::STRIPES)));
        let changes_objects = puts(OBJECTS) || deletes(OBJECTS);
        match () {
            () if puts(keys::STRIPES) && puts(keys::MARKS) && !changes_objects => Some(Self::Record),
            () if is_reserved && changes_objects && !puts(keys::STRIPES) => Some(Self::Switch),
            () if deletes(keys::MARKS) && deletes(keys::INTENTS) => Some(Self::Settle),
            () if deletes(keys::MARKS) && deletes(keys::STRIPES) => Some(Self::Release),
            () if deletes(keys::MARKS) && tx.writes.len() == 1 => Some(Self::Unmark),
            () if is_compared && puts(keys::STRIPES) && !changes_objects => Some(Self::Swap),
            () if puts(keys::MARKS) && changes_objects => Some(Self::Death),
            () => None,
        }
    }
}

/// Returns the transaction as defective packing would submit it.
pub(super) async fn with_defect(
    mutation: Mutation,
    store: &dyn MetaStore,
    mut tx: Transaction,
) -> Transaction {
    let Some(step) = Step::of(&tx) else { return tx };
    match (mutation, step) {
        (Mutation::SwitchWithoutVersion, Step::Switch) => ignore(&mut tx, OBJECTS),
        (Mutation::SwitchForgetsGarbage, Step::Switch) => forget(&mut tx, keys::GARBAGE),
        (Mutation::BornUnmarked, Step::Record)
        | (Mutation::DeathUnmarked, Step::Death)
        | (Mutation::ReleaseLeavesMark, Step::Release) => forget(&mut tx, keys::MARKS),
        (Mutation::SwapWithoutComparing, Step::Swap) => ignore(&mut tx, keys::STRIPES),
        (Mutation::SettleBlindly, Step::Settle) => ignore(&mut tx, keys::MARKS),
        (Mutation::CopyDroppedButNamed, Step::Swap) => keep_copies_named(store, &mut tx).await,
        (Mutation::ReleaseOnMark, Step::Unmark) | (Mutation::OverwriteReleases, Step::Death) => {
            release_marked(store, &mut tx).await;
        }
        _ => {}
    }
    tx
}

fn key_of(write: &Write) -> &Bytes {
    match write {
        Write::Put(key, _) | Write::Delete(key) => key,
    }
}

/// Makes preconditions on rows under `prefix` always hold.
pub(super) fn ignore(tx: &mut Transaction, prefix: &[u8]) {
    for rule in &mut tx.preconditions {
        if let Precondition::Absent(key) | Precondition::Exists(key) | Precondition::Version(key, _) = rule
            && key.starts_with(prefix)
        {
            *rule = Precondition::Exists(keys::bucket(BUCKET));
        }
    }
}

/// Removes writes of rows under `prefix`.
pub(super) fn forget(tx: &mut Transaction, prefix: &[u8]) {
    tx.writes.retain(|write| !key_of(write).starts_with(prefix));
}

/// Returns the current record of the stripe that a transaction changes or releases.
async fn record_before(store: &dyn MetaStore, tx: &Transaction) -> Option<Stripe> {
    let key = tx.writes.iter().map(key_of).find(|key| key.starts_with(keys::STRIPES))?;
    store.get(key).await.ok()??.record().ok()
}

/// Keeps the copies in the record that a swap removes from it.
async fn keep_copies_named(store: &dyn MetaStore, tx: &mut Transaction) {
    let Some(before) = record_before(store, tx).await else { return };
    for write in &mut tx.writes {
        if let Write::Put(key, value) = write
            && key.starts_with(keys::STRIPES)
            && let Ok(mut record) = records::decode::<Stripe>(value)
            && record.copies.len() < before.copies.len()
        {
            record.copies.clone_from(&before.copies);
            *value = records::encode(&record);
        }
    }
}

/// Releases the stripes whose marks are written, whatever lives in them.
async fn release_marked(store: &dyn MetaStore, tx: &mut Transaction) {
    let marks = tx.writes.iter().map(key_of).filter(|key| key.starts_with(keys::MARKS));
    let stripes: Vec<StripeId> = marks.filter_map(|key| keys::stripe_of(key)).collect();
    for id in stripes {
        let Ok(Some(row)) = store.get(&keys::stripe(id)).await else { continue };
        let Ok(record) = row.record::<Stripe>() else { continue };
        tx.writes.retain(|write| *key_of(write) != keys::mark(id));
        tx.delete(keys::mark(id));
        tx.require_unchanged(row.key.clone(), Some(&row));
        release_stripe(tx, id, &record);
    }
}

//! Planted defects of sealing, and of changes of sealed data: transactions of the protocol with one rule left out
//! (docs/src/design.md §10).
//!
//! Other defects of the protocol cannot be planted at these seams, because the code enforces the rule in more than one
//! place, or cannot express the defect:
//!
//! | defect | what else prevents it |
//! |--|--|
//! | narrow parities are dropped despite a running repair of one | the repair then sees that they were dropped |
//! | they are dropped despite debt | it is read before, and the transaction requires that there is none |
//! | the rule of one of a member's two stripes is not checked | the other's |
//! | places of changes in progress do not count | each close checks the rule in the record that it swaps |
//! | a change of content does not cancel other changes | these compare the content that they were made from |
//! | old bytes are read before the entry is open | the close compares their content |
//! | a member changes in place although its own stripe has parities | this is checked at the open and at the close |
//! | it does so while its wide stripe is being built | the same |
//! | a member leaves although others need its bytes | only dead stripes leave, and files go with the whole stripe |
//! | a tree mixes rows of several readings | a tree is drawn from one row |
//! | a change whose outcome is unknown gives its files up | this cancels its entry, which must exist |

use std::collections::BTreeMap;

use bytes::Bytes;
use parking_lot::Mutex;
use striate_core::StripeId;
use striate_meta::records::{self, Garbage, GarbageChunk, Stripe, WideState};
use striate_meta::{MetaStore, Precondition, Row, Transaction, Write, keys};
use striate_stripe::{add_garbage, release_stripe, wide_of};

use super::Mutation;
use super::packing::{forget, ignore};
use crate::wide::swaps_local_parity;

/// Returns the stripe records that a transaction writes.
pub(super) fn written(tx: &Transaction) -> Vec<(Bytes, Stripe)> {
    let record = |write: &Write| match write {
        Write::Put(key, value) if key.starts_with(keys::STRIPES) => {
            Some((key.clone(), records::decode::<Stripe>(value).ok()?))
        }
        _ => None,
    };
    tx.writes.iter().filter_map(record).collect()
}

/// Replaces a record that a transaction writes.
pub(super) fn rewrite(tx: &mut Transaction, stripe_key: &Bytes, record: &Stripe) {
    for write in &mut tx.writes {
        if let Write::Put(key, value) = write
            && key == stripe_key
        {
            *value = records::encode(record);
        }
    }
}

pub(super) async fn record_now(store: &dyn MetaStore, key: &[u8]) -> Option<(Row, Stripe)> {
    let row = store.get(key).await.ok()??;
    let record = row.record().ok()?;
    Some((row, record))
}

/// Returns the wide stripe that a transaction requires but does not write: it claims members for it (S2).
fn claimed_for(tx: &Transaction, written: &[(Bytes, Stripe)]) -> Option<Bytes> {
    let is_written = |key: &Bytes| written.iter().any(|(written_key, _)| written_key == key);
    let required = tx.preconditions.iter().find_map(|rule| match rule {
        Precondition::Version(key, _) if key.starts_with(keys::STRIPES) && !is_written(key) => {
            Some(key.clone())
        }
        _ => None,
    });
    required
        .filter(|_| written.iter().any(|(_, record)| record.locations.iter().any(|at| wide_of(at).is_some())))
}

/// Returns the transaction as a process with the defect would submit it.
pub(super) async fn with_defect(
    mutation: Mutation,
    store: &dyn MetaStore,
    mut tx: Transaction,
) -> Transaction {
    let written = written(&tx);
    match mutation {
        Mutation::DropWhileBuilding if claimed_for(&tx, &written).is_some() => {
            written.iter().for_each(|(key, record)| drop_parities(&mut tx, key, record));
        }
        Mutation::ClaimIgnoresMember if claimed_for(&tx, &written).is_some() => {
            written.iter().for_each(|(key, _)| ignore(&mut tx, key));
        }
        Mutation::ClaimIgnoresWide => {
            if let Some(wide) = claimed_for(&tx, &written) {
                ignore(&mut tx, &wide);
            }
        }
        Mutation::AbortDeletesAtOnce => delete_aborted(&mut tx, &written),
        Mutation::SealKeepsGeneration | Mutation::CancelForgetsGarbage => {
            cancel_wrongly(mutation, store, &mut tx, &written).await;
        }
        Mutation::MoveForgetsCopy if moves_members(store, &written).await => {
            forget_records(&mut tx, &written, |record| !record.members.is_empty());
        }
        Mutation::RuleAtOpenOnly if moves_members(store, &written).await => {
            for (key, _) in written.iter().filter(|(_, record)| !record.members.is_empty()) {
                carry_over(store, &mut tx, key, &written).await;
            }
        }
        Mutation::ReleaseIgnoresMembers => release_dead(store, &mut tx, &written).await,
        Mutation::ExchangeIgnoresMembers if exchanges(store, &written).await => {
            let own = written.iter().filter(|(_, record)| record.members.is_empty());
            own.for_each(|(key, _)| ignore(&mut tx, key));
        }
        Mutation::ExchangeForgetsGlobals => keep_globals(store, &mut tx, &written, is_exchanged).await,
        Mutation::UpdateForgetsGlobals => keep_globals(store, &mut tx, &written, is_updated).await,
        Mutation::UpdateForgetsOwnParities => keep_own_checksums(store, &mut tx, &written).await,
        Mutation::SwapInTwoTransactions => keep_local_parity(store, &mut tx, &written).await,
        Mutation::DissolveWhileOneLives => dissolve_early(store, &mut tx, &written).await,
        Mutation::DissolveForgetsGarbage if dissolves(store, &written).await => {
            forget(&mut tx, keys::GARBAGE);
        }
        Mutation::TransferInTwoTransactions if empties(store, &written).await => {
            forget_records(&mut tx, &written, |record| record.members.is_empty());
        }
        _ => {}
    }
    tx
}

/// Removes records that a transaction writes.
fn forget_records(tx: &mut Transaction, written: &[(Bytes, Stripe)], are_forgotten: fn(&Stripe) -> bool) {
    let is_forgotten =
        |key: &Bytes| written.iter().any(|(written_key, record)| written_key == key && are_forgotten(record));
    tx.writes.retain(|write| !matches!(write, Write::Put(key, _) if is_forgotten(key)));
}

/// D without claims: dead stripes are released at once.
async fn release_dead(store: &dyn MetaStore, tx: &mut Transaction, written: &[(Bytes, Stripe)]) {
    for (key, record) in written.iter().filter(|(_, record)| record.dead) {
        let (Some(id), Some((_, before))) = (keys::stripe_of(key), record_now(store, key).await) else {
            continue;
        };
        if before.dead {
            continue;
        }
        tx.writes.retain(|write| !matches!(write, Write::Put(put_key, _) if put_key == key || *put_key == keys::change(id)));
        let mut released = Stripe { dead: false, ..record.clone() };
        released.locations.iter_mut().for_each(|at| at.wide = Bytes::new());
        release_stripe(tx, id, &released);
    }
}

/// A content change without the global parities: the old ones stay named, and the new ones become garbage.
async fn keep_globals(
    store: &dyn MetaStore,
    tx: &mut Transaction,
    written: &[(Bytes, Stripe)],
    changes_content: fn(&Stripe, &Stripe) -> bool,
) {
    for (key, record) in written.iter().filter(|(_, record)| !record.members.is_empty()) {
        let (Some(id), Some((_, before))) = (keys::stripe_of(key), record_now(store, key).await) else {
            continue;
        };
        let profile: Option<striate_core::Profile> = record.profile.parse().ok();
        let Some(code) = profile.and_then(|profile| profile.code.build().ok()) else { continue };
        if !changes_content(&before, record) {
            continue;
        }
        let first = code.k() + code.local_groups().len();
        let mut kept = record.clone();
        kept.locations[first..].clone_from_slice(&before.locations[first..]);
        rewrite(tx, key, &kept);
        change_garbage(tx, id, |chunks| {
            for chunk in chunks.iter_mut().filter(|chunk| chunk.index as usize >= first) {
                let index = chunk.index as usize;
                if chunk.generation == before.locations[index].generation {
                    chunk.generation = record.locations[index].generation;
                }
            }
        });
    }
}

/// U without the own stripe's parities: the checksums of those that were dropped stay as they were.
async fn keep_own_checksums(store: &dyn MetaStore, tx: &mut Transaction, written: &[(Bytes, Stripe)]) {
    for (key, record) in written.iter().filter(|(_, record)| record.dropped) {
        let Some((_, before)) = record_now(store, key).await else { continue };
        let mut kept = record.clone();
        for (now, before) in kept.locations.iter_mut().zip(&before.locations) {
            if now.site == 0 && before.site == 0 {
                (now.crc32c, now.content_version) = (before.crc32c, before.content_version);
            }
        }
        rewrite(tx, key, &kept);
    }
}

/// The first of two transactions for L: the member gets its new place here; the local parity would follow in the
/// second.
async fn keep_local_parity(store: &dyn MetaStore, tx: &mut Transaction, written: &[(Bytes, Stripe)]) {
    for (key, record) in written.iter().filter(|(_, record)| !record.members.is_empty()) {
        let (Some(id), Some((_, before))) = (keys::stripe_of(key), record_now(store, key).await) else {
            continue;
        };
        if !swaps_local_parity(&before, record) {
            continue;
        }
        let mut first = record.clone();
        let k = record.members.len();
        first.locations[k..].clone_from_slice(&before.locations[k..]);
        first.entries.clone_from(&before.entries);
        rewrite(tx, key, &first);
        let is_of_it = |value: &Bytes| {
            records::decode::<Garbage>(value).is_ok_and(|garbage| garbage.stripe == id.to_bytes().as_slice())
        };
        tx.writes.retain(|write| match write {
            Write::Put(key, value) => !key.starts_with(keys::GARBAGE) || !is_of_it(value),
            Write::Delete(key) => *key != keys::change(id),
        });
    }
}

/// X as A1: live members are left without protection.
async fn dissolve_early(store: &dyn MetaStore, tx: &mut Transaction, written: &[(Bytes, Stripe)]) {
    for (key, record) in written.iter().filter(|(_, record)| record.is_sealed()) {
        let (Some(id), Some((_, before))) = (keys::stripe_of(key), record_now(store, key).await) else {
            continue;
        };
        if record.member_chunks().count() < before.member_chunks().count() {
            let mut given_up = record.clone();
            given_up.set_wide_state(WideState::Aborting);
            let k = record.members.len();
            let parities = record.locations.iter().enumerate().skip(k);
            let unnamed: Vec<GarbageChunk> = parities.map(|(index, at)| at.to_garbage(index)).collect();
            given_up.locations[k..].iter_mut().for_each(|at| at.site = 0);
            rewrite(tx, key, &given_up);
            change_garbage(tx, id, |chunks| chunks.extend_from_slice(&unnamed));
            tx.writes
                .retain(|write| !matches!(write, Write::Delete(deleted) if *deleted == keys::change(id)));
            tx.put(keys::change(id), Bytes::new());
        }
    }
}

/// Changes the files in the garbage row of a stripe that a transaction writes.
fn change_garbage(tx: &mut Transaction, id: StripeId, change: impl Fn(&mut Vec<GarbageChunk>)) {
    for write in &mut tx.writes {
        if let Write::Put(key, value) = write
            && key.starts_with(keys::GARBAGE)
            && let Ok(mut garbage) = records::decode::<Garbage>(value)
            && garbage.stripe == id.to_bytes().as_slice()
        {
            change(&mut garbage.chunks);
            *value = records::encode(&garbage);
        }
    }
}

/// Returns true if a sealed wide stripe is dissolved.
async fn dissolves(store: &dyn MetaStore, written: &[(Bytes, Stripe)]) -> bool {
    for (key, _) in written.iter().filter(|(_, record)| record.wide_state() == WideState::Aborting) {
        if record_now(store, key).await.is_some_and(|(_, before)| before.is_sealed()) {
            return true;
        }
    }
    false
}

/// Returns true if members leave a sealed wide stripe, or join it.
async fn exchanges(store: &dyn MetaStore, written: &[(Bytes, Stripe)]) -> bool {
    for (key, record) in written.iter().filter(|(_, record)| record.is_sealed()) {
        if record_now(store, key).await.is_some_and(|(_, before)| is_exchanged(&before, record)) {
            return true;
        }
    }
    false
}

/// Returns true if a wide stripe is given up because its members go into others.
async fn empties(store: &dyn MetaStore, written: &[(Bytes, Stripe)]) -> bool {
    for (key, record) in written.iter().filter(|(_, record)| record.wide_state() == WideState::Aborting) {
        let leaves = |(_, before): (Row, Stripe)| before.is_sealed() && before.members != record.members;
        if record_now(store, key).await.is_some_and(leaves) {
            return true;
        }
    }
    false
}

/// S6 too early: own stripes drop their parities as soon as all of their data chunks are claimed.
fn drop_parities(tx: &mut Transaction, key: &Bytes, record: &Stripe) {
    let profile: Option<striate_core::Profile> = record.profile.parse().ok();
    let Some(code) = profile.and_then(|profile| profile.code.build().ok()) else { return };
    if record.locations[..code.k()].iter().all(|at| wide_of(at).is_some()) {
        let mut dropped = Stripe { dropped: true, ..record.clone() };
        let parities = record.locations.iter().enumerate().skip(code.k()).filter(|(_, at)| at.site != 0);
        let unnamed = parities.map(|(index, at)| at.to_garbage(index)).collect();
        dropped.locations[code.k()..].iter_mut().for_each(|at| at.site = 0);
        rewrite(tx, key, &dropped);
        if let Some(id) = keys::stripe_of(key) {
            add_garbage(tx, id, unnamed);
        }
    }
}

/// A1 as A3: the record is deleted before the claims.
fn delete_aborted(tx: &mut Transaction, written: &[(Bytes, Stripe)]) {
    for (key, _) in written.iter().filter(|(_, record)| record.wide_state() == WideState::Aborting) {
        let Some(id) = keys::stripe_of(key) else { continue };
        let row_keys = [key.clone(), keys::change(id)];
        tx.writes.retain(|write| !matches!(write, Write::Put(key, _) if row_keys.contains(key)));
        for key in row_keys {
            tx.delete(key);
        }
    }
}

/// A cancelled entry gives its generation back, or its files are forgotten.
async fn cancel_wrongly(
    mutation: Mutation,
    store: &dyn MetaStore,
    tx: &mut Transaction,
    written: &[(Bytes, Stripe)],
) {
    let [(key, record)] = written else { return };
    let Some((_, before)) = record_now(store, key).await else { return };
    if before.entries.len() <= record.entries.len() || before.locations != record.locations {
        return;
    }
    match mutation {
        Mutation::CancelForgetsGarbage => forget(tx, keys::GARBAGE),
        _ if record.wide_state() == WideState::Building => {
            rewrite(tx, key, &Stripe { generation: record.generation - 1, ..record.clone() });
        }
        _ => {}
    }
}

/// Returns true if a wide stripe's members have changed (E, F and X).
fn is_exchanged(before: &Stripe, now: &Stripe) -> bool {
    !before.members.is_empty() && before.members != now.members
}

/// Returns true if a wide stripe has the same members, but the content of one has changed.
fn is_updated(before: &Stripe, now: &Stripe) -> bool {
    let mut of_members = before.locations.iter().zip(&now.locations).take(now.members.len());
    let is_changed = |(before, now): (&records::Location, &records::Location)| {
        before.content_version != now.content_version
    };
    before.members == now.members && of_members.any(is_changed)
}

/// Returns true if own stripes and wide stripes are written together and the wide ones keep their members: chunks
/// move.
async fn moves_members(store: &dyn MetaStore, written: &[(Bytes, Stripe)]) -> bool {
    let is_wide = |(_, record): &&(Bytes, Stripe)| !record.members.is_empty();
    for (key, record) in written.iter().filter(is_wide) {
        let is_other =
            |(_, before): (Row, Stripe)| before.members != record.members || is_updated(&before, record);
        if record_now(store, key).await.is_none_or(is_other) {
            return false;
        }
    }
    let wide = written.iter().filter(is_wide).count();
    wide > 0 && wide < written.len()
}

/// Writes the new locations of moved chunks into the current record of the wide stripe, whatever else has changed
/// there.
async fn carry_over(store: &dyn MetaStore, tx: &mut Transaction, key: &Bytes, written: &[(Bytes, Stripe)]) {
    let (Some(id), Some((row, mut now))) = (keys::stripe_of(key), record_now(store, key).await) else {
        return;
    };
    for chunk in written.iter().flat_map(|(_, record)| &record.locations) {
        if let Some((wide, position)) = wide_of(chunk)
            && wide == id
        {
            now.locations[position] = records::Location { wide: Bytes::new(), position: 0, ..chunk.clone() };
        }
    }
    for rule in &mut tx.preconditions {
        if let Precondition::Version(required, version) = rule
            && required == key
        {
            *version = row.version;
        }
    }
    rewrite(tx, key, &now);
}

/// The records of stripes as a process first read them, or as they were before chunks changed in place.
#[derive(Debug, Default)]
pub(super) struct FirstRecords(Mutex<BTreeMap<Bytes, Row>>);

impl FirstRecords {
    pub(super) fn first(&self, row: Row) -> Row {
        let is_wide = row.key.starts_with(keys::STRIPES)
            && row.record::<Stripe>().is_ok_and(|record| !record.members.is_empty());
        if !is_wide {
            return row;
        }
        self.0.lock().entry(row.key.clone()).or_insert(row).clone()
    }

    /// Returns the row of a member's own stripe as if chunks that have changed in place were still in their old files.
    pub(super) fn with_old_files(&self, row: Row) -> Row {
        let Some(mut record) = own_stripe(&row) else { return row };
        let mut all = self.0.lock();
        let known = all.entry(row.key.clone()).or_insert_with(|| row.clone());
        let Some(before) = own_stripe(known) else { return row };
        let mut has_changed = false;
        for (now, before) in record.locations.iter_mut().zip(&before.locations) {
            if now.content_version > before.content_version && now.site == before.site {
                (now.generation, now.crc32c) = (before.generation, before.crc32c);
                has_changed = true;
            }
        }
        match has_changed {
            // With the old revision, since the process must not write such a record.
            true => Row { value: records::encode(&record), ..known.clone() },
            false => {
                *known = row.clone();
                row
            }
        }
    }
}

/// Returns the record in a row, if it is that of a stripe which is not wide.
fn own_stripe(row: &Row) -> Option<Stripe> {
    let record: Option<Stripe> = row.key.starts_with(keys::STRIPES).then(|| row.record().ok()).flatten();
    record.filter(|record| record.members.is_empty())
}

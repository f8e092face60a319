//! Releases stripes. One transaction deletes their rows and adds garbage rows. A deleter removes the chunks after a
//! grace that is longer than the longest read (design.md §10.3).

use striate_core::StripeId;
use striate_meta::records::{
    self, Block, Copy, Garbage, GarbageChunk, ManifestSegment, Stripe, UploadPart, upload_part,
};
use striate_meta::{Transaction, keys};

use super::entry::{is_in_work, put_record, unnamed_of};
use crate::error::StripeError;
use crate::table::{StripeTable, holders, own_locations, stripe_id, wide_of};

/// See [`crate::Stripes::release_blocks`].
pub(crate) async fn release_blocks(
    table: &StripeTable,
    tx: &mut Transaction,
    blocks: &[Block],
) -> Result<(), StripeError> {
    let ids = blocks.iter().map(|block| stripe_id(&block.stripe)).collect::<Result<Vec<_>, _>>()?;
    let keys: Vec<_> = ids.iter().map(|&id| keys::stripe(id)).collect();
    let rows = table.meta().get_many(&keys).await?;
    for ((id, key), row) in ids.into_iter().zip(keys).zip(rows) {
        tx.require_unchanged(key, row.as_ref());
        if let Some(row) = row {
            release_stripe(tx, id, &row.record()?);
        }
    }
    Ok(())
}

/// See [`crate::Stripes::release_segment`].
pub(crate) fn release_segment(tx: &mut Transaction, segment: &ManifestSegment) {
    let Ok(id) = <[u8; 16]>::try_from(segment.id.as_ref()) else { return };
    let garbage = Garbage { segment: Some(segment.clone()), ..Garbage::default() };
    tx.put(keys::garbage(&id, tx.id.0), records::encode(&garbage));
}

/// Adds to `tx` the removal of a stripe: 4 writes, one more if its chunks are being changed, and one more if they
/// have copies. Such changes are fenced; their files, and the copies, become garbage too. A stripe whose chunks are
/// members of wide stripes becomes dead, and is removed once it has left them.
pub fn release_stripe(tx: &mut Transaction, id: StripeId, stripe: &Stripe) {
    release_and_leave_debt(tx, id, stripe);
    if !is_claimed(stripe) {
        tx.delete(keys::debt(id));
    }
}

/// Whether wide stripes have chunks of this stripe as members.
pub(super) fn is_claimed(stripe: &Stripe) -> bool {
    stripe.locations.iter().any(|at| wide_of(at).is_some())
}

/// Marks a stripe dead. Its wide stripes need its bytes, and repair maintains them, until they are removed from the
/// sums.
fn mark_dead(tx: &mut Transaction, id: StripeId, stripe: &Stripe) {
    let dead = Stripe { dead: true, copies: Vec::new(), ..stripe.clone() };
    put_record(tx, id, &dead, stripe);
    if !stripe.copies.is_empty() {
        add_garbage(tx, id, stripe.copies.iter().map(Copy::to_garbage).collect());
    }
}

/// As [`release_stripe`] with one write less, for many stripes in one transaction: repair drops the debt of a stripe
/// that is gone.
pub fn release_and_leave_debt(tx: &mut Transaction, id: StripeId, stripe: &Stripe) {
    if is_claimed(stripe) {
        return mark_dead(tx, id, stripe);
    }
    let holders = holders(stripe);
    tx.delete(keys::stripe(id));
    tx.delete(keys::reverse(keys::placement_of(holders), id));
    let chunks = own_locations(stripe).filter(|(_, location)| location.site != 0);
    let chunks = chunks.map(|(index, location)| location.to_garbage(index));
    let changing = stripe.entries.iter().flat_map(|entry| unnamed_of(stripe, entry));
    let copies = stripe.copies.iter().map(Copy::to_garbage);
    add_garbage(tx, id, chunks.chain(changing).chain(copies).collect());
    if is_in_work(stripe) {
        tx.delete(keys::change(id));
    }
    if !stripe.copies.is_empty() {
        tx.delete(keys::copies(id));
    }
}

/// Adds to `tx` a garbage row for some of a stripe's chunks.
pub fn add_garbage(tx: &mut Transaction, id: StripeId, chunks: Vec<GarbageChunk>) {
    let garbage = Garbage { stripe: id.to_bytes().to_vec().into(), chunks, ..Garbage::default() };
    tx.put(keys::garbage(&id.to_bytes(), tx.id.0), records::encode(&garbage));
}

/// See [`crate::Stripes::release_part`].
pub(crate) async fn release_part(
    table: &StripeTable,
    tx: &mut Transaction,
    part: &UploadPart,
) -> Result<(), StripeError> {
    match &part.body {
        // Its blocks are dropped after the commit.
        Some(upload_part::Body::Memory(_)) => Ok(()),
        Some(upload_part::Body::Blocks(list)) => release_blocks(table, tx, &list.blocks).await,
        Some(upload_part::Body::Segment(segment)) => {
            release_segment(tx, segment);
            Ok(())
        }
        None => Ok(()),
    }
}

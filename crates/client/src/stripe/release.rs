//! Release: un-naming stripes. Their rows go and garbage rows come in the same transaction; a deleter removes
//! the chunks after a grace that is longer than the longest read (design.md §10.3).

use striate_core::StripeId;
use striate_meta::records::{self, Block, Garbage, GarbageChunk, ManifestSegment, Stripe};
use striate_meta::{Transaction, keys};

use super::{Stripes, holders, stripe_id};
use crate::error::ClientError;

impl Stripes {
    /// Adds to `tx` what takes the stripes of at most [`super::MAX_LISTED_BLOCKS`] blocks down. Reads the
    /// stripe rows and requires them unchanged, so a conflict means: read again. A row that is gone already
    /// is required to stay absent.
    pub(crate) async fn release_blocks(
        &self,
        tx: &mut Transaction,
        blocks: &[Block],
    ) -> Result<(), ClientError> {
        let ids = blocks.iter().map(|block| stripe_id(&block.stripe)).collect::<Result<Vec<_>, _>>()?;
        let keys: Vec<_> = ids.iter().map(|&id| keys::stripe(id)).collect();
        let rows = self.shared.meta.get_many(&keys).await?;
        for ((id, key), row) in ids.into_iter().zip(keys).zip(rows) {
            tx.require_unchanged(key, row.as_ref());
            if let Some(row) = row {
                release_stripe(tx, id, &row.record()?);
            }
        }
        Ok(())
    }

    /// Adds to `tx` a garbage row for a whole segment; the deleter takes its rows down in batches.
    pub(crate) fn release_segment(&self, tx: &mut Transaction, segment: &ManifestSegment) {
        let Ok(id) = <[u8; 16]>::try_from(segment.id.as_ref()) else { return };
        let garbage = Garbage { segment: Some(segment.clone()), ..Garbage::default() };
        tx.put(keys::garbage(&id, tx.id.0), records::encode(&garbage));
    }
}

/// Adds to `tx` what takes a stripe down: 4 writes.
pub fn release_stripe(tx: &mut Transaction, id: StripeId, stripe: &Stripe) {
    let holders = holders(stripe);
    tx.delete(keys::stripe(id));
    tx.delete(keys::reverse(keys::placement_of(holders), id));
    tx.delete(keys::debt(id));
    let chunks = stripe.locations.iter().enumerate().filter(|(_, location)| location.site != 0);
    let chunks = chunks.map(|(index, location)| GarbageChunk {
        index: index as u32,
        site: location.site,
        generation: location.generation,
    });
    add_garbage(tx, id, chunks.collect());
}

/// Adds to `tx` a garbage row for some of a stripe's chunks.
pub fn add_garbage(tx: &mut Transaction, id: StripeId, chunks: Vec<GarbageChunk>) {
    let garbage = Garbage { stripe: id.to_bytes().to_vec().into(), chunks, segment: None };
    tx.put(keys::garbage(&id.to_bytes(), tx.id.0), records::encode(&garbage));
}

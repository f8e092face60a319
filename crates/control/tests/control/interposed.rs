//! Actions of other processes between two steps of a process.

use striate_control::{MoveOutcome, move_chunk};
use striate_core::StripeId;
use striate_meta::records::{self, GarbageChunk};
use striate_meta::{Commit, keys};
use striate_plan::movement::ChunkMove;
use striate_stripe::{Stripes, add_garbage};

/// Cancels the entries of a stripe, as any process may at any time: the files they name become garbage.
pub async fn cancel_entries(stripes: &Stripes, id: StripeId) {
    let stripe = stripes.find(id).await.unwrap().unwrap();
    let mut record = stripe.record;
    let entries = std::mem::take(&mut record.entries);
    assert!(!entries.is_empty(), "no change is under way");
    let files = entries.iter().flat_map(|entry| {
        let of = |place: &records::Place| GarbageChunk {
            index: place.index,
            site: place.site,
            generation: entry.generation,
        };
        entry.places.iter().map(of).collect::<Vec<_>>()
    });
    let mut tx = stripes.transaction();
    tx.require_unchanged(keys::stripe(id), Some(&stripe.row));
    add_garbage(&mut tx, id, files.collect());
    tx.put(keys::stripe(id), records::encode(&record)).delete(keys::change(id));
    assert!(matches!(stripes.meta().commit(tx).await.unwrap(), Commit::Done(_)));
}

/// Makes the first of these moves that succeeds; returns `false` if none does.
pub async fn move_first(stripes: &Stripes, moves: &[ChunkMove]) -> bool {
    for wanted in moves {
        if matches!(move_chunk(stripes, wanted).await.unwrap(), MoveOutcome::Moved { .. }) {
            return true;
        }
    }
    false
}

//! The last splits of cached blocks: a read that lacks only these waits for them a little longer than for the others
//! ([`striate_plan::cache::last_splits`]).
//!
//! Then they are late, once for each block, and others are requested in their place within the hedge budget. Unlike a
//! prediction, this needs no earlier reads. A split is never late for which there is no other.

use striate_codec::ChunkSet;
use striate_core::SiteId;
use striate_plan::cache::last_splits::{LAST_SPLITS, WAIT_SHARE};
use striate_runtime::{Instant, Runtime};

use super::located::LocatedQuery;
use super::requests::{RequestKey, TICK};

/// Waits for the last splits of the blocks of a query.
#[derive(Default)]
pub(super) struct LastSplits(Vec<LastWait>);

struct LastWait {
    /// Position of the block's piece in the query.
    piece: usize,
    until: Instant,
}

impl LastSplits {
    /// Begins the wait for the last splits of a block if the reply to a request leaves only these. The query began at
    /// `began`. Returns whether a wait began.
    pub(super) fn note_reply(
        &mut self,
        key: RequestKey,
        located: &LocatedQuery,
        began: Instant,
        runtime: &Runtime,
    ) -> bool {
        let stripe = &located.stripes[key.stripe];
        let k = stripe.stripe.code.k();
        let lacks_last = |piece: &usize| {
            let shape = &located.pieces[*piece].shape;
            let is_block = shape.wanted.len() == k && stripe.serves(key.position, shape);
            is_block && stripe.arrived(shape).len() + LAST_SPLITS == k
        };
        let Some(piece) = located.open_pieces_of(key.stripe).find(lacks_last) else { return false };
        let now = runtime.now();
        self.0.push(LastWait { piece, until: now + (now - began).mul_f64(WAIT_SHARE) + TICK });
        true
    }

    /// Returns when the first wait ends.
    pub(super) fn due(&self, located: &LocatedQuery) -> Option<Instant> {
        let open = self.0.iter().filter(|wait| located.pieces[wait.piece].is_open());
        open.map(|wait| wait.until).min()
    }

    /// Whether a request is for one of the last splits of a block, the wait for them has ended, and another split can
    /// be requested in its place.
    pub(super) fn is_late(
        &self,
        key: RequestKey,
        located: &LocatedQuery,
        now: Instant,
        can_be_asked: &dyn Fn(SiteId) -> bool,
    ) -> bool {
        let stripe = &located.stripes[key.stripe];
        let is_over = |wait: &&LastWait| {
            let piece = &located.pieces[wait.piece];
            let is_of_block = piece.stripe == key.stripe && stripe.serves(key.position, &piece.shape);
            wait.until <= now && piece.is_open() && is_of_block
        };
        self.0.iter().filter(is_over).any(|wait| {
            let piece = located.for_plan(wait.piece);
            let others: ChunkSet = piece.available(can_be_asked).collect();
            let mut rest: ChunkSet = piece.awaited.iter().chain(others.iter()).collect();
            rest.remove(stripe.chunk_of(key.position));
            !others.is_empty() && piece.code.determines(&rest, &piece.wanted)
        })
    }

    /// Forgets the waits that have ended.
    pub(super) fn forget(&mut self, now: Instant) {
        self.0.retain(|wait| wait.until > now);
    }
}

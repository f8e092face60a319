//! Moves in progress.
//!
//! Chunks leave slow sites slowly. The next round does not wait for the last of them: it plans with moving chunks in
//! their new places, and leaves their stripes alone.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;

use futures::future::{BoxFuture, Either, select};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use striate_core::StripeId;
use striate_plan::movement::ChunkMove;
use striate_stripe::StripeError;

/// Result of one stripe's moves: how many were made.
pub(super) type MovesResult = Result<u64, StripeError>;

/// Moves in progress of one mover. They advance only while this is driven. Dropping it stops them where they are,
/// which leaves chunks that nothing names.
#[derive(Debug, Default)]
pub struct ActiveMoves {
    making: FuturesUnordered<BoxFuture<'static, (StripeId, MovesResult)>>,
    of_stripes: BTreeMap<StripeId, StripeMoves>,
}

/// The moves of one stripe, and their bytes.
#[derive(Debug)]
struct StripeMoves {
    moves: Vec<ChunkMove>,
    bytes: u64,
}

/// Limit on further moves.
#[derive(Clone, Copy, Debug)]
pub(super) struct MoveLimit {
    /// Stripes whose chunks may move.
    pub stripes: usize,
    /// Bytes of chunks that may move. The last chunk may exceed it.
    pub bytes: u64,
}

impl ActiveMoves {
    /// Starts the moves of one stripe.
    pub(super) fn begin(
        &mut self,
        stripe: StripeId,
        moves: Vec<ChunkMove>,
        bytes: u64,
        making: impl Future<Output = MovesResult> + Send + 'static,
    ) {
        self.of_stripes.insert(stripe, StripeMoves { moves, bytes });
        self.making.push(making.map(move |result| (stripe, result)).boxed());
    }

    /// Returns what is left of `all`.
    pub(super) fn room(&self, all: MoveLimit) -> MoveLimit {
        let bytes: u64 = self.of_stripes.values().map(|moves| moves.bytes).sum();
        let stripes = all.stripes.saturating_sub(self.of_stripes.len());
        MoveLimit { stripes, bytes: all.bytes.saturating_sub(bytes) }
    }

    /// Returns all moves in progress.
    pub(super) fn moves(&self) -> Vec<ChunkMove> {
        self.of_stripes.values().flat_map(|moves| &moves.moves).copied().collect()
    }

    /// Drives the moves while waiting for `other`.
    pub async fn during<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = pin!(other);
        loop {
            if self.making.is_empty() {
                return other.await;
            }
            match select(other.as_mut(), self.making.next()).await {
                Either::Left((output, _)) => return output,
                Either::Right((ended, _)) => {
                    if let Some(Err(error)) = self.note(ended) {
                        tracing::warn!(%error, "moving a chunk closer to its readers failed; will retry");
                    }
                }
            }
        }
    }

    /// Drives all moves to their end, even if one fails; returns how many were made.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn finish(&mut self) -> Result<u64, StripeError> {
        let mut all = Ok(0);
        while let Some(ended) = self.making.next().await {
            let result = self.note(Some(ended)).unwrap_or(Ok(0));
            all = all.and_then(|sum| Ok(sum + result?));
        }
        all
    }

    fn note(&mut self, ended: Option<(StripeId, MovesResult)>) -> Option<MovesResult> {
        let (stripe, result) = ended?;
        self.of_stripes.remove(&stripe);
        Some(result)
    }
}

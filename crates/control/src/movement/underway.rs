//! Moves that were begun and have not ended.
//!
//! Chunks leave slow sites slowly. The next round does not wait for the last of them: it plans with what is under way in its
//! new place, and leaves those stripes alone.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;

use futures::future::{BoxFuture, Either, select};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use striate_core::StripeId;
use striate_plan::movement::ChunkMove;
use striate_stripe::StripeError;

/// What one stripe's moves came to: how many were made.
pub(super) type Made = Result<u64, StripeError>;

/// Moves under way, of one process that moves. They go on only while this is driven, and where it is dropped they end where
/// they are, which leaves chunks that nothing names.
#[derive(Debug, Default)]
pub struct Underway {
    making: FuturesUnordered<BoxFuture<'static, (StripeId, Made)>>,
    of_stripes: BTreeMap<StripeId, OfStripe>,
}

/// The moves of one stripe, and their bytes.
#[derive(Debug)]
struct OfStripe {
    moves: Vec<ChunkMove>,
    bytes: u64,
}

/// How much more may be begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Stripes whose chunks are moved.
    pub stripes: usize,
    /// Bytes of these chunks. The last one may go beyond.
    pub bytes: u64,
}

impl Underway {
    /// Begins the moves of one stripe.
    pub(super) fn begin(
        &mut self,
        stripe: StripeId,
        moves: Vec<ChunkMove>,
        bytes: u64,
        making: impl Future<Output = Made> + Send + 'static,
    ) {
        self.of_stripes.insert(stripe, OfStripe { moves, bytes });
        self.making.push(making.map(move |made| (stripe, made)).boxed());
    }

    /// What is left of `all`.
    pub(super) fn room(&self, all: Room) -> Room {
        let bytes: u64 = self.of_stripes.values().map(|of| of.bytes).sum();
        let stripes = all.stripes.saturating_sub(self.of_stripes.len());
        Room { stripes, bytes: all.bytes.saturating_sub(bytes) }
    }

    /// All moves under way.
    pub(super) fn moves(&self) -> Vec<ChunkMove> {
        self.of_stripes.values().flat_map(|of| &of.moves).copied().collect()
    }

    /// Drives the moves while something else is waited for.
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

    /// Drives the moves to their end, all of them, also when one fails; answers how many were made.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn finish(&mut self) -> Result<u64, StripeError> {
        let mut all = Ok(0);
        while let Some(ended) = self.making.next().await {
            let made = self.note(Some(ended)).unwrap_or(Ok(0));
            all = all.and_then(|sum| Ok(sum + made?));
        }
        all
    }

    fn note(&mut self, ended: Option<(StripeId, Made)>) -> Option<Made> {
        let (stripe, made) = ended?;
        self.of_stripes.remove(&stripe);
        Some(made)
    }
}

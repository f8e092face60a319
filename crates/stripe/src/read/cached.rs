//! Blocks that are cached: what a query knows of them, and what it tells.
//!
//! A cached block is read as a stripe of its own, of the memory tier: its data splits are the block, its parities serve as any
//! parities do. Nothing names it but its content ([`striate_core::cached`]), so it has no row, and what is missing of it is no
//! damage. Where too few of its splits can be had, what did not come is read from where the block is kept, in the same query.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use striate_codec::ChunkSet;
use striate_core::Tier;
use striate_meta::records::Block;

use super::span::{MemoryBlock, Span};
use crate::error::StripeError;
use crate::table::OpenedStripe;

/// What a query finds cached.
#[derive(Default)]
pub struct FoundCached {
    /// The cached form of each span's block or extent; `None` where it is read from where it is kept. Empty if that is everywhere.
    pub forms: Vec<Option<Arc<OpenedStripe>>>,
    /// Dropped when the query has ended, however it ends: what was expected of it and has not come by then is given up.
    pub expected: Option<Box<dyn Send>>,
}

/// What knows which blocks are cached.
pub trait BlockCache: Send + Sync {
    /// What of the spans is cached. Called once for a query, before anything else is looked up.
    fn find<'a>(&'a self, spans: &'a [Span]) -> BoxFuture<'a, FoundCached>;

    /// What a read of each block or extent would find cached, in words, and why not where it would not. Asks memory sites whether they still
    /// have the blocks that this process knows, as far as there are not too many.
    fn explain<'a>(&'a self, of: &'a [Span]) -> BoxFuture<'a, Vec<String>>;

    /// A block was written, with these bytes. Nothing may name it yet.
    fn written(&self, block: &Block, bytes: &Bytes);

    /// Puts a block into memory, where it is the only one, with so many parities; it may be split into as many as `most_splits`.
    ///
    /// # Errors
    /// [`StripeError::TooFewSites`] where no memory sites take it.
    fn keep(
        &self,
        bytes: Bytes,
        most_splits: usize,
        parities: usize,
    ) -> BoxFuture<'_, Result<MemoryBlock, StripeError>>;

    /// Nothing names a block any more that was in memory only.
    fn forget(&self, block: MemoryBlock, cause: Invalidation);

    /// A span was read, with these bytes.
    fn served(&self, span: &Span, bytes: &[Bytes], from: ServedFrom);

    /// A span could not be read.
    fn failed(&self, span: &Span, error: &StripeError);
}

/// Why what is in memory is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// Its object was deleted.
    Deleted,
    /// Another object has taken its object's place.
    Overwritten,
}

/// Where reads look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// For cached forms first.
    Nearest,
    /// Where things are kept.
    Kept,
}

/// Where a span's bytes came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedFrom {
    /// All of them from its cached form.
    Cache {
        /// Data splits that their sites said they do not have.
        missing: ChunkSet,
    },
    /// So many of them from its cached form, of which splits were missing, or all.
    Both {
        /// Bytes.
        cached: u64,
    },
    /// From where it is kept: no cached form is known.
    Store,
}

impl OpenedStripe {
    /// Whether it is the cached form of a block.
    pub(crate) fn is_cached(&self) -> bool {
        self.profile.tier == Tier::Memory
    }
}

//! Cached blocks: how a query finds them, and what it reports to the cache.
//!
//! A cached block is read as a stripe of its own in the memory tier: its data splits make up the block, and its
//! parities serve as any parities do. Its name is derived from its content ([`striate_core::cached`]), so it has no
//! row, and a missing split is not damage. When too few of its splits are available, the rest is read from the
//! durable copy, in the same query.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use striate_codec::ChunkSet;
use striate_core::Tier;
use striate_meta::records::Block;

use super::span::{MemoryBlock, Span};
use crate::error::StripeError;
use crate::table::OpenedStripe;

/// Cached forms that a query found.
#[derive(Default)]
pub struct CachedForms {
    /// Cached form of each span's block or extent; `None` where the span is read from its durable copy. Empty if no
    /// span is cached.
    pub forms: Vec<Option<Arc<OpenedStripe>>>,
    /// Dropped when the query ends, however it ends: the cache then gives up what it expected of the query.
    pub expected: Option<Box<dyn Send>>,
}

/// What a read of a block or extent would find cached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedExplanation {
    /// Whether all of it would come from memory, as far as is known.
    pub is_in_memory: bool,
    /// The state as text, and why it is not in memory if it is not.
    pub text: String,
}

/// Knows which blocks are cached.
pub trait BlockCache: Send + Sync {
    /// Finds the cached forms of the spans. Called once per query, before any other look-up.
    fn find<'a>(&'a self, spans: &'a [Span]) -> BoxFuture<'a, CachedForms>;

    /// Explains what a read of each block or extent would find cached, and otherwise why it would find nothing. Asks
    /// memory sites whether they still have the blocks that this process knows, unless there are too many.
    fn explain<'a>(&'a self, spans: &'a [Span]) -> BoxFuture<'a, Vec<CachedExplanation>>;

    /// Offers a block that was written with these bytes. Metadata need not name it yet.
    fn written(&self, block: &Block, bytes: &Bytes);

    /// Puts a block into memory, as its only copy, in at most `most_splits` splits with `parities` parities.
    ///
    /// # Errors
    /// [`StripeError::TooFewSites`] when too few memory sites take it.
    fn keep(
        &self,
        bytes: Bytes,
        most_splits: usize,
        parities: usize,
    ) -> BoxFuture<'_, Result<MemoryBlock, StripeError>>;

    /// Drops a block that was in memory only and that no metadata names any more.
    fn forget(&self, block: MemoryBlock, cause: Invalidation);

    /// Reports that a span was read, with these bytes.
    fn served(&self, span: &Span, bytes: &[Bytes], from: ServedFrom);

    /// Reports that a span could not be read.
    fn failed(&self, span: &Span, error: &StripeError);
}

/// Why a block in memory is no longer needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// Its object was deleted.
    Deleted,
    /// Another object has replaced its object.
    Overwritten,
    /// Its put failed, or its part was abandoned.
    Abandoned,
}

/// Where a read looks first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Cached forms, then durable copies.
    Nearest,
    /// As [`Source::Nearest`], but the cache is not told of the read.
    NearestUntold,
    /// Durable copies only.
    Durable,
}

/// Where a span's bytes came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedFrom {
    /// All bytes from its cached form.
    Cache {
        /// Data splits that their sites reported missing.
        missing: ChunkSet,
    },
    /// Part of the bytes from its cached form, which lacked some or all splits; the rest from the durable copy.
    Both {
        /// Bytes from the cached form.
        cached: u64,
    },
    /// All bytes from the durable copy: no cached form is known.
    Store,
}

impl OpenedStripe {
    /// Whether this is the cached form of a block.
    pub(crate) fn is_cached(&self) -> bool {
        self.profile.tier == Tier::Memory
    }
}

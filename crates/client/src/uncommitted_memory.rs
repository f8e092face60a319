//! Blocks that were put into memory, and nowhere else, until a commit names them.

use striate_meta::records::MemoryBlocks;
use striate_stripe::{Invalidation, MemoryBlock, Stripes};

use crate::ClientError;
use crate::commit::CommitFailure;

/// Blocks in memory that wait for the commit that names them. Dropped before it begins, or after it has failed, they
/// are freed.
pub(crate) struct UncommittedMemory {
    stripes: Stripes,
    blocks: Vec<MemoryBlock>,
    may_be_named: bool,
}

impl UncommittedMemory {
    pub(crate) fn new(stripes: Stripes, block: MemoryBlock) -> Self {
        Self { stripes, blocks: vec![block], may_be_named: false }
    }

    /// Adds the blocks of `more`, which follow in the body.
    pub(crate) fn append(&mut self, mut more: Self) {
        self.blocks.append(&mut more.blocks);
    }

    /// Returns the records of the blocks.
    pub(crate) fn list(&self) -> MemoryBlocks {
        MemoryBlocks { blocks: self.blocks.iter().map(Into::into).collect() }
    }

    /// Prepares for the commit; call it before submitting.
    pub(crate) fn committing(&mut self) {
        self.may_be_named = true;
    }

    /// Keeps the blocks after the commit, unless it certainly did not happen.
    ///
    /// # Errors
    /// The error of the commit.
    pub(crate) fn settle<T>(mut self, outcome: Result<T, CommitFailure>) -> Result<T, ClientError> {
        self.may_be_named = outcome.as_ref().err().is_none_or(|failure| failure.unknown);
        outcome.map_err(CommitFailure::into_error)
    }
}

impl Drop for UncommittedMemory {
    fn drop(&mut self) {
        if !self.may_be_named {
            self.stripes.forget_in_memory(&self.list().blocks, Invalidation::Abandoned);
        }
    }
}

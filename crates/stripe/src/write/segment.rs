//! Segments: the block rows of large objects.
//!
//! A put of many blocks cannot name them all in one transaction (design.md §10.8). It opens a *pending segment*, and
//! commits stripe and block rows in batches while it runs. The final commit only flips one row: it removes the
//! pending row and writes the object that names the segment. Deleting the pending row fences the writer; the process
//! that does so makes the segment's rows garbage.

use bytes::Bytes;
use striate_meta::records::{self, ManifestSegment};
use striate_meta::{Commit, Precondition, Transaction, keys};

use super::put::{PutSession, StoredBlock, fenced};
use super::release::release_segment;
use crate::error::StripeError;

/// Number of blocks whose rows are committed together: up to 6 operations each, plus some for the segment and its
/// intents.
const BATCH: usize = 15;

/// A run of blocks with rows of their own.
pub struct SegmentWriter {
    id: [u8; 16],
    block_len: u32,
    block_count: u32,
    size: u64,
    waiting: Vec<StoredBlock>,
}

impl SegmentWriter {
    /// Opens a segment for a put of many blocks.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn open(session: &PutSession, block_len: u32) -> Result<Self, StripeError> {
        let shared = &session.writes().shared;
        loop {
            let registered = shared.writer.registered();
            let mut tx = session.writes().shared.table.transaction();
            let id = tx.id.0.to_be_bytes();
            let record = records::PendingSegment { writer: registered.id, lease: registered.lease.0 };
            tx.require(Precondition::LeaseAlive(registered.lease));
            tx.put(keys::pending(&id), records::encode(&record));
            if let Commit::Done(_) = shared.table.meta().commit(tx).await? {
                return Ok(Self {
                    id,
                    block_len,
                    block_count: 0,
                    size: 0,
                    waiting: Vec::with_capacity(BATCH),
                });
            }
            shared.writer.register_again(registered).await?;
        }
    }

    /// Adds the next block, and commits a batch of rows when it is full.
    pub async fn append(&mut self, session: &PutSession, block: StoredBlock) -> Result<(), StripeError> {
        self.size += u64::from(block.block.len);
        self.waiting.push(block);
        if self.waiting.len() == BATCH {
            self.flush(session).await?;
        }
        Ok(())
    }

    async fn flush(&mut self, session: &PutSession) -> Result<(), StripeError> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        session.ensure_placed(&self.waiting).await?;
        let mut tx = session.writes().shared.table.transaction();
        tx.require(Precondition::Exists(keys::pending(&self.id)));
        session.name_blocks(&mut tx, &self.waiting);
        for stored in &self.waiting {
            tx.put(keys::block(&self.id, self.block_count), records::encode(&stored.block));
            self.block_count += 1;
        }
        if let Err(error) = commit(session, tx).await {
            session.forget_placed(&self.waiting);
            return Err(error);
        }
        session.settle(&self.waiting);
        self.waiting.clear();
        Ok(())
    }

    /// Commits the last batch. No object or part names the segment yet.
    pub async fn finish(&mut self, session: &PutSession) -> Result<ManifestSegment, StripeError> {
        self.flush(session).await?;
        Ok(self.manifest())
    }

    /// Describes the blocks committed so far.
    fn manifest(&self) -> ManifestSegment {
        ManifestSegment {
            id: Bytes::copy_from_slice(&self.id),
            size: self.size,
            block_count: self.block_count,
            block_len: self.block_len,
        }
    }

    /// Adds to `tx` the removal of the pending row, so that the finished segment belongs to the object or part that
    /// `tx` writes.
    pub fn name(&self, tx: &mut Transaction) {
        tx.require(Precondition::Exists(keys::pending(&self.id)));
        tx.delete(keys::pending(&self.id));
    }

    /// Gives the segment up: its rows become garbage. Blocks that wait for a batch still belong to the session.
    pub async fn abandon(self, session: &PutSession) -> Result<(), StripeError> {
        let mut tx = session.writes().shared.table.transaction();
        self.name(&mut tx);
        release_segment(&mut tx, &self.manifest());
        commit(session, tx).await
    }
}

async fn commit(session: &PutSession, tx: Transaction) -> Result<(), StripeError> {
    match session.writes().shared.table.meta().commit(tx).await? {
        Commit::Done(_) => Ok(()),
        Commit::Conflict { .. } => Err(fenced()),
    }
}

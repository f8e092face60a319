//! Segments: the block rows of large objects.
//!
//! A put of many blocks cannot name them all in one transaction (design.md §10.8). It opens a *pending segment*, and
//! commits stripe and block rows in batches while it runs. The final commit only flips one row: it removes the
//! pending row and writes the object that names the segment. Deleting the pending row fences the writer; the process
//! that does so makes the segment's rows garbage. A writer does this for each segment that it drops unnamed, however
//! its put ended: if the final commit has happened after all, there is no pending row any more.

use std::time::Duration;

use bytes::Bytes;
use striate_meta::records::{self, ManifestSegment};
use striate_meta::{Commit, MetaError, Precondition, Transaction, keys};

use super::put::{PutSession, StoredBlock, fenced};
use super::release::release_segment;
use super::writes::Writes;
use crate::error::StripeError;

/// Number of blocks whose rows are committed together: up to 6 operations each, plus some for the segment and its
/// intents.
const BATCH: usize = 15;
/// Initial pause after a segment could not be given up; it doubles up to `LONGEST_PAUSE`.
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A run of blocks with rows of their own. Dropped before an object or part names it, it is given up in the background.
pub struct SegmentWriter {
    writes: Writes,
    id: [u8; 16],
    /// True once a commit has named it or given it up.
    has_ended: bool,
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
            // Before the commit, whose outcome may stay unknown.
            let segment = Self {
                writes: session.writes().clone(),
                id,
                has_ended: false,
                block_len,
                block_count: 0,
                size: 0,
                waiting: Vec::with_capacity(BATCH),
            };
            if let Commit::Done(_) = shared.table.meta().commit(tx).await? {
                return Ok(segment);
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

    /// Ends the segment after the commit that names it.
    pub fn named(mut self) {
        self.has_ended = true;
    }

    /// Gives the segment up: its rows become garbage. Blocks that wait for a batch still belong to the session.
    ///
    /// # Errors
    /// When the metadata store fails; the segment is then given up in the background.
    pub async fn abandon(mut self) -> Result<(), StripeError> {
        give_up(&self.writes, self.id, &self.manifest()).await?;
        self.has_ended = true;
        Ok(())
    }
}

impl Drop for SegmentWriter {
    /// Gives the segment up in the background, retrying while the metadata store fails. No other process does so while
    /// this one lives.
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let (writes, id, segment) = (self.writes.clone(), self.id, self.manifest());
        self.writes.shared.runtime.spawn(async move {
            let mut pause = PAUSE;
            while let Err(error) = give_up(&writes, id, &segment).await {
                tracing::debug!(%error, "giving up a segment failed; will retry");
                writes.shared.runtime.sleep(pause).await;
                pause = LONGEST_PAUSE.min(2 * pause);
            }
        });
    }
}

/// Makes the rows of a segment garbage, unless something names it, or it was given up already.
async fn give_up(writes: &Writes, id: [u8; 16], segment: &ManifestSegment) -> Result<(), MetaError> {
    let mut tx = writes.shared.table.transaction();
    tx.require(Precondition::Exists(keys::pending(&id))).delete(keys::pending(&id));
    release_segment(&mut tx, segment);
    writes.shared.table.meta().commit(tx).await.map(drop)
}

async fn commit(session: &PutSession, tx: Transaction) -> Result<(), StripeError> {
    match session.writes().shared.table.meta().commit(tx).await? {
        Commit::Done(_) => Ok(()),
        Commit::Conflict { .. } => Err(fenced()),
    }
}

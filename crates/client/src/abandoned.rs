//! Abandoned parts: part rows that belong to no object or upload any more.
//!
//! An abort, a completion that leaves parts out, and the end of a multipart object may concern 10,000 parts,
//! too many for one transaction. They leave one row that names the parts; a collector takes them down one by
//! one, each in a transaction that removes the part's row and makes its chunks garbage, and removes the row
//! last. So a crash at any point leaves work, never a leak.

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use striate_meta::records::{self, UploadPart, upload_part};
use striate_meta::{Row, ScanRange, Transaction, keys};

use crate::commit::CommitFailure;
use crate::record::id16;
use crate::{Client, ClientError};

/// Part rows read at once.
const PAGE: usize = 128;
/// Parts taken down at the same time.
const CONCURRENT: usize = 8;

/// Parts that are to be taken down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbandonedParts {
    /// Names this piece of work; the same at every look.
    pub row: Bytes,
    upload: [u8; 16],
    /// Empty for all parts of the upload.
    numbers: Vec<u32>,
}

impl Client {
    /// Parts that wait to be taken down: at most `limit` pieces of work after the row `after`. Readers of an
    /// object that was just replaced may still be looking at its parts: a collector lets a grace pass
    /// between the first sight of a piece of work and [`Client::take_down`].
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn abandoned_parts(
        &self,
        after: Option<&AbandonedParts>,
        limit: usize,
    ) -> Result<Vec<AbandonedParts>, ClientError> {
        let mut range = ScanRange::prefix(keys::ABANDONED);
        if let Some(after) = after {
            range.start = [&after.row[..], b"\0"].concat().into();
        }
        let rows = self.inner.meta.scan(range, limit).await?;
        let abandoned = |row: Row| {
            let record: records::AbandonedParts = row.record()?;
            let upload = id16(&record.upload, "abandoned parts")?;
            Ok(AbandonedParts { row: row.key, upload, numbers: record.numbers })
        };
        rows.into_iter().map(abandoned).collect()
    }

    /// Takes the parts down: their rows go and their chunks become garbage. May be repeated at any point.
    /// Answers how many parts went.
    ///
    /// # Errors
    /// When the metadata store fails; what was done stays done.
    pub async fn take_down(&self, abandoned: &AbandonedParts) -> Result<usize, ClientError> {
        let mut taken = 0;
        if abandoned.numbers.is_empty() {
            loop {
                let rows =
                    self.inner.meta.scan(ScanRange::prefix(&keys::parts(&abandoned.upload)), PAGE).await?;
                if rows.is_empty() {
                    break;
                }
                taken += self.take_down_rows(rows).await?;
            }
        }
        for numbers in abandoned.numbers.chunks(PAGE) {
            let keys: Vec<_> = numbers.iter().map(|&number| keys::part(&abandoned.upload, number)).collect();
            let rows = self.inner.meta.get_many(&keys).await?;
            taken += self.take_down_rows(rows.into_iter().flatten().collect()).await?;
        }
        let mut tx = self.transaction();
        tx.delete(abandoned.row.clone());
        self.commit_rows(tx).await.map_err(CommitFailure::into_error)?;
        Ok(taken)
    }

    async fn take_down_rows(&self, rows: Vec<Row>) -> Result<usize, ClientError> {
        let count = rows.len();
        let parts = rows.into_iter().map(|row| self.take_down_part(row));
        stream::iter(parts).buffer_unordered(CONCURRENT).try_collect::<()>().await?;
        Ok(count)
    }

    /// A conflict means that somebody else took it down or moved a chunk of it: read again.
    async fn take_down_part(&self, row: Row) -> Result<(), ClientError> {
        let mut row = row;
        for attempt in 0.. {
            let part: UploadPart = row.record()?;
            let mut tx = self.transaction();
            tx.require_unchanged(row.key.clone(), Some(&row));
            tx.delete(row.key.clone());
            self.release_part(&mut tx, &part).await?;
            if self.commit_rows(tx).await.map_err(CommitFailure::into_error)? {
                break;
            }
            self.back_off(attempt).await;
            match self.inner.meta.get(&row.key).await? {
                Some(now) => row = now,
                None => break,
            }
        }
        Ok(())
    }

    /// Adds to `tx` what makes a part's chunks garbage.
    pub(crate) async fn release_part(
        &self,
        tx: &mut Transaction,
        part: &UploadPart,
    ) -> Result<(), ClientError> {
        match &part.body {
            Some(upload_part::Body::Blocks(list)) => {
                self.inner.stripes.release_blocks(tx, &list.blocks).await
            }
            Some(upload_part::Body::Segment(segment)) => {
                self.inner.stripes.release_segment(tx, segment);
                Ok(())
            }
            None => Ok(()),
        }
    }
}

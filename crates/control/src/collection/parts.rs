//! Abandoned parts: part rows that belong to no object or upload any more.
//!
//! An abort, a completion that leaves parts out, and the deletion of a multipart object may affect 10,000 parts, too
//! many for one transaction. Each leaves one row that names the parts. This collector releases the parts one by one,
//! each in a transaction that deletes the part's row and makes its chunks garbage, and deletes the naming row last.
//! So a crash at any point leaves work, never a leak. The memory of a part in a volatile bucket is freed after its
//! transaction; what a crash leaves there is evicted in time.

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use striate_meta::records::{self, UploadPart};
use striate_meta::{Commit, Row, ScanRange, keys};
use striate_stripe::{Invalidation, StripeError, Stripes, id16};

/// Part rows read at once.
const PAGE: usize = 128;
/// Parts released concurrently.
const CONCURRENT: usize = 8;

/// Parts to be released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbandonedParts {
    /// Key of the row that names the parts; the same in every pass.
    pub row: Bytes,
    upload: [u8; 16],
    /// Empty for all parts of the upload.
    numbers: Vec<u32>,
}

/// Returns the parts to be released: at most `limit` work items after the row `after`. Readers of an object that was
/// just replaced may still be reading its parts: the caller lets a grace pass between first seeing an item and
/// calling [`take_down`].
///
/// # Errors
/// When the metadata store fails.
pub async fn abandoned_parts(
    stripes: &Stripes,
    after: Option<&AbandonedParts>,
    limit: usize,
) -> Result<Vec<AbandonedParts>, StripeError> {
    let mut range = ScanRange::prefix(keys::ABANDONED);
    if let Some(after) = after {
        range.start = [&after.row[..], b"\0"].concat().into();
    }
    let rows = stripes.meta().scan(range, limit).await?;
    let abandoned = |row: Row| {
        let record: records::AbandonedParts = row.record()?;
        let upload = id16(&record.upload, "abandoned parts")?;
        Ok(AbandonedParts { row: row.key, upload, numbers: record.numbers })
    };
    rows.into_iter().map(abandoned).collect()
}

/// Deletes the parts' rows and makes their chunks garbage. Returns the number of parts released. May be repeated at
/// any point; work done before an error remains.
///
/// # Errors
/// When the metadata store fails.
pub async fn take_down(stripes: &Stripes, abandoned: &AbandonedParts) -> Result<usize, StripeError> {
    let mut removed = 0;
    if abandoned.numbers.is_empty() {
        loop {
            let rows = stripes.meta().scan(ScanRange::prefix(&keys::parts(&abandoned.upload)), PAGE).await?;
            if rows.is_empty() {
                break;
            }
            removed += take_down_rows(stripes, rows).await?;
        }
    }
    for numbers in abandoned.numbers.chunks(PAGE) {
        let keys: Vec<_> = numbers.iter().map(|&number| keys::part(&abandoned.upload, number)).collect();
        let rows = stripes.meta().get_many(&keys).await?;
        removed += take_down_rows(stripes, rows.into_iter().flatten().collect()).await?;
    }
    let mut tx = stripes.transaction();
    tx.delete(abandoned.row.clone());
    stripes.meta().commit(tx).await?;
    Ok(removed)
}

async fn take_down_rows(stripes: &Stripes, rows: Vec<Row>) -> Result<usize, StripeError> {
    let count = rows.len();
    let parts = rows.into_iter().map(|row| take_down_part(stripes, row));
    stream::iter(parts).buffer_unordered(CONCURRENT).try_collect::<()>().await?;
    Ok(count)
}

/// On a conflict, another process released the part or moved one of its chunks: the row is read again.
async fn take_down_part(stripes: &Stripes, mut row: Row) -> Result<(), StripeError> {
    loop {
        let part: UploadPart = row.record()?;
        let mut tx = stripes.transaction();
        tx.require_unchanged(row.key.clone(), Some(&row));
        tx.delete(row.key.clone());
        stripes.release_part(&mut tx, &part).await?;
        if let Commit::Done(_) = stripes.meta().commit(tx).await? {
            stripes.forget_part(&part, Invalidation::Abandoned);
            return Ok(());
        }
        match stripes.meta().get(&row.key).await? {
            Some(now) => row = now,
            None => return Ok(()),
        }
    }
}
